"""Member ids that clients were given and have not joined with (KIP-394): bounded over all groups of a broker.

Strategy: `ClassicGroup.pending` has the ids of a group. If there are too many in total, the oldest id of the client
with the most is forgotten (`limits.shares`). A client that joins with it later is told that it is unknown, and asks for
another one.
Rules: only these methods change `pending`.
"""

from __future__ import annotations

from typing import Final

from pylogd.base.limits.shares import Places, Share
from pylogd.broker.groups.group import ClassicGroup

#: The most ids that are kept.
MOST_PENDING: Final = 20_000


class PendingIds:
    """The ids of all groups of a broker."""

    def __init__(self, most: int = MOST_PENDING) -> None:
        self._most = most
        self._places: Places[tuple[ClassicGroup, str]] = Places()

    def __len__(self) -> int:
        return len(self._places)

    def add(self, group: ClassicGroup, member_id: str, deadline: float, share: Share) -> None:
        """Keep an id until `deadline`, in the clock's seconds.

        share: the share of the client that gets it.
        """
        group.pending[member_id] = deadline
        self._places.enter((group, member_id), share.name, known=share.known)
        while len(self._places) > self._most:
            self.take(*self._places.gives_way())

    def take(self, group: ClassicGroup, member_id: str) -> bool:
        """Remove an id. Return False if there is no such id."""
        self._places.leave((group, member_id))
        return group.pending.pop(member_id, None) is not None

    def expire(self, group: ClassicGroup, now: float) -> None:
        """Remove the ids of a group whose time is over; all of them if `now` is infinite."""
        for member_id in [member_id for member_id, at in group.pending.items() if at <= now]:
            self.take(group, member_id)
