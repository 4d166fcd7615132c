"""Audit stamps and reports, with a producer that keeps the records and delivers them when the test says so."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from pylogd.base.errors import PylogdError
from pylogd.client.blocking.audit import AuditedProducer
from pylogd.client.blocking.producer import Producer
from pylogd.client.core.audit import HEADER, NotStamped, Stamp
from pylogd.client.core.errors import BufferFull
from pylogd.client.core.producer.accumulator import Accumulator, Batch
from pylogd.client.core.producer.options import BatchResult, ProducerOptions
from pylogd.wire.records import decode_records, encode_records


class Sent:
    """A delivery that the test completes, with all others of its batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def done(self, error: PylogdError | None = None) -> None:
        self.batch.result = BatchResult(self.batch.partition, 1, 0, -1, error)


class ListProducer(Producer):
    """A producer that keeps the messages of each topic, and the reports apart, in batches of `batch_records`."""

    def __init__(self, batch_records: int = 1) -> None:
        super().__init__("nowhere:1")
        options = ProducerOptions(
            batch_bytes=1 << 20, batch_records=batch_records, linger_ms=1000, delivery_timeout=9.0,
            buffer_memory=1 << 30,
        )  # fmt: skip
        self._accumulator = Accumulator(options, lambda: 0.0)
        self._sender.nudge = lambda batch: None  # type: ignore[method-assign]
        self.reports: list[dict[str, Any]] = []
        self._add = self.add
        self.sent: list[tuple[str, Any, Any, Any, Sent]] = []
        self.report_batches: set[Batch] = set()
        self.on_report: Callable[[], object] = lambda: None
        self.on_add: Callable[[Sent], None] = lambda _sent: None

    def fill(self) -> None:
        """Fill the producer's buffer."""
        self._accumulator.buffered += 1 << 50

    def drain(self) -> None:
        """Empty the producer's buffer."""
        self._accumulator.buffered -= 1 << 50

    def _make_room(self) -> float:
        raise BufferFull("no room")

    def _learn(self, topic: str, partition: int | None = None, deadline: float | None = None) -> int:
        return 1

    def add(self, topic: str, *args: Any) -> Batch:
        batch = self._accumulator.add(topic, *args)
        key, value, timestamp, headers = batch.records[-1]
        if topic == "audit":
            self.reports.append(json.loads(value or b""))
            assert timestamp == self.reports[-1]["window_start_ms"] and not headers
            self.report_batches.add(batch)
            self.on_report()
            return batch
        ((*_, headers),) = decode_records(encode_records([(key, value, timestamp, headers)], 0), 1)
        self.sent.append((topic, value, key, headers, Sent(batch)))
        self.on_add(self.sent[-1][-1])
        return batch

    def flush(self, timeout: float | None = None) -> None:
        for *_, sent in self.sent:
            if sent.batch.result is None:
                sent.done()
        self.deliver_reports()

    def deliver_reports(self) -> None:
        """Complete the deliveries of all reports."""
        while self.report_batches:
            batch = self.report_batches.pop()
            Sent(batch).done()
            for delivery, call in batch.calls():
                call(delivery)


class Fixture:
    def __init__(self, batch_records: int = 1) -> None:
        self.now = 1_700_000_000_000
        self.now -= self.now % 1000
        self.producer = ListProducer(batch_records)
        self.audited = AuditedProducer(
            self.producer,
            topic="audit",
            window_ms=1000,
            server="here/7",
            now_ms=lambda: self.now,
            report_interval=None,
        )

    def counts(self) -> list[tuple[str, int, int]]:
        return [(report["topic"], report["window_start_ms"], report["count"]) for report in self.producer.reports]


def test_a_message_is_stamped_behind_its_own_headers() -> None:
    fixture = Fixture()
    fixture.audited.send("t", b"v", b"k", headers=[("a", b"1")])
    fixture.audited.send("t", None)
    fixture.audited.send("u", b"v")
    (topic, value, key, headers, _), (*_, second, _), (*_, third, _) = fixture.producer.sent
    assert (topic, value, key, headers[0]) == ("t", b"v", b"k", ("a", b"1"))
    stamps = [Stamp.decode(found[-1][1]) for found in (headers, second, third)]
    assert [found[-1][0] for found in (headers, second, third)] == [HEADER] * 3
    assert [stamp.number for stamp in stamps] == [0, 1, 0]
    assert {(stamp.server, stamp.time_ms) for stamp in stamps} == {("here/7", fixture.now)}
    assert len({stamp.producer for stamp in stamps}) == 1


@pytest.mark.parametrize("value", [b"", b"1/2", b"x/p/0/s", b"1/p/x/s", b"\xff/p/0/s"])
def test_invalid_stamps_are_refused(value: bytes) -> None:
    with pytest.raises(NotStamped):
        Stamp.decode(value)


