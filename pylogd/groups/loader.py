"""Load the groups of one partition of the offsets topic when this broker becomes its leader.

Strategy: threads of the pool read the log in slices, from its start to the log end offset at the time of the election.
The last record of each key counts. The groups are built in a thread too, so the reactor is not held up by a large
partition. After each slice the loader asks whether this broker still leads the partition.

Rules: a record that can't be decoded is logged and skipped, since other groups do not depend on it. A batch whose
length is invalid, or a disk failure, ends the load with an error. No group is visible before the load is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.errors import PylogdError
from pylogd.groups.group import ClassicGroup
from pylogd.groups.records import (
    Committed,
    GroupKey,
    InvalidRecord,
    PartitionId,
    StoredGroup,
    read_group_value,
    read_key,
    read_offset_value,
)
from pylogd.replica.partition import Partition
from pylogd.wire.records import decode_batch, iter_batches

log = Logger()


class GroupLoader:
    """Loads one partition once. It may be used by one thread at a time."""

    def __init__(self, partition: Partition, slice_bytes: int, now_ms: int) -> None:
        self._partition = partition
        self._log = partition.log
        self._slice_bytes = slice_bytes
        self._now_ms = now_ms
        self._position = self._log.log_start_offset
        self._end = self._log.log_end_offset
        self._groups: dict[str, StoredGroup] = {}
        self._offsets: dict[str, dict[PartitionId, Committed]] = {}
        self.records = 0
        self.unreadable = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read."""
        return self._position >= self._end

    async def run(
        self, in_thread: Callable[..., Deferred[Any]], wanted: Callable[[], bool]
    ) -> dict[str, ClassicGroup] | None:
        """Return every group in the partition by its id, or None once `wanted` returns false. Raises PylogdError.

        `in_thread` calls a function in a thread of the pool.
        """
        while not self.empty:
            await in_thread(self._read_slice)
            if not wanted():
                return None
        groups: dict[str, ClassicGroup] = await in_thread(self._make)
        return groups if wanted() else None

    def _read_slice(self) -> None:
        found = self._log.read(self._position, self._slice_bytes, allow_cold=True)
        if found is None:  # compaction has removed everything from here on
            self._position = self._end
            return
        position = self._position
        for header, batch in iter_batches(found.read(), allow_partial=True):
            self._position = header.next_offset
            if header.is_control:
                continue
            try:
                records = decode_batch(batch, header)
            except PylogdError as error:
                self._complain(header.base_offset, error)
                continue
            for record in records:
                self.records += 1
                try:
                    self._apply(record.key, record.value)
                except InvalidRecord as error:
                    self._complain(record.offset, error)
        if self._position == position:
            raise InvalidRecord(f"no complete batch at offset {position} of {self._partition.topic}")

    def _complain(self, offset: int, error: PylogdError) -> None:
        self.unreadable += 1
        log.error(
            "{topic}-{index}: skipping the unreadable record at offset {offset}; the group or offset in it is lost: "
            "{error}",
            topic=self._partition.topic, index=self._partition.index, offset=offset, error=error,
        )  # fmt: skip

    def _apply(self, raw_key: bytes | None, value: bytes | None) -> None:
        key = read_key(raw_key) if raw_key is not None else None
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

    def _make(self) -> dict[str, ClassicGroup]:
        partition_index = self._partition.index
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
