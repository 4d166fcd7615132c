"""The partitions of `__consumer_offsets` that this broker leads: write the records of groups, and apply their changes.

Rules: changes take effect when their records are committed, in the order of the log, even if they are answered in
another order, or with an error because their commit takes too long. So the next coordinator gets the same state.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.values import TransactionalCommit
from pylogd.broker.replica.internal_topic import InternalTopic, InternalTopicOptions, KeyValue
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.waiting import shield
from pylogd.config import Settings, internal_segment_size
from pylogd.store.paths import OFFSETS_TOPIC

T = TypeVar("T")


def _configs(settings: Settings) -> Mapping[str, str]:
    return {"cleanup.policy": "compact", **internal_segment_size(settings.integer("offsets.topic.segment.bytes"))}


OFFSETS: Final = InternalTopicOptions(
    OFFSETS_TOPIC,
    partitions="offsets.topic.num.partitions",
    replication_factor="offsets.topic.replication.factor",
    timeout="offsets.commit.timeout.ms",
    configs=_configs,
    too_large=ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
)


class Shard:
    """The groups of one partition of the offsets topic that this broker leads. A new leadership makes a new shard.

    transactions: for the id of each producer with an open transaction, the ids of the groups whose offsets are in it.
    markers: the markers that arrived during the load: producer ids, offsets, and whether they commit.
    """

    __slots__ = ("_changes", "loading", "markers", "partition", "transactions")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.loading = True
        self.transactions: dict[int, set[str]] = {}
        self.markers: list[tuple[int, int, bool]] = []
        self._changes: list[tuple[int, Callable[[], object]]] = []  # each with the offset after its records

    def apply_later(self, end: int, apply: Callable[[], object]) -> None:
        """Keep a change, whose records up to offset `end` are in the log, until they are committed."""
        insort(self._changes, (end, apply), key=lambda change: change[0])

    def apply_committed(self) -> None:
        """Apply the changes that are committed by now. Call this before reading a group's offsets."""
        while self._changes and self._changes[0][0] <= self.partition.high_watermark:
            self._changes.pop(0)[1]()

    def note_open(self, group: ClassicGroup) -> None:
        """Note the open transactions of a group that was loaded."""
        for producer_id in group.offsets.transactions:
            self.transactions.setdefault(producer_id, set()).add(group.group_id)

    def begin(self, group: ClassicGroup, commit: TransactionalCommit, offset: int) -> None:
        """Note that offsets of a transaction are in the log from `offset` on."""
        self.transactions.setdefault(commit.producer_id, set()).add(group.group_id)
        group.offsets.add(commit.producer_id, commit.offsets, offset)


class GroupLog:
    """The log in which the groups of a broker are stored.

    topic: the offsets topic.
    shards: the partitions that are led here, by index. `LedGroups` adds and removes them.
    """

    __slots__ = ("shards", "topic")

    def __init__(self, topic: InternalTopic) -> None:
        self.topic = topic
        self.shards: dict[int, Shard] = {}

    def shard_of(self, group_id: str) -> Shard | None:
        """Return the shard that stores a group, existing or not; None if this broker does not lead its partition."""
        return self.shards.get(self.topic.index_of(group_id))

    def leads(self, shard: Shard) -> bool:
        """Return whether a shard is still led here, in the same leadership."""
        return self.shards.get(shard.partition.index) is shard

    def append(
        self, group: ClassicGroup, records: Sequence[KeyValue], apply: Callable[[int], object]
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Append records of a group, and call `apply` once they are committed, unless the partition is lost by then.

        `apply` gets the offset of the first record. The calls come in the order of the log. If the records were not
        committed in time, `apply` is called after an error was returned.
        """
        shard = self.shards.get(group.partition_index)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        leading = shard

        def in_log(offset: int) -> None:
            leading.apply_later(offset + len(records), partial(committed, offset))

        def committed(offset: int) -> None:
            group.uncommitted -= 1
            if self.leads(leading):
                apply(offset)

        def outcome(result: T) -> T:
            leading.apply_committed()
            return result

        result = self.write(group, shard, records, in_log)
        return shield(result.addBoth(outcome)) if isinstance(result, Deferred) else outcome(result)

    def append_for(
        self, group_id: str, records: Sequence[KeyValue], appended: Callable[[], object]
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Append records of a group of the newer protocol; call `appended` once they are in the log."""
        shard = self.shard_of(group_id)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        result = self.topic.append(shard.partition, records, lambda offset: appended())
        return shield(result) if isinstance(result, Deferred) else result

    def write(
        self,
        group: ClassicGroup,
        shard: Shard,
        records: Sequence[KeyValue],
        in_log: Callable[[int], object],
        **fields: Any,
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Append records of a group with these fields of a batch; call `in_log` with the offset of the first one.

        The group counts them as uncommitted. If they get into the log, the caller ends that.
        """
        logged = False
        group.uncommitted += 1

        def note(offset: int) -> None:
            nonlocal logged
            logged = True
            in_log(offset)

        def outcome(result: T) -> T:
            if not logged:
                group.uncommitted -= 1
            return result

        try:
            result = self.topic.append(shard.partition, records, note, **fields)
        except BaseException:
            outcome(None)
            raise
        return result.addBoth(outcome) if isinstance(result, Deferred) else outcome(result)

    def all_committed(self, group_id: str) -> ErrorCode | Deferred[ErrorCode]:
        """Return NONE once everything in the log of the partition that stores a group is committed."""
        shard = self.shard_of(group_id)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        result = self.topic.committed(shard.partition, shard.partition.log.log_end_offset - 1)
        return shield(result) if isinstance(result, Deferred) else result
