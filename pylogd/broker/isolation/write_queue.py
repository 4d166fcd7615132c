"""A bounded queue of writes, with its own thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pylogd.broker.isolation.workers import Workers

#: Clients that back off, as Kafka's do, are refused a few times a second. If more than this many refusals happen in a
#: second...
FREE_REFUSALS: Final = 100.0
#: ... nothing is taken for this many seconds. It is less than the 50 ms in which a client should learn of its refusal.
PAUSE: Final = 0.02


class WriteQueue:
    """Appends of some topics of one data directory, from their arrival until they are answered.

    name: the name of the queue, for messages to operators and clients.
    requests: how many appends wait or are being written.
    bytes: the bytes of these appends.
    refused: how many appends were refused so far because the queue was full.
    writer: the thread that writes.
    """

    def __init__(
        self,
        name: str,
        max_requests: int,
        max_bytes: int,
        writer: Workers,
        seconds: Callable[[], float],
    ) -> None:
        """seconds: a monotonic clock."""
        self.name = name
        self.requests = self.bytes = self.refused = 0
        self.writer = writer
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._free = FREE_REFUSALS
        self._free_at = 0.0

    def takes(self, size: int) -> bool:
        """Return whether the queue has space for an append of `size` bytes. An empty queue accepts any size."""
        return not self.requests or (self.requests < self._max_requests and self.bytes + size <= self._max_bytes)

    def refuse(self) -> float:
        """Count a refused append. Return for how many seconds its client has to pause."""
        self.refused += 1
        now = self._seconds()
        self._free = min(self._free + (now - self._free_at) * FREE_REFUSALS, FREE_REFUSALS)
        self._free_at = now
        if self._free < 1:
            return PAUSE
        self._free -= 1
        return 0.0

    def enter(self, size: int) -> None:
        """Count an append of `size` bytes."""
        self.requests += 1
        self.bytes += size

    def leave(self, size: int) -> None:
        """Note that an append that had entered was answered."""
        self.requests -= 1
        self.bytes -= size
