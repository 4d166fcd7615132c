"""The last failed write to a log: the reason why later batches are out of order."""

from __future__ import annotations

import os

from pylogd.broker.log.errors import OutOfOrderSequence, StorageFailure

#: How many seconds after a failed write the batches in flight may still arrive: Kafka's `request.timeout.ms`.
IN_FLIGHT_SECONDS = 30.0


class WriteFailures:
    """Remembers path and error number of the last failure, but not the exception, which holds the request's bytes."""

    __slots__ = ("_code", "_end_offset", "_path", "_seconds")

    def __init__(self) -> None:
        self._path, self._code, self._end_offset, self._seconds = "", 0, -1, 0.0

    def note(self, failure: StorageFailure, end_offset: int, seconds: float) -> None:
        """Remember a failure of a log that ends at `end_offset`. The time is in seconds of a monotonic clock."""
        self._path, self._code = failure.path, failure.cause.errno or 0
        self._end_offset, self._seconds = end_offset, seconds

    def explain(self, gap: OutOfOrderSequence, end_offset: int, seconds: float) -> None:
        """Raise StorageFailure if a write that failed is the reason for a gap in a producer's sequence.

        It is the reason if it failed within IN_FLIGHT_SECONDS and nothing was appended since. A producer has several
        batches in flight. If librdkafka is told that the batches after the failed one are out of order, it begins a new
        producer epoch and sends all of them again. This duplicates batches that another replica already has.
        """
        if end_offset == self._end_offset and seconds - self._seconds <= IN_FLIGHT_SECONDS:
            raise StorageFailure(self._path, OSError(self._code, os.strerror(self._code))) from gap