def test_a_window_is_reported_when_it_is_over_and_nothing_of_it_is_under_way() -> None:
    fixture = Fixture()
    first = fixture.now
    for _ in range(3):
        fixture.audited.send("t", b"v")
    a, b, c = (sent for *_, sent in fixture.producer.sent)
    a.done()
    fixture.now += 1000
    fixture.audited.send("t", b"v")
    assert fixture.counts() == [], "two are under way"
    b.done(PylogdError("not delivered"))
    c.done()
    fixture.audited.report()
    assert fixture.counts() == [("t", first, 2)], "what failed does not count"
    (report,) = fixture.producer.reports
    assert (report["first"], report["last"], report["failed"]) == (0, 2, [[1, 1]])
    fixture.producer.flush()
    fixture.audited.close()
    assert fixture.counts()[1:] == [("t", first + 1000, 1)]
    numbers = [report["number"] for report in fixture.producer.reports]
    assert numbers == sorted(set(numbers))


def test_sending_looks_at_windows_once_in_each() -> None:
    fixture = Fixture()
    for _ in range(5):
        fixture.audited.send("t", b"v")
        fixture.producer.flush()
        fixture.now += 1000
    assert len(fixture.counts()) == 4
    fixture.audited.close()
    assert sum(count for *_, count in fixture.counts()) == 5


def test_a_message_that_was_not_taken_is_not_counted() -> None:
    fixture = Fixture()
    fixture.producer.fill()
    with pytest.raises(BufferFull):
        fixture.audited.send("t", b"v")
    fixture.producer.drain()
    fixture.audited.close()
    assert fixture.counts() == []


def test_a_refused_report_is_sent_the_next_time() -> None:
    fixture = Fixture()
    fixture.audited.send("t", b"v")
    fixture.producer.flush()
    fixture.now += 1000
    fixture.producer.fill()
    with pytest.raises(BufferFull):
        fixture.audited.report()
    fixture.producer.drain()
    fixture.audited.report()
    assert [count for *_, count in fixture.counts()] == [1]


def test_the_callers_callback_goes_to_the_producer() -> None:
    fixture = Fixture()
    delivery = fixture.audited.send("t", b"v", on_delivery=print)
    assert fixture.producer.sent[0][-1].batch.listeners == [delivery, print]


@pytest.mark.parametrize("server", ["100%/d", "%d", "x" * 80, "naïve"])
def test_stamps_of_any_server_and_length_of_number(server: str) -> None:
    fixture = Fixture(batch_records=1000)
    fixture.audited = AuditedProducer(fixture.producer, server=server, now_ms=lambda: fixture.now)
    for number in range(1200):
        fixture.now += number % 3 == 0
        fixture.audited.send("t", b"v", b"k", headers=[("a", b"1")] if number % 7 == 0 else ())
    stamps = [Stamp.decode(headers[-1][1]) for *_, headers, _ in fixture.producer.sent]
    assert [(stamp.number, stamp.server) for stamp in stamps] == [(number, server) for number in range(1200)]


def test_a_message_of_the_wrong_type_takes_no_number() -> None:
    fixture = Fixture()
    with pytest.raises(TypeError):
        fixture.audited.send("t", cast("bytes", "text"))
    fixture.audited.send("t", b"v")
    assert Stamp.decode(fixture.producer.sent[0][3][-1][1]).number == 0


def test_a_batch_of_two_windows_counts_for_each() -> None:
    fixture = Fixture(batch_records=5)
    first = fixture.now
    for _ in range(2):
        fixture.audited.send("t", b"v")
    fixture.now += 1000
    for _ in range(3):
        fixture.audited.send("t", b"v")
    fixture.producer.flush()
    fixture.audited.close()
    assert fixture.counts() == [("t", first, 2), ("t", first + 1000, 3)]
    assert [(report["first"], report["last"]) for report in fixture.producer.reports] == [(0, 1), (2, 4)]


def test_completed_batches_are_released_before_their_window_ends() -> None:
    fixture = Fixture()
    for _ in range(10_000):
        fixture.audited.send("t", b"v")
        fixture.producer.sent.pop()[-1].done()
    (window,) = fixture.audited._windows
    assert len(window.batches) <= 2000
    fixture.audited.close()
    assert [count for *_, count in fixture.counts()] == [10_000]


def test_numbers_that_were_never_delivered_are_told_in_reports_that_fit() -> None:
    fixture = Fixture()
    for number in range(50_000):
        fixture.audited.send("t", b"v")
        fixture.producer.sent.pop()[-1].done(PylogdError("no") if number % 2 else None)
    fixture.audited.close()
    assert [count for *_, count in fixture.counts()] == [25_000, 0, 0]
    told = [tuple(each) for report in fixture.producer.reports for each in report["failed"]]
    assert told == [(number, number) for number in range(1, 50_000, 2)]


