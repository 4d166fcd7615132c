"""What both faces' consumers decide alike, without I/O: which options there are, and what a commit is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pylogd.client.core.consumer.assigned import Positions
from pylogd.client.core.consumer.reader import Handed
from pylogd.client.core.group.sharing import Holdings
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition

ResetTo = Literal["earliest", "latest", "none"]
Offset = int | OffsetAndMetadata
#: to commit, by partition
Offsets = Mapping[TopicPartition, Offset] | Mapping[tuple[str, int], Offset]


def check_options(*, auto_offset_reset: str, auto_commit: str, isolation_level: str, coordinator: str) -> None:
    """ValueError: one that is none."""
    _check(auto_offset_reset, ("earliest", "latest", "none"), "auto_offset_reset")
    _check(auto_commit, ("after", "before", "off"), "auto_commit")
    _check(isolation_level, ("read_uncommitted", "read_committed"), "isolation_level")
    _check(coordinator, ("broker", "zookeeper"), "coordinator")


def _check(value: str, allowed: Sequence[str], name: str) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {', '.join(allowed[:-1])} or {allowed[-1]}, not {value!r}")


def to_commit(share: Holdings, handed: Handed, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
    """These offsets; without any, all that was handed out, of an iteration up to and with the present record."""
    if offsets is None:
        unprocessed = handed.unprocessed(last_is_done=True) if handed.begun else {}
        return share.unsaved({**share.progress(), **unprocessed})
    return {
        TopicPartition(*p): offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        for p, offset in offsets.items()
    }


class GroupPositions(Positions):
    """The base of both faces' `Consumer`, beside their `PartitionReader`: what it reads, with a group or without."""

    _share: Holdings | None

    def _are_committed(self, positions: Mapping[TopicPartition, int]) -> None:
        if self._share is not None:
            self._share.placed(positions)

    def _forget(self, partition: TopicPartition) -> None:
        super()._forget(partition)
        if self._share is not None:
            self._share.forget([partition])
