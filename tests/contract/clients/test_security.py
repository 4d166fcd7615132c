"""What every face of the client promises of TLS and SASL, each with a real broker: who gets in, and what errors say."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pylogd.base.errors import PylogdError
from pylogd.base.ports import free_ports
from pylogd.client import AuthenticationFailed, BrokerUnavailable, SecurityOptions, TlsFailed
from pylogd.client.core import link
from pylogd.credentials.scram import SCRAM_MECHANISMS, salted_password
from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from tests.contract.clients.helpers import eventually, name
from tests.faces import FACES, Face, poll_until
from tests.rawclient import RawClient

authority = pytest.importorskip("pylogd.local.authority", reason="it needs cryptography: pylogd-broker[tls]")

pytestmark = pytest.mark.skipif("PYLOGD_TEST_BOOTSTRAP" in os.environ, reason="it needs a broker of its own")

MAPPING = "PLAINTEXT:PLAINTEXT,SASL:SASL_SSL,MUTUAL:SSL,OTHER:SSL,OPEN:SASL_PLAINTEXT"
JAAS = 'some.PlainLoginModule required user_alice="secret";'
BIG = os.urandom(400_000)


@dataclass(frozen=True)
class Secured:
    """A broker with a listener of each kind, and an authority that its certificates are from."""

    signer: Any
    folder: Path
    ports: dict[str, int]

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    @property
    def ca(self) -> str:
        certificate: str = self.signer.certificate
        return certificate

    def plain(self, password: Any = "secret") -> SecurityOptions:
        return SecurityOptions(
            protocol="SASL_SSL", ssl_ca=self.ca, sasl_mechanism="PLAIN", sasl_username="alice", sasl_password=password
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    signer = authority.Authority()
    store(folder / "broker.pem", signer.issue("broker", ["localhost", "127.0.0.1"]))
    store(folder / "other.pem", signer.issue("elsewhere", ["elsewhere.example"]))
    (folder / "ca.pem").write_text(signer.certificate)
    ports = dict(zip(("SASL", "MUTUAL", "OTHER", "OPEN"), free_ports(4), strict=True))
    broker = BrokerProcess(
        folder / "data", folder / "log", {
            "offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0",
            "listener.security.protocol.map": MAPPING, "ssl.keystore.location": str(folder / "broker.pem"),
            "ssl.truststore.location": str(folder / "ca.pem"), "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.other.ssl.keystore.location": str(folder / "other.pem"),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.sasl.plain.sasl.jaas.config": JAAS, "listener.name.open.plain.sasl.jaas.config": JAAS,
            "sasl.oauthbearer.unsecured.tokens.enable": "true", "connections.max.reauth.ms": "3600000",
        },
        arguments=[word for kind, port in ports.items() for word in ("--listen", f"{kind}://127.0.0.1:{port}")],
    )  # fmt: skip
    with RawClient(broker.address) as raw:
        raw.request(AlterUserScramCredentialsRequest(upsertions=[credential(m) for m in SCRAM_MECHANISMS]), 0)
    yield Secured(signer, folder, ports)
    assert broker.stop() == 0
    assert "Traceback" not in broker.log()


def store(path: Path, issued: Any) -> None:
    path.write_text(issued.pem)
    path.chmod(0o600)


def credential(mechanism: str) -> ScramCredentialUpsertion:
    algorithm = SCRAM_MECHANISMS[mechanism]
    salt = b"0123456789abcdef"
    salted = salted_password(algorithm, "secret", salt, 4096)
    return ScramCredentialUpsertion("alice", algorithm.code, 4096, salt, salted)


def token() -> str:
    """An unsecured access token for alice."""
    now = time.time()

    def encode(part: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

    return f"{encode({'alg': 'none'})}.{encode({'sub': 'alice', 'iat': now - 1, 'exp': now + 3600})}."


@pytest.fixture(params=list(FACES))
def open_face(request: pytest.FixtureRequest, secured: Secured) -> Iterator[Callable[[str], Face]]:
    opened: list[Face] = []

    def open_face(listener: str) -> Face:
        opened.append(FACES[request.param](secured.address(listener)))
        return opened[-1]

    yield open_face
    for face in opened:
        face.close()


def round_trip(face: Face, security: SecurityOptions) -> None:
    """Administer, produce large records, and read them in a group."""
    topic = name("secured")
    face.admin(security=security).create_topic(topic, 1)
    producer = face.producer(security=security)
    for _ in range(10):
        producer.send(topic, BIG)
    producer.flush()
    consumer = face.consumer(security=security, group_id=topic)
    consumer.subscribe(topic)
    records = poll_until([consumer], lambda records: len(records) >= 10)
    assert [record.value for record in records] == [BIG] * 10


def refused(face: Face, security: SecurityOptions, kind: type[AuthenticationFailed], text: str) -> None:
    """Check that everything fails with such an error, which names no secret."""
    with pytest.raises(kind, match=text) as caught:
        face.admin(security=security).describe_cluster()
    assert "secret" not in str(caught.value) and "wrong" not in str(caught.value)
    consumer = face.consumer(security=security)
    with pytest.raises(kind, match=text):
        consumer.assign([("t", 0)])
        consumer.poll(30)
    producer = face.producer(security=security, max_block=30)
    with pytest.raises(kind, match=text):
        producer.send("t", b"x")


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM_MECHANISMS])
def test_passwords(open_face: Callable[[str], Face], secured: Secured, mechanism: str) -> None:
    round_trip(open_face("SASL"), replace(secured.plain(), sasl_mechanism=mechanism))


def test_tokens(open_face: Callable[[str], Face], secured: Secured) -> None:
    security = SecurityOptions(protocol="SASL_SSL", ssl_ca=secured.ca, sasl_mechanism="OAUTHBEARER", sasl_token=token)
    round_trip(open_face("SASL"), security)


def test_without_encryption(open_face: Callable[[str], Face], secured: Secured) -> None:
    round_trip(open_face("OPEN"), replace(secured.plain(lambda: "secret"), protocol="SASL_PLAINTEXT", ssl_ca=""))


def test_certificates_of_clients(open_face: Callable[[str], Face], secured: Secured, tmp_path: Path) -> None:
    issued = secured.signer.issue("client", password="hush")
    (tmp_path / "chain.pem").write_text(issued.chain)
    security = SecurityOptions(
        protocol="SSL", ssl_ca=str(secured.folder / "ca.pem"), ssl_certificate=str(tmp_path / "chain.pem"),
        ssl_key=issued.key, ssl_key_password="hush", ssl_min_version="TLSv1.3",
    )  # fmt: skip
    round_trip(open_face("MUTUAL"), security)
    face = open_face("MUTUAL")
    with pytest.raises(TlsFailed, match="can't be used"):
        face.admin(security=replace(security, ssl_key_password="no")).describe_cluster()
    with pytest.raises(TlsFailed, match="ssl_ca"):
        face.admin(security=replace(security, ssl_ca=str(tmp_path / "nothing.pem"))).describe_cluster()


def test_a_client_without_the_certificate_that_is_asked_for(open_face: Callable[[str], Face], secured: Secured) -> None:
    refused(open_face("MUTUAL"), SecurityOptions(protocol="SSL", ssl_ca=secured.ca), TlsFailed, "ertificate")


def test_wrong_passwords(open_face: Callable[[str], Face], secured: Secured) -> None:
    face = open_face("SASL")
    refused(face, secured.plain("wrong"), AuthenticationFailed, "check the credentials")
    scram = replace(secured.plain("wrong"), sasl_mechanism="SCRAM-SHA-512")
    refused(face, scram, AuthenticationFailed, "check the credentials")


def test_an_authority_that_is_not_trusted(open_face: Callable[[str], Face], secured: Secured) -> None:
    security = replace(secured.plain(), ssl_ca=authority.Authority().certificate)
    refused(open_face("SASL"), security, TlsFailed, "certificate")


def test_a_certificate_for_another_host(open_face: Callable[[str], Face], secured: Secured) -> None:
    security = SecurityOptions(protocol="SSL", ssl_ca=secured.ca)
    face = open_face("OTHER")
    refused(face, security, TlsFailed, "certificate")
    round_trip(face, replace(security, ssl_check_hostname=False))


def test_a_client_with_tls_at_a_listener_without(open_face: Callable[[str], Face], secured: Secured) -> None:
    refused(open_face("OPEN"), SecurityOptions(protocol="SSL", ssl_ca=secured.ca), TlsFailed, "does not use TLS")


def test_a_client_without_tls_at_a_listener_with(open_face: Callable[[str], Face], secured: Secured) -> None:
    face = open_face("MUTUAL")
    with pytest.raises(BrokerUnavailable, match="if the listener uses TLS, set the protocol"):
        face.admin(retry_timeout=0.5).describe_cluster()
    with pytest.raises(PylogdError, match="if the listener uses TLS, set the protocol"):
        face.producer(max_block=0.5).send("t", b"x")
    log = (secured.folder / "log").read_text()
    assert "the client does not use TLS; check its security protocol and the port" in log


def test_sessions_are_renewed_on_the_same_connections(
    open_face: Callable[[str], Face], secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_SESSION_SHARES", (1.1 / 3600, 1.1 / 3600))  # a second is the least that brokers allow
    asked: list[None] = []

    def password() -> str:
        asked.append(None)
        return "secret"

    face, security = open_face("SASL"), secured.plain(password)
    topic = name("renewed")
    face.admin(security=security).create_topic(topic, 1)
    producer = face.producer(security=security)
    producer.send(topic, b"first").result()
    first, connections = len(asked), producer.metrics().connection_creation_total
    assert eventually(lambda: producer.send(topic, b"more").result() > 0 and len(asked) >= first + 2)
    assert producer.metrics().connection_creation_total == connections
    consumer = face.consumer(security=security, fetch_max_wait_ms=10)
    consumer.assign({(topic, 0): 0})
    poll_until([consumer], bool)
    first, connections = len(asked), consumer.metrics().connection_creation_total
    assert eventually(lambda: consumer.poll(0.01) is None or len(asked) >= first + 2)
    assert consumer.metrics().connection_creation_total == connections
