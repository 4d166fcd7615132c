"""A way for one thread to end another's wait for sockets."""

from __future__ import annotations

import contextlib
import os
import threading


class Wakeup:
    """A pipe whose reading end stands among the sockets that are waited for."""

    def __init__(self) -> None:
        """Open it."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._closed = False
        self._lock = threading.Lock()  # its number may belong to another file as soon as it is closed

    def fileno(self) -> int:
        """The end to wait for."""
        return self._read

    def set(self) -> None:
        """End the wait, or the next one if nobody waits now. From any thread."""
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            if not self._closed:
                os.write(self._write, b"\0")

    def clear(self) -> None:
        """Wait again the next time."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def close(self) -> None:
        """Close it; nobody may wait any more."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self._write)
