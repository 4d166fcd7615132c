"""The kinds of experiments: generators that run a client against one broker, a round whenever they are asked for one.

A generator starts its broker and warms it up, and yields `Ready`. Then each `send(count)` has it do a round of `count`
messages, and yields the sample. Closing it stops the broker.

Rules: a broker stays for all rounds, so that a JVM is warm. One that has more than `_MOST_BYTES` is replaced by a fresh
one, which is warmed up like the first, since memory and disk are limited. A broker is warm if it has been loaded for
two seconds and gets no faster. Before each round that writes, dirty pages of earlier rounds are written to disk, and
the kernel gets warm pages for new data (`bench/memory.py`). Processor time and page faults are the broker's, from the
first requested message to the last. Memory is watched from before the load to its end.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench import frames
from bench.capacity import loaded_rate
from bench.experiments import MILLION, YARDSTICKS, Experiment
from bench.loads import Load, Said, Unsupported, load
from bench.loads.base import TOPIC, Work
from bench.memory import warm_pages
from bench.peers import PEERS, HighestResident, Peer, running

Sample = dict[str, float]
_WARM_SECONDS, _WARM_LONGEST = 2.0, 8.0
_WARM_MESSAGES, _WARM_BYTES = 2000, 16 * MILLION  # at most so many messages in the first warm-up run
_GROWTH, _FASTER = 4, 1.2
_LIMIT = 120.0  # seconds after which a client is killed
_FILL_SECONDS = 60.0  # a log whose filling takes longer is not read
_CREATE_SECONDS = 120
_FRAMING = 80  # about so many bytes on disk for a message beyond its value
_MOST_BYTES = 2_000 * MILLION  # about so many bytes a broker may have
_FEWEST = 1000  # messages of a round, if the experiment has as many


@dataclass(frozen=True, slots=True)
class Ready:
    """What a generator yields first: the broker is warm. rate: messages a second; 0 if the row's count is its own."""

    rate: float = 0.0


Rounds = Generator[Ready | Sample, int, None]


@dataclass(frozen=True, slots=True)
class Setup:
    """The input of a kind: the experiment, the peer's name, where its data goes, a factor for the number of messages,
    and how long a round of the quickest peer takes, about.
    """

    experiment: Experiment
    peer: str
    folder: Path
    scale: float
    seconds: float

    @property
    def load(self) -> Load:
        """The peer's client."""
        return load(self.experiment.client or PEERS[self.peer].load)

    def work(self, count: int) -> Work:
        """Return the work of sending or reading `count` messages with the experiment's options."""
        it = self.experiment
        options = (it.size, it.batch, it.acks, it.compression, it.partitions, it.pull, it.rate)
        return Work(count, *options, limit=_LIMIT)

    def count(self) -> int:
        """Return the most messages of a round."""
        return max(int(self.experiment.messages * self.scale), 1)

    def fitting(self, rate: float) -> int:
        """Return how many messages a round has, for all peers, if the quickest has this rate."""
        count = self.count()
        return max(min(count, int(rate * self.seconds)), min(count, _FEWEST))

    def bytes_of(self, count: int) -> int:
        """Return about how many bytes so many messages have on disk."""
        return count * (self.experiment.size + _FRAMING)


def _prepare(setup: Setup, peer: Peer) -> None:
    """Create the topic, if the experiment needs other settings than a topic that is created at its first use."""
    it = setup.experiment
    if peer.load != "kafka" or peer.name in YARDSTICKS:
        return
    replicas = 3 if "cluster" in peer.name else 1
    config = {"max.message.bytes": "16777216"} if it.size > MILLION // 2 else {}
    config |= {"min.insync.replicas": "2"} if replicas > 1 else {}
    admin = AdminClient({"bootstrap.servers": peer.address, "log_level": 3})
    topic = NewTopic(TOPIC, it.partitions, replicas, config=config)
    admin.create_topics([topic], operation_timeout=_CREATE_SECONDS)[TOPIC].result(_CREATE_SECONDS)


