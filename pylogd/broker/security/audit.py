"""The audit log: denied and administrative operations, as lines of JSON in a file.

Strategy: the reactor's thread only puts an event into a bounded queue; another thread makes lines of events and writes
them. If the queue is full, the client with most events in it loses some (`security.audit_queue`). Lost events are
counted, and a line says how many are missing. A client whose operations are denied repeatedly fills neither the file
nor the memory: denials that it repeats within a minute are only counted, and at most `audit.log.denials.per.minute`
different denials are written. Lines at the end of the minute have the counts.

Rules: the caller chooses the fields of a line one by one; keys and passwords are never among them. Texts of clients are
cut at `LONGEST` characters. The file is appended to, and opened again by `reopen` after logrotate has renamed it. If a
write fails, this is logged once in the broker's log. As soon as the file can be written again, a line says how many are
missing.

Must not know: requests, the reactor.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias, overload

from twisted.logger import Logger

from pylogd.broker.security.audit_queue import AuditQueue
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.broker.security.client_share import share_of_client
from pylogd.config import Settings
from pylogd.credentials.principal import Principal

log = Logger()

#: The time over which repeated denials are counted.
WINDOW_SECONDS: Final = 60.0
#: The number of clients whose denials are counted separately; denials of other clients are counted together.
MOST_CLIENTS: Final = 4096
#: About how many bytes counted denials may take; further denials are counted without their text.
MOST_BYTES: Final = 1 << 24
#: The most characters of a text that are written. Names of topics have at most 249, ids of groups 1024.
LONGEST: Final = 1024
_FIELDS_BYTES: Final = 500  # about how many bytes a denial takes besides its texts
_TICK_SECONDS: Final = 1.0
_MODE: Final = 0o640

#: The fields of a line, without its time.
Fields: TypeAlias = Mapping[str, Any]
#: The client that caused events: a principal and an address.
Client: TypeAlias = tuple[str, str]


class _Window:
    """One client's events since a time, to count repeated events."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.repeated: dict[Hashable, int] = {}
        self.fields: dict[Hashable, Fields] = {}
        self.size = 0
        self.more = 0


