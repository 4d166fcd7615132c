"""How many array elements a request, or a reply, may have.

An element takes one to a few bytes in a frame, and hundreds as an object. So a count that is within the limit on the
size of frames can still cost much more memory and time than the frame. The codec compares each count with what is left
of the bound before it builds the elements (`wire.stream.Cursor.elements_left`), and refuses the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

#: The bound where no setting is at hand, such as for the replies that a client decodes.
MAX_ELEMENTS: Final = 1_000_000

#: A request with more elements is decoded in a thread: so many take some milliseconds.
AT_ONCE: Final = 1_000

#: Bounds, by API key, of APIs whose requests name only a few things however large the cluster is.
NARROW: Final[Mapping[int, int]] = MappingProxyType(
    {
        11: 1_000,  # JoinGroup: the assignment protocols of one member
        16: 1_000,  # ListGroups: filters by state and type
        18: 1_000,  # ApiVersions
        22: 1_000,  # InitProducerId
        60: 1_000,  # DescribeCluster
    }
)


#: Bounds, by API key, of replies that grow with the cluster, where `MAX_ELEMENTS` is too few.
WIDE: Final[Mapping[int, int]] = MappingProxyType(
    {3: 10_000_000}  # Metadata: of all topics it has 7 for each partition with three replicas
)


def most_in_reply(api_key: int) -> int:
    """Return how many elements all arrays of a reply may have together."""
    return WIDE.get(api_key, MAX_ELEMENTS)


class ElementBounds(NamedTuple):
    """The bounds of all APIs. most: the general one (`request.max.elements`)."""

    most: int = MAX_ELEMENTS

    def of(self, api_key: int) -> int:
        """Return how many elements all arrays of a request may have together. A tagged field counts as one too."""
        return min(self.most, NARROW.get(api_key, self.most))


@lru_cache(maxsize=16)
def element_bounds(most: int) -> ElementBounds:
    """Return the bounds with that general one: one object for all connections."""
    return ElementBounds(most)
