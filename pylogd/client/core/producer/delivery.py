"""The results of records, as all faces have them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TypeVar, overload

from pylogd.base.errors import PylogdError
from pylogd.client.core.producer.accumulator import Batch

D = TypeVar("D", bound="Outcome")


class Outcome:
    """The result of the record at `index` of a batch, or of a record set: pending, written or failed."""

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
        """The batch that contains the record: the original batch, or one of its parts if it was split."""
        batch = self._batch
        while batch.parts:
            start, part = batch.parts[self.index >= batch.parts[1][0]]
            self.index -= start
            batch = self._batch = part
        return batch

    @property
    def done(self) -> bool:
        """Whether there is a result: the record was written, or it failed."""
        return self.batch.result is not None

    @property
    def topic(self) -> str:
        return self._batch.partition.topic

    @property
    def partition(self) -> int:
        return self._batch.partition.partition

    @property
    def error(self) -> PylogdError | None:
        """The error if the record was not written. None if it was written, or while there is no result."""
        result = self.batch.result
        return None if result is None else result.error

    @property
    def offset(self) -> int:
        """The record's offset. It is -1 while there is no result, with acks=0, and if the broker had the record
        already.
        """
        result = self.batch.result
        return -1 if result is None or result.base_offset < 0 else result.base_offset + self.index


class Deliveries(Sequence[D]):
    """The deliveries of rows that were sent as columns, in the order of the rows. Each is made on first access."""

    def __init__(self, deliver: Callable[[Batch, int], D], batches: Sequence[Batch], order: bytes) -> None:
        """`deliver` makes a delivery of a batch and an index in it. `order` is explained in `columns.EncodedRows`."""
        self._deliver = deliver
        self._batches = batches
        self._ends = list(accumulate(batch.count for batch in batches))
        self._order = order

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, row: int) -> D: ...

    @overload
    def __getitem__(self, row: slice) -> list[D]: ...

    def __getitem__(self, row: int | slice) -> D | list[D]:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        position = self._positions[row]
        at = bisect_right(self._ends, position)
        return self._deliver(self._batches[at], position - (self._ends[at - 1] if at else 0))

    @cached_property
    def _positions(self) -> array[int]:
        """The index of each row in the sequence of all batches."""
        found = array("i", bytes(len(self._order)))
        for position, row in enumerate(array("i", self._order)):
            found[row] = position
        return found
