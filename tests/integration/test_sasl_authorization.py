"""Users who have authenticated, and what ACLs let them do: librdkafka's administrator, producers and consumers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from pylogd.base.ports import free_ports
from tests.integration.conftest import StartBroker
from tests.integration.test_sasl import QUIET, SECONDS

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required " + " ".join(
    f'user_{name}="{name}-secret"' for name in ("admin", "alice", "mallory")
)
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": JAAS + ";",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}


class Users:
    """The users of a broker that decides by ACLs."""

    def __init__(self, start: StartBroker, audit: Path, **more: str) -> None:
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        settings = SETTINGS | {"audit.log.path": str(audit)} | {k.replace("_", "."): v for k, v in more.items()}
        start(settings=settings, arguments=["--listen", f"CLIENTS://{self.address}"])

    def settings(self, user: str, **more: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": f"{user}-secret",
        } | QUIET | {name.replace("_", "."): value for name, value in more.items()}  # fmt: skip

    def admin(self, user: str) -> AdminClient:
        return AdminClient(self.settings(user))

    def send(self, user: str, topic: str) -> str:
        """Produce a record; return the name of the error, or nothing."""
        outcome: list[Any] = []
        producer = Producer(self.settings(user))
        producer.produce(topic, b"v", on_delivery=lambda error, _: outcome.append(error))
        assert producer.flush(SECONDS) == 0
        (error,) = outcome
        return "" if error is None else error.name()

    def receive(self, user: str, topic: str, group: str) -> str:
        """Consume a record of a group; return the name of the error, or nothing."""
        consumer = Consumer(self.settings(user, group_id=group, auto_offset_reset="earliest"))
        consumer.subscribe([topic])
        message = consumer.poll(SECONDS)
        consumer.close()
        assert message is not None
        error = message.error()
        return "" if error is None else error.name()


def allow(user: str, operation: AclOperation, kind: ResourceType, name: str, prefixed: bool = False) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    return AclBinding(kind, name, pattern, f"User:{user}", "127.0.0.0/8", operation, AclPermissionType.ALLOW)


def create(admin: AdminClient, *bindings: AclBinding) -> None:
    for future in admin.create_acls(list(bindings)).values():
        future.result(SECONDS)


def test_each_user_may_do_what_acls_say(start_broker: StartBroker, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    users = Users(start_broker, audit)
    admin, mallory = users.admin("admin"), users.admin("mallory")
    for topic in ("orders", "logs-1"):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
    denied = "TOPIC_AUTHORIZATION_FAILED"
    assert users.send("alice", "orders") == denied
    create(
        admin,
        allow("alice", AclOperation.WRITE, ResourceType.TOPIC, "orders"),
        allow("alice", AclOperation.READ, ResourceType.TOPIC, "orders"),
        allow("alice", AclOperation.READ, ResourceType.GROUP, "alice-", prefixed=True),
    )
    assert users.send("alice", "orders") == ""
    assert users.receive("alice", "orders", "alice-1") == ""
    assert users.receive("alice", "orders", "bob-1") == "GROUP_AUTHORIZATION_FAILED"
    assert users.send("alice", "logs-1") == users.send("mallory", "orders") == denied
    assert users.receive("mallory", "orders", "m") == "GROUP_AUTHORIZATION_FAILED"

    assert set(users.admin("alice").list_topics(timeout=SECONDS).topics) == {"orders"}
    assert set(mallory.list_topics(timeout=SECONDS).topics) == set()
    with pytest.raises(KafkaException, match=denied):
        mallory.create_topics([NewTopic("mine", 1, 1)])["mine"].result(SECONDS)
    with pytest.raises(KafkaException, match=denied):
        mallory.delete_topics(["orders"])["orders"].result(SECONDS)
    everything: Any = AclBindingFilter
    everything = everything(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert not mallory.describe_acls(everything).result(SECONDS)  # confluent-kafka drops the error code
    own = allow("mallory", AclOperation.ALL, ResourceType.TOPIC, "*")
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        mallory.create_acls([own])[own].result(SECONDS)
    assert len(admin.describe_acls(everything).result(SECONDS)) == 3

    (future,) = admin.delete_acls([everything]).values()
    assert len(future.result(SECONDS)) == 3
    assert users.send("alice", "orders") == denied
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {line["principal"] for line in lines if line["event"] == "denied"} >= {"User:alice", "User:mallory"}
    assert "secret" not in audit.read_text()


def test_principals_may_be_of_another_type(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "company_teams.py").write_text(
        "from pylogd.credentials.principal import Principal\n\n\n"
        "class Teams:\n"
        "    def __init__(self, settings):\n        pass\n\n"
        "    def build(self, known):\n"
        "        if known.name == 'mallory':\n            raise ValueError('not one of us')\n"
        "        kind = 'Team' if known.mechanism == 'PLAIN' and known.name == 'alice' else 'User'\n"
        "        return Principal(kind, known.name or 'nobody')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    users = Users(start_broker, tmp_path / "audit.jsonl", principal_builder_class="company_teams.Teams")
    admin = users.admin("admin")
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(SECONDS)
    create(admin, allow("alice", AclOperation.WRITE, ResourceType.TOPIC, "t"))
    assert users.send("alice", "t") == "TOPIC_AUTHORIZATION_FAILED", "she is Team:alice now"
    binding = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "Team:alice", "*", AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    create(admin, binding)
    assert users.send("alice", "t") == ""
    with pytest.raises(KafkaException):
        users.admin("mallory").list_topics(timeout=5)