def test_threads_that_send_together() -> None:
    """Each number is given once and each message counted once, whenever batches are completed."""
    fixture = Fixture(batch_records=7)
    fixture.producer.on_add = Sent.done

    def work() -> None:
        for _ in range(3000):
            fixture.audited.send("t", b"v")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fixture.audited.close()
    assert [count for *_, count in fixture.counts()] == [12_000]
    stamps = sorted(Stamp.decode(headers[-1][1]).number for _, _, _, headers, _ in fixture.producer.sent)
    assert stamps == list(range(12_000))


@pytest.mark.parametrize("given", [None, 0, 1_700_000_000_000])
def test_the_time_in_a_stamp_follows_the_wall_clock_in_both_directions(given: int | None) -> None:
    """The record's own time stamp has no effect on it."""
    fixture = Fixture()
    expected = []
    for step in (5, 1, 0, -600_000, 0, 70_000):
        fixture.now += step
        fixture.audited.send("t", b"v", timestamp=given)
        expected.append(fixture.now)
    assert [Stamp.decode(headers[-1][1]).time_ms for *_, headers, _ in fixture.producer.sent] == expected
    times = [sent.batch.records[0][2] for *_, sent in fixture.producer.sent]
    assert times == (expected if given is None else [given] * len(expected))


def test_the_producer_itself_stamps_nothing() -> None:
    fixture = Fixture()
    fixture.audited.send("t", b"v")
    fixture.producer.send("t", b"v")
    first, second = (headers for *_, headers, _ in fixture.producer.sent)
    assert [name for name, _ in first] == [HEADER] and not second


def test_a_window_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="millisecond"):
        AuditedProducer(ListProducer(), window_ms=0)


def journaled(path: Path, now: int) -> Fixture:
    fixture = Fixture(batch_records=10)
    fixture.now = now
    fixture.audited = AuditedProducer(
        fixture.producer, topic="audit", window_ms=1000, server="here", now_ms=lambda: fixture.now,
        journal=path, journal_fsync=None, report_interval=None,
    )  # fmt: skip
    return fixture


def die(fixture: Fixture) -> None:
    """End a producer as `kill -9` does: only what was written stays."""
    fixture.audited._stopped.set()
    journal = fixture.audited._journal
    assert journal is not None
    os.close(journal._lock_file)


def test_the_next_producer_reports_what_a_dead_one_was_given(tmp_path: Path) -> None:
    first = journaled(tmp_path / "journal", 1_700_000_000_000)
    for number in range(25):
        first.now += 1
        first.audited.send("t", b"%d" % number)
    first.now += 1000
    first.audited.send("t", b"in the next window")
    dead = Stamp.decode(first.producer.sent[0][3][0][1]).producer
    die(first)
    second = journaled(tmp_path / "journal", first.now + 5000)
    second.audited.report()
    told = sorted((each["window_start_ms"], each["first"], each["last"]) for each in second.producer.reports)
    assert told == [(1_700_000_000_000, 0, 24), (1_700_000_001_000, 25, 25)]
    assert {(each["producer"], each["count"], each["recovered"]) for each in second.producer.reports} == {
        (dead, 0, True)
    }
    die(second)  # its reports have not arrived
    third = journaled(tmp_path / "journal", first.now + 5000)
    third.audited.send("u", b"v")
    again = [report for report in third.producer.reports if report["recovered"]]
    assert sorted(each["number"] for each in again) == sorted(each["number"] for each in second.producer.reports)
    third.audited.close()
    fourth = journaled(tmp_path / "journal", first.now + 5000)
    fourth.audited.close()
    assert fourth.producer.reports == [], "all have arrived"


def test_a_report_that_arrived_is_not_made_again(tmp_path: Path) -> None:
    first = journaled(tmp_path / "journal", 1_700_000_000_000)
    first.audited.send("t", b"v")
    first.producer.flush()
    first.audited.close()
    assert [report["count"] for report in first.producer.reports] == [1]
    second = journaled(tmp_path / "journal", 1_700_000_009_000)
    second.audited.close()
    assert second.producer.reports == []


def test_a_thread_reports_windows_that_are_over() -> None:
    """The producer sends nothing more."""
    fixture = Fixture()
    told = threading.Event()
    fixture.producer.on_report = told.set
    fixture.audited = AuditedProducer(
        fixture.producer, topic="audit", window_ms=1000, now_ms=lambda: fixture.now, report_interval=0.001
    )
    fixture.audited.send("t", b"v")
    fixture.producer.flush()
    fixture.now += 1000
    assert told.wait(60)
    assert [report["count"] for report in fixture.producer.reports] == [1]
    fixture.audited.close()
