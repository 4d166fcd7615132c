"""What every face of the client promises of the administrator."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import (
    Acl,
    AclFilter,
    KafkaError,
    NewTopic,
)
from pylogd.client.core.admin.access_operations import QuotaEntity
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from tests.contract.clients.helpers import T, eventually, fill, name, places
from tests.faces import Face, poll_until


def test_topics(face: Face, admin: Any) -> None:
    one, two = name("one"), name("two")
    outcome = admin.create_topics([NewTopic(one, 3, 1, {"retention.ms": "1000"}), NewTopic("no/slash")])
    assert outcome[one] is None
    assert outcome["no/slash"].code is ErrorCode.INVALID_TOPIC_EXCEPTION
    with pytest.raises(KafkaError) as raised:
        admin.create_topic(one)
    assert raised.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(admin.describe_topic(one).partitions) == 3
    assert one in [topic.name for topic in admin.list_topics()]
    admin.create_partitions(one, 5)
    assert len(admin.describe_topic(one).partitions) == 5
    admin.create_topic(two, validate_only=True)
    admin.delete_topic(one)
    for gone in (lambda: admin.delete_topic(one), lambda: admin.describe_topic(two)):
        with pytest.raises(KafkaError) as raised:
            gone()
        assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_configs(face: Face, admin: Any, topic: str) -> None:
    def settings() -> tuple[str, str, str]:
        [policy, retention] = admin.describe_configs("topic", topic, ["retention.ms", "cleanup.policy"])
        return policy.value, retention.value, retention.source

    admin.alter_configs("topic", topic, {"retention.ms": "5000", "cleanup.policy": "compact"})
    assert settings() == ("compact", "5000", "topic")
    admin.alter_configs("topic", topic, {}, append={"cleanup.policy": "delete"})
    assert settings()[0] == "compact,delete"
    admin.alter_configs("topic", topic, {"retention.ms": None})
    assert settings()[2] != "topic"
    admin.alter_configs("topic", topic, {"retention.ms": "6000"}, validate_only=True)
    assert settings()[2] != "topic"
    assert admin.describe_configs("broker", str(admin.describe_cluster().brokers[0].node_id))
    with pytest.raises(KafkaError) as raised:
        admin.alter_configs("topic", topic, {"retention.ms": "soon"})
    assert raised.value.code is ErrorCode.INVALID_CONFIG


def test_offsets_and_records(face: Face, admin: Any, topic: str) -> None:
    fill(face, topic, 100)
    first, second = places(topic)
    found = admin.offsets({first: LATEST, second: MAX_TIMESTAMP})
    assert found[first].offset == 50
    assert (found[second].offset, found[second].timestamp) == (49, T + 99)
    assert admin.delete_records({first: 30}) == {first: 30}
    assert admin.offsets({first: EARLIEST})[first].offset == 30
    consumer = face.consumer()
    consumer.assign({first: 3})
    assert poll_until([consumer], bool)[0].offset == 30  # what was deleted is skipped


def test_producers(face: Face, admin: Any, topic: str) -> None:
    first, second = places(topic)
    assert admin.describe_producers([first, second]) == {first: [], second: []}
    fill(face, topic, 3, 1, idempotence=True)
    found = admin.describe_producers([first, second])
    [one] = found[first]
    assert (one.epoch, one.last_sequence, one.last_timestamp, one.transaction_start) == (0, 2, T + 2, -1)
    assert not found[second]


def test_the_cluster(face: Face, admin: Any, topic: str) -> None:
    cluster = admin.describe_cluster()
    assert cluster.cluster_id
    assert cluster.controller in [broker.node_id for broker in cluster.brokers]
    assert eventually(
        lambda: set(places(topic)) <= {place for directory in admin.describe_log_dirs() for place in directory.sizes}
    )


def test_acls(face: Face, admin: Any) -> None:
    prefix = name("acl")
    reads = Acl("TOPIC", prefix, "PREFIXED", "User:alice", "*", "READ", "ALLOW")
    denied = Acl("GROUP", prefix, "LITERAL", "User:*", "127.0.0.1", "ALL", "DENY")
    nowhere = denied._replace(principal="nobody")
    outcome = admin.create_acls([reads, denied, nowhere])
    assert outcome[reads] is None and outcome[denied] is None
    assert outcome[nowhere].code is ErrorCode.INVALID_REQUEST
    assert admin.list_acls(AclFilter(name=prefix)) == [reads, denied]
    assert admin.list_acls(AclFilter("TOPIC", prefix + "-1", "MATCH")) == [reads]
    with pytest.raises(ValueError, match="'SWIM' is not one of"):
        admin.list_acls(AclFilter(operation="SWIM"))
    assert admin.delete_acls([AclFilter(principal="User:alice", name=prefix), AclFilter(name=prefix)]) == [
        denied, reads,
    ]  # fmt: skip
    assert admin.list_acls(AclFilter(name=prefix)) == []


def test_labels(admin: Any) -> None:
    topic, label = name("labelled"), name("label")
    [node] = admin.broker_labels()
    admin.alter_configs("broker", str(node), {"broker.labels": f"{label},ssd"})
    try:
        assert admin.broker_labels() == {node: (label, "ssd")}
        admin.create_topic(topic, 2, 1, {"placement.label": label})
        assert admin.topic_labels([topic, name("none")]) == {topic: label}
        refused = NewTopic(name("refused"), 1, 1, {"placement.label": "nobody"})
        [error] = admin.create_topics([refused]).values()
        assert error.code is ErrorCode.INVALID_REPLICATION_FACTOR
        moves = {(topic, 0): [node], (topic, 1): [node]}
        assert not any(admin.reassign(moves, labels={topic: "ssd"}).values())
        assert admin.topic_labels([topic]) == {topic: "ssd"}
        for error in admin.reassign(moves, labels={topic: "other"}).values():
            assert error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert not any(admin.reassign(moves, labels={topic: ""}).values())
        assert admin.topic_labels([topic]) == {topic: ""}
    finally:
        admin.alter_configs("broker", str(node), {"broker.labels": None})


def test_client_quotas(admin: Any) -> None:
    client_id = name("client")
    entity = QuotaEntity(client_id=client_id)
    admin.alter_client_quotas(entity, {"producer_byte_rate": 1048576.0, "request_percentage": 12.5})
    expected = {"producer_byte_rate": 1048576.0, "request_percentage": 12.5}
    assert admin.client_quotas(entity) == {entity: expected}
    assert admin.client_quotas(QuotaEntity(user="nobody", client_id=client_id)) == {}
    admin.alter_client_quotas(entity, {"producer_byte_rate": 1.0}, validate_only=True)
    admin.alter_client_quotas(entity, dict.fromkeys(expected))
    assert entity not in admin.client_quotas()
    with pytest.raises(KafkaError) as raised:
        admin.alter_client_quotas(entity, {"speed": 1.0})
    assert raised.value.code is ErrorCode.INVALID_REQUEST
