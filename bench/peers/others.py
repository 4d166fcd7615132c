"""Brokers with other protocols: RabbitMQ, ActiveMQ, NATS JetStream and Redis, in their usual configuration.

Messages are persistent everywhere. As in the paper, none waits for the disk on each message if that can be configured
(bench/README.md has the details).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.peers import fetching
from bench.peers.base import Program, end
from conformance import checks
from conformance.checks import Missing
from pylogd.base.ports import free_ports

SOURCES = Path(__file__).parents[1] / "loads" / "java"
ACTIVEMQ = "5.18.6"
ACTIVEMQ_JARS = tuple(
    f"org.apache.activemq:activemq-{part}:{ACTIVEMQ}" for part in ("broker", "kahadb-store", "client")
)
REDIS = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
NATS = ("github.com/nats-io/nats-server/v2", "v2.15.3")
ERLANG = (
    "base asn1 crypto public-key mnesia runtime-tools ssl eldap ftp tftp inets snmp os-mon parsetools syntax-tools "
    "tools xmerl"
)
RABBITMQ = ("rabbitmq-server", *(f"erlang-{part}" for part in ERLANG.split()), "libwrap0")


class Redis(Program):
    """Redis Streams, with the append-only file written by each command and synced every second."""

    name = "redis"
    load = "redis"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        [self.port] = free_ports(1)
        self._root = fetching.debian("redis", REDIS)

    def arguments(self) -> Sequence[str]:
        program = str(self._root / "usr" / "bin" / "redis-server")
        options = {"port": str(self.port), "bind": self.host, "dir": str(self.data), "save": ""}
        options |= {"appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0"}
        return [program, *(word for name, value in options.items() for word in (f"--{name}", value))]

    def prepare(self) -> None:
        """Wait until the server answers: while it loads its file it only accepts connections."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.create_connection((self.host, self.port), 10) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(64).startswith(b"+PONG"):
                    return
            time.sleep(0.05)
        raise Missing("redis did not load its file")

    def version(self) -> str:
        return f"Redis {fetching.debian_version('redis', 'redis-server')} (Debian {fetching.SUITE})"


class Nats(Program):
    """NATS JetStream, file storage; its default is to sync every two minutes."""

    name = "nats"
    load = "nats"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        [self.port] = free_ports(1)
        self._program = str(fetching.go_program(*NATS))

    def arguments(self) -> Sequence[str]:
        return [self._program, "-a", self.host, "-p", str(self.port), "-js", "-sd", str(self.data)]

    def version(self) -> str:
        return f"nats-server {NATS[1].removeprefix('v')} (built from its Go module)"


class ActiveMQ(Program):
    """ActiveMQ Classic with KahaDB, its journal synced once a second."""

    name = "activemq"
    load = "activemq"
    destructive = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        [self.port] = free_ports(1)
        self._java = checks.tool("java", "openjdk-17-jre-headless")
        jars = fetching.jars("activemq", ACTIVEMQ_JARS)
        self._classes = fetching.java_classes("activemq-broker", jars, [SOURCES / "ActiveMQBroker.java"])

    def arguments(self) -> Sequence[str]:
        where = [str(self.port), str(self.data)]
        return [self._java, "-Xms1g", "-Xmx1g", "-cp", self._classes, "ActiveMQBroker", *where]

    def version(self) -> str:
        return f"ActiveMQ Classic {ACTIVEMQ}, KahaDB (Maven Central)"

    def command(self) -> str:
        return "java -Xms1g -Xmx1g ActiveMQBroker PORT DIR"


class Rabbit(Program):
    """RabbitMQ with a separate Erlang: one node and its epmd."""

    name = "rabbitmq classic"
    load = "rabbitmq"
    destructive = True
    _epmd: subprocess.Popen[bytes] | None = None

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.stream_port, self._epmd_port, self._distribution = free_ports(4)
        self._root = fetching.debian("rabbitmq", RABBITMQ)
        self._erlang = self._root / "usr" / "lib" / "erlang"
        _relocate(self._erlang)
        [self._server] = (self._root / "usr" / "lib" / "rabbitmq" / "lib").glob("rabbitmq_server-*")
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = {self.host}:{self.port}\n"
            f"stream.listeners.tcp.default = {self.host}:{self.stream_port}\n"
            f"stream.advertised_host = {self.host}\nstream.advertised_port = {self.stream_port}\n"
            "disk_free_limit.absolute = 1GB\n"
        )
        (self.folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")

    def arguments(self) -> Sequence[str]:
        return [str(self._server / "sbin" / "rabbitmq-server")]

    def environment(self) -> Mapping[str, str]:
        return {
            "HOME": str(self.folder),
            "PATH": f"{self._erlang / 'bin'}:{os.environ['PATH']}",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": self.host,
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": str(self.data),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
        }

    def start(self) -> None:
        epmd = [str(self._erlang / "bin" / "epmd"), "-port", str(self._epmd_port), "-address", self.host]
        if self._epmd is None:
            self._epmd = subprocess.Popen(epmd, start_new_session=True)
        super().start()

    def finish(self) -> None:
        super().finish()
        self._end_epmd()

    def kill(self) -> None:
        super().kill()
        self._end_epmd()

    def _end_epmd(self) -> None:
        if self._epmd is not None:
            epmd, self._epmd = self._epmd, None
            end(epmd)

    def version(self) -> str:
        version = fetching.debian_version("rabbitmq", "rabbitmq-server")
        return f"RabbitMQ {version} (Debian {fetching.SUITE}), {self.name.split()[1]}"


class RabbitClassic(Rabbit):
    """A durable classic queue with persistent messages."""


class RabbitQuorum(Rabbit):
    """A quorum queue of one member."""

    name = "rabbitmq quorum"


class RabbitStream(Rabbit):
    """A stream, by the stream protocol."""

    name = "rabbitmq stream"
    load = "rabbitmq-stream"
    destructive = False

    @property
    def address(self) -> str:
        return f"{self.host}:{self.stream_port}"

    def prepare(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                socket.create_connection((self.host, self.stream_port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise Missing("RabbitMQ's stream plugin did not start")


def _relocate(erlang: Path) -> None:
    """Correct the paths in Erlang's start scripts, which are Debian's."""
    marker = erlang / ".relocated"
    if marker.exists():
        return
    if shutil.which("sh") is None:
        raise Missing("no shell for Erlang's start scripts")
    for script in (erlang / "bin" / "erl", erlang / "bin" / "start"):
        script.write_text(script.read_text().replace("=/usr/lib/erlang", f"={erlang}"))
    marker.touch()
