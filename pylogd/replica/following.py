"""One partition as its follower sees it: what to fetch next, and what the leader's answer means. No I/O but the log's.

Strategy: a follower asks for what comes behind the end of its log and names the leader epoch of its last record. A
leader whose history has no such record there answers where the two part (KIP-595); the follower cuts its log there and
asks again, until it is a prefix of the leader's. Only then does the leader send records.

Rules:
- An answer is used only if the log still ends where it was asked from, in the same leader epoch.
- Batches are appended as they are, whole ones only, each from the end of the log on and of no later epoch than the
  leader's. What is not so is refused and asked for again later: a log is never made to disagree with its leader's.
- An offset that the leader does not have is looked into (`LOCATE`) before anything is dropped: the leader's log may
  start later than ours ends, or end before it (after an unclean election).

Source: KIP-101, KIP-279, KIP-595.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from pylogd.errors import ErrorCode
from pylogd.log.errors import InvalidAppend
from pylogd.log.log import Log
from pylogd.replica.partition import Partition, Role
from pylogd.wire.messages.fetch import FetchPartition, PartitionData

#: Bytes and batches appended in one go: about as long as a large produce takes.
PART_BYTES = 1 << 20
PART_BATCHES = 256

_BATCH_START = struct.Struct(">qi")  # base offset, length of what follows it
_SOON = 0.02  # seconds: the leader, or we, will hear of a change in a moment

_PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


class Move(Enum):
    """What to do next about a partition."""

    FETCH = "fetch"  # go on
    TRUNCATE = "truncate"  # cut the log at `Step.offset`, then go on
    BEGIN = "begin"  # drop the log and begin at `Step.offset`, then go on
    LOCATE = "locate"  # ask the leader where its log starts and ends, and call `located`
    PAUSE = "pause"  # ask again after `Step.seconds`


class Step(NamedTuple):
    """A move, with what it needs. `why` is for the log; of a pause it is to be said there if it is `loud`."""

    move: Move
    offset: int = -1
    seconds: float = 0.0
    why: str = ""
    loud: bool = False


FETCH = Step(Move.FETCH)
LOCATE = Step(Move.LOCATE)


class Asked(NamedTuple):
    """What a leader was asked for last."""

    offset: int
    last_epoch: int
    log_start: int
    leader_epoch: int


class Followed:
    """One partition that this broker follows, in one leader epoch. `backoff`: seconds of the longest pause."""

    __slots__ = ("_backoff", "_failures", "epoch", "key", "partition", "starts_at_latest")

    def __init__(self, partition: Partition, backoff: float) -> None:
        self.partition = partition
        self.key = (partition.topic_id, partition.index)
        self.epoch = partition.leader_epoch
        self._backoff = backoff
        self._failures = 0
        state, log = partition.state, partition.log
        #: Whether it is added with the choice to leave the old records where they are.
        self.starts_at_latest = (
            state is not None
            and state.latest_until_ms is not None
            and partition.node_id in state.adding
            and not log.log_end_offset
        )

    @property
    def current(self) -> bool:
        """Whether this is still what the partition is here."""
        return self.partition.role is Role.FOLLOWING and self.partition.leader_epoch == self.epoch

    def asks(self) -> Asked:
        """What to ask for now. Raises PartitionOffline."""
        log = self.partition.log
        return Asked(log.log_end_offset, log.epochs.latest, log.log_start_offset, self.epoch)

    def answered(self, data: PartitionData, asked: Asked) -> Step:
        """An answer has come without records: what to do. One with records goes to `parts` first."""
        if not self.current or self.partition.log.log_end_offset != asked.offset:
            return FETCH
        if data.error_code:
            return self._refused(data.error_code)
        diverging = data.diverging_epoch
        if diverging.epoch >= 0 or diverging.end_offset >= 0:
            return self._diverged(diverging.epoch, diverging.end_offset)
        if not data.records:
            self.succeeded()
        return FETCH

    def succeeded(self) -> None:
        """All that an answer had is in the log."""
        self._failures = 0

    def _refused(self, code: int) -> Step:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return LOCATE
        why = ErrorCode(code).name if code in ErrorCode.__members__.values() else f"error {code}"
        return self.pause(why, quick=code in _PASSING)

    def pause(self, why: str, quick: bool = False) -> Step:
        """Ask again in a while, in a longer one each time. `quick`: what passes soon, and is nothing to talk of."""
        self._failures += 1
        first = _SOON if quick else self._backoff
        seconds = min(first * 2.0 ** min(self._failures - 1, 16), self._backoff)
        return Step(Move.PAUSE, seconds=seconds, why=why, loud=not quick and self._failures.bit_count() == 1)

    def _diverged(self, leader_epoch: int, leader_end: int) -> Step:
        target = cut_at(self.partition.log, leader_epoch, leader_end)
        if target >= self.partition.log.log_end_offset:
            return self.pause(f"the leader says that we part in epoch {leader_epoch} at {leader_end}, and we do not")
        return Step(Move.TRUNCATE, target, why=f"the leader's epoch {leader_epoch} ends at {leader_end}")

    def located(self, start: int, end: int) -> Step:
        """The leader's log goes from `start` to `end`."""
        log = self.partition.log
        ours = log.log_end_offset
        if self.starts_at_latest:
            self.starts_at_latest = False
            return Step(Move.BEGIN, end, why="the old records stay where they are") if end else FETCH
        if end < ours:
            return Step(Move.TRUNCATE, end, why=f"the leader's log ends at {end}, before ours, {ours}")
        if start > ours:
            return Step(Move.BEGIN, start, why=f"the leader's log starts at {start}, behind ours, which ends at {ours}")
        return FETCH


def cut_at(log: Log, leader_epoch: int, leader_end: int) -> int:
    """Where to cut a log whose leader says: of epochs up to yours, my newest is this, and it ends there.

    The end of what may be common: of our newest epoch that is not above the leader's, and not behind the leader's end.
    """
    ours, end = log.end_offset_for_epoch(leader_epoch)
    bound = min(leader_end, log.log_end_offset)
    return min(end, bound) if ours >= 0 else bound


def parts(records: memoryview, most_bytes: int = PART_BYTES, most_batches: int = PART_BATCHES) -> Iterator[memoryview]:
    """Runs of whole batches, each of at most so many bytes (one batch at least) and batches. A cut end is left out.

    Raises InvalidAppend for lengths that can't be.
    """
    at = start = count = 0
    end = len(records)
    while end - at >= _BATCH_START.size:
        _, length = _BATCH_START.unpack_from(records, at)
        size = length + _BATCH_START.size
        if length <= 0:
            raise InvalidAppend(f"a batch of {length} bytes at byte {at} of what the leader sent")
        if at + size > end:
            break
        if count == most_batches or (count and at + size - start > most_bytes):
            yield records[start:at]
            start, count = at, 0
        at += size
        count += 1
    if count:
        yield records[start:at]


def wanted(index: int, asked: Asked, most_bytes: int) -> FetchPartition:
    """The entry of a fetch request."""
    return FetchPartition(
        index,
        current_leader_epoch=asked.leader_epoch,
        fetch_offset=asked.offset,
        last_fetched_epoch=asked.last_epoch,
        log_start_offset=asked.log_start,
        partition_max_bytes=most_bytes,
    )
