"""The controller of lagging consumers on simulated disks: it reaches the band, stays there, and starves nobody."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.broker.isolation.read_rate import QUIET_SECONDS, Band, ReadRate

MIB = 1 << 20
BAND = Band(0.55, 0.75)


class SimulatedDisk:
    """A disk that others keep busy to a share, and that reads so many bytes in a second of its own.

    wanted: bytes per second that lagging consumers read if nothing holds them back. ahead: how many bytes are read for
    each that they are charged. noise: by how much, at most, a measured utilisation is wrong. others_read: bytes per
    second that others read.
    """

    def __init__(
        self, speed: float, others: float, wanted: float, least: float = MIB, *, ahead: float = 1.0,
        noise: float = 0.0, seed: int = 0,
    ) -> None:  # fmt: skip
        self.rate = ReadRate()
        self.speed, self.others, self.wanted, self.least = speed, others, wanted, least
        self.ahead, self.noise, self.others_read = ahead, noise, 0.0
        self.random = Random(seed)
        self.utilisations: list[float] = []
        self.granted: list[float] = []
        self.limits: list[float | None] = []

    def run(self, seconds: int) -> None:
        """Let seconds pass, each with one sample."""
        for _ in range(seconds):
            limit = self.rate.limit
            most = max(self.speed * (1 - self.others), 0.0) / self.ahead  # what a disk that is full gives
            granted = min(self.wanted, most if limit is None else min(limit, most))
            used = min(self.others + granted * self.ahead / self.speed, 1.0)
            measured = min(max(used + self.random.uniform(-self.noise, self.noise), 0.0), 1.0)
            self.rate.observe(
                measured, granted * self.ahead + self.others_read, 0.0 if limit is None else granted,
                limit is not None and self.wanted > limit, BAND, self.least,
            )  # fmt: skip
            self.utilisations.append(used)
            self.granted.append(granted)
            self.limits.append(self.rate.limit)


@given(
    speed=st.floats(2 * MIB, 4096 * MIB),
    others=st.floats(0.0, 0.5),
    greed=st.floats(1.0, 50.0),
    ahead=st.floats(0.5, 4.0),
    noise=st.floats(0.0, 0.04),
    seed=st.integers(0, 1000),
)
def test_a_busy_disk_is_in_the_band_within_thirty_seconds_and_stays(
    speed: float, others: float, greed: float, ahead: float, noise: float, seed: int
) -> None:
    disk = SimulatedDisk(speed, others, greed * speed / ahead, speed / 1000, ahead=ahead, noise=noise, seed=seed)
    disk.run(120)
    after = disk.utilisations[30:]
    assert BAND.low - 0.05 <= sum(after) / len(after) <= BAND.high + 0.05
    assert all(BAND.low - 0.12 <= used <= BAND.high + 0.12 for used in after)
    assert all(limit is not None for limit in disk.limits[30:])


@given(others=st.lists(st.floats(0.0, 1.5), min_size=20, max_size=120), least=st.floats(1024, 64 * MIB))
def test_nothing_starves_those_who_lag(others: list[float], least: float) -> None:
    """Whatever else the disk does, they may read `least` bytes per second."""
    disk = SimulatedDisk(100 * MIB, 0.0, 1000 * MIB, least)
    for share in others:
        disk.others = share
        disk.run(1)
        assert disk.rate.limit is None or disk.rate.limit >= least


@given(least=st.floats(1024, 8 * MIB), seconds=st.integers(30, 300))
def test_a_disk_that_others_fill_leaves_the_least_and_recovers(least: float, seconds: int) -> None:
    disk = SimulatedDisk(100 * MIB, 1.0, 1000 * MIB, least)
    disk.run(seconds)
    assert disk.rate.limit == least
    disk.others = 0.2
    disk.run(60)
    assert BAND.low <= sum(disk.utilisations[-10:]) / 10 <= BAND.high


def test_a_disk_that_others_fill_with_reads_leaves_the_least_too() -> None:
    """A follower that copies everything, say: that much is read says nothing of those who lag."""
    disk = SimulatedDisk(100 * MIB, 1.0, 1000 * MIB)
    disk.others_read = 100.0 * MIB
    disk.run(60)
    assert disk.rate.limit == MIB


@given(others=st.floats(0.0, BAND.low - 0.1), speed=st.floats(2 * MIB, 1024 * MIB))
def test_the_limit_is_lifted_when_those_who_lagged_have_caught_up(others: float, speed: float) -> None:
    disk = SimulatedDisk(speed, others, 10 * speed, speed / 1000)
    disk.run(60)
    assert disk.rate.limit is not None
    disk.wanted = 0.0
    disk.run(QUIET_SECONDS + 5)
    assert disk.rate.limit is None


def test_a_disk_within_the_band_is_left_alone() -> None:
    disk = SimulatedDisk(100 * MIB, 0.2, 50 * MIB)
    disk.run(60)
    assert set(disk.limits) == {None}


def test_a_moment_at_full_use_is_not_a_busy_disk() -> None:
    """A burst of write-back lasts a second or less."""
    disk = SimulatedDisk(100 * MIB, 0.3, 0.0)
    for _ in range(20):
        disk.others = 1.0
        disk.run(1)
        disk.others = 0.3
        disk.run(4)
    assert set(disk.limits) == {None}


def test_a_limit_that_nobody_reaches_does_not_grow() -> None:
    rate = ReadRate()
    for _ in range(5):
        rate.observe(1.0, 100.0 * MIB, 0.0, True, BAND, MIB)
    before = rate.limit
    for _ in range(QUIET_SECONDS - 1):
        rate.observe(0.2, 0.0, 0.0, False, BAND, MIB)
    assert before is not None
    assert rate.limit is not None
    assert rate.limit <= before


@pytest.mark.parametrize("change", [lambda now: 0.0, lambda now: now * 2])
def test_a_change_of_the_load_is_followed(change: Callable[[float], float]) -> None:
    disk = SimulatedDisk(100 * MIB, 0.25, 1000 * MIB)
    disk.run(60)
    disk.others = change(disk.others)
    disk.run(30)
    assert BAND.low - 0.02 <= sum(disk.utilisations[-10:]) / 10 <= BAND.high + 0.02
