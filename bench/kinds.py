"""The kinds of experiments: functions that run a client against a broker and yield one sample per round.

Rules: one broker for all rounds of an experiment, so that a JVM is warm. Before the first round it gets load for two
seconds, or until it gets no faster; the rate gives the number of messages of a round. Before each round that writes,
dirty pages of earlier rounds are written to disk, and the kernel gets warm pages for new data (`bench/memory.py`).
Processor time is the broker's, from the first requested message to the last; memory is watched from before the load to
its end.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench import frames
from bench.experiments import MILLION, YARDSTICKS, Experiment
from bench.loads.base import TOPIC, Load, Said, Unsupported, Work
from bench.memory import warm_pages
from bench.peers import HighestResident, Peer, running

Sample = dict[str, float]
_WARM_SECONDS, _WARM_LONGEST = 2.0, 8.0
_WARM_MESSAGES, _WARM_BYTES = 2000, 16 * MILLION  # at most so many messages in the first warm-up run
_GROWTH, _FASTER = 4, 1.2
_LIMIT, _LONGEST = 60.0, 1800.0  # seconds after which a client is killed
_CREATE_SECONDS = 120
_FRAMING = 80  # about so many bytes on disk for a message beyond its value


@dataclass(frozen=True, slots=True)
class Setup:
    """The input of a kind: the experiment, the peer's name, its client, and limits for sizes and times.

    With `whole` the first round is of all messages, however long that takes.
    """

    experiment: Experiment
    peer: str
    load: Load
    folder: Path
    scale: float
    seconds: float
    rounds: int
    whole: bool = False

    def work(self, count: int) -> Work:
        """Return the work of sending or reading `count` messages with the experiment's options."""
        it = self.experiment
        options = (it.size, it.batch, it.acks, it.compression, it.partitions, it.pull, it.rate)
        return Work(count, *options, limit=_LONGEST if self.whole else _LIMIT + 10 * self.seconds)

    def count(self) -> int:
        """Return the most messages of a round."""
        return max(int(self.experiment.messages * self.scale), 100)

    def fitting(self, rate: float) -> int:
        """Return how many messages fit into a round at a rate."""
        count = self.count()
        return max(min(count, int(rate * self.seconds)), min(count, 1000))


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
        warm_pages(setup.folder, count * (setup.experiment.size + _FRAMING) * copies)


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
    """Run one round; clients may leave the first messages out of their results."""
    with HighestResident(peer) as watch:
        before = peer.cpu_seconds()
        said = load()
        spent = peer.cpu_seconds() - before
        highest = watch.highest
    messages = sum(one.messages for one in said)
    begun = min(one.began for one in said)
    seconds = max(one.began - begun + one.seconds for one in said)
    sample = {
        "messages": float(messages),
        "seconds": seconds,
        "rate": messages / seconds,
        "megabytes": sum(one.bytes for one in said) / seconds / 1e6,
        "cpu": spent / asked * 1e6,
        "resident": highest / 1e6,
    }
    for one in said:
        sample |= {name: value * 1000 for name, value in one.percentiles.items()}
    return sample


def _produced(setup: Setup, peer: Peer, count: int) -> list[Said]:
    return [setup.load.produce(peer, setup.work(count))]


def produce(setup: Setup) -> Iterator[Sample]:
    """Send all rounds into one log. The last sample has the size on disk, once the broker has stopped."""
    setup.load.check(setup.work(0))
    with running(setup.peer, setup.folder) as peer:
        _prepare(setup, peer)
        empty = peer.disk()
        sent, rate = _warm(setup, peer)
        for number in range(setup.rounds):
            count = setup.count() if setup.whole and number == 0 else setup.fitting(rate)
            _settle(setup, peer, count)
            sample = _measured(peer, count, partial(_produced, setup, peer, count))
            sent += count
            if number == setup.rounds - 1 and "overhead" in setup.experiment.shows:
                peer.finish()
                used = peer.disk() - empty
                if used > 0:
                    sample["overhead"] = used / sent - setup.experiment.size
            yield sample


