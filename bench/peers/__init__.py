"""The brokers that are measured, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.base import HighestResident, Peer
from bench.peers.clusters import KafkaCluster, PylogdCluster
from bench.peers.kafka_protocol import Ceiling, Floor, Kafka, KafkaAsInstalled, Mesh, Pylogd
from bench.peers.others import ActiveMQ, Nats, RabbitClassic, RabbitQuorum, RabbitStream, Redis
from bench.peers.secured import KafkaTls, PylogdTls

__all__ = ["PEERS", "HighestResident", "Peer", "Pylogd", "running"]

_KINDS: tuple[type[Peer], ...] = (
    Pylogd,
    Ceiling,
    Floor,
    Kafka,
    KafkaAsInstalled,
    Mesh,
    RabbitClassic,
    RabbitQuorum,
    RabbitStream,
    ActiveMQ,
    Nats,
    Redis,
    PylogdCluster,
    KafkaCluster,
    PylogdTls,
    KafkaTls,
)
PEERS: dict[str, type[Peer]] = {kind.name: kind for kind in _KINDS}


@contextmanager
def running(name: str, folder: Path) -> Iterator[Peer]:
    """Run a fresh broker inside a `with` block. Raises conformance.checks.Missing if it is not available here."""
    peer = PEERS[name](folder)
    try:
        peer.start()
        yield peer
    finally:
        peer.stop()
