"""The memory of committed offsets. It is bounded for all groups of a broker, for each client, and for unknown clients.

Strategy: bytes that a commit adds are counted at once, for the client that made the group; bytes that are removed are
not. When a bound seems to be reached, all bytes are counted again, at most once in some seconds. So a commit costs only
an addition.

Rules: a commit that adds nothing, such as one of known partitions, is never refused. One client may have a quarter of
all, and clients that have not authenticated half of all together (`limits.bounds`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from twisted.logger import Logger

from pylogd.base.limits.bounds import Bound
from pylogd.base.limits.log_lines import LimitedLog
from pylogd.base.limits.shares import Share
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.records import Committed, PartitionId

log = Logger()

#: The approximate bytes of an offset without its metadata.
OFFSET_BYTES: Final = 250
_RECOUNT_SECONDS: Final = 10.0


class OffsetMemory:
    """Counts the bytes of committed offsets.

    makers: knows who has made a group.
    """

    def __init__(
        self, most: Callable[[], int], makers: Bound, groups: Callable[[], Iterable[ClassicGroup]],
        seconds: Callable[[], float],
    ) -> None:  # fmt: skip
        """Arguments:

        most: returns the bound in bytes.
        groups: returns all groups.
        seconds: a monotonic clock.
        """
        self._most = most
        self._makers = makers
        self._groups = groups
        self._seconds = seconds
        self._total = self._of_strangers = 0
        self._by_maker: Counter[Share] = Counter()
        self._next_count = float("-inf")
        self._limited = LimitedLog(log, 10, clock=seconds)

    def admits(self, group: ClassicGroup, offsets: Sequence[tuple[PartitionId, Committed]]) -> bool:
        """Count what these offsets add and return True; or log why they may not be added, and return False."""
        size = _added(group, offsets)
        if not size:
            return True
        maker = self._makers.maker(group.group_id)
        reason = self._reason(maker, size)
        if reason and self._seconds() >= self._next_count:
            self._count()
            reason = self._reason(maker, size)
        if reason:
            self._limited.warn(
                "Refused to commit offsets of group {group!r}: {reason}. Raise the bound, or find out who commits so "
                "many", event="commits refused", group=group.group_id[:100], reason=reason,
            )  # fmt: skip
            return False
        self._add(maker, size)
        return True

    def _reason(self, maker: Share, size: int) -> str:
        most = self._most()
        if self._total + size > most:
            return f"group.offsets.max.bytes={most} is reached"
        if maker.name and self._by_maker[maker] + size > most // 4:
            return f"a quarter of group.offsets.max.bytes={most} is used by groups that {maker.name} has made"
        if not maker.known and self._of_strangers + size > most // 2:
            return f"half of group.offsets.max.bytes={most} is used by clients that have not authenticated"
        return ""

    def _add(self, maker: Share, size: int) -> None:
        self._total += size
        if maker.name:
            self._by_maker[maker] += size
        self._of_strangers += 0 if maker.known else size

    def _count(self) -> None:
        self._next_count = self._seconds() + _RECOUNT_SECONDS
        self._total = self._of_strangers = 0
        self._by_maker.clear()
        for group in self._groups():
            size = sum(OFFSET_BYTES + len(one.metadata) for one in group.offsets.committed.values())
            if size:
                self._add(self._makers.maker(group.group_id), size)


def _added(group: ClassicGroup, offsets: Sequence[tuple[PartitionId, Committed]]) -> int:
    """Return how many bytes the group would gain."""
    size, known = 0, group.offsets.committed
    for partition, committed in offsets:
        before = known.get(partition)
        if before is None:
            size += OFFSET_BYTES + len(committed.metadata)
        elif len(committed.metadata) > len(before.metadata):
            size += len(committed.metadata) - len(before.metadata)
    return size
