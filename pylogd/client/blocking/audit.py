"""Stamp the messages of a producer, and count them for each topic and window of time, so that losses can be found.

    with Producer(...) as producer, AuditedProducer(producer, topic="audit") as audited:
        audited.send("flights", b"...", key=b"N12345")

Strategy: each message gets one header, `pylogd.audit`, with the time in milliseconds, the server's name, the
producer's id and its number in the topic. Delivered messages are counted by topic and by the window of their stamped
time. When a window is over and all of its messages have a result, its counts go to the audit topic as a report. `pylogd
audit` compares the reports with the messages that arrived on this cluster, on another one, or in a lake.

Messages are counted by batch, since all records of a batch have one result. A message's number is kept with its batch
until the batch has its result. Results are looked up when a window is reported or when there are many batches, so the
producer's thread has no extra work. The header is encoded once a millisecond, except for the number, whose last digits
are encoded beforehand. `send` handles a plain record itself; all others go through the producer's own `send`, with a
step that stamps and counts in front of the accumulator's `add`.

A producer that ends without `close` leaves windows without a report. With a `journal` (`audit_journal`) the next
producer with the same file reports these windows, as messages that were given to `send` and may be lost. Without a
journal, a message that never arrived is noticed only as a gap in the numbers, and only if a later message arrived.

A thread checks every `report_interval` seconds whether a window is over, in case the producer sends nothing more.

Messages of a transactional producer count as delivered once their transaction is committed, and as not delivered if it
is aborted. Reports belong to no transaction, and the application's serializers and interceptors must not see them. So a
second producer sends the reports if the first one has transactions, serializers or interceptors.

Rules: a message that was not delivered is not counted, and its number is in the report, so that it is not taken for
lost. One window may have several reports, which have different numbers and are added up. `close` waits for the messages
in flight and reports all windows. Any thread may send.
Source: the Kafka paper (NetDB 2011), section 3.3, "auditing".
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

from pylogd.base.clock import wall_ms
from pylogd.base.errors import PylogdError
from pylogd.client.blocking.audit_journal import Journal
from pylogd.client.blocking.producer import Delivery, Producer
from pylogd.client.core.audit import AUDIT_TOPIC, HEADER, WINDOW_MS, Report, Stamp, ranges
from pylogd.client.core.errors import Closed
from pylogd.client.core.producer.accumulator import Batch, check_timestamp
from pylogd.client.core.producer.transaction_model import TransactionOutcome
from pylogd.wire.records import Header, encode_headers

_SETTLE_BATCHES: Final = 1000  # with more batches than this, a window looks which of them have their result
_MOST_RANGES: Final = 10_000  # the most ranges of numbers in a report, which has to fit into a message
_MOST_DIGITS: Final = 3  # the last digits of numbers, encoded beforehand
_JOURNAL_SECONDS: Final = 0.1  # the time between two entries of the thread in the journal
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Window:
    """The messages that were sent to a topic within a window.

    first: the number of the first message.
    behind: the number after the window's last message, once there is a later window.
    batches: the message numbers in each batch without a known result.
    outcomes: the outcomes of the transactions of batches, if the producer is transactional.
    journal: the window's number in the journal, if there is a journal.
    """

    topic: str
    start: int
    end: int
    first: int
    behind: int = -1
    batches: dict[Batch, list[range]] = field(default_factory=dict)
    outcomes: dict[Batch, TransactionOutcome] = field(default_factory=dict)
    delivered: int = 0
    failed: list[int] = field(default_factory=list)
    settle_at: int = _SETTLE_BATCHES
    journal: int = 0

    def settle(self, *, is_last: bool = False) -> bool:
        """Count the messages that have a result. Return whether all messages have one.

        is_last: whether messages of an open transaction count as not delivered.
        """
        for batch, numbers in [*self.batches.items()]:
            if batch.result is None:
                continue
            outcome = self.outcomes.get(batch)
            if outcome is not None and outcome.committed is None and not is_last and batch.result.error is None:
                continue
            del self.batches[batch]
            self.outcomes.pop(batch, None)
            if batch.result.error is None and (outcome is None or outcome.committed):
                self.delivered += sum(map(len, numbers))
            else:
                self.failed += chain.from_iterable(numbers)
        return not self.batches


_CLOSED: Final = _Window("", 0, 0, 0)  # a window that takes no messages


class _Topic:
    """The state of a producer in a topic: the next number, and the window that messages go to.

    At the time `now`, the encoded header of a number from `base` to below `limit` is `head + tails[number - base]`.
    """

    __slots__ = ("base", "batch", "first", "head", "limit", "now", "number", "numbers", "tails", "window")

    def __init__(self) -> None:
        self.number = 0
        self.window = _CLOSED
        self.now = -1
        self.base = self.limit = 0
        self.head = b""
        self.tails: list[bytes] = []
        self.batch: Batch | None = None  # the last message's batch; `numbers` are its ranges in the window
        self.numbers: list[range] = []
        self.first = 0  # the numbers from this one on are not in `numbers` yet

    def end_run(self, number: int) -> None:
        """Record the numbers up to this one for the batch that they went to."""
        if self.batch is not None:
            self.numbers.append(range(self.first, number))
            self.batch = None


class AuditedProducer:
    """Wrap a producer: stamp and count its messages for the audit. The caller closes the wrapped producer."""

    def __init__(
        self,
        producer: Producer,
        *,
        topic: str = AUDIT_TOPIC,
        window_ms: int = WINDOW_MS,
        server: str | None = None,
        now_ms: Callable[[], int] = wall_ms,
        journal: str | os.PathLike[str] | None = None,
        journal_fsync: float | None = 1.0,
        report_interval: float | None = 1.0,
    ) -> None:
        """topic: the topic of the reports.
        server: this machine's name.
        journal: a local file of this producer, from which the next producer reports what this one did not report.
        journal_fsync: the seconds after which a line is on the disk; 0: at once; None: when the system writes it.
        report_interval: the seconds between two checks of a thread for ended windows; None: only `send` checks.
        Raises JournalInUse, and OSError if the journal can't be read or created.
        """
        if window_ms < 1:
            raise ValueError(f"a window takes at least a millisecond, not {window_ms}")
        self._producer = producer
        self._topic = topic
        self._window_ms = window_ms
        self._server = server or socket.gethostname()
        self._now_ms = now_ms
        self._id = uuid.uuid4().hex
        tail = f"/{self._server}".encode()
        self._tails = {
            digits: [b"%0*d%b" % (digits, number, tail) for number in range(10**digits)] for digits in (1, _MOST_DIGITS)
        }
        self._lock = producer._sender.lock  # so that a record gets its batch, number and window in one step
        self._add = producer._add
        self._stamping = producer._adding_by(self._add_stamped)
        self._stamping._now_ms = now_ms
        self._sender = producer._sender
        self._accumulator = producer._accumulator
        self._partitions = producer._partitions
        self._topics: dict[str, _Topic] = {}
        self._windows: list[_Window] = []  # the windows without a report
        self._reports = 0
        self._stopped = threading.Event()
        self._journal = None if journal is None else Journal(journal, fsync=journal_fsync)
        self._report_by(producer)
        self._begin(report_interval)

    def _report_by(self, producer: Producer) -> None:
        """Send reports with the application's producer, unless that would change them or be part of a transaction."""
        self._prepares = producer._prepares  # whether serializers or interceptors have to run
        is_transactional = producer.options.transactional_id is not None
        self._transactions = producer._core.transactions if is_transactional else None
        self._has_reporter = is_transactional or self._prepares
        self._reporter = None if self._has_reporter else producer

    def _begin(self, report_interval: float | None) -> None:
        """Take the windows that an earlier producer left. Start the thread for reports and the journal."""
        self._recovered = [] if self._journal is None else [*self._journal.recovered]
        self._begun = bool(self._recovered)  # whether there may be a window to report
        intervals = [_JOURNAL_SECONDS] if self._journal is not None else []
        intervals += [report_interval] if report_interval is not None else []
        if intervals:
            work = (weakref.ref(self), self._stopped, min(intervals), report_interval is not None)
            threading.Thread(target=_work, args=work, name="pylogd-audit", daemon=True).start()

    def __enter__(self) -> AuditedProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[Header] = (),
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:
        """Send a message, as `Producer.send` does."""
        if partition is not None or headers or on_delivery is not None or self._prepares:
            delivery = self._stamping.send(
                topic, value, key, partition=partition, timestamp=timestamp, headers=headers, on_delivery=on_delivery
            )
            if self._begun:
                self._report_once()
            return delivery
        # This is `self._stamping.send` with `_add_stamped`, inlined: the calls would double the cost of auditing a
        # message.
        with self._lock:
            if self._accumulator.buffered >= self._accumulator.limit:
                self._producer._make_room()
            count = self._partitions.get(topic) or self._producer._learn(topic)
            timestamp = self._now_ms() if timestamp is None else check_timestamp(timestamp)
            state = self._topics.get(topic)
            if state is None:
                state = self._topics[topic] = _Topic()
            number = state.number
            if timestamp != state.now or number >= state.limit:
                self._look_at_clock(topic, state)
            stamp = state.head + state.tails[number - state.base]
            batch = self._add(topic, count, None, key, value, timestamp, (), stamp)
            state.number = number + 1
            if batch is not state.batch:
                self._join(state, batch, number)
            index = len(batch.records) - 1
            if not index or batch.count:  # a batch was opened, or sealed
                self._sender.nudge(batch)
        if self._begun:
            self._report_once()
        return Delivery(self._sender, batch, index)

    def _add_stamped(
        self,
        topic: str,
        partitions: int,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Sequence[Header],
    ) -> Batch:
        """Stamp, number and count a record, then add it as `Accumulator.add` does. The lock is held."""
        state = self._topics.get(topic)
        if state is None:
            state = self._topics[topic] = _Topic()
        number = state.number
        # A record without a time stamp of its own comes with the time of now.
        if timestamp != state.now or number >= state.limit:
            self._look_at_clock(topic, state)
        if headers:
            stamp = Stamp(state.now, self._server, self._id, number)
            headers = (*headers, (HEADER, stamp.encode()))
            batch = self._add(topic, partitions, partition, key, value, timestamp, headers)
        else:
            stamp_bytes = state.head + state.tails[number - state.base]
            batch = self._add(topic, partitions, partition, key, value, timestamp, headers, stamp_bytes)
        state.number = number + 1
        if batch is not state.batch:
            self._join(state, batch, number)
        return batch

    def _look_at_clock(self, topic: str, state: _Topic) -> None:
        """Encode the common part of the next stamps, if the time has changed. Begin another window when it is time."""
        number, now = state.number, self._now_ms()
        if now == state.now and number < state.limit:
            return
        digits = _MOST_DIGITS if number >= 10**_MOST_DIGITS else 1
        state.base = number - number % 10**digits
        state.limit = state.base + 10**digits
        state.tails = self._tails[digits]
        encoded = encode_headers([(HEADER, Stamp(now, self._server, self._id, number).encode())])
        state.head = encoded[: -len(state.tails[0])]
        state.now = now
        if not state.window.start <= now < state.window.end:
            self._open(topic, state, now)
        if self._journal is not None:
            self._journal.given(state.window.journal, number)

    def _open(self, topic: str, state: _Topic, now: int) -> None:
        state.end_run(state.number)
        state.window.behind = state.number
        start = now - now % self._window_ms
        state.window = window = _Window(topic, start, start + self._window_ms, state.number)
        self._windows.append(window)
        self._begun = True
        if self._journal is not None:
            window.journal = self._journal.begin(
                self._id, self._server, topic, start, self._window_ms, state.number
            )  # fmt: skip

    def _join(self, state: _Topic, batch: Batch, number: int) -> None:
        """Record that the message of this number went to another batch than the one before it."""
        state.end_run(number)
        window = state.window
        if len(window.batches) > window.settle_at:
            window.settle()
            window.settle_at = max(_SETTLE_BATCHES, 2 * len(window.batches))
        numbers = window.batches.get(batch)
        if numbers is None:
            window.batches[batch] = numbers = []
            if self._transactions is not None:
                window.outcomes[batch] = self._transactions.outcome
        state.batch, state.numbers, state.first = batch, numbers, number

    def _report_once(self) -> None:
        self._begun = False
        self.report()

    def report(self, *, everything: bool = False) -> None:
        """Send the reports of windows that have ended; with `everything`, also that of the current window."""
        self._report_recovered()
        with self._lock:
            now = self._now_ms()
            for state in self._topics.values():
                state.end_run(state.number)
            over = [window for window in self._windows if everything or window.end <= now]
            due = [window for window in over if window.settle(is_last=everything)]
            for window in due:
                self._windows.remove(window)
                state = self._topics[window.topic]
                if state.window is window:
                    window.behind, state.window, state.limit = state.number, _CLOSED, 0
        while due:
            try:
                self._report(due[0])
            except BaseException:
                with self._lock:  # the next call reports them
                    self._windows = due + self._windows
                raise
            del due[0]

    def _report_recovered(self) -> None:
        """Report the windows that an earlier producer left in the journal."""
        while True:
            with self._lock:
                if not self._recovered:
                    return
                window = self._recovered.pop()
            try:
                if window.last >= window.first:
                    self._send_report(window.report(), window.id)
                elif self._journal is not None:
                    self._journal.done(window.id)
            except BaseException:
                with self._lock:
                    self._recovered.append(window)
                raise

    def _send_report(self, report: Report, journal: int) -> None:
        """Send a report. Once the report has arrived, the journal forgets its window."""
        self._reports_producer().send(
            self._topic, report.encode(), key=report.producer.encode(), timestamp=report.window_start_ms,
            on_delivery=(lambda delivery: self._arrived(delivery, journal)) if journal else None,
        )  # fmt: skip

    def _reports_producer(self) -> Producer:
        """Return the producer that sends reports. It is made for the first report, unless it is the application's."""
        with self._lock:
            if self._reporter is None:
                options = replace(
                    self._producer.options, transactional_id=None, key_serializer=None, value_serializer=None,
                    interceptors=(), on_batch=None, on_statistics=None,
                )  # fmt: skip
                known = self._producer._core._metadata.bootstrap
                addresses = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in known]
                self._reporter = Producer(addresses, options)
            return self._reporter

    def _arrived(self, delivery: Delivery, journal: int) -> None:
        if delivery.error is None and self._journal is not None:
            self._journal.done(journal)

    def _note_given(self) -> None:
        """Write the number of each topic's last message to the journal."""
        assert self._journal is not None
        with self._lock:
            for state in self._topics.values():
                if state.window is not _CLOSED:
                    self._journal.given(state.window.journal, state.number - 1)

    def _report(self, window: _Window) -> None:
        failed = ranges(window.failed)
        delivered = window.delivered
        if self._journal is not None:
            self._journal.given(window.journal, window.behind - 1)
            self._journal.failed(window.journal, failed)
            if not delivered and not failed:
                self._journal.done(window.journal)
        while delivered or failed:
            with self._lock:
                self._reports += 1
                number = self._reports
            report = Report(
                self._id, self._server, window.topic, window.start, self._window_ms, delivered, number,
                window.first, window.behind - 1, failed[:_MOST_RANGES],
            )  # fmt: skip
            self._send_report(report, window.journal if len(failed) <= _MOST_RANGES else 0)
            window.delivered = delivered = 0
            failed = failed[_MOST_RANGES:]
            window.failed = [number for first, last in failed for number in range(first, last + 1)]

    def close(self, timeout: float | None = None) -> None:
        """Wait until all records have results, then send all reports. Raises as `Producer.flush`."""
        self._stopped.set()
        try:
            self._producer.flush(timeout)
        finally:
            try:
                self.report(everything=True)
                if self._reporter is not None:
                    self._reporter.flush(timeout)
            finally:
                if self._has_reporter and self._reporter is not None:
                    self._reporter.abandon()
                if self._journal is not None:
                    self._journal.close()


def _work(audited: weakref.ref[AuditedProducer], stopped: threading.Event, seconds: float, reports: bool) -> None:
    """Record sent messages, and report ended windows, until the producer is closed or dropped."""
    while not stopped.wait(seconds):
        producer = audited()
        if producer is None:
            return
        try:
            if producer._journal is not None:
                producer._note_given()
            if reports:
                producer.report()
        except Closed:
            return
        except PylogdError as error:
            _log.warning("can't report to the audit topic %s, trying again: %s", producer._topic, error)
        del producer
