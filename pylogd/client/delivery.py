"""What becomes of a record, and what options of a producer mean, as far as both faces say it in the same way."""

from __future__ import annotations

from typing import Literal

from pylogd.client.accumulator import Batch
from pylogd.client.idempotence import MAX_IN_FLIGHT
from pylogd.errors import PylogdError

Acks = Literal["all", 0, 1, -1]
_ACKS = {"all": -1, -1: -1, 0: 0, 1: 1, "0": 0, "1": 1, "-1": -1}


def check_options(acks: Acks, idempotence: bool | None, retry: bool, max_in_flight: int) -> tuple[int, bool]:
    """The number for `acks`, and whether to be idempotent, which by default is so where it can be. ValueError: options
    that contradict each other.
    """
    if acks not in _ACKS:
        raise ValueError(f'acks is "all", 0 or 1, not {acks!r}')
    possible = _ACKS[acks] == -1 and retry and max_in_flight <= MAX_IN_FLIGHT
    if idempotence and not possible:
        raise ValueError(f'idempotence needs acks="all", retries, and at most {MAX_IN_FLIGHT} requests in flight')
    return _ACKS[acks], possible if idempotence is None else idempotence


class Outcome:
    """The result of one record, the one at `_index` of a batch, or of a set, once there is one."""

    __slots__ = ("_batch", "_index")

    _batch: Batch
    _index: int

    def __repr__(self) -> str:
        state = "pending" if not self.done else f"offset {self.offset}" if self.error is None else repr(self.error)
        return f"<Delivery {self._batch.partition} {state}>"

    @property
    def done(self) -> bool:
        """Whether it is written, or never will be."""
        return self._batch.result is not None

    @property
    def topic(self) -> str:
        return self._batch.partition.topic

    @property
    def partition(self) -> int:
        return self._batch.partition.partition

    @property
    def error(self) -> PylogdError | None:
        """Why it was not written, once that is so."""
        result = self._batch.result
        return None if result is None else result.error

    @property
    def offset(self) -> int:
        """Where it was written; -1 as long as that is not known, always with acks=0, and in the rare case that a
        broker only says that it has the record already.
        """
        result = self._batch.result
        return -1 if result is None or result.base_offset < 0 else result.base_offset + self._index
