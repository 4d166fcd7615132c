"""Messages that can be accounted for: stamped by their producer, and counted for each topic and window of time.

    with Producer(...) as producer, AuditedProducer(producer, topic="audit") as audited:
        audited.send("flights", b"...", key=b"N12345")

Strategy: each message gets one header, `pylogd.audit`, with the time in milliseconds, the server's name, the
producer's id and its number in the topic. What was delivered is counted by topic and window of the stamped time; when
a window is over and nothing sent in it is under way, its counts go to the audit topic as a report. Whoever receives the
messages, on this cluster, another, or in a lake, compares: `pylogd audit`.

Counting is by batch: all records of a batch have one result. A message's number is kept with its batch until the batch
has its result, which is looked up when a window is reported, or when there are many batches; the producer's thread has
nothing to do for it. The header is encoded once a millisecond, but for the number.

Rules: a message that was not delivered is not counted, and its number is in the report, so that nobody takes it for
lost. Reports add up: the same window may have several, told apart by their number. `close` waits for what is under way
and reports all. One thread or many may send.
Source: the Kafka paper (NetDB 2011), section 3.3, "auditing".
"""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from pylogd.client.blocking.producer import Delivery, Producer
from pylogd.client.core.producer.accumulator import Batch
from pylogd.clock import wall_ms
from pylogd.errors import PylogdError
from pylogd.wire.records import Header, encode_headers

