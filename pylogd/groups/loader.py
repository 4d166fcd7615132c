"""Load the groups of one partition of the offsets topic when this broker becomes its leader.

The last record of each key counts. How the partition is read is in `replica.internal_loader`.
"""

from __future__ import annotations

from pylogd.groups.group import ClassicGroup
from pylogd.groups.records import (
    Committed,
    GroupKey,
    PartitionId,
    StoredGroup,
    read_group_value,
    read_key,
    read_offset_value,
)
from pylogd.replica.internal_loader import InternalTopicLoader
from pylogd.replica.partition import Partition
from pylogd.wire.records import BatchHeader, Record


class GroupLoader(InternalTopicLoader[dict[str, ClassicGroup]]):
    """Loads one partition once. It may be used by one thread at a time."""

    contents = "the group or offset in it"

    def __init__(self, partition: Partition, slice_bytes: int, now_ms: int) -> None:
        super().__init__(partition, slice_bytes)
        self._now_ms = now_ms
        self._groups: dict[str, StoredGroup] = {}
        self._offsets: dict[str, dict[PartitionId, Committed]] = {}

    def apply(self, header: BatchHeader, record: Record) -> None:
        """Note the group or the offset of a record."""
        key, value = read_key(record.key) if record.key is not None else None, record.value
        if key is None:
            return  # a kind of record that only newer brokers write
        if isinstance(key, GroupKey):
            if value is None:
                self._groups.pop(key.group_id, None)
            else:
                self._groups[key.group_id] = read_group_value(value)
        elif value is None:
            self._offsets.get(key.group_id, {}).pop((key.topic, key.partition), None)
        else:
            self._offsets.setdefault(key.group_id, {})[key.topic, key.partition] = read_offset_value(value)

    def make(self) -> dict[str, ClassicGroup]:
        """Return every group in the partition by its id."""
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
        return made
