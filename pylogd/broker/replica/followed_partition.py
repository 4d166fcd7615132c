"""One partition that this broker follows: where to fetch next, and how to apply the leader's answer. Without network
I/O.

Strategy: a follower fetches from the end of its log and sends the leader epoch of its last record. A leader whose log
has another record there answers where the two logs diverge (KIP-595); the follower truncates its log there and fetches
again, until its log is a prefix of the leader's. Only then does the leader send records.

Rules:
- An answer is used only if the log still ends at the offset that was asked for, in the same leader epoch.
- Only whole batches are appended, unchanged. Each must start at the end of the log and have no later epoch than the
  leader's. Other batches are refused and fetched again later, so that the log never differs from its leader's.
- If the leader does not have the offset, it is asked where its log starts and ends (`LOCATE`) before anything is
  removed: its log may start after the end of ours, or end before it (after an unclean election).

Source: KIP-101, KIP-279, KIP-595.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from pylogd.base.errors import ErrorCode
from pylogd.broker.log.errors import InvalidAppend
from pylogd.broker.log.log import Log
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.roles import Role
from pylogd.wire.messages.fetch import FetchPartition, PartitionData

#: The most bytes and batches that are appended in one turn of the reactor: about those of a large Produce request.
PART_BYTES = 1 << 20
PART_BATCHES = 256

_BATCH_START = struct.Struct(">qi")  # the base offset, and the length of what follows the length
_BATCH_RANGE = struct.Struct(">q15xi")  # the base offset, and the last offset less the base offset
_SOON = 0.02  # the pause in seconds after errors that last until the leader or this broker hears of a change

_PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


class StepKind(Enum):
    """The next action for a partition."""

    FETCH = "fetch"  # fetch from the end of the log
    TRUNCATE = "truncate"  # truncate the log to `Step.offset`, then fetch
    BEGIN = "begin"  # remove all records and begin the log at `Step.offset`, then fetch
    LOCATE = "locate"  # ask the leader where its log starts and ends, and call `located`
    PAUSE = "pause"  # fetch again after `Step.seconds`


class Step(NamedTuple):
    """The next action, with its arguments.

    why: the reason, for the operator.
    loud: whether a pause is logged.
    """

    kind: StepKind
    offset: int = -1
    seconds: float = 0.0
    why: str = ""
    loud: bool = False


FETCH = Step(StepKind.FETCH)
LOCATE = Step(StepKind.LOCATE)


class FetchPosition(NamedTuple):
    """A partition's fields in a Fetch request: log end, epoch of the last record, log start and leader epoch."""

    offset: int
    last_epoch: int
    log_start: int
    leader_epoch: int