HEADER: Final = "pylogd.audit"
AUDIT_TOPIC: Final = "pylogd-audit"
WINDOW_MS: Final = 60_000
_SETTLE_BATCHES: Final = 1000  # a window with more batches looks for those that have their result
_MOST_RANGES: Final = 10_000  # of numbers in a report, which has to fit into a message


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
    """How many messages a producer delivered to a topic in a window, beyond its reports before this one.

    first, last: the numbers that it gave to messages of the window, -1 for both where they are not known. failed: of
    these the ranges, from the first to the last number, that were not delivered, or not known to be.
    """

    producer: str
    server: str
    topic: str
    window_start_ms: int
    window_ms: int
    count: int
    number: int
    first: int = -1
    last: int = -1
    failed: Sequence[tuple[int, int]] = ()

    def encode(self) -> bytes:
        """The message in the audit topic."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


class _Window:
    """The messages that were sent to a topic in one go within a window: `first` is the number of the first of them."""

    __slots__ = ("batches", "behind", "delivered", "end", "failed", "first", "settle_at", "start", "topic")

    def __init__(self, topic: str, start: int, end: int, first: int) -> None:
        self.topic = topic
        self.start = start
        self.end = end
        self.first = first
        self.behind = -1  # the number behind its last, once there is a window after it
        self.batches: dict[Batch, list[int]] = {}  # the numbers in each batch that had no result when last looked at
        self.delivered = 0
        self.failed: list[int] = []
        self.settle_at = _SETTLE_BATCHES

    def settle(self) -> bool:
        """Count what has its result; return whether all of it has."""
        for batch, numbers in [*self.batches.items()]:
            if batch.result is None:
                continue
            del self.batches[batch]
            if batch.result.error is None:
                self.delivered += len(numbers)
            else:
                self.failed += numbers
        return not self.batches


_CLOSED: Final = _Window("", 0, 0, 0)  # takes no message


class _Topic:
    """Where a producer is in a topic: the next number, and the window that messages go to.

    `stamp` makes the encoded header of a number (`stamp % number`) at the time `now` for numbers below `longer`, the
    next one with another digit more.
    """

    __slots__ = ("batch", "longer", "now", "number", "numbers", "stamp", "window")

    def __init__(self) -> None:
        self.number = 0
        self.window = _CLOSED
        self.now = -1
        self.longer = 0
        self.stamp = b""
        self.batch: Batch | None = None  # the last message's, with its `numbers` in the window
        self.numbers: list[int] = []


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
        self._sender = producer._sender
        self._accumulator = producer._accumulator
        self._lock = self._sender.lock  # so that a record's batch, its number and its window are one step
        self._topics: dict[str, _Topic] = {}
        self._windows: list[_Window] = []  # that are not reported yet
        self._reports = 0

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
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[Header] = (),
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:
        """As `Producer.send`."""
        producer, sender = self._producer, self._sender
        with self._lock:  # this is `Producer.send` with a number and a stamp: a call of it costs more than both
            if self._accumulator.buffered >= producer._limit or producer._core.failure is not None:
                producer._make_room()
            count = producer._partitions.get(topic) or producer._learn(topic)
            if partition is not None and not 0 <= partition < count:
                count = producer._learn(topic, partition)
            now = self._now_ms()
            state = self._topics.get(topic) or self._topics.setdefault(topic, _Topic())
            number = state.number
            is_new = (now != state.now or number == state.longer) and self._prepare(topic, state, now)
            if headers:
                headers = (*headers, (HEADER, Stamp(now, self._server, self._id, number).encode()))
            batch = self._accumulator.add(
                topic, count, partition, key, value, now if timestamp is None else timestamp, headers,
                b"" if headers else state.stamp % number,
            )  # fmt: skip
            state.number = number + 1
            if batch is not state.batch:
                self._join(state, batch)
            state.numbers.append(number)
            index = len(batch.records) - 1
            delivery = Delivery(sender, batch, index)
            if on_delivery is not None:
                batch.listeners += (delivery, on_delivery)
            if not index or batch.count:  # opened, or sealed
                sender.nudge(batch)
        if is_new:
            self.report()
        return delivery

    def _prepare(self, topic: str, state: _Topic, now: int) -> bool:
        """Encode what the stamps of this millisecond have in common; return whether it begins another window."""
        encoded = encode_headers([(HEADER, Stamp(now, self._server, self._id, state.number).encode())])
        tail = f"/{self._server}".encode()
        head = encoded[: -len(b"%d%b" % (state.number, tail))]
        state.stamp = b"%b%%d%b" % (head.replace(b"%", b"%%"), tail.replace(b"%", b"%%"))
        state.now, state.longer = now, 10 ** len(str(state.number))
        if state.window.start <= now < state.window.end:
            return False
        self._open(topic, state, now)
        return True

    def _open(self, topic: str, state: _Topic, now: int) -> None:
        state.window.behind = state.number
        start = now - now % self._window_ms
        state.batch = None
        state.window = window = _Window(topic, start, start + self._window_ms, state.number)
        self._windows.append(window)

    def _join(self, state: _Topic, batch: Batch) -> None:
        """A message went to another batch than the one before it."""
        window = state.window
        if len(window.batches) > window.settle_at:
            window.settle()
            window.settle_at = max(_SETTLE_BATCHES, 2 * len(window.batches))
        numbers = window.batches.get(batch)
        if numbers is None:
            window.batches[batch] = numbers = []
        state.batch, state.numbers = batch, numbers

    def report(self, *, everything: bool = False) -> None:
        """Send the reports of windows that are over; with `everything` those of the present one too."""
        with self._lock:
            now = self._now_ms()
            due = [window for window in self._windows if (everything or window.end <= now) and window.settle()]
            for window in due:
                self._windows.remove(window)
                state = self._topics[window.topic]
                if state.window is window:
                    window.behind, state.window, state.now = state.number, _CLOSED, -1
        while due:
            try:
                self._report(due[0])
            except BaseException:
                with self._lock:  # they are for the next time
                    self._windows = due + self._windows
                raise
            del due[0]

    def _report(self, window: _Window) -> None:
        failed = _ranges(window.failed)
        delivered = window.delivered
        while delivered or failed:
            with self._lock:
                self._reports += 1
                number = self._reports
            report = Report(
                self._id, self._server, window.topic, window.start, self._window_ms, delivered, number,
                window.first, window.behind - 1, failed[:_MOST_RANGES],
            )  # fmt: skip
            self._producer.send(self._topic, report.encode(), key=self._id.encode(), timestamp=window.start)
            window.delivered = delivered = 0
            failed = failed[_MOST_RANGES:]
            window.failed = [number for first, last in failed for number in range(first, last + 1)]

    def close(self, timeout: float | None = None) -> None:
        """Wait for what is under way, then report all; raises as `Producer.flush`."""
        try:
            self._producer.flush(timeout)
        finally:
            self.report(everything=True)
            self._producer.flush(timeout)


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of numbers, in order."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
