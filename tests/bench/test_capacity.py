"""The rate at which latency is measured under equal load: half of what a broker takes."""

from __future__ import annotations

from typing import cast

from bench.capacity import capacity, loaded_rate
from bench.loads.base import Load, Said, Work
from bench.peers.base import Peer

_PEER = cast(Peer, None)  # the loads below need none


class Warming:
    """A load through a broker whose rate grows with each run up to its capacity."""

    def __init__(self, *rates: float) -> None:
        self._rates = list(rates)
        self.runs: list[Work] = []

    def latency(self, _: Peer, work: Work) -> Said:
        self.runs.append(work)
        rate = self._rates[min(len(self.runs), len(self._rates)) - 1]
        return Said(work.count, 0, work.count / rate)


def test_runs_go_on_until_one_is_long_enough_and_no_faster() -> None:
    load = Warming(1000.0, 5000.0, 5200.0)
    assert capacity(cast(Load, load), _PEER, Work(100)) == 5200.0
    assert [(run.count, run.rate) for run in load.runs] == [(100, 0), (2000, 0), (10_000, 0)]


def test_a_broker_that_gets_faster_for_ever_is_asked_five_times() -> None:
    load = Warming(*(10.0**power for power in range(3, 12)))
    assert loaded_rate(cast(Load, load), _PEER, Work(100)) == 5_000_000
    assert len(load.runs) == 5
