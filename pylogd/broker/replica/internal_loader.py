"""Read one partition of an internal topic when this broker becomes its leader.

Strategy: threads of the pool read the log in slices, from its start to the log end offset at the time of the election,
and decode the records. The subclass keeps the last record of each key. It makes the result in a thread too, so a large
partition does not hold up the reactor. After each slice the loader asks whether this broker still leads the partition.

Rules: a record that can't be decoded is logged and skipped, since others do not depend on it. A batch whose length is
invalid, or a disk failure, ends the load with an error. Nothing is visible before the load is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.base.errors import PylogdError
from pylogd.broker.replica.internal_records import InvalidRecord
from pylogd.broker.replica.partition import Partition
from pylogd.wire.records import BatchHeader, Record, decode_batch, iter_batches

log = Logger()

R = TypeVar("R")


class InternalTopicLoader(Generic[R]):
    """Loads one partition once. It may be used by one thread at a time.

    end: the offset up to which it reads.
    records: how many records were read.
    unreadable: how many records were skipped.
    """

    #: What a record contains, for the log message about a skipped record.
    contents = "what it says"

    def __init__(self, partition: Partition, slice_bytes: int) -> None:
        self.partition = partition
        self._log = partition.log
        self._slice_bytes = slice_bytes
        self._position = self._log.log_start_offset
        self.end = self._log.log_end_offset
        self.records = 0
        self.unreadable = 0

    def apply(self, header: BatchHeader, record: Record) -> None:
        """Note the contents of a record. Raises InvalidRecord. Called in a thread."""
        raise NotImplementedError

    def apply_control(self, header: BatchHeader, batch: Any) -> None:
        """Note a control batch, which ends a transaction. Called in a thread."""

    def make(self) -> R:
        """Return the loaded state. Called in a thread, when all records were applied."""
        raise NotImplementedError

    @property
    def empty(self) -> bool:
        """Whether the partition has no records to read."""
        return self._position >= self.end

    async def run(self, in_thread: Callable[..., Deferred[Any]], wanted: Callable[[], bool]) -> R | None:
        """Return what `make` returns, or None once `wanted` returns false. Raises PylogdError.

        `in_thread` calls a function in a thread of the pool.
        """
        while not self.empty:
            await in_thread(self._read_slice)
            if not wanted():
                return None
        made: R = await in_thread(self.make)
        return made if wanted() else None

    def _read_slice(self) -> None:
        found = self._log.read(self._position, self._slice_bytes, allow_cold=True)
        if found is None:  # compaction has removed all records from here on
            self._position = self.end
            return
        position = self._position
        for header, batch in iter_batches(found.read(), allow_partial=True):
            self._position = header.next_offset
            if header.is_control:
                self.apply_control(header, batch)
                continue
            try:
                records = decode_batch(batch, header)
            except PylogdError as error:
                self._complain(header.base_offset, error)
                continue
            for record in records:
                self.records += 1
                try:
                    self.apply(header, record)
                except InvalidRecord as error:
                    self._complain(record.offset, error)
        if self._position == position:
            raise InvalidRecord(f"no complete batch at offset {position} of {self.partition.topic}")

    def _complain(self, offset: int, error: PylogdError) -> None:
        self.unreadable += 1
        log.error(
            "{topic}-{index}: skipping the unreadable record at offset {offset}; {contents} is lost: {error}",
            topic=self.partition.topic, index=self.partition.index, offset=offset, contents=self.contents, error=error,
        )  # fmt: skip