class FollowedPartition:
    """One partition that this broker follows, in one leader epoch.

    backoff: the longest pause in seconds.
    """

    __slots__ = ("_backoff", "_failures", "epoch", "key", "partition", "starts_at_latest")

    def __init__(self, partition: Partition, backoff: float) -> None:
        self.partition = partition
        self.key = (partition.topic_id, partition.index)
        self.epoch = partition.leader_epoch
        self._backoff = backoff
        self._failures = 0
        state, log = partition.state, partition.log
        #: Whether this is a new replica that skips the old records (smooth expansion). Once the wait has ended, a
        #: replica that lost its disk must copy the records that groups may need: the groups had only passed the begin
        #: of its earlier copy.
        self.starts_at_latest = (
            state is not None
            and bool(state.latest_until_ms)
            and partition.node_id in state.adding
            and not log.log_end_offset
        )

    @property
    def current(self) -> bool:
        """Whether this broker still follows the partition, in the same leader epoch."""
        return self.partition.role is Role.FOLLOWING and self.partition.leader_epoch == self.epoch

    def position(self) -> FetchPosition:
        """Return the offset to fetch next. Raises PartitionOffline."""
        log = self.partition.log
        return FetchPosition(log.log_end_offset, log.epochs.latest, log.log_start_offset, self.epoch)

    def answered(self, data: PartitionData, asked: FetchPosition) -> Step:
        """Return the next action after an answer, but do not append its records: `parts` splits them for that.

        asked: the position that the request had.
        """
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

    def begin_for(self, batches: memoryview) -> int | None:
        """Return the offset at which this empty log must begin to take `batches`; None if it can take them unchanged.

        After DeleteRecords (KIP-107) the leader's log may start inside a batch, which the leader sends whole.
        """
        end = self.partition.log.log_end_offset
        if self.partition.log.log_start_offset != end or len(batches) < _BATCH_RANGE.size:
            return None
        base, last = _BATCH_RANGE.unpack_from(batches)
        return base if 0 <= base < end <= base + last else None

    def succeeded(self) -> None:
        """Note that an answer was applied, so that the next pause is a short one."""
        self._failures = 0

    def _refused(self, code: int) -> Step:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return LOCATE
        why = ErrorCode(code).name if code in ErrorCode.__members__.values() else f"error {code}"
        return self.pause(why, quick=code in _PASSING)

    def pause(self, why: str, quick: bool = False) -> Step:
        """Return a pause, longer each time.

        quick: whether the error is expected to pass soon, and is not logged.
        """
        self._failures += 1
        first = _SOON if quick else self._backoff
        seconds = min(first * 2.0 ** min(self._failures - 1, 16), self._backoff)
        return Step(StepKind.PAUSE, seconds=seconds, why=why, loud=not quick and self._failures.bit_count() == 1)

    def _diverged(self, leader_epoch: int, leader_end: int) -> Step:
        target = truncation_offset(self.partition.log, leader_epoch, leader_end)
        if target >= self.partition.log.log_end_offset:
            return self.pause(
                f"the leader says that its log diverges in epoch {leader_epoch} at {leader_end}, but it does not"
            )
        return Step(StepKind.TRUNCATE, target, why=f"the leader's epoch {leader_epoch} ends at {leader_end}")

    def located(self, start: int, end: int) -> Step:
        """Return the next action, given that the leader's log has the offsets from `start` to `end`."""
        log = self.partition.log
        ours = log.log_end_offset
        if self.starts_at_latest:
            self.starts_at_latest = False
            return Step(StepKind.BEGIN, end, why="a smooth expansion skips the old records") if end else FETCH
        if end < ours:
            return Step(StepKind.TRUNCATE, end, why=f"the leader's log ends at {end}, before ours, {ours}")
        if start > ours:
            return Step(StepKind.BEGIN, start, why=f"the leader's log starts at {start}, after the end of ours, {ours}")
        return FETCH


def truncation_offset(log: Log, leader_epoch: int, leader_end: int) -> int:
    """Return the offset at which to truncate a follower's log that diverges from its leader's.

    leader_epoch: the leader's newest epoch that is not newer than the follower's last.
    leader_end: the end of this epoch in the leader's log.

    The result is the end of the follower's newest epoch that is not newer than `leader_epoch`, at most `leader_end`.
    """
    ours, end = log.end_offset_for_epoch(leader_epoch)
    bound = min(leader_end, log.log_end_offset)
    return min(end, bound) if ours >= 0 else bound


def parts(records: memoryview, most_bytes: int = PART_BYTES, most_batches: int = PART_BATCHES) -> Iterator[memoryview]:
    """Split records into parts of whole batches.

    A part has at most the given numbers of bytes (or one larger batch) and of batches. An incomplete batch at the end
    is left out. Raises InvalidAppend for an impossible length.
    """
    at = start = count = 0
    end = len(records)
    while end - at >= _BATCH_START.size:
        _, length = _BATCH_START.unpack_from(records, at)
        size = length + _BATCH_START.size
        if length <= 0:
            raise InvalidAppend(f"the leader sent a batch with an invalid length, {length}, at byte {at} of its answer")
        if at + size > end:
            break
        if count == most_batches or (count and at + size - start > most_bytes):
            yield records[start:at]
            start, count = at, 0
        at += size
        count += 1
    if count:
        yield records[start:at]


def fetch_entry(index: int, position: FetchPosition, most_bytes: int) -> FetchPartition:
    """Return a partition's entry in a Fetch request."""
    return FetchPartition(
        index,
        current_leader_epoch=position.leader_epoch,
        fetch_offset=position.offset,
        last_fetched_epoch=position.last_epoch,
        log_start_offset=position.log_start,
        partition_max_bytes=most_bytes,
    )
