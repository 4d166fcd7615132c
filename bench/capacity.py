"""The rate that a broker can take from producer to reader, to measure latency at a part of it.

A broker near its limit queues, so equal rates show a slow broker's queue beside a quick broker's latency. At half of
its own capacity each broker is loaded alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bench.loads.base import Load, Work
from bench.peers.base import Peer

#: The part of a broker's capacity at which latency is measured.
LOADED: Final = 0.5
_RUNS: Final = 5
_FASTER: Final = 1.1
_SECONDS: Final = 1.0  # the least that a run has to last


def capacity(load: Load, peer: Peer, work: Work) -> float:
    """Return the messages a second that pass through a broker when all are due at once, with the options of `work`.

    Runs are repeated until one lasts a second and is not faster than the one before by a tenth, at most 5 times; the
    fastest counts. The first run has `work.count` messages, further runs what fits into two seconds.
    """
    count, best = max(work.count, 1), 0.0
    for _ in range(_RUNS):
        said = load.latency(peer, replace(work, count=count, rate=0))
        rate = said.messages / said.seconds
        settled = said.seconds >= _SECONDS and rate <= _FASTER * best
        best = max(best, rate)
        if settled:
            break
        count = max(int(2 * _SECONDS * best), count)
    return best


def loaded_rate(load: Load, peer: Peer, work: Work) -> int:
    """Return half of a broker's capacity, in messages a second: the rate for a row of latency under equal load."""
    return max(int(LOADED * capacity(load, peer, work)), 1)
