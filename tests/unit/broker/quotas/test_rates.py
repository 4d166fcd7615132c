"""Rates over windows, and token buckets: how long a client has to wait, on a clock that the test sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.broker.quotas.rates import PacedRate, TokenBucket, WindowedRate, Windows

TEN = Windows(11, 1.0)  # ten whole windows and the current one


class KafkaRate:
    """Kafka's Rate over a WindowedSum in its simplest form: a list of samples that is searched each time."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.samples: list[dict[str, float]] = []

    def record(self, value: float, now: float) -> None:
        if not self.samples or now - self.samples[-1]["start"] >= self.windows.seconds:
            self.samples.append({"start": now, "last": now, "sum": 0.0})
        self.samples[-1]["last"] = now
        self.samples[-1]["sum"] += value

    def owed(self, limit: float, now: float) -> float:
        number, seconds = self.windows
        kept = [sample for sample in self.samples if now - sample["last"] < number * seconds]
        elapsed = now - min((sample["start"] for sample in kept), default=now)
        full = int(elapsed / seconds)
        if full < number - 1:
            elapsed += (number - 1 - full) * seconds
        rate = sum(sample["sum"] for sample in kept) / elapsed
        return max((rate - limit) / limit * elapsed, 0.0)


@given(
    steps=st.lists(st.tuples(st.sampled_from([0, 1, 7, 500, 999, 1000, 1001, 5000, 20_000]), st.integers(0, 5000))),
    limit=st.integers(1, 2000),
    number=st.integers(2, 12),
)
def test_the_rate_is_kafkas(steps: list[tuple[int, int]], limit: int, number: int) -> None:
    windows = Windows(number, 1.0)
    ours, theirs, now_ms = WindowedRate(windows), KafkaRate(windows), 0
    for wait_ms, value in steps:
        now_ms += wait_ms
        ours.record(value, now_ms / 1000)
        theirs.record(value, now_ms / 1000)
        owed = ours.owed(limit, now_ms / 1000)
        assert owed == pytest.approx(theirs.owed(limit, now_ms / 1000), abs=1e-6)


def test_an_idle_client_may_use_the_quota_of_all_windows_but_one_at_once() -> None:
    rate = WindowedRate(TEN)
    rate.record(1000, 0.0)
    assert rate.owed(100, 0.0) == 0
    rate.record(50, 0.0)
    assert rate.owed(100, 0.0) == pytest.approx(0.5)


def test_samples_outside_the_windows_do_not_count() -> None:
    rate = WindowedRate(TEN)
    rate.record(5000, 0.0)
    assert not rate.idle(10.9)
    assert rate.owed(100, 10.9) == pytest.approx(50 - 10.9)
    assert rate.owed(100, 11.0) == 0
    assert rate.idle(11.0)


def paced(limit: float, size: float, connections: int, seconds: float, send: float = 1e-5) -> float:
    """Return the part of a quota that connections use if each sends again as soon as it may."""
    rate, free, sent, now = PacedRate(TEN), [0.0] * connections, 0.0, 0.0
    while True:
        connection = min(range(connections), key=free.__getitem__)
        now = max(now, free[connection]) + send
        if now > seconds:
            return sent / seconds / limit
        rate.record(size, now)
        sent += size
        free[connection] = now + rate.owed(limit, now)


@pytest.mark.parametrize("limit", [1e6, 1e7, 1e8])
@pytest.mark.parametrize(("size", "connections"), [(16_000, 1), (100_000, 1), (1_000_000, 1), (16_000, 20)])
def test_a_minute_of_a_client_that_always_sends_is_what_its_quota_allows(
    limit: float, size: float, connections: int
) -> None:
    assert paced(limit, size, connections, 60) == pytest.approx(1, abs=0.02)


def test_many_connections_do_not_get_rid_of_what_they_owe() -> None:
    """Each connection first sends a request worth one second; in the long run they get no more than the quota."""
    assert paced(1e6, 1e6, 20, 600) == pytest.approx(1, abs=20 / 600 + 0.01)


def test_an_idle_client_may_use_the_quota_of_one_window_at_once() -> None:
    rate = PacedRate(TEN)
    rate.record(100, 5.0)
    assert rate.owed(100, 5.0) == 0
    rate.record(50, 5.0)
    assert rate.owed(100, 5.0) == pytest.approx(0.5)
    assert rate.owed(100, 6.5) == 0


def test_what_was_not_used_in_the_windows_may_be_used_later() -> None:
    rate = PacedRate(TEN)
    rate.record(1, 0.0)
    rate.record(499, 5.0)
    assert rate.owed(100, 5.0) == 0
    rate.record(100, 5.0)
    assert rate.owed(100, 5.0) == pytest.approx(1)


def test_a_counter_with_debts_is_not_idle() -> None:
    rate = PacedRate(TEN)
    rate.record(5000, 0.0)
    assert rate.owed(100, 0.0) == pytest.approx(49)
    assert not rate.idle(48.9)
    assert rate.owed(100, 20.0) == pytest.approx(29)  # of a sample that is older than the windows
    assert rate.idle(49.1)
    assert rate.owed(100, 60.0) == 0


def test_an_empty_bucket_makes_clients_wait() -> None:
    bucket = TokenBucket(Windows(11, 1.0))
    bucket.take(50, 5, 100.0)
    assert bucket.owed(5, 100.0) == 0
    bucket.take(50, 5, 100.0)
    assert bucket.owed(5, 100.0) == pytest.approx(45 / 5)
    assert not bucket.idle(108.0)
    assert bucket.owed(5, 109.0) == 0
    assert bucket.idle(200.0)


def test_a_bucket_is_never_fuller_than_its_windows() -> None:
    bucket = TokenBucket(Windows(11, 1.0))
    bucket.take(0, 5, 0.0)
    bucket.take(55 + 5, 5, 1000.0)
    assert bucket.owed(5, 1000.0) == pytest.approx(1)
