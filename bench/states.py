"""Kinds of experiments about a broker's states: its start, restart, stop and death, and idle connections."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from bench import frames
from bench.peers import Peer, running
from bench.rounds import Ready, Rounds, Setup, measured, prepare, produced, settle, warm


def start(setup: Setup) -> Rounds:
    """Start on an empty directory; measure the resident memory a second after the first accept."""
    yield Ready()
    while True:
        with running(setup.peer, setup.folder) as peer:
            time.sleep(1.0)
            sample = {"started": peer.started, "idle": peer.resident() / 1e6}
        yield sample


def restart(setup: Setup) -> Rounds:
    """Stop cleanly and start again on the same data, which is in the page cache."""
    with running(setup.peer, setup.folder) as peer:
        prepare(setup, peer)
        setup.load.produce(peer, setup.work(setup.count()))
        yield Ready()
        while True:
            peer.finish()
            served = _served(setup, peer)
            yield {"started": peer.started, "served": served}


def lives(setup: Setup) -> Rounds:
    """Stop cleanly, start, kill, and start again, with some messages in each partition."""
    with running(setup.peer, setup.folder) as peer:
        prepare(setup, peer)
        setup.load.produce(peer, setup.work(setup.count()))
        yield Ready()
        while True:
            begun = time.monotonic()
            peer.finish()
            stopped = time.monotonic() - begun
            served = _served(setup, peer)
            idle = peer.resident() / 1e6
            peer.kill()
            yield {"stopped": stopped, "served": served, "idle": idle, "recovered": _served(setup, peer)}


def _served(setup: Setup, peer: Peer) -> float:
    """Start a broker; return the seconds until the first message of a partition was read."""
    begun = time.monotonic()
    peer.start()
    setup.load.consume(peer, replace(setup.work(1), partitions=1))
    return time.monotonic() - begun


def connections(setup: Setup) -> Rounds:
    """Measure the memory of idle connections, and their effect on other clients."""
    with running(setup.peer, setup.folder) as peer:
        prepare(setup, peer)
        rate = warm(setup, peer)[1]
        before = peer.resident()
        number = setup.experiment.connections
        with frames.idle_connections(peer.host, peer.port, number):
            grown = peer.resident() - before
            count = yield Ready(rate)
            while True:
                settle(setup, peer, count)
                sample = measured(peer, count, partial(produced, setup, peer, count))
                count = yield sample | {"connection": grown / number / 1e3}
