"""A connection in the middle of a request, as `RequestMemory` sees it."""

from __future__ import annotations

from pylogd.link.request_memory import MemoryShare, RequestMemory


class FakeUpload:
    """A connection that sends a request of `size` bytes; `received` of them came before it could ask for memory."""

    def __init__(self, memory: RequestMemory, size: int, received: int) -> None:
        self.size = size
        self.partial_bytes = received
        self.paused = False
        self.closed_for = ""
        self.share: MemoryShare = memory.share(self)

    @property
    def announced_bytes(self) -> int:
        return self.size if self.partial_bytes else 0

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def cut(self, reason: str) -> None:
        """Close the connection."""
        self.closed_for = reason
        self.share.release()

    def answer(self) -> None:
        """Answer the request, which has arrived."""
        self.partial_bytes = 0
        self.share.settle()
