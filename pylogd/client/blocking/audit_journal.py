"""A producer's local file of the messages that it has not reported yet, which survives the process.

    with Producer(...) as producer, AuditedProducer(producer, journal="/var/lib/app/audit.journal") as audited: ...

Strategy: a text file that is appended to. Each line has the CRC-32 of what follows it:

    W {"id": 7, "first": 1000, ...}    a window began; its first message has number 1000
    N 7 1234                           the application called `send` for messages up to number 1234
    F 7 1000 1009                      these messages were not delivered, and the application knows
    D 7                                the window's report is in the audit topic

When the file is opened again, a window without `D` belongs to a process that ended before it reported the window. Such
windows are returned as reports with `recovered` set, and stay in the file until these reports have arrived. The file is
rewritten with only the windows without `D` when it is opened, and when it is larger than a megabyte.

Rules: reading stops at the first incomplete line, which was being written when the machine stopped. A line is in the
kernel when the call returns, so it survives the end of the process; `fsync` says when it survives a crash of the
machine. If the file can't be written, this is logged once, and the producer continues without a journal. Only one
process at a time may open the file (a lock on FILE.lock). Any thread may call.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pylogd.base.errors import PylogdError
from pylogd.client.core.audit import Report

_MOST_BYTES: Final = 1 << 20
#: Recovered reports have numbers from here on, which those of a living producer never reach.
_RECOVERED: Final = 1 << 62
_log = logging.getLogger(__name__)


class JournalInUse(PylogdError):
    """Another process, or another producer of this one, has the journal open."""


@dataclass(slots=True)
class JournalWindow:
    """A window without a report. It has messages from number `first` to `last`; without any, `last` is `first - 1`."""

    id: int
    producer: str
    server: str
    topic: str
    start: int
    width: int
    first: int
    last: int
    failed: list[tuple[int, int]] = field(default_factory=list)

    def report(self) -> Report:
        """Return a report of the window, whose producer has ended."""
        return Report(
            self.producer, self.server, self.topic, self.start, self.width, 0, _RECOVERED + self.id,
            self.first, self.last, tuple(self.failed), recovered=True,
        )  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield the lines of the file for this window."""
        fields = ("id", "producer", "server", "topic", "start", "width", "first")
        yield "W " + json.dumps({name: getattr(self, name) for name in fields})
        if self.last >= self.first:
            yield f"N {self.id} {self.last}"
        for first, last in self.failed:
            yield f"F {self.id} {first} {last}"


