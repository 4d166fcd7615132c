"""A bounded queue of writes, with a thread of its own."""

from __future__ import annotations

from pylogd.isolation.workers import Workers


class WriteQueue:
    """Appends of some topics of one data directory, from their arrival until they are answered.

    name: for messages to operators and clients. requests, bytes: what waits or is being written. refused: how many
    appends were refused so far because the queue was full. writer: the thread that writes.
    """

    def __init__(
        self,
        name: str,
        max_requests: int,
        max_bytes: int,
        writer: Workers,
    ) -> None:
        self.name = name
        self.requests = self.bytes = self.refused = 0
        self.writer = writer
        self._max_requests = max_requests
        self._max_bytes = max_bytes

    def enter(self, size: int) -> bool:
        """Count an append of `size` bytes; return False, and count nothing, if the queue is full.

        An empty queue takes an append of any size.
        """
        if self.requests and (self.requests >= self._max_requests or self.bytes + size > self._max_bytes):
            self.refused += 1
            return False
        self.requests += 1
        self.bytes += size
        return True

    def leave(self, size: int) -> None:
        """Note that an append that had entered was answered."""
        self.requests -= 1
        self.bytes -= size