class Limiter:
    """Decides which events of clients are written, and counts the others.

    most: the most different events of one client in `WINDOW_SECONDS`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._windows: dict[Client, _Window] = {}
        self._size = 0  # the size of all windows
        self._others = 0  # how many events clients beyond MOST_CLIENTS had

    def admit(self, client: Client, key: Hashable, fields: Fields, now: float, size: int = 0) -> bool:
        """Return whether to write an event of `client` now; otherwise count it. Events with the same key are equal.

        size: about how many bytes the key and the fields take.
        """
        window = self._windows.get(client)
        if window is None:
            if len(self._windows) >= MOST_CLIENTS:
                self._others += 1
                return False
            window = self._windows[client] = _Window(now)
        if key in window.repeated:
            window.repeated[key] += 1
            return False
        if len(window.repeated) >= self._most or self._size + size > MOST_BYTES:
            window.more += 1
            return False
        self._size += size
        window.size += size
        window.repeated[key] = 0
        window.fields[key] = fields
        return True

    def over(self, now: float) -> list[dict[str, Any]]:
        """End the windows whose time has passed. Return lines with their counts."""
        lines: list[dict[str, Any]] = []
        for client, window in [*self._windows.items()]:
            if now - window.since < WINDOW_SECONDS:
                continue
            del self._windows[client]
            self._size -= window.size
            lines += ({**window.fields[key], "repeated": count} for key, count in window.repeated.items() if count)
            if window.more:
                principal, host = client
                lines.append({"event": "denied", "principal": principal, "host": host, "not_written": window.more})
        if self._others and len(self._windows) < MOST_CLIENTS:
            lines.append({"event": "denied", "not_written": self._others})
            self._others = 0
        return lines


class _Event(NamedTuple):
    """An event in the queue.

    fields: the fields of its line, or a function that makes them. None means to open the file again.
    """

    time_ms: int
    client: Client
    fields: Fields | Callable[[], Fields | None] | None


def make_audit_log(settings: Settings, now_ms: Callable[[], int], seconds: Callable[[], float]) -> AuditLog | None:
    """Return the audit log of the settings, if they want one. The clocks are those of `AuditLog`."""
    path = settings.text("audit.log.path")
    if path is None:
        return None
    return AuditLog(
        path, now_ms, seconds, max_queued=settings.integer("audit.log.max.queued"),
        denials_per_minute=settings.integer("audit.log.denials.per.minute"),
    )  # fmt: skip


class AuditLog:
    """Writes events to a file, in its own thread."""

    def __init__(
        self,
        path: str,
        now_ms: Callable[[], int],
        seconds: Callable[[], float],
        *,
        max_queued: int,
        denials_per_minute: int,
    ) -> None:
        """Arguments:

        now_ms: the wall clock.
        seconds: a monotonic clock.

        The thread calls both too.
        """
        self.path = path
        self._now_ms = now_ms
        self._seconds = seconds
        self._limiter = Limiter(denials_per_minute)
        self._queue: AuditQueue[_Event] = AuditQueue(max_queued)
        self._fd = -1
        self._failing = False
        self._torn = False  # whether the last line was written in part
        self._lost = 0  # how many lines could not be written
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Open the file and start the thread. Raises OSError. May wait for the disk."""
        self._open()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write the queued events and close the file. Waits for the disk."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._close()

    def reopen(self) -> None:
        """Open the file again by its name."""
        self._queue.put(_Event(0, ("", ""), None))

    def denied(
        self,
        principal: Principal,
        host: str,
        client_id: str | None,
        api: str,
        operation: AclOperation,
        resource: ResourceType,
        name: str,
    ) -> None:
        """Record that an operation was denied."""
        client = shorten(str(principal)), host
        fields = {
            "event": "denied", "principal": client[0], "host": host, "client_id": shorten(client_id), "api": api,
            "operation": operation.name, "resource": resource.name, "name": shorten(name),
        }  # fmt: skip
        self._queue.put(_Event(self._now_ms(), client, fields), share_of_client(principal, host))

    def administrative(
        self,
        principal: Principal,
        host: str,
        client_id: str | None,
        api: str,
        describe: Callable[[], tuple[Fields, bool]],
    ) -> None:
        """Record an administrative operation.

        describe: called in the thread. It returns the request with its results, and whether anything was done. Events
            in which nothing was done are limited like denials.
        """
        client = shorten(str(principal)), host

        def fields() -> Fields | None:
            found, done = describe()
            who = {"event": "administrative", "principal": client[0], "host": host, "client_id": shorten(client_id)}
            line = {**who, "api": api, **found}
            if done:
                return line
            text = json.dumps(found, default=str).encode()
            key, size = (api, hashlib.sha256(text).digest()), 4 * len(text)  # objects take more memory than their text
            return line if self._limiter.admit(client, key, line, self._seconds(), size) else None

        self._queue.put(_Event(self._now_ms(), client, fields), share_of_client(principal, host))

    # -- in the thread

    def _run(self) -> None:
        while True:
            closing = self._closing.is_set()
            events = self._wait()
            try:
                self.write(events)
                if closing and not events:
                    return
            except Exception:
                log.failure("Unexpected error in the audit log; {count} events are lost", count=len(events))

    def _wait(self) -> list[_Event]:
        """Return the queued events, after at most a second."""
        return self._queue.take(0 if self._closing.is_set() else _TICK_SECONDS)

    def write(self, events: Iterable[_Event]) -> None:
        """Write the events of the queue, and the counts of dropped events."""
        lines: list[str] = []
        for event in events:
            if event.fields is None:
                self._append(lines)
                lines = []
                self._close()
                continue
            try:
                fields = self._fields(event)
            except Exception:  # the error is about one event, and the others are written
                log.failure("Unexpected error while describing an event for the audit log, which is lost")
                self._lost += 1
                continue
            if fields is not None:
                lines.append(_line(event.time_ms, fields))
        now_ms = self._now_ms()
        lines += (_line(now_ms, fields) for fields in self._limiter.over(self._seconds()))
        dropped = self._queue.dropped()
        if dropped:
            lines.append(_line(now_ms, {"event": "queue full", "not_written": dropped}))
        self._append(lines)

    def _fields(self, event: _Event) -> Fields | None:
        if callable(event.fields):
            return event.fields()
        assert event.fields is not None
        key = tuple(event.fields.values())
        size = _FIELDS_BYTES + sum(len(text) for text in key if text)
        return event.fields if self._limiter.admit(event.client, key, event.fields, self._seconds(), size) else None

    def _append(self, lines: list[str]) -> None:
        missing, self._lost = self._lost, 0
        if missing:
            lines = [_line(self._now_ms(), {"event": "write failed", "not_written": missing}), *lines]
        data = "".join(lines).encode("utf-8", "backslashreplace")
        if self._torn and data:
            data = b"\n" + data
        try:
            if self._fd < 0:
                self._open()
            while data:
                written = os.write(self._fd, data)
                self._torn = data[written - 1 : written] != b"\n"
                data = data[written:]
        except OSError as error:
            self._close()
            left = min(data.count(b"\n"), len(lines))
            self._lost = missing + left - 1 if missing and left == len(lines) else left
            if not self._failing:
                log.error("Can't write the audit log {path}: {error}. Events are lost until it can be written again",
                          path=self.path, error=error.strerror or error)  # fmt: skip
            self._failing = True
        else:
            if self._failing:
                log.info("The audit log {path} is written again", path=self.path)
            self._failing = False

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@overload
def shorten(text: str) -> str: ...
@overload
def shorten(text: None) -> None: ...
@overload
def shorten(text: str | None) -> str | None: ...
def shorten(text: str | None) -> str | None:
    """Cut a text that a client chose to `LONGEST` characters."""
    return text if text is None or len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def _line(time_ms: int, fields: Fields) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": moment, **fields}, separators=(",", ":"), default=str) + "\n"
