"""What all kinds of experiments (`bench/kinds.py`) share: their input, the warm-up, and one measured round.

Rules: a broker is warm if it has been loaded for two seconds and gets no faster. Before each round that writes, dirty
pages of earlier rounds are written to disk, and the kernel gets warm pages for new data (`bench/memory.py`). Processor
time and page faults are the broker's, from the first requested message to the last. Memory is watched from before the
load to its end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bench import events
from bench.experiments import MILLION, YARDSTICKS, Experiment
from bench.loads import Load, Said, load
from bench.loads.base import TOPIC, Work
from bench.memory import warm_pages
from bench.peers import PEERS, HighestResident, Peer

Sample = dict[str, float]
WARM_SECONDS: Final = 2.0
WARM_LONGEST: Final = 8.0
#: About so many bytes a broker may have.
MOST_BYTES: Final = 2_000 * MILLION
_WARM_BYTES: Final = 16 * MILLION  # at most so many in the first warm-up run
_EACH_PARTITION: Final = 8  # messages of the first run for each partition
_GROWTH, _FASTER = 4, 1.2
_LIMIT = 300.0  # seconds after which a client is killed: three Kafkas with 10,000 partitions need more than 120
_CREATE_SECONDS = 300
_CREATE_PARTITIONS = 5000  # that are created by one request: Kafka refuses 10,000
_FRAMING = 80  # about so many bytes on disk for a message beyond its value
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
        values = str(events.flights_file()) if it.events else ""
        return Work(count, *options, limit=_LIMIT, values=values)

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


def prepare(setup: Setup, peer: Peer) -> None:
    """Create the topic, if the experiment needs other settings than a topic that is created at its first use.

    Raises RuntimeError if the broker refuses.
    """
    it = setup.experiment
    if peer.load != "kafka" or peer.name in YARDSTICKS:
        return
    replicas = 3 if "cluster" in peer.name else 1
    config = {"max.message.bytes": "16777216"} if it.size > MILLION // 2 else {}
    config |= {"min.insync.replicas": "2"} if replicas > 1 else {}
    admin = AdminClient({"bootstrap.servers": peer.address, "log_level": 3, **peer.client_settings})
    topic = NewTopic(TOPIC, min(it.partitions, _CREATE_PARTITIONS), replicas, config=config)
    try:
        admin.create_topics([topic], operation_timeout=_CREATE_SECONDS)[TOPIC].result(_CREATE_SECONDS)
        for there in range(_CREATE_PARTITIONS, it.partitions, _CREATE_PARTITIONS):
            more = NewPartitions(TOPIC, min(there + _CREATE_PARTITIONS, it.partitions))
            admin.create_partitions([more], operation_timeout=_CREATE_SECONDS)[TOPIC].result(_CREATE_SECONDS)
    except KafkaException as error:
        raise RuntimeError(f"{peer.name} does not create the topic: {error.args[0]}") from error
    load(peer.load).produce(peer, Work(1))  # returns once the partition is led: other clients may not try again


def warm(setup: Setup, peer: Peer, send: Callable[[int], Said] | None = None) -> tuple[int, float]:
    """Load a broker until it is warm. Return the number of messages, and the rate of the last run.

    A broker is warm if it has been loaded for a while and its last run was not faster by a fifth. send: sends so many
    messages; the peer's client by default.
    """
    first = max(setup.load.first_run, _EACH_PARTITION * setup.experiment.partitions)
    count = max(min(first, _WARM_BYTES // setup.experiment.size), 1)
    enough = min(WARM_SECONDS, 2 * setup.seconds)
    sent, spent, rate, before = 0, 0.0, 0.0, 0.0
    while spent < enough or (rate > _FASTER * before and spent < enough / WARM_SECONDS * WARM_LONGEST):
        count = max(count, int(rate * (enough - spent)))
        said = send(count) if send is not None else setup.load.produce(peer, setup.work(count))
        seconds = max(said.seconds, 1e-3)
        before = rate
        sent, spent, rate = sent + count, spent + seconds, said.messages / seconds
        count = min(_GROWTH * count, max(count, int(rate * enough)))
    return sent, rate


def settle(setup: Setup, peer: Peer, count: int = 0) -> None:
    """Let the kernel write the broker's dirty pages, and keep warm pages for a number of messages."""
    os.sync()
    if count:
        copies = 3 if "cluster" in peer.name else 1
        warm_pages(setup.folder, setup.bytes_of(count) * copies)


def measured(peer: Peer, asked: int, load: Callable[[], Sequence[Said]]) -> Sample:
    """Run one round of `asked` messages. Clients may leave the first ones out of the rate, not of the seconds."""
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
        "seconds": max(seconds, *(one.whole for one in said)),
        "rate": messages / seconds,
        "megabytes": sum(one.bytes for one in said) / seconds / 1e6,
        "cpu": spent / asked * 1e6,
        "faults": faults / asked * 1e6,
        "resident": highest / 1e6,
    }
    for one in said:
        sample |= {name: value * 1000 for name, value in one.percentiles.items()}
    return sample


def produced(setup: Setup, peer: Peer, count: int) -> list[Said]:
    """Send messages."""
    return [setup.load.produce(peer, setup.work(count))]
