"""Clusters of three brokers on this machine as one peer, to measure the cost of replication."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pylogd
from bench.peers.base import Peer, Program, process_tree
from bench.peers.kafka_protocol import Kafka
from conformance.checks import Missing, last_line
from pylogd.base.ports import free_ports
from pylogd.local.broker import pylogd_command

BROKERS = 3
UP_SECONDS = 120.0


class PylogdCluster(Program):
    """`pylogd cluster up`: three brokers and the ZooKeeper that they share, whose processor time and memory count."""

    name = "pylogd cluster"
    load = "kafka"
    port = 0
    in_folder = False
    _bootstrap = ""

    @property
    def address(self) -> str:
        return self._bootstrap

    def arguments(self) -> Sequence[str]:
        return [*pylogd_command(), "cluster", "up", "-n", str(BROKERS), "--data", str(self.data), "--port", "0"]

    def await_accept(self, alive: Callable[[], bool], begun: float) -> None:
        log = self.folder / "log"
        while (found := re.search(r"^bootstrap servers: (\S+)$", log.read_text(errors="replace"), re.M)) is None:
            if not alive() or time.monotonic() - begun > UP_SECONDS:
                raise Missing(f"`pylogd cluster up` did not come up: {last_line(log.read_text(errors='replace'))}")
            time.sleep(0.05)
        self._bootstrap = found[1]
        self.host, _, port = self._bootstrap.partition(",")[0].partition(":")
        self.port = int(port)
        super().await_accept(alive, begun)

    def version(self) -> str:
        return f"{pylogd.__version__}, {BROKERS} brokers and their ZooKeeper"


class KafkaCluster(Peer):
    """Three Kafka processes, each broker and controller."""

    name = "kafka cluster"
    load = "kafka"
    #: lines for each server.properties
    more = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        controllers = dict(enumerate(free_ports(BROKERS)))
        self._brokers = [Kafka(self.folder, node, voters=controllers, more=self.more) for node in controllers]

    @property
    def address(self) -> str:
        return ",".join(broker.address for broker in self._brokers)

    @property
    def data(self) -> Path:
        return self.folder

    def start(self) -> None:
        begun = time.monotonic()
        for broker in self._brokers:  # none accepts connections before the others are there
            broker.launch()
        for broker in self._brokers:
            broker.await_accept(lambda: True, begun)
        self.host, self.port, self.pid = (self._brokers[0].host, self._brokers[0].port, self._brokers[0].pid)
        self.started = time.monotonic() - begun

    def pids(self) -> list[int]:
        return process_tree([broker.pid for broker in self._brokers])

    def finish(self) -> None:
        for broker in self._brokers:
            broker.finish()

    def kill(self) -> None:
        for broker in self._brokers:
            broker.kill()

    def version(self) -> str:
        return self._brokers[0].version()

    def command(self) -> str:
        return f"{BROKERS} times {self._brokers[0].command()}"