def consume(setup: Setup) -> Iterator[Sample]:
    """Read one filled log in all rounds, more than once if the client can start over; refill queues for each."""
    readers = setup.experiment.readers
    with running(setup.peer, setup.folder) as peer:
        if readers > 1 and peer.destructive:
            raise Unsupported("a queue's message goes to one reader")
        _prepare(setup, peer)
        warm, rate = _warm(setup, peer)
        filled = setup.count() if setup.whole else setup.fitting(rate)
        setup.load.produce(peer, setup.work(filled))
        [said] = setup.load.consume(peer, setup.work(min(warm, filled)))
        count = filled
        if setup.load.starts_over and not setup.whole:
            count = max(setup.fitting(said.messages / max(said.seconds, 1e-3)) // readers, 1000)
        _settle(setup, peer)
        for number in range(setup.rounds):
            if number and peer.destructive:
                setup.load.produce(peer, setup.work(count))
            yield _measured(peer, count * readers, lambda: setup.load.consume(peer, setup.work(count), readers))


def latency(setup: Setup) -> Iterator[Sample]:
    """Run all rounds on one broker. One that can't take half the rate when warm gets no latency at this rate."""
    rate = setup.experiment.rate
    count = setup.fitting(rate)
    with running(setup.peer, setup.folder) as peer:
        _prepare(setup, peer)
        begun, found = time.monotonic(), 0.0
        while time.monotonic() - begun < _WARM_SECONDS or (
            found < rate / 2 and time.monotonic() - begun < _WARM_LONGEST
        ):
            said = setup.load.latency(peer, setup.work(max(min(count, rate), 100)))
            found = said.messages / said.seconds
        if found < rate / 2:
            raise Unsupported(f"takes {found:,.0f} messages/s one by one")
        for _ in range(setup.rounds):
            yield _measured(peer, count, lambda: [setup.load.latency(peer, setup.work(count))])


def start(setup: Setup) -> Iterator[Sample]:
    """Start on an empty directory; measure the resident memory a second after the first accept."""
    for _ in range(setup.rounds):
        with running(setup.peer, setup.folder) as peer:
            time.sleep(1.0)
            yield {"started": peer.started, "idle": peer.resident() / 1e6}


def restart(setup: Setup) -> Iterator[Sample]:
    """Stop cleanly and start again on the same data, which is in the page cache."""
    with running(setup.peer, setup.folder) as peer:
        _prepare(setup, peer)
        setup.load.produce(peer, setup.work(setup.count()))
        for _ in range(setup.rounds):
            peer.finish()
            begun = time.monotonic()
            peer.start()
            setup.load.consume(peer, setup.work(1))
            yield {"started": peer.started, "served": time.monotonic() - begun}


def connections(setup: Setup) -> Iterator[Sample]:
    """Measure the memory of idle connections, and their effect on other clients."""
    with running(setup.peer, setup.folder) as peer:
        _prepare(setup, peer)
        count = setup.fitting(_warm(setup, peer)[1])
        before = peer.resident()
        number = setup.experiment.connections
        with frames.idle_connections(peer.host, peer.port, number):
            grown = peer.resident() - before
            for _ in range(setup.rounds):
                _settle(setup, peer, count)
                sample = _measured(peer, count, partial(_produced, setup, peer, count))
                yield sample | {"connection": grown / number / 1e3}


def cold(setup: Setup) -> Iterator[Sample]:
    """Read a backlog that the kernel has dropped from its cache, while messages go to a reader at the tail.

    Memory is not filled up: before each round the log's pages are written and dropped (fsync, POSIX_FADV_DONTNEED).
    """
    with running(setup.peer, setup.folder) as peer:
        _prepare(setup, peer)
        _warm(setup, peer)
        count = setup.count()
        setup.load.produce(peer, setup.work(count))
        for _ in range(setup.rounds):
            for path in peer.data.rglob("*"):
                _forget(path)
            _settle(setup, peer, count)
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
            yield sample | {"tail99": statistics.fmean(one.percentiles["p99"] for one in tail) * 1000}


def _tail(setup: Setup, peer: Peer, found: list[Said], failures: list[BaseException]) -> None:
    try:
        found.append(setup.load.latency(peer, setup.work(max(int(5000 * setup.scale), 1000))))
    except Exception as error:
        failures.append(error)


KINDS: dict[str, Callable[[Setup], Iterator[Sample]]] = {
    "produce": produce,
    "consume": consume,
    "latency": latency,
    "start": start,
    "restart": restart,
    "connections": connections,
    "cold": cold,
}
