"""The partitions that a consumer reads, and how it moves in them, without I/O: what both faces' loops have in common.

Rules: a partition that is assigned has a position in the reader or waits in the placing for one. Retriable errors are
borne for as long as the caller said; a partition that got on meanwhile starts anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pylogd.client.core.consumer.fetcher import Place
from pylogd.client.core.consumer.reader import Reader
from pylogd.client.core.errors import is_retriable
from pylogd.client.core.model import TopicPartition
from pylogd.errors import ErrorCode, KafkaError, PylogdError


class Waiting(Protocol):
    """Where partitions wait that have no position yet."""

    waiting: set[TopicPartition]

    def discard(self, partition: TopicPartition) -> None:
        """It has a position, or is not read any more."""
        ...


class Patience:
    """Since when partitions have been failing at one offset."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: for how long retriable errors are borne."""
        self._seconds = seconds
        self._failing_since: dict[TopicPartition, tuple[float, int]] = {}

    def bear(self, place: Place, error: PylogdError, now: float) -> None:
        """Take note of an error. Raises it if trying again does not help, or has not helped for so long."""
        since, at = self._failing_since.get(place.partition, (now, -1))
        if at != place.offset:  # it got on since
            since = now
        self._failing_since[place.partition] = since, place.offset
        if not is_retriable(error) or now - since >= self._seconds:
            del self._failing_since[place.partition]
            raise error

    def forget(self, partition: TopicPartition) -> None:
        """It reads somewhere else now, or not at all."""
        self._failing_since.pop(partition, None)


class Positions:
    """The base of both faces' `PartitionReader`, which make `_reader`, `_placing` and `_patience`."""

    _reader: Reader
    _placing: Waiting
    _patience: Patience

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return [*self._reader.positions, *sorted(self._placing.waiting - self._reader.positions.keys())]

    def _check_assigned(self, place: TopicPartition) -> None:
        if place not in self._reader.positions and place not in self._placing.waiting:
            raise ValueError(f"{place} is not assigned")

    def _check_seek(self, place: TopicPartition, offset: int) -> None:
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        self._check_assigned(place)

    def _move(self, partition: TopicPartition, offset: int) -> None:
        self._placing.discard(partition)
        self._patience.forget(partition)
        self._reader.move(partition, offset)

    def _forget(self, partition: TopicPartition) -> None:
        self._patience.forget(partition)
        self._placing.discard(partition)
        self._reader.forget(partition)

    def _are_committed(self, positions: Mapping[TopicPartition, int]) -> None:
        """These were found to be what the group committed."""

    @property
    def _may_hand_out(self) -> bool:
        return True


def is_out_of_range(error: PylogdError | None) -> bool:
    """Whether a read failed because the log does not have, or no longer has, what was asked for."""
    return isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE
