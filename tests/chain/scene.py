"""The processes of the chain that have no class elsewhere: balancer, brokers behind it, producers and consumers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pylogd
from pylogd.base.errors import PylogdError
from pylogd.base.ports import free_ports
from pylogd.local.broker import HOST, BrokerProcess
from pylogd.local.launch import bound
from tests.audits import ServedAudit
from tests.clusters import BrokerCluster
from tests.kills.comparing import LakeFault
from tests.tools import haproxy

BROKERS: Final = 3
_PROGRAMS: Final = Path(__file__).resolve().parent
_PACKAGES: Final = str(Path(pylogd.__file__).resolve().parents[1])
_WAIT_SECONDS: Final = 60.0
_HAPROXY: Final = """\
defaults
    mode tcp
    timeout connect 5s
    timeout client 10m
    timeout server 10m
listen bootstrap
    bind {host}:{bootstrap}
    balance roundrobin
    option redispatch
"""


class Balancer:
    """HAProxy in front of the brokers: a port for the first connection of a client, and one for each broker."""

    def __init__(self, folder: Path) -> None:
        """fronts: the advertised ports of the brokers, backs: the ports behind them."""
        bootstrap, *ports = free_ports(1 + 2 * BROKERS)
        self.fronts = dict(enumerate(ports[:BROKERS], 1))
        self.backs = dict(enumerate(ports[BROKERS:], 1))
        self.address = f"{HOST}:{bootstrap}"
        self._file, self._log = folder / "haproxy.cfg", folder / "haproxy.log"
        lines = [_HAPROXY.format(host=HOST, bootstrap=bootstrap)]
        for node, back in self.backs.items():
            lines.append(f"    server broker{node} {HOST}:{back} send-proxy-v2 check check-send-proxy inter 1s")
        for node, front in self.fronts.items():
            lines.append(f"listen broker{node}\n    bind {HOST}:{front}")
            lines.append(f"    server broker{node} {HOST}:{self.backs[node]} send-proxy-v2")
        self._file.write_text("\n".join([*lines, ""]))
        self.start()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                bound([haproxy(), "-db", "-f", str(self._file)], signal.SIGTERM), stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        host, _, port = self.address.rpartition(":")
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5):
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise LakeFault(f"the balancer does not listen:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


class Serving(BrokerCluster):
    """Three brokers, each with a listener of its own for the balancer, which clients see as the balancer's port."""

    def __init__(self, folder: Path, connect: str, balancer: Balancer, session_ms: int) -> None:
        self._balancer = balancer
        super().__init__(
            folder, connect, BROKERS,
            {"zookeeper.session.timeout.ms": str(session_ms), "default.replication.factor": "3",
             "min.insync.replicas": "2", "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BALANCED:PLAINTEXT",
             "listener.name.balanced.proxy.protocol": "true"},
        )  # fmt: skip

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        """Run a broker with its listener for the balancer."""
        seen = f"BALANCED://{HOST}:{self._balancer.fronts[node]}"
        return BrokerProcess(
            self.folder / f"broker{node}", self.folder / f"broker{node}.log",
            {**settings, "advertised.listeners": seen}, ["--listen", f"BALANCED://{HOST}:{self._balancer.backs[node]}"],
            port=self.ports[node], wait=False,
        )  # fmt: skip

    def controller(self) -> int | None:
        """Return the node that is the controller, if the brokers agree on one that runs."""
        try:
            seen = {self.ask(lambda admin: admin.describe_cluster(), node).controller for node in self.brokers}
        except PylogdError:
            return None
        node = seen.pop() if len(seen) == 1 else None
        return node if node in self.brokers else None


class Program:
    """A program of this folder as a process that can be started again. `log` has what it writes to standard error."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self._command = [sys.executable, "-P", str(_PROGRAMS / f"{name}.py"), *arguments]
        self.log = log
        self.start()

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as errors:
            self.process = subprocess.Popen(
                bound(self._command, signal.SIGKILL), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                env={**os.environ, "PYTHONPATH": _PACKAGES}, start_new_session=True,
            )  # fmt: skip

    def signal(self, what: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(what)

    def kill(self) -> None:
        """Kill it, also if it is frozen or has ended."""
        self.process.kill()
        self.process.wait()

    def check(self) -> None:
        """Raise LakeFault if it ended by itself with an error."""
        if self.process.poll():
            raise LakeFault(f"{self.log} ended by {self.process.returncode}:\n{self.log.read_text()[-4000:]}")


class Member(Program):
    """A consumer, with its own log of what it was handed."""

    def __init__(self, folder: Path, group: str, number: int, arguments: Sequence[str]) -> None:
        """arguments: those of the program before the path of the log."""
        self.read = folder / f"{group}-{number:03d}.read"
        super().__init__("consumer", [*arguments, str(self.read)], folder / f"{group}-{number:03d}.err")

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield what it has written."""
        if self.read.exists():
            for line in self.read.read_bytes().split(b"\n")[:-1]:
                yield json.loads(line)

    def has_partitions(self) -> bool:
        """Whether partitions were assigned to it at some time."""
        return any(entry.get("assigned") for entry in self.entries())


class ConsumerGroup:
    """The members of a group; those that were killed are kept with what they read."""

    def __init__(self, folder: Path, name: str, arguments: Sequence[str]) -> None:
        """arguments: ZooKeeper and bootstrap before, topic and lease after the name of the group."""
        self.name = name
        self._folder = folder
        zookeeper, bootstrap, topic, lease = arguments
        self._arguments = [zookeeper, bootstrap, name, topic, lease]
        self.members: list[Member] = []
        self.all: list[Member] = []

    def add(self, count: int) -> None:
        """Start new members."""
        for _ in range(count):
            member = Member(self._folder, self.name, len(self.all) + 1, self._arguments)
            self.members.append(member)
            self.all.append(member)

    def kill(self, member: Member) -> None:
        """Kill a member for good; its partitions go to others when its session is over."""
        member.kill()
        self.members.remove(member)

    def kill_all(self) -> None:
        """Kill all members."""
        for member in list(self.members):
            self.kill(member)

    def check(self) -> None:
        """Raise LakeFault if a member ended by itself."""
        for member in self.members:
            member.check()

    def behind(self) -> dict[int, int]:
        """Return the offset behind the last one that a member has read, by partition."""
        found: dict[int, int] = {}
        for member in self.all:
            for entry in member.entries():
                for partition, _, last in entry.get("got", ()):
                    found[partition] = max(found.get(partition, 0), last + 1)
        return found

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Whether members have read up to these offsets. What is between is compared at the end."""
        behind = self.behind()
        return all(behind.get(partition, 0) >= end for partition, end in ends.items())


class Audit(ServedAudit):
    """The audit service of the chain, which is killed and started again."""

    def kill(self) -> None:
        """Kill it, if it runs."""
        if hasattr(self, "process") and self.process.poll() is None:
            self.end(signal.SIGKILL)
