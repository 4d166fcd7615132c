"""The result of a record, as all faces have it."""

from __future__ import annotations

from pylogd.client.core.producer.accumulator import Batch
from pylogd.errors import PylogdError


class Outcome:
    """The result of the record at `index` of a batch, or of a set, once there is one."""

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
        """The batch that has the record: a part of the original one if that was split."""
        batch = self._batch
        while batch.parts:
            start, part = batch.parts[self.index >= batch.parts[1][0]]
            self.index -= start
            batch = self._batch = part
        return batch

    @property
    def done(self) -> bool:
        """Whether there is a result: the record was written, or was given up."""
        return self.batch.result is not None

    @property
    def topic(self) -> str:
        return self._batch.partition.topic

    @property
    def partition(self) -> int:
        return self._batch.partition.partition

    @property
    def error(self) -> PylogdError | None:
        """The error if the record was not written; None before there is a result."""
        result = self.batch.result
        return None if result is None else result.error

    @property
    def offset(self) -> int:
        """The record's offset. It is -1 before there is a result, with acks=0, and if the broker only said that it has
        the record already.
        """
        result = self.batch.result
        return -1 if result is None or result.base_offset < 0 else result.base_offset + self.index
