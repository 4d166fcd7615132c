"""Load the groups of one partition of the offsets topic when this broker becomes its leader.

The last record of each key counts. Offsets of a transaction count if the marker after them commits them; without a
marker the transaction is open. `replica.internal_loader` reads the partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pylogd.broker.groups.consumer.group import ConsumerGroup, replay
from pylogd.broker.groups.consumer.records import Record as ConsumerRecord
from pylogd.broker.groups.consumer.records import decode, is_of_consumer_group
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.group_offsets import GroupOffsets
from pylogd.broker.groups.offsets import bind
from pylogd.broker.groups.records import (
    NO_TOPIC_ID,
    Committed,
    GroupKey,
    PartitionId,
    StoredGroup,
    read_group_value,
    read_key,
    read_offset_value,
)
from pylogd.broker.replica.internal_loader import InternalTopicLoader
from pylogd.broker.replica.partition import Partition
from pylogd.wire.records import BatchHeader, ControlType, Record, control_type, decode_batch


class GroupLoader(InternalTopicLoader[dict[str, ClassicGroup]]):
    """Loads one partition once. It may be used by one thread at a time.

    consumers: the groups of the newer protocol, once it has loaded.
    bound: groups with offsets that were stored without the ids of their topics.
    """

    contents = "the group or offset in it"

    def __init__(
        self,
        partition: Partition,
        slice_bytes: int,
        now_ms: int,
        topic_id: Callable[[str], bytes] = lambda name: NO_TOPIC_ID,
    ) -> None:
        """topic_id: called in a thread, for offsets that were stored without the topic's id; see `bind`."""
        super().__init__(partition, slice_bytes)
        self._topic_id = topic_id
        self._now_ms = now_ms
        self._groups: dict[str, StoredGroup] = {}
        self._offsets: dict[str, GroupOffsets] = {}
        self._of_consumers: list[ConsumerRecord] = []
        self.consumers: list[ConsumerGroup] = []
        self.bound: list[ClassicGroup] = []
        self._producers: dict[int, set[str]] = {}  # the groups with offsets in a producer's open transaction
        self._topic_ids: dict[bytes, bytes] = {}  # one object of each equal id

    def apply(self, header: BatchHeader, record: Record) -> None:
        """Note the group or the offset of a record."""
        if record.key is not None and is_of_consumer_group(record.key):
            found = decode(record.key, record.value)
            if found is not None:
                self._of_consumers.append(found)
            return
        key, value = read_key(record.key) if record.key is not None else None, record.value
        if key is None:
            return  # a kind of record that only newer brokers write
        if isinstance(key, GroupKey):
            if value is None:
                self._groups.pop(key.group_id, None)
            else:
                self._groups[key.group_id] = read_group_value(value)
        else:
            committed = None if value is None else read_offset_value(value)
            self._apply_offset(header, record.offset, key.group_id, (key.topic, key.partition), committed)

    def _apply_offset(
        self, header: BatchHeader, offset: int, group_id: str, partition: PartitionId, committed: Committed | None
    ) -> None:
        """Note an offset, whose record is at `offset` of the log; None deletes the offset."""
        offsets = self._offsets.get(group_id)
        if offsets is None:
            offsets = self._offsets[group_id] = GroupOffsets()
        if committed is None:
            offsets.drop([partition], offset)
        else:
            topic_id = committed.topic_id
            entry = partition, committed._replace(topic_id=self._topic_ids.setdefault(topic_id, topic_id))
            if header.is_transactional:
                self._producers.setdefault(header.producer_id, set()).add(group_id)
                offsets.add(header.producer_id, [entry], offset)
            else:
                offsets.commit([entry], offset)

    def apply_control(self, header: BatchHeader, batch: Any) -> None:
        """Note the end of a transaction."""
        records = decode_batch(batch, header)
        kind = control_type(records[0]) if records else None
        if kind not in (ControlType.COMMIT, ControlType.ABORT):
            return
        producer_id, committed = header.producer_id, kind == ControlType.COMMIT
        for group_id in self._producers.pop(producer_id, ()):
            offsets = self._offsets[group_id]
            offsets.end(offsets.close(producer_id, header.base_offset), committed=committed)

    def make(self) -> dict[str, ClassicGroup]:
        """Return every classic group, and the offsets of every other group, by group id."""
        self.consumers = list(replay(self._of_consumers).values())
        partition_index = self.partition.index
        made = {
            group_id: ClassicGroup.from_stored(group_id, partition_index, stored, self._now_ms)
            for group_id, stored in self._groups.items()
        }
        for group_id, offsets in self._offsets.items():
            if offsets:
                if group_id not in made:
                    made[group_id] = ClassicGroup(group_id, partition_index, self._now_ms)
                made[group_id].offsets = offsets
                if bind(made[group_id], self._topic_id):
                    self.bound.append(made[group_id])
        return made
