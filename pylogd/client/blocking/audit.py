"""Messages that can be accounted for: stamped by their producer, and counted for each topic and window of time.

    with Producer(...) as producer, AuditedProducer(producer, topic="audit") as audited:
        audited.send("flights", b"...", key=b"N12345")

Strategy: each message gets one header, `pylogd.audit`, with the time in milliseconds, the server's name, the
producer's id and its number in the topic. What was delivered is counted by topic and window of the stamped time; when
a window is over and nothing sent in it is under way, its counts go to the audit topic as a report. Whoever receives the
messages, on this cluster, another, or in a lake, compares: `pylogd audit`.

Rules: a message that was not delivered is not counted. Reports add up: the same window may have several, told apart by
their number. `close` waits for what is under way and reports all. One thread or many may send.
Source: the Kafka paper (NetDB 2011), section 3.3, "auditing".
"""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from pylogd.client.blocking.producer import Delivery, Producer
from pylogd.clock import wall_ms
from pylogd.errors import PylogdError
from pylogd.wire.records import Header

HEADER: Final = "pylogd.audit"
AUDIT_TOPIC: Final = "pylogd-audit"
WINDOW_MS: Final = 60_000


class NotStamped(PylogdError):
    """A header that is not the stamp of an audited producer."""


class Stamp(NamedTuple):
    """When, where and by whom a message was sent; `number` counts a producer's messages to a topic from 0."""

    time_ms: int
    server: str
    producer: str
    number: int

    def encode(self) -> bytes:
        """The header's value."""
        return f"{self.time_ms}/{self.producer}/{self.number}/{self.server}".encode()

    @classmethod
    def decode(cls, value: bytes) -> Stamp:
        """The inverse; `NotStamped`."""
        try:
            moment, producer, number, server = value.decode().split("/", 3)
            return cls(int(moment), server, producer, int(number))
        except ValueError as error:
            raise NotStamped(f"{value!r} is not the stamp of an audited producer") from error


@dataclass(frozen=True, slots=True)
class Report:
    """How many messages a producer delivered to a topic in a window, beyond its reports before this one."""

    producer: str
    server: str
    topic: str
    window_start_ms: int
    window_ms: int
    count: int
    number: int

    def encode(self) -> bytes:
        """The message in the audit topic."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


class _Window:
    """The counts of one topic in one window."""

    __slots__ = ("delivered", "under_way")

    def __init__(self) -> None:
        self.delivered = 0
        self.under_way = 0


class AuditedProducer:
    """A producer that stamps and counts; the one that it is given stays its owner's to close."""

    def __init__(
        self,
        producer: Producer,
        *,
        topic: str = AUDIT_TOPIC,
        window_ms: int = WINDOW_MS,
        server: str | None = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """`topic` takes the reports. `server` is this machine's name."""
        if window_ms < 1:
            raise ValueError(f"a window takes at least a millisecond, not {window_ms}")
        self._producer = producer
        self._topic = topic
        self._window_ms = window_ms
        self._server = server or socket.gethostname()
        self._now_ms = now_ms
        self._id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._windows: dict[tuple[str, int], _Window] = {}
        self._reports = 0
        self._next_look = 0

    def __enter__(self) -> AuditedProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Sequence[Header] = (),
        on_delivery: Callable[[Delivery], None] | None = None,
        **options: Any,
    ) -> Delivery:
        """As `Producer.send`."""
        now = self._now_ms()
        start = now - now % self._window_ms
        with self._lock:
            number = self._numbers.get(topic, 0)
            self._numbers[topic] = number + 1
            window = self._windows.setdefault((topic, start), _Window())
            window.under_way += 1

        def delivered(delivery: Delivery) -> None:
            with self._lock:
                window.under_way -= 1
                window.delivered += delivery.error is None
            if on_delivery is not None:
                on_delivery(delivery)

        stamp = (HEADER, Stamp(now, self._server, self._id, number).encode())
        try:
            delivery = self._producer.send(
                topic, value, key, headers=[*headers, stamp], on_delivery=delivered, **options
            )
        except BaseException:
            with self._lock:
                window.under_way -= 1
            raise
        if now >= self._next_look:
            self._next_look = start + self._window_ms
            self.report()
        return delivery

    def report(self, *, everything: bool = False) -> None:
        """Send the reports of windows that are over; with `everything` those of the present one too."""
        now = self._now_ms()
        with self._lock:
            due = [
                key
                for key, window in sorted(self._windows.items())
                if not window.under_way and (everything or key[1] + self._window_ms <= now)
            ]
        for key in due:
            self._report(*key)

    def _report(self, topic: str, start: int) -> None:
        with self._lock:
            window = self._windows.get((topic, start))
            if window is None or window.under_way:
                return  # another thread was faster
            del self._windows[topic, start]
            self._reports += 1
            number = self._reports
        if not window.delivered:
            return
        report = Report(self._id, self._server, topic, start, self._window_ms, window.delivered, number)
        try:
            self._producer.send(self._topic, report.encode(), key=self._id.encode(), timestamp=start)
        except BaseException:
            with self._lock:  # it is for the next time
                self._windows.setdefault((topic, start), _Window()).delivered += window.delivered
            raise

    def close(self, timeout: float | None = None) -> None:
        """Wait for what is under way, then report all."""
        self._producer.flush(timeout)
        self.report(everything=True)
        self._producer.flush(timeout)
