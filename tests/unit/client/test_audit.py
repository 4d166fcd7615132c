"""Stamps and reports, with a producer that keeps what it is given and delivers when it is told."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from pylogd.client.blocking.audit import HEADER, AuditedProducer, NotStamped, Stamp
from pylogd.client.blocking.producer import Producer
from pylogd.client.core.errors import BufferFull


class Sent:
    """A delivery that the test completes."""

    def __init__(self, on_delivery: Any) -> None:
        self.error: Exception | None = None
        self._on_delivery = on_delivery

    def done(self, error: Exception | None = None) -> None:
        self.error = error
        self._on_delivery(self)


class ListProducer:
    """Keeps the messages of each topic, and the reports apart."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any, Any, Any, Sent]] = []
        self.reports: list[dict[str, Any]] = []
        self.full = False

    def send(self, topic: str, value: Any, key: Any = None, *, headers: Any = (), on_delivery: Any = None,
             timestamp: Any = None) -> Sent:  # fmt: skip
        if self.full:
            raise BufferFull("no room")
        sent = Sent(on_delivery)
        if topic == "audit":
            self.reports.append(json.loads(value))
            assert timestamp == self.reports[-1]["window_start_ms"]
        else:
            self.sent.append((topic, value, key, headers, sent))
        return sent

    def flush(self, _timeout: float | None = None) -> None:
        for *_, sent in self.sent:
            if sent._on_delivery is not None:
                sent.done(sent.error)
                sent._on_delivery = None


class House:
    def __init__(self) -> None:
        self.now = 1_700_000_000_000
        self.now -= self.now % 1000
        self.producer = ListProducer()
        self.audited = AuditedProducer(
            cast("Producer", self.producer), topic="audit", window_ms=1000, server="here/7", now_ms=lambda: self.now
        )

    def counts(self) -> list[tuple[str, int, int]]:
        return [(report["topic"], report["window_start_ms"], report["count"]) for report in self.producer.reports]


def test_a_message_is_stamped_behind_its_own_headers() -> None:
    house = House()
    house.audited.send("t", b"v", b"k", headers=[("a", b"1")])
    house.audited.send("t", None)
    house.audited.send("u", b"v")
    (topic, value, key, headers, _), (*_, second, _), (*_, third, _) = house.producer.sent
    assert (topic, value, key, headers[0]) == ("t", b"v", b"k", ("a", b"1"))
    stamps = [Stamp.decode(found[-1][1]) for found in (headers, second, third)]
    assert [found[-1][0] for found in (headers, second, third)] == [HEADER] * 3
    assert [stamp.number for stamp in stamps] == [0, 1, 0]
    assert {(stamp.server, stamp.time_ms) for stamp in stamps} == {("here/7", house.now)}
    assert len({stamp.producer for stamp in stamps}) == 1


@pytest.mark.parametrize("value", [b"", b"1/2", b"x/p/0/s", b"1/p/x/s", b"\xff/p/0/s"])
def test_what_is_no_stamp(value: bytes) -> None:
    with pytest.raises(NotStamped):
        Stamp.decode(value)


def test_a_window_is_reported_when_it_is_over_and_nothing_of_it_is_under_way() -> None:
    house = House()
    first = house.now
    for _ in range(3):
        house.audited.send("t", b"v")
    a, b, c = (sent for *_, sent in house.producer.sent)
    a.done()
    house.now += 1000
    house.audited.send("t", b"v")
    assert house.counts() == [], "two are under way"
    b.done(ValueError("not delivered"))
    c.done()
    house.audited.report()
    assert house.counts() == [("t", first, 2)], "what failed does not count"
    house.producer.flush()
    house.audited.close()
    assert house.counts()[1:] == [("t", first + 1000, 1)]
    numbers = [report["number"] for report in house.producer.reports]
    assert numbers == sorted(set(numbers))


def test_sending_looks_at_windows_once_in_each() -> None:
    house = House()
    for _ in range(5):
        house.audited.send("t", b"v")
        house.producer.flush()
        house.now += 1000
    assert len(house.counts()) == 4
    house.audited.close()
    assert sum(count for *_, count in house.counts()) == 5


def test_a_message_that_was_not_taken_is_not_counted() -> None:
    house = House()
    house.producer.full = True
    with pytest.raises(BufferFull):
        house.audited.send("t", b"v")
    house.producer.full = False
    house.audited.close()
    assert house.counts() == []


def test_a_report_that_was_not_taken_is_sent_the_next_time() -> None:
    house = House()
    house.audited.send("t", b"v")
    house.producer.flush()
    house.now += 1000
    house.producer.full = True
    with pytest.raises(BufferFull):
        house.audited.report()
    house.producer.full = False
    house.audited.report()
    assert [count for *_, count in house.counts()] == [1]


def test_the_callers_callback_is_called() -> None:
    house = House()
    told: list[Any] = []
    house.audited.send("t", b"v", on_delivery=told.append)
    house.audited.close()
    assert len(told) == 1


def test_a_window_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="millisecond"):
        AuditedProducer(cast("Producer", ListProducer()), window_ms=0)