class Journal:
    """An open journal.

    recovered: the windows that an earlier process left, oldest first.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: float | None = 1.0) -> None:
        """Open or create the file.

        fsync: the seconds within which a line is on the disk; 0: before the call returns; None: when the system writes
        it.

        Raises JournalInUse, and OSError if the file can't be read or created.
        """
        if fsync is not None and fsync < 0:
            raise ValueError(f"fsync takes seconds, 0 or None, not {fsync}")
        self._path = Path(path)
        self._fsync = fsync
        self._mutex = threading.Lock()
        self._lock_file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock_file)
            raise JournalInUse(f"{path} is in use by another producer: give each a file of its own") from None
        self._file = -1
        self._dirty = False
        self._broken = False
        data = self._path.read_bytes() if self._path.exists() else b""
        self._windows = read_journal(data, str(path))
        self.recovered = list(self._windows.values())
        self._next = 1 + max(self._windows, default=0)
        self._rewrite()
        self._stopped = threading.Event()
        self._syncer: threading.Thread | None = None
        if fsync:
            self._syncer = threading.Thread(target=self._sync_often, name="pylogd-audit-journal", daemon=True)
            self._syncer.start()

    def begin(self, producer: str, server: str, topic: str, start: int, width: int, first: int) -> int:
        """Record a window of `width` milliseconds that begins at `start`. Return its number in the journal."""
        with self._mutex:
            window = JournalWindow(self._next, producer, server, topic, start, width, first, first - 1)
            self._next += 1
            self._windows[window.id] = window
            self._append(*window.lines())
        return window.id

    def given(self, window: int, number: int) -> None:
        """Record that the application has called `send` for the messages of a window up to this number."""
        with self._mutex:
            found = self._windows.get(window)
            if found is not None and number > found.last:
                found.last = number
                self._append(f"N {window} {number}")

    def failed(self, window: int, runs: Sequence[tuple[int, int]]) -> None:
        """Record messages whose delivery failed."""
        with self._mutex:
            found = self._windows.get(window)
            if found is not None:
                found.failed += runs
                self._append(*(f"F {window} {first} {last}" for first, last in runs))

    def done(self, window: int) -> None:
        """Record that the window's report has arrived. The window is forgotten."""
        with self._mutex:
            if self._windows.pop(window, None) is not None:
                self._append(f"D {window}")

    def close(self) -> None:
        """Write the buffered entries to the disk, unless `fsync` is None, and close the file."""
        self._stopped.set()
        if self._syncer is not None:
            self._syncer.join()
        with self._mutex:
            if self._file >= 0:
                self._sync()
                os.close(self._file)
                self._file = -1
                os.close(self._lock_file)

    # The mutex is held ---------------------------------------------------------------------------------------------

    def _append(self, *lines: str) -> None:
        if self._broken or self._file < 0:
            return
        try:
            _write(self._file, b"".join(map(_line, lines)))
            self._dirty = True
            if self._fsync == 0:
                self._sync()
            if os.fstat(self._file).st_size > self._limit:
                self._rewrite()
        except OSError as error:
            self._fail(error)

    def _rewrite(self) -> None:
        """Replace the file by one with only the windows that have no report."""
        draft = Path(f"{self._path}.new")
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        data = b"".join(_line(line) for window in self._windows.values() for line in window.lines())
        _write(file, data)
        if self._fsync is not None:
            os.fsync(file)
        draft.replace(self._path)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._limit = file, max(_MOST_BYTES, 2 * len(data))
        if self._fsync is not None:
            directory = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def _sync(self) -> None:
        if self._fsync is None or not self._dirty or self._broken:
            return
        self._dirty = False
        os.fsync(self._file)

    def _fail(self, error: OSError) -> None:
        self._broken = True
        _log.error(
            "can't write the audit journal %s: %s. Messages are still sent and reported, but if this process ends "
            "before it reports, the audit does not detect its lost messages. Repair the disk, then restart the "
            "process", self._path, error,
        )  # fmt: skip

    def _sync_often(self) -> None:
        assert self._fsync
        while not self._stopped.wait(self._fsync):
            with self._mutex:
                file = os.dup(self._file) if self._dirty and not self._broken else -1
                self._dirty = False
            if file < 0:
                continue
            try:
                os.fsync(file)  # without the mutex, so that `send` does not wait for the disk
            except OSError as error:
                self._fail(error)
            finally:
                os.close(file)


def _write(file: int, data: bytes) -> None:
    if os.write(file, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _line(text: str) -> bytes:
    data = text.encode()
    return b"%08x %b\n" % (zlib.crc32(data), data)


def read_journal(data: bytes, name: str) -> dict[int, JournalWindow]:
    """Return the windows of a journal's content that have no report, by their numbers. `name` is for the log."""
    windows: dict[int, JournalWindow] = {}
    position = 0
    while (end := data.find(b"\n", position)) >= 0:
        crc, _, text = data[position:end].partition(b" ")
        if crc != b"%08x" % zlib.crc32(text):
            break
        _apply(windows, text.decode())
        position = end + 1
    if position < len(data):
        _log.warning(
            "the audit journal %s ends in an incomplete entry: ignoring its last %d bytes", name, len(data) - position
        )
    return windows


def _apply(windows: dict[int, JournalWindow], text: str) -> None:
    kind, _, rest = text.partition(" ")
    if kind == "W":
        document: dict[str, Any] = json.loads(rest)
        window = JournalWindow(**document, last=document["first"] - 1)
        windows[window.id] = window
        return
    which, *numbers = map(int, rest.split())
    if kind == "D":
        windows.pop(which, None)
    elif which in windows and kind == "N":
        windows[which].last = max(windows[which].last, numbers[0])
    elif which in windows and kind == "F":
        windows[which].failed.append((numbers[0], numbers[1]))
