"""Brokers and clients for the rows of `bench.quotas`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pylogd.client import Admin, NewTopic
from pylogd.client.core.admin.access_operations import QuotaEntity
from pylogd.local.authority import Authority, write_secret
from pylogd.local.broker import HOST, BrokerProcess, free_ports

MB: Final = 1e6
CLIENT_SECONDS: Final = 600.0
SETTINGS: Final = {"log.retention.check.interval.ms": "2000"}
_CHECKOUT: Final = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Scale:
    """How long each client works, how many rounds of latencies, and the folder for data."""

    seconds: float
    pairs: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Use:
    """A client that uses as much as it may of a byte rate. rate: bytes a second, on each broker."""

    verb: str
    rate: float
    connections: int = 1

    @property
    def client_id(self) -> str:
        return f"{self.verb}-{self.rate / MB:g}-{self.connections}"

    @property
    def quota(self) -> dict[str, float | None]:
        return {"producer_byte_rate" if self.verb == "produce" else "consumer_byte_rate": self.rate}

    def __str__(self) -> str:
        shared = f", {self.connections} connections" if self.connections > 1 else ""
        return f"{self.verb} at {self.rate / MB:g} MB/s{shared}"


class Clients:
    """Client processes that run at the same time, and what they say."""

    def __init__(self) -> None:
        self._running: list[tuple[Sequence[str], subprocess.Popen[str]]] = []

    def start(self, what: str, address: str, **options: object) -> None:
        """Run a client of `quota_clients`."""
        command = [sys.executable, "-m", "bench.quota_clients", what, address]
        command += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=_CHECKOUT, start_new_session=True
        )
        self._running.append((command, process))

    def results(self) -> list[dict[str, Any]]:
        """Wait for all clients; return what each printed, with the lines that it wrote to standard error."""
        try:
            outputs = [process.communicate(timeout=CLIENT_SECONDS) for _, process in self._running]
        finally:
            self.stop()
        found = []
        for (command, process), (output, errors) in zip(self._running, outputs, strict=True):
            if process.returncode:
                raise RuntimeError(f"{' '.join(command)}: {errors.strip()[-1000:]}")
            found.append({**json.loads(output.strip().splitlines()[-1]), "errors": errors})
        return found

    def stop(self) -> None:
        """End the clients at once."""
        for _, process in self._running:
            process.kill()
            process.wait()


def client(what: str, address: str, **options: object) -> dict[str, Any]:
    """Run one client."""
    one = Clients()
    one.start(what, address, **options)
    return one.results()[0]


def set_quota(address: str, client_id: str, **quotas: float | None) -> None:
    """Set the quotas of a client id."""
    with Admin(address) as admin:
        admin.alter_client_quotas(QuotaEntity(client_id=client_id), quotas)


def make_topic(address: str, name: str, **configs: str) -> None:
    """Create a topic of one partition."""
    with Admin(address) as admin:
        for error in admin.create_topics([NewTopic(name, 1, 1, configs)]).values():
            if error is not None:
                raise error


@contextmanager
def one_broker(scale: Scale) -> Iterator[BrokerProcess]:
    """Run a broker on an empty directory."""
    with tempfile.TemporaryDirectory(dir=scale.folder) as folder:
        broker = BrokerProcess(Path(folder) / "data", Path(folder) / "log", SETTINGS)
        try:
            yield broker
        finally:
            broker.stop()


@contextmanager
def tls_broker(scale: Scale) -> Iterator[tuple[BrokerProcess, str, Path]]:
    """Run a broker with a TLS listener beside the plain one. Yield it, that listener's address, and whom to trust."""
    with tempfile.TemporaryDirectory(dir=scale.folder) as name:
        folder = Path(name)
        authority = Authority.open(folder / "ca")
        keystore = folder / "broker.pem"
        write_secret(keystore, authority.issue("broker", ["localhost", HOST]).pem)
        address = f"{HOST}:{free_ports(1)[0]}"
        settings = {**SETTINGS, "ssl.keystore.location": str(keystore)}
        broker = BrokerProcess(folder / "data", folder / "log", settings, ["--listen", f"SSL://{address}"])
        try:
            yield broker, address, folder / "ca" / "authority.pem"
        finally:
            broker.stop()


@contextmanager
def crowded_broker(scale: Scale) -> Iterator[tuple[BrokerProcess, str]]:
    """Run a broker with a listener for clients beside the one between brokers. Yield it and that listener's address."""
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT", "max.connections": "1000",
        "socket.listen.backlog.size": "4096",
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=scale.folder) as name:
        address = f"{HOST}:{free_ports(1)[0]}"
        folder = Path(name)
        broker = BrokerProcess(folder / "data", folder / "log", settings, ["--listen", f"CLIENTS://{address}"])
        try:
            yield broker, address
        finally:
            broker.stop()
