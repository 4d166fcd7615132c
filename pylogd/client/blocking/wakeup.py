"""Let one thread end another's wait for sockets."""

from __future__ import annotations

import contextlib
import os
import threading


class Wakeup:
    """A pipe whose reading end is polled with the sockets."""

    def __init__(self) -> None:
        """Open the pipe."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._closed = False
        self._lock = threading.Lock()  # the descriptor may belong to another file as soon as it is closed

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._read

    def set(self) -> None:
        """End the present wait, or else the next one. Any thread may call this."""
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes the reader too
            if not self._closed:
                os.write(self._write, b"\0")

    def clear(self) -> None:
        """Empty the pipe, so that the next wait does not end at once."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def close(self) -> None:
        """Close the pipe. Nobody may wait any more."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self._write)
