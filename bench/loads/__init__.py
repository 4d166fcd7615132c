"""The clients that load the brokers, by the name that a peer gives (`Peer.load`)."""

from __future__ import annotations

from bench.loads.base import Load, Said, Unsupported
from bench.loads.java import JAVA_LOADS, JavaLoad
from bench.loads.kafka import JavaTools, Librdkafka

__all__ = ["Load", "Said", "Unsupported", "load"]


def load(name: str) -> Load:
    """Return a client; its first use may download and compile."""
    if name == "kafka":
        return Librdkafka()
    if name == "kafka-java":
        return JavaTools()
    return JavaLoad(JAVA_LOADS[name])
