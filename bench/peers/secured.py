"""pylogd and Apache Kafka with the same listeners: PLAINTEXT, SSL and SASL_SSL (SCRAM-SHA-512).

They show the same certificate, and have one user. Apache Kafka reads the same PEM file (KIP-651). `PylogdTls` and
`KafkaTls` are the same brokers as peers, whose clients use the SSL listener.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from bench.peers.base import Peer
from bench.peers.kafka_protocol import Kafka, Pylogd
from pylogd.local.authority import Authority
from pylogd.local.broker import HOST, BrokerProcess, free_ports

LISTENERS: Final = ("PLAINTEXT", "SSL", "SASL_SSL")
USER: Final = "bench"
PASSWORD: Final = "bench-secret"
ITERATIONS: Final = 4096
_SECONDS: Final = 60

_KAFKA: Final = """\
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
"""


class SecuredPylogd(Pylogd):
    """pylogd with the listeners."""

    def __init__(self, folder: Path, keystore: Path) -> None:
        """keystore: PEM file of key and certificate."""
        super().__init__(folder)
        self.ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
        self._keystore = keystore

    def start(self) -> None:
        begun = time.monotonic()
        first, *others = [f"{name}://{HOST}" for name in LISTENERS]
        self._process = process = BrokerProcess(
            self.data,
            self.folder / "log",
            {"ssl.keystore.location": str(self._keystore), "sasl.enabled.mechanisms": "SCRAM-SHA-512"},
            [word for name in others for word in ("--listen", f"{name}:{self.ports[name.partition(':')[0]]}")],
            port=self.ports["PLAINTEXT"],
            host=first,
            bind_life=False,
        )
        self.port, self.pid = self.ports["PLAINTEXT"], process.pid
        self.await_accept(lambda: process.exit_code is None, begun)


class SecuredKafka(Kafka):
    """Apache Kafka with the listeners."""

    def __init__(self, folder: Path, keystore: Path) -> None:
        """keystore: PEM file of key and certificate."""
        *ports, controller = free_ports(len(LISTENERS) + 1)
        self.ports = dict(zip(LISTENERS, ports, strict=True))
        super().__init__(folder, 0, self.ports["PLAINTEXT"], {0: controller})
        listeners = ",".join(f"{name}://{HOST}:{port}" for name, port in self.ports.items())
        with self._properties.open("a") as properties:
            properties.write(_KAFKA.format(listeners=listeners, controller=controller, keystore=keystore))


class _OverTls(Peer):
    """A broker with the listeners, whose clients use TLS."""

    ports: dict[str, int]
    authority: Path

    @property
    def address(self) -> str:
        return f"{HOST}:{self.ports['SSL']}"

    @property
    def client_settings(self) -> Mapping[str, str]:
        return {"security.protocol": "ssl", "ssl.ca.location": str(self.authority)}


class PylogdTls(_OverTls, SecuredPylogd):
    """pylogd over TLS."""

    name = "pylogd TLS"

    def __init__(self, folder: Path) -> None:
        keystore, self.authority = certificates(folder)
        super().__init__(folder, keystore)

    def command(self) -> str:
        return f"{super().command()} --listen SSL://127.0.0.1:0 --set ssl.keystore.location=PEM"


class KafkaTls(_OverTls, SecuredKafka):
    """Apache Kafka over TLS."""

    name = "kafka TLS"

    def __init__(self, folder: Path) -> None:
        keystore, self.authority = certificates(folder)
        super().__init__(folder, keystore)
        self.port = self.ports["SSL"]  # which is open a moment after the plain one

    def command(self) -> str:
        return f"{super().command()}, with a listener SSL"


Secured = SecuredPylogd | SecuredKafka
BROKERS: Final[Mapping[str, type[Secured]]] = {"pylogd": SecuredPylogd, "kafka": SecuredKafka}


def certificates(folder: Path) -> tuple[Path, Path]:
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


def admin(broker: Secured) -> AdminClient:
    """Return an admin client on the plain listener."""
    return AdminClient({"bootstrap.servers": f"{HOST}:{broker.ports['PLAINTEXT']}", "log_level": 3})


def add_user(broker: Secured) -> None:
    """Give `USER` a password."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
    change = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    client = admin(broker)  # which has to live until the answer
    for done in client.alter_user_scram_credentials([change]).values():
        done.result(_SECONDS)