def _warm(setup: Setup, peer: Peer) -> tuple[int, float]:
    """Load a broker until it is warm. Return the number of messages, and the rate of the last run.

    A broker is warm if it has been loaded for a while and its last run was not faster by a fifth.
    """
    count = max(min(_WARM_MESSAGES, _WARM_BYTES // setup.experiment.size), 1)
    enough = min(_WARM_SECONDS, 2 * setup.seconds)
    sent, spent, rate, before = 0, 0.0, 0.0, 0.0
    while spent < enough or (rate > _FASTER * before and spent < enough / _WARM_SECONDS * _WARM_LONGEST):
        count = max(count, int(rate * (enough - spent)))
        said = setup.load.produce(peer, setup.work(count))
        seconds = max(said.seconds, 1e-3)
        before = rate
        sent, spent, rate = sent + count, spent + seconds, said.messages / seconds
        count = min(_GROWTH * count, max(count, int(rate * enough)))
    return sent, rate


def _settle(setup: Setup, peer: Peer, count: int = 0) -> None:
    """Let the kernel write the broker's dirty pages, and keep warm pages for a number of messages."""
    os.sync()
    if count:
        copies = 3 if "cluster" in peer.name else 1
        warm_pages(setup.folder, setup.bytes_of(count) * copies)


def _forget(path: Path) -> None:
    """Flush a file, and let the kernel drop its pages."""
    if not path.is_file():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _measured(peer: Peer, asked: int, load: Callable[[], Sequence[Said]]) -> Sample:
    """Run one round of `asked` messages. Clients may leave the first ones out of the rate and the seconds."""
    with HighestResident(peer) as watch:
        before, touched = peer.cpu_seconds(), peer.minor_faults()
        said = load()
        spent, faults = peer.cpu_seconds() - before, peer.minor_faults() - touched
        highest = watch.highest
    messages = sum(one.messages for one in said)
    begun = min(one.began for one in said)
    seconds = max(one.began - begun + one.seconds for one in said)
    sample = {
        "messages": float(asked),
        "seconds": seconds,
        "rate": messages / seconds,
        "megabytes": sum(one.bytes for one in said) / seconds / 1e6,
        "cpu": spent / asked * 1e6,
        "faults": faults / asked * 1e6,
        "resident": highest / 1e6,
    }
    for one in said:
        sample |= {name: value * 1000 for name, value in one.percentiles.items()}
    return sample


def _produced(setup: Setup, peer: Peer, count: int) -> list[Said]:
    return [setup.load.produce(peer, setup.work(count))]


def produce(setup: Setup) -> Rounds:
    """Send each round into one log. `send(0)` stops the broker, and yields the size on disk."""
    setup.load.check(setup.work(0))
    count = -1
    while count:
        with running(setup.peer, setup.folder) as peer:
            _prepare(setup, peer)
            empty = peer.disk()
            sent, rate = _warm(setup, peer)
            if count < 0:
                count = yield Ready(rate)
            first = True
            while count and (first or setup.bytes_of(sent) < _MOST_BYTES):
                _settle(setup, peer, count)
                sample = _measured(peer, count, partial(_produced, setup, peer, count))
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
        _prepare(setup, peer)
        warm, rate = _warm(setup, peer)
        [said] = setup.load.consume(peer, setup.work(warm))
        count = yield Ready(said.messages / max(said.seconds, 1e-3))
        each = max(count // readers, 1)
        most = _MOST_BYTES // setup.bytes_of(1) if setup.load.starts_over else each
        filled = min(each, most)
        if filled > rate * _FILL_SECONDS:
            raise Unsupported(f"takes {filled / rate:,.0f} s to get {filled:,} messages")
        setup.load.produce(peer, setup.work(filled))
        _settle(setup, peer)
        while True:
            sample = _measured(peer, each * readers, lambda: setup.load.consume(peer, setup.work(each), readers))
            yield sample
            if peer.destructive:
                setup.load.produce(peer, setup.work(each))


def latency(setup: Setup) -> Rounds:
    """Send at the experiment's rate, and read. A broker that can't take half the rate when warm has no latency."""
    rate = setup.experiment.rate
    with running(setup.peer, setup.folder) as peer:
        _prepare(setup, peer)
        begun, found = time.monotonic(), 0.0
        while time.monotonic() - begun < _WARM_SECONDS or (
            found < rate / 2 and time.monotonic() - begun < _WARM_LONGEST
        ):
            said = setup.load.latency(peer, setup.work(max(rate, 100)))
            found = said.messages / said.seconds
        if found < rate / 2:
            raise Unsupported(f"takes {found:,.0f} messages/s one by one")
        count = yield Ready(rate)
        while True:
            count = yield _measured(peer, count, partial(_passed, setup, peer, count))


def _passed(setup: Setup, peer: Peer, count: int) -> list[Said]:
    return [setup.load.latency(peer, setup.work(count))]


def half_loaded(setup: Setup) -> Rounds:
    """Send at half of the rate that the broker can take, and read."""
    with running(setup.peer, setup.folder) as peer:
        _prepare(setup, peer)
        rate = loaded_rate(setup.load, peer, setup.work(_WARM_MESSAGES))
        offered = replace(setup, experiment=replace(setup.experiment, rate=rate))
        count = yield Ready(rate)
        while True:
            sample = _measured(peer, count, partial(_passed, offered, peer, count))
            count = yield sample | {"offered": float(rate)}


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
        _prepare(setup, peer)
        setup.load.produce(peer, setup.work(setup.count()))
        yield Ready()
        while True:
            peer.finish()
            begun = time.monotonic()
            peer.start()
            setup.load.consume(peer, setup.work(1))
            yield {"started": peer.started, "served": time.monotonic() - begun}


def connections(setup: Setup) -> Rounds:
    """Measure the memory of idle connections, and their effect on other clients."""
    with running(setup.peer, setup.folder) as peer:
        _prepare(setup, peer)
        rate = _warm(setup, peer)[1]
        before = peer.resident()
        number = setup.experiment.connections
        with frames.idle_connections(peer.host, peer.port, number):
            grown = peer.resident() - before
            count = yield Ready(rate)
            while True:
                _settle(setup, peer, count)
                sample = _measured(peer, count, partial(_produced, setup, peer, count))
                count = yield sample | {"connection": grown / number / 1e3}


def cold(setup: Setup) -> Rounds:
    """Read a backlog that the kernel has dropped from its cache, while messages go to a reader at the tail.

    Memory is not filled up: before each round the log's pages are written and dropped (fsync, POSIX_FADV_DONTNEED).
    """
    with running(setup.peer, setup.folder) as peer:
        _prepare(setup, peer)
        _warm(setup, peer)
        count = setup.count()
        setup.load.produce(peer, setup.work(count))
        yield Ready()
        while True:
            for path in peer.data.rglob("*"):
                _forget(path)
            _settle(setup, peer, count)
            yield _beside_tail(setup, peer, count)


def _beside_tail(setup: Setup, peer: Peer, count: int) -> Sample:
    """Read `count` messages while others go to a reader at the tail. Return both results in one sample."""
    tail: list[Said] = []
    failures: list[BaseException] = []
    thread = threading.Thread(target=_tail, args=(setup, peer, tail, failures))
    thread.start()
    try:
        sample = _measured(peer, count, lambda: setup.load.consume(peer, setup.work(count)))
    finally:
        thread.join()
    if failures:
        raise RuntimeError(f"the tail reader: {failures[0]}")
    return sample | {"tail99": statistics.fmean(one.percentiles["p99"] for one in tail) * 1000}


def _tail(setup: Setup, peer: Peer, found: list[Said], failures: list[BaseException]) -> None:
    try:
        found.append(setup.load.latency(peer, setup.work(max(int(5000 * setup.scale), 1000))))
    except Exception as error:
        failures.append(error)


KINDS: dict[str, Callable[[Setup], Rounds]] = {
    "produce": produce,
    "consume": consume,
    "latency": latency,
    "half_loaded": half_loaded,
    "start": start,
    "restart": restart,
    "connections": connections,
    "cold": cold,
}
