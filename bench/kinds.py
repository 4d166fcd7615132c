"""How each kind of experiment is done: a running broker and a client in, one sample after the other out.

Rules: every broker gets the same warm-up, a twentieth of the work but no less than 2,000 messages where they are small,
from which the number of messages that fit into a round is reckoned; processor time is the broker's, from the first
message asked for to the last one done; memory is watched from before the load to its end.
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
from bench.experiments import MILLION, Experiment
from bench.loads.base import TOPIC, Load, Said, Unsupported, Work
from bench.peers import HighestResident, Peer, running

Sample = dict[str, float]
_WARM_BYTES = 64 * MILLION
_CREATE_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Setup:
    """What a kind works with: the experiment, the peer's name, its client, and how much there may be of everything."""

    experiment: Experiment
    peer: str
    load: Load
    folder: Path
    scale: float
    seconds: float
    rounds: int

    def work(self, count: int) -> Work:
        """So many messages, with the experiment's options."""
        it = self.experiment
        return Work(count, it.size, it.batch, it.acks, it.compression, it.partitions, it.pull, it.rate)

    def count(self) -> int:
        """How many messages at most."""
        return max(int(self.experiment.messages * self.scale), 100)


def _prepare(setup: Setup, peer: Peer) -> None:
    """Make the topic, where it is to have more than a topic has that is made by its first use."""
    it = setup.experiment
    if peer.load != "kafka" or peer.name == "ceiling":
        return
    replicas = 3 if "cluster" in peer.name else 1
    config = {"max.message.bytes": "16777216"} if it.size > MILLION // 2 else {}
    config |= {"min.insync.replicas": "2"} if replicas > 1 else {}
    admin = AdminClient({"bootstrap.servers": peer.address})
    topic = NewTopic(TOPIC, it.partitions, replicas, config=config)
    admin.create_topics([topic], operation_timeout=_CREATE_SECONDS)[TOPIC].result(_CREATE_SECONDS)


def _fill(setup: Setup, peer: Peer) -> tuple[int, int]:
    """Warm the broker up; how many messages that were, and how many fit into a round."""
    count = setup.count()
    warm = min(max(count // 20, 2000), max(_WARM_BYTES // setup.experiment.size, 20))
    said = setup.load.produce(peer, setup.work(warm))
    rate = said.messages / max(said.seconds, 1e-3)
    return warm, max(min(count, int(rate * setup.seconds)), min(count, 1000))


def _measured(peer: Peer, load: Callable[[], Sequence[Said]]) -> Sample:
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
        "cpu": spent / messages * 1e6,
        "resident": highest / 1e6,
    }
    for one in said:
        sample |= {name: value * 1000 for name, value in one.percentiles.items()}
    return sample


def _produced(setup: Setup, peer: Peer, count: int) -> list[Said]:
    return [setup.load.produce(peer, setup.work(count))]


def produce(setup: Setup) -> Iterator[Sample]:
    """Each round on a fresh broker, so that none pays for the pages that an earlier one left to be written."""
    for _ in range(setup.rounds):
        with running(setup.peer, setup.folder) as peer:
            _prepare(setup, peer)
            empty = peer.disk()
            warm, count = _fill(setup, peer)
            sample = _measured(peer, partial(_produced, setup, peer, count))
            peer.finish()
            if (used := peer.disk() - empty) > 0 and setup.experiment.compression == "none":
                sample["overhead"] = used / (warm + count) - setup.experiment.size
        yield sample


def consume(setup: Setup) -> Iterator[Sample]:
    """All rounds read one filled log; a queue is filled anew for each."""
    with running(setup.peer, setup.folder) as peer:
        if setup.experiment.readers > 1 and peer.destructive:
            raise Unsupported("a queue's message goes to one reader")
        _prepare(setup, peer)
        warm, count = _fill(setup, peer)
        setup.load.produce(peer, setup.work(count))
        setup.load.consume(peer, setup.work(warm))
        for number in range(setup.rounds):
            if number and peer.destructive:
                setup.load.produce(peer, setup.work(count))
            yield _measured(peer, lambda: setup.load.consume(peer, setup.work(count), setup.experiment.readers))


def latency(setup: Setup) -> Iterator[Sample]:
    """All rounds on one broker."""
    count = max(setup.count(), setup.experiment.rate)
    with running(setup.peer, setup.folder) as peer:
        _prepare(setup, peer)
        setup.load.latency(peer, setup.work(max(count // 10, 1000)))
        for _ in range(setup.rounds):
            yield _measured(peer, lambda: [setup.load.latency(peer, setup.work(count))])


def start(setup: Setup) -> Iterator[Sample]:
    """An empty directory; what is resident a second after the first accept."""
    for _ in range(setup.rounds):
        with running(setup.peer, setup.folder) as peer:
            time.sleep(1.0)
            yield {"started": peer.started, "idle": peer.resident() / 1e6}


def restart(setup: Setup) -> Iterator[Sample]:
    """Stop in order and start again on the same data, which is in the page cache."""
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
    """What idle connections cost in memory, and what they cost others."""
    with running(setup.peer, setup.folder) as peer:
        _prepare(setup, peer)
        _, count = _fill(setup, peer)
        before = peer.resident()
        number = setup.experiment.connections
        with frames.idle_connections(peer.host, peer.port, number):
            grown = peer.resident() - before
            for _ in range(setup.rounds):
                sample = _measured(peer, partial(_produced, setup, peer, count))
                yield sample | {"connection": grown / number / 1e3}


def cold(setup: Setup) -> Iterator[Sample]:
    """Read a backlog that the kernel was told to forget, while messages go to a tail reader.

    Memory is not filled up: before each round the log's pages are written and dropped (fsync, POSIX_FADV_DONTNEED).
    """
    with running(setup.peer, setup.folder) as peer:
        _prepare(setup, peer)
        _, count = _fill(setup, peer)
        setup.load.produce(peer, setup.work(count))
        for _ in range(setup.rounds):
            _forget(peer)
            tail: list[Said] = []
            failures: list[BaseException] = []
            thread = threading.Thread(target=_tail, args=(setup, peer, tail, failures))
            thread.start()
            try:
                sample = _measured(peer, lambda: setup.load.consume(peer, setup.work(count)))
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


def _forget(peer: Peer) -> None:
    for path in peer.data.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


KINDS: dict[str, Callable[[Setup], Iterator[Sample]]] = {
    "produce": produce,
    "consume": consume,
    "latency": latency,
    "start": start,
    "restart": restart,
    "connections": connections,
    "cold": cold,
}
