"""How many array elements a request, or a reply, may have.

An element takes one to a few bytes in a frame, and hundreds as an object. So a count that is within the limit on the
size of frames can still cost much more memory and time than the frame. Before the codec builds the elements of an
array, it compares their number with the rest of the bound (`wire.stream.Cursor.elements_left`), and refuses the request
if there are too many.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

#: The bound without a setting, such as for the replies that a client decodes.
MAX_ELEMENTS: Final = 1_000_000

#: A request with more elements is decoded in a thread, since this takes some milliseconds.
AT_ONCE: Final = 1_000

#: Bounds, by API key, of APIs whose requests name only a few things even in a large cluster.
NARROW: Final[Mapping[int, int]] = MappingProxyType(
    {
        11: 1_000,  # JoinGroup: the assignment protocols of one member
        16: 1_000,  # ListGroups: filters by state and type
        18: 1_000,  # ApiVersions
        22: 1_000,  # InitProducerId
        60: 1_000,  # DescribeCluster
    }
)


#: Bounds, by API key, of replies that grow with the cluster, for which `MAX_ELEMENTS` is too low.
WIDE: Final[Mapping[int, int]] = MappingProxyType(
    {3: 10_000_000}  # Metadata: all topics have 7 elements for each partition with three replicas
)


def most_in_reply(api_key: int) -> int:
    """Return how many elements all arrays of a reply may have together."""
    return WIDE.get(api_key, MAX_ELEMENTS)


class ElementBounds(NamedTuple):
    """The bounds of all APIs.

    most: the general bound (`request.max.elements`).
    """

    most: int = MAX_ELEMENTS

    def of(self, api_key: int) -> int:
        """Return how many elements all arrays of a request may have together. A tagged field counts as one too."""
        return min(self.most, NARROW.get(api_key, self.most))


@lru_cache(maxsize=16)
def element_bounds(most: int) -> ElementBounds:
    """Return the bounds with this general bound; all connections share one object."""
    return ElementBounds(most)
