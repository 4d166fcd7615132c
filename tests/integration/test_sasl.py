"""Clients that authenticate: librdkafka, kafka-python and aiokafka with each mechanism that they have."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from typing import Any

import pytest
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaProducer
from kafka.errors import KafkaError as PythonKafkaError

from pylogd.base.ports import free_ports
from tests.integration.conftest import StartBroker
from tests.integration.sasl_clients import round_trip_with_aiokafka, round_trip_with_kafka_python

SECONDS = 60.0
QUIET: dict[str, Any] = {"log_level": 0}
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret" user_bob="b=,ob";'
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "listener.name.clients.plain.sasl.jaas.config": JAAS,
    "sasl.oauthbearer.unsecured.tokens.enable": "true",
}


class SaslBroker:
    """A broker with a plain listener, for the administrator, and one that wants authentication."""

    def __init__(self, start: StartBroker, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.process = start(settings=SETTINGS | named, arguments=["--listen", f"CLIENTS://{self.address}"])
        plain: dict[str, Any] = {"bootstrap.servers": self.process.address} | QUIET
        self.admin = AdminClient(plain)

    def add(self, user: str, password: str) -> None:
        """Give a user credentials for both mechanisms of SCRAM."""
        changes: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for future in self.admin.alter_user_scram_credentials(changes).values():
            future.result(SECONDS)

    def remove(self, user: str) -> None:
        changes: list[UserScramCredentialAlteration] = [
            UserScramCredentialDeletion(user, mechanism)
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for future in self.admin.alter_user_scram_credentials(changes).values():
            future.result(SECONDS)

    def settings(self, mechanism: str, user: str = "alice", password: str = "secret") -> dict[str, Any]:
        """librdkafka's settings of a client."""
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        } | QUIET

    def python_settings(self, mechanism: str, user: str = "alice", password: str = "secret") -> dict[str, Any]:
        """The settings of kafka-python and aiokafka."""
        return {
            "bootstrap_servers": self.address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        }


@pytest.fixture
def broker(start_broker: StartBroker) -> SaslBroker:
    made = SaslBroker(start_broker)
    made.add("alice", "secret")
    return made


def token(subject: str = "alice", lifetime: float = 3600.0) -> str:
    """An unsecured token."""
    now = time.time()

    def encode(part: Mapping[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

    return f"{encode({'alg': 'none'})}.{encode({'sub': subject, 'iat': now - 1, 'exp': now + lifetime})}."


def round_trip(settings: Mapping[str, Any], topic: str) -> None:
    """Produce a record and read it, with librdkafka."""
    producer = Producer(dict(settings))
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"value", callback=lambda error, _message: errors.append(error))
    assert producer.flush(SECONDS) == 0
    assert errors == [None]
    consumer = Consumer(dict(settings) | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(SECONDS)
    consumer.close()
    assert message is not None and message.error() is None and message.value() == b"value"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(broker: SaslBroker, mechanism: str) -> None:
    round_trip(broker.settings(mechanism), "t")


def test_librdkafka_with_tokens(broker: SaslBroker) -> None:
    settings = broker.settings("OAUTHBEARER") | {"oauth_cb": lambda _config: (token(), time.time() + 3600)}
    round_trip(settings, "t")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(broker: SaslBroker, mechanism: str) -> None:
    round_trip_with_kafka_python(broker.python_settings(mechanism))


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """aiokafka's source of tokens."""

    async def token(self) -> str:
        return token()


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
def test_aiokafka(broker: SaslBroker, mechanism: str) -> None:
    settings = broker.python_settings(mechanism)
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = Tokens()
    round_trip_with_aiokafka(settings)


def refusal(settings: Mapping[str, Any]) -> KafkaError:
    """The error that a client of librdkafka hears of its authentication."""
    heard: list[KafkaError] = []
    admin = AdminClient(dict(settings) | {"error_cb": heard.append})
    deadline = time.monotonic() + SECONDS
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)
    while not any(error.code() == KafkaError._AUTHENTICATION for error in heard):
        assert time.monotonic() < deadline
        admin.poll(0.1)
    return next(error for error in heard if error.code() == KafkaError._AUTHENTICATION)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_refusals_do_not_tell_why(broker: SaslBroker, mechanism: str) -> None:
    wrong = refusal(broker.settings(mechanism, password="wrong"))
    unknown = refusal(broker.settings(mechanism, user="nobody"))
    texts = {re.sub(r"\(after .*|.*: (?=Authentication)|sasl_\S+ ", "", error.str()) for error in (wrong, unknown)}
    assert len(texts) == 1 and "alice" not in texts.pop()
    round_trip(broker.settings(mechanism), "t")
    log = broker.process.log()
    assert "unknown user or wrong password: '" in log
    assert "'wrong'" not in log and "secret" not in log


def test_credentials_change_while_the_broker_runs(broker: SaslBroker) -> None:
    names = {"rené", "a/b", "with space", "k=v,x", "*"}
    for name in names:
        broker.add(name, name)
        round_trip(broker.settings("SCRAM-SHA-512", name, name), "t")
    described: Any = broker.admin.describe_user_scram_credentials()
    assert set(described.result(SECONDS)) == {"alice", *names}
    broker.add("alice", "changed")
    round_trip(broker.settings("SCRAM-SHA-256", password="changed"), "t")
    refusal(broker.settings("SCRAM-SHA-256", password="secret"))
    broker.remove("alice")
    refusal(broker.settings("SCRAM-SHA-256", password="changed"))


def test_a_python_client_that_is_refused(broker: SaslBroker) -> None:
    with pytest.raises(PythonKafkaError):
        KafkaProducer(**broker.python_settings("SCRAM-SHA-256", password="wrong"), bootstrap_timeout_ms=3000)
