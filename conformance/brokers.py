"""Run a fresh broker of either kind, pylogd or Apache Kafka."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from conformance import kafka_peer
from pylogd.local.broker import BrokerProcess, free_ports


def say(text: str) -> None:
    """Print progress on standard error."""
    print(f"conformance: {text}", file=sys.stderr, flush=True)


@contextmanager
def running(kind: str, folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a broker on an empty directory, and yield its address. kind: pylogd or kafka."""
    if kind == "kafka":
        with kafka_peer.running(folder, settings) as address:
            yield address
        return
    # Node 0 with an advertised address, as in Apache Kafka's example settings: kafka-python's suite expects it.
    [port] = free_ports(1)
    options = ["--node-id", "0", "--advertised", f"127.0.0.1:{port}"]
    with watched(BrokerProcess(folder / "data", folder / "log", settings, options, port=port)) as broker:
        yield broker.address


@contextmanager
def watched(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """Stop pylogd's process at the end. Print the end of its log if it has a traceback."""
    try:
        yield broker
        broker.stop()
    finally:
        broker.kill()
        if "Traceback" in broker.log():
            say(f"the broker logged a traceback:\n{broker.log()[-6000:]}")
