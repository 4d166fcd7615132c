"""pylogd and Apache Kafka with a listener SSL beside the plain one, and the same certificate, as peers.

Their clients use the listener SSL. Apache Kafka reads the same PEM file (KIP-651).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.peers.base import Peer
from bench.peers.kafka_protocol import Kafka, Pylogd
from pylogd.base.ports import free_ports
from pylogd.local.authority import Authority
from pylogd.local.broker import HOST, BrokerProcess

_KAFKA: Final = """\
listeners=PLAINTEXT://{host}:{plain},SSL://{host}:{tls},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://{host}:{plain},SSL://{host}:{tls}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
"""


class _OverTls(Peer):
    """A broker whose clients use the listener SSL."""

    #: The port of the listener SSL.
    tls_port: int
    #: The file of the certificate that clients trust.
    authority: Path

    @property
    def address(self) -> str:
        return f"{HOST}:{self.tls_port}"

    @property
    def client_settings(self) -> Mapping[str, str]:
        return {"security.protocol": "ssl", "ssl.ca.location": str(self.authority)}


class PylogdTls(_OverTls, Pylogd):
    """pylogd over TLS."""

    name = "pylogd TLS"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._keystore, self.authority = _certificates(folder)
        self._plain_port, self.tls_port = free_ports(2)

    def command(self) -> str:
        return f"{super().command()} --listen SSL://127.0.0.1:0 --set ssl.keystore.location=PEM"

    def start(self) -> None:
        begun = time.monotonic()
        self._process = process = BrokerProcess(
            self.data,
            self.folder / "log",
            {"ssl.keystore.location": str(self._keystore)},
            ["--listen", f"SSL://{HOST}:{self.tls_port}"],
            port=self._plain_port,
            host=f"PLAINTEXT://{HOST}",
            bind_life=False,
        )
        self.port, self.pid = self._plain_port, process.pid
        self.await_accept(lambda: process.exit_code is None, begun)


class KafkaTls(_OverTls, Kafka):
    """Apache Kafka over TLS."""

    name = "kafka TLS"

    def __init__(self, folder: Path) -> None:
        keystore, self.authority = _certificates(folder)
        plain, self.tls_port, controller = free_ports(3)
        super().__init__(folder, 0, plain, {0: controller})
        with self._properties.open("a") as properties:
            properties.write(
                _KAFKA.format(host=HOST, plain=plain, tls=self.tls_port, controller=controller, keystore=keystore)
            )
        self.port = self.tls_port  # which is open a moment after the plain one

    def command(self) -> str:
        return f"{super().command()}, with a listener SSL"


def _certificates(folder: Path) -> tuple[Path, Path]:
    """Return the paths of a key with its certificate for this machine, and of its authority's certificate.

    They are written at the first call for a folder: all brokers in it have the same.
    """
    keystore, trusted = folder / "broker.pem", folder / "authority.pem"
    if trusted.exists():
        return keystore, trusted
    authority = Authority("bench")
    keystore.write_text(authority.issue("broker", [HOST, "localhost"]).pem)
    trusted.write_text(authority.certificate)
    return keystore, trusted
