"""The kinds of experiments: generators that run a client against one broker, a round whenever they are asked for one.

A generator starts its broker and warms it up, and yields `Ready`. Then each `send(count)` has it do a round of `count`
messages, and yields the sample. Closing it stops the broker.

Rules: a broker stays for all rounds, so that a JVM is warm. One that has more than `MOST_BYTES` is replaced by a fresh
one, which is warmed up like the first, since memory and disk are limited. What all kinds share is in `bench/rounds.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from bench import limited, states
from bench.capacity import loaded_rate
from bench.experiments import MILLION
from bench.loads import Said, Unsupported
from bench.loads.active import active_connections
from bench.peers import Peer, running
from bench.rounds import (
    MOST_BYTES,
    WARM_LONGEST,
    WARM_SECONDS,
    Ready,
    Rounds,
    Sample,
    Setup,
    measured,
    prepare,
    produced,
    settle,
    warm,
)

_FILL_SECONDS: Final = 60.0  # a log whose filling takes longer is not read
_MOST_REREAD: Final = 800 * MILLION  # about so many bytes has a log that is read more than once in a round
_WARM_MESSAGES: Final = 2000


def produce(setup: Setup) -> Rounds:
    """Send each round into one log. `send(0)` stops the broker, and yields the size on disk."""
    return _writing(setup, lambda peer, sent, count: measured(peer, count, partial(produced, setup, peer, count)))


def together(setup: Setup) -> Rounds:
    """Send, and read what is sent, at once; a message counts when it is read."""

    def both(peer: Peer, sent: int, count: int) -> Sample:
        return measured(peer, count, lambda: [setup.load.through(peer, setup.work(count), sent)])

    return _writing(setup, both)


def active(setup: Setup) -> Rounds:
    """Send by the experiment's number of connections and, if it is more than one, by one connection: `growth` is the
    ratio of the processor times.
    """
    number, size = setup.experiment.connections, setup.experiment.size
    with running(setup.peer, setup.folder) as peer:
        prepare(setup, peer)
        with active_connections(peer, number, size) as many, active_connections(peer, 1, size) as one:
            count = yield Ready(warm(setup, peer, many.produce)[1])
            while True:
                settle(setup, peer, count)
                sample = measured(peer, count, lambda asked=count: [many.produce(asked)])  # type: ignore[misc]
                if number > 1:
                    settle(setup, peer, count)
                    alone = measured(peer, count, lambda asked=count: [one.produce(asked)])  # type: ignore[misc]
                    sample["growth"] = sample["cpu"] / alone["cpu"]
                    sample["seconds"] = min(sample["seconds"], alone["seconds"])
                count = yield sample


def _writing(setup: Setup, measure: Callable[[Peer, int, int], Sample]) -> Rounds:
    """Have each round append `count` messages to one log, by `measure(peer, messages before, count)`.

    `send(0)` stops the broker, and yields the size on disk.
    """
    setup.load.check(setup.work(0))
    count = -1
    while count:
        with running(setup.peer, setup.folder) as peer:
            prepare(setup, peer)
            empty = peer.disk()
            sent, rate = warm(setup, peer)
            if count < 0:
                count = yield Ready(rate)
            first = True
            while count and (first or setup.bytes_of(sent) < MOST_BYTES):
                settle(setup, peer, count)
                sample = measure(peer, sent, count)
                sent, first = sent + count, False
                count = yield sample
            if not count:
                peer.finish()
                used = peer.disk() - empty
                yield {"overhead": used / sent - setup.experiment.size} if used > 0 else {}


def consume(setup: Setup) -> Rounds:
    """Read one filled log in all rounds, more than once if the client can start over; refill queues for each."""
    readers = setup.experiment.readers
    with running(setup.peer, setup.folder) as peer:
        if readers > 1 and peer.destructive:
            raise Unsupported("a queue's message goes to one reader")
        prepare(setup, peer)
        begun, rate = warm(setup, peer)
        [said] = setup.load.consume(peer, setup.work(begun))
        count = yield Ready(said.messages / max(said.seconds, 1e-3))
        each = max(count // readers, 1)
        most = _MOST_REREAD // setup.bytes_of(1) if setup.load.starts_over else each
        filled = min(each, most)
        if filled > rate * _FILL_SECONDS:
            raise Unsupported(f"takes {filled / rate:,.0f} s to get {filled:,} messages")
        setup.load.produce(peer, setup.work(filled))
        settle(setup, peer)
        while True:
            count = yield measured(peer, each * readers, partial(setup.load.consume, peer, setup.work(each), readers))
            each = max(count // readers, 1)
            more = each if peer.destructive else 0 if setup.load.starts_over else each - filled
            if more > 0:
                setup.load.produce(peer, setup.work(more))
                filled += more


def latency(setup: Setup) -> Rounds:
    """Send at the experiment's rate, and read. A broker that can't take half the rate when warm has no latency."""
    rate = setup.experiment.rate
    with running(setup.peer, setup.folder) as peer:
        prepare(setup, peer)
        begun, found = time.monotonic(), 0.0
        while time.monotonic() - begun < WARM_SECONDS or (found < rate / 2 and time.monotonic() - begun < WARM_LONGEST):
            said = setup.load.latency(peer, setup.work(max(rate, 100)))
            found = said.messages / said.seconds
        if found < rate / 2:
            raise Unsupported(f"takes {found:,.0f} messages/s one by one")
        count = yield Ready(rate)
        while True:
            count = yield measured(peer, count, partial(_passed, setup, peer, count))


def _passed(setup: Setup, peer: Peer, count: int) -> list[Said]:
    return [setup.load.latency(peer, setup.work(count))]


def half_loaded(setup: Setup) -> Rounds:
    """Send at half of the rate that the broker can take, and read, for as long as a round takes.

    Each broker has its own rate here, and so its own number of messages, which is not compared.
    """
    with running(setup.peer, setup.folder) as peer:
        prepare(setup, peer)
        rate = loaded_rate(setup.load, peer, setup.work(_WARM_MESSAGES))
        offered = replace(setup, experiment=replace(setup.experiment, rate=rate))
        count = max(int(rate * setup.seconds), 100)
        yield Ready()
        while True:
            sample = measured(peer, count, partial(_passed, offered, peer, count))
            del sample["messages"]
            yield sample | {"offered": float(rate)}


KINDS: Final[dict[str, Callable[[Setup], Rounds]]] = {
    "produce": produce,
    "consume": consume,
    "together": together,
    "active": active,
    "latency": latency,
    "half_loaded": half_loaded,
    "start": states.start,
    "restart": states.restart,
    "lives": states.lives,
    "connections": states.connections,
    "cold": limited.cold,
    "overrun": limited.overrun,
}
