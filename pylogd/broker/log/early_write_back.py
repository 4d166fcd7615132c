"""Write appended data to the disk early, in small parts, instead of leaving all of it to the kernel.

The kernel collects dirty pages and writes many of them at once. It first locks the pages of a file that it writes,
among them the page that is being appended to. An append then waits until the last of them has been handed to the disk,
hundreds of milliseconds if the disk is busy with reads. Pages that were written early are no longer dirty, so the
kernel does not lock them.

Source: sync_file_range(2); mpage_prepare_extent_to_map in fs/ext4/inode.c of Linux. PostgreSQL has such settings
(`checkpoint_flush_after` and others), and RocksDB (`bytes_per_sync`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pylogd.broker.log.log import Log

#: Flags of `sync_file_range`. `WRITE` alone starts to write dirty pages; it waits only while the disk's queue is full,
#: and errors are reported by the next sync of the file.
WAIT_BEFORE: Final = 1
WRITE: Final = 2
WAIT_AFTER: Final = 4
#: A log with fewer new bytes waits until it has more. The kernel itself writes dirty pages after 30 seconds.
LEAST_BYTES: Final = 1 << 16


def _find_sync_file_range() -> Callable[[int, int, int, int], None] | None:
    """Return Linux's `sync_file_range`, which raises OSError; None on other systems."""
    try:
        function = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]

    def sync_file_range(fd: int, position: int, length: int, flags: int) -> None:
        while function(fd, position, length, flags):
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))

    return sync_file_range


#: (fd, position, length, flags): a length of 0 means the rest of the file.
sync_file_range: Final = _find_sync_file_range()


class EarlyWriteBack:
    """Start to write the data that was appended to logs since the last call. Only one thread at a time may call it."""

    def __init__(self) -> None:
        # The base offset of the active segment and the position written so far, by the log's directory.
        self._written: dict[str, tuple[int, int]] = {}

    def write(self, logs: Iterable[Log]) -> None:
        """Start to write the data appended to these logs, except the last, partial page. Forget all other logs.

        For a log that the last call did not include, only data appended after this call is written. Waits for the disk.
        """
        before, self._written = self._written, {}
        for log in logs:
            segment = log.active
            file, base, end = segment.file, segment.base_offset, segment.size & -mmap.PAGESIZE
            last, start = before.get(log.directory, (base, end))
            if last != base:
                start = 0  # it is a new segment; the one before is flushed at once
            if end - start >= LEAST_BYTES and file is not None and sync_file_range is not None:
                with contextlib.suppress(OSError):  # the next flush reports it
                    sync_file_range(file.fd, start, end - start, WRITE)
                start = end
            self._written[log.directory] = base, min(start, end)
