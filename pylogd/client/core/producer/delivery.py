"""Tell what became of a record: the result that all faces share."""

from __future__ import annotations

from pylogd.client.core.producer.accumulator import Batch
from pylogd.errors import PylogdError


class Outcome:
    """The result of one record, the one at `index` of a batch, or of a set, once there is one."""

    __slots__ = ("_batch", "index")

    def __init__(self, batch: Batch, index: int) -> None:
        """The record at `index` of a batch."""
        self._batch = batch
        self.index = index

    def __repr__(self) -> str:
        state = "pending" if not self.done else f"offset {self.offset}" if self.error is None else repr(self.error)
        return f"<Delivery {self._batch.partition} {state}>"

    @property
    def batch(self) -> Batch:
        """The batch that the record is in: a part of the first one if that was split."""
        batch = self._batch
        while batch.parts:
            start, part = batch.parts[self.index >= batch.parts[1][0]]
            self.index -= start
            batch = self._batch = part
        return batch

    @property
    def done(self) -> bool:
        """Whether it is written, or never will be."""
        return self.batch.result is not None

    @property
    def topic(self) -> str:
        return self._batch.partition.topic

    @property
    def partition(self) -> int:
        return self._batch.partition.partition

    @property
    def error(self) -> PylogdError | None:
        """Why it was not written, once that is so."""
        result = self.batch.result
        return None if result is None else result.error

    @property
    def offset(self) -> int:
        """Where it was written; -1 as long as that is not known, always with acks=0, and in the rare case that a
        broker only says that it has the record already.
        """
        result = self.batch.result
        return -1 if result is None or result.base_offset < 0 else result.base_offset + self.index
