"""What every face of the client promises of groups and of the administrator."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pylogd.client import (
    Acl,
    AclFilter,
    KafkaError,
    NewTopic,
    RequestTimedOut,
    TopicPartition,
)
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from pylogd.client.core.admin.quota_operations import QuotaEntity
from pylogd.client.core.errors import CommitFailed
from pylogd.client.core.model import OffsetAndMetadata, OffsetSpec
from pylogd.errors import ErrorCode
from tests.contract.clients.helpers import T, eventually, fill, name, numbers, places
from tests.faces import Face, poll_until


def test_commits(face: Face, topic: str) -> None:
    fill(face, topic, 100)
    group, first, second = name("group"), *places(topic)
    consumer = face.consumer(group_id=group, auto_commit="off")
    assert consumer.committed([first, second]) == {first: None, second: None}
    consumer.assign([first])
    assert len(consumer.poll(30, max_records=20)) == 20
    consumer.commit()
    consumer.commit({second: OffsetAndMetadata(7, "note")})
    found = consumer.committed([first, second])
    assert (found[first].offset, found[second].offset, found[second].metadata) == (20, 7, "note")
    consumer.close()
    again = face.consumer(group_id=group, auto_commit="off")
    again.assign([first, second])
    assert (again.position(first), again.position(second)) == (20, 7)


def test_a_group_of_one_commits_what_it_processed(face: Face, topic: str) -> None:
    fill(face, topic, 100)
    group = name("group")
    consumer = face.consumer(group_id=group)
    consumer.subscribe(topic)
    assert sorted(numbers(poll_until([consumer], lambda records: len(records) >= 100))) == list(range(100))
    consumer.close()
    fill(face, topic, 2)
    again = face.consumer(group_id=group)
    again.subscribe([topic])
    assert sorted(numbers(poll_until([again], lambda records: len(records) >= 2))) == [0, 1]


def test_two_members_share_and_one_takes_over(face: Face, topic: str) -> None:
    group = name("group")
    told: list[tuple[str, list[TopicPartition]]] = []
    first = face.consumer(group_id=group, heartbeat_interval=0.2)
    first.subscribe(
        topic, on_assign=lambda p: told.append(("assigned", p)), on_revoke=lambda p: told.append(("revoked", p))
    )
    poll_until([first], lambda _: len(first.assignment) == 2)
    assert told == [("assigned", places(topic))]
    second = face.consumer(group_id=group, heartbeat_interval=0.2)
    second.subscribe(topic)
    poll_until([first, second], lambda _: len(first.assignment) == len(second.assignment) == 1)
    assert ("revoked", places(topic)) in told
    assert sorted(first.assignment + second.assignment) == places(topic)
    fill(face, topic, 20)
    assert sorted(numbers(poll_until([first, second], lambda records: len(records) >= 20))) == list(range(20))
    second.close()
    poll_until([first], lambda _: len(first.assignment) == 2)
    fill(face, topic, 20)
    assert sorted(numbers(poll_until([first], lambda records: len(records) >= 20))) == list(range(20))


def test_a_pattern_and_leaving(face: Face, admin: Any) -> None:
    prefix = name("some")
    for suffix in ("a", "b"):
        admin.create_topic(f"{prefix}.{suffix}", 1)
    consumer = face.consumer(group_id=name("group"), metadata_max_age=0.5)
    consumer.subscribe(re.compile(re.escape(prefix) + r"\..*"))
    poll_until([consumer], lambda _: len(consumer.assignment) == 2)
    admin.create_topic(f"{prefix}.c", 1)
    poll_until([consumer], lambda _: len(consumer.assignment) == 3)
    consumer.unsubscribe()
    assert consumer.assignment == []


def test_a_commit_for_what_is_not_ours_fails(face: Face, topic: str) -> None:
    group = name("group")
    first = face.consumer(group_id=group)
    first.subscribe(topic)
    poll_until([first], lambda _: len(first.assignment) == 2)
    stranger = face.consumer(group_id=group)
    with pytest.raises((CommitFailed, RequestTimedOut)):
        stranger.commit({(topic, 0): 1}, timeout=20)


def test_message_streams(face: Face, topic: str) -> None:
    fill(face, topic, 40)
    consumer = face.consumer(group_id=name("group"))
    streams = consumer.create_message_streams(topic, 2)[topic]
    assert len(streams) == 2
    found = [face.take(stream, 20) for stream in streams]
    assert sorted(numbers(found[0] + found[1])) == list(range(40))
    for records in found:
        assert len({record.partition for record in records}) == 1
    consumer.close()


# The administrator


def test_topics(face: Face, admin: Any) -> None:
    one, two = name("one"), name("two")
    outcome = admin.create_topics([NewTopic(one, 3, 1, {"retention.ms": "1000"}), NewTopic("no/slash")])
    assert outcome[one] is None
    assert outcome["no/slash"].code is ErrorCode.INVALID_TOPIC_EXCEPTION
    with pytest.raises(KafkaError) as raised:
        admin.create_topic(one)
    assert raised.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert eventually(lambda: len(admin.describe_topic(one).partitions) == 3)
    assert one in [topic.name for topic in admin.list_topics()]
    admin.create_partitions(one, 5)
    assert eventually(lambda: len(admin.describe_topic(one).partitions) == 5)
    admin.create_topic(two, validate_only=True)
    admin.delete_topic(one)
    with pytest.raises(KafkaError) as raised:
        admin.describe_topic(two)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_configs(face: Face, admin: Any, topic: str) -> None:
    def settings() -> tuple[str, str, str]:
        [policy, retention] = admin.describe_configs("topic", topic, ["retention.ms", "cleanup.policy"])
        return policy.value, retention.value, retention.source

    admin.alter_configs("topic", topic, {"retention.ms": "5000", "cleanup.policy": "compact"})
    assert eventually(lambda: settings() == ("compact", "5000", "topic"))
    admin.alter_configs("topic", topic, {}, append={"cleanup.policy": "delete"})
    assert eventually(lambda: settings()[0] == "compact,delete")
    admin.alter_configs("topic", topic, {"retention.ms": None})
    assert eventually(lambda: settings()[2] != "topic")
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
    with pytest.raises(ValueError, match="'SWIM' is none of"):
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
        assert eventually(lambda: admin.topic_labels([topic]) == {topic: "ssd"})
        for error in admin.reassign(moves, labels={topic: "other"}).values():
            assert error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert not any(admin.reassign(moves, labels={topic: ""}).values())
        assert eventually(lambda: admin.topic_labels([topic]) == {topic: ""})
    finally:
        admin.alter_configs("broker", str(node), {"broker.labels": None})


def test_client_quotas(admin: Any) -> None:
    client_id = name("client")
    entity = QuotaEntity(client_id=client_id)
    admin.alter_client_quotas(entity, {"producer_byte_rate": 1048576.0, "request_percentage": 12.5})
    expected = {"producer_byte_rate": 1048576.0, "request_percentage": 12.5}
    assert eventually(lambda: admin.client_quotas(entity) == {entity: expected})
    assert admin.client_quotas(QuotaEntity(user="nobody", client_id=client_id)) == {}
    admin.alter_client_quotas(entity, {"producer_byte_rate": 1.0}, validate_only=True)
    admin.alter_client_quotas(entity, dict.fromkeys(expected))
    assert eventually(lambda: entity not in admin.client_quotas())
    with pytest.raises(KafkaError) as raised:
        admin.alter_client_quotas(entity, {"speed": 1.0})
    assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_groups(face: Face, admin: Any, topic: str) -> None:
    fill(face, topic, 10)
    group, first, second = name("group"), *places(topic)
    consumer = face.consumer(group_id=group, client_id="tester")
    consumer.subscribe(topic)
    poll_until([consumer], lambda records: len(records) >= 10)
    assert group in [listing.group_id for listing in admin.list_groups()]
    described = admin.describe_group(group)
    assert described.state == "Stable"
    [member] = described.members
    assert (member.client_id, member.topics, member.assignment) == ("tester", (topic,), (first, second))
    with pytest.raises(KafkaError) as raised:
        admin.delete_group(group)
    assert raised.value.code is ErrorCode.NON_EMPTY_GROUP
    consumer.close()
    assert {place: found.offset for place, found in admin.group_offsets(group).items()} == {first: 5, second: 5}
    assert admin.plan_group_offsets(group, [first], OffsetSpec(shift=-2)) == {first: 3}
    admin.alter_group_offsets(group, {first: 3})
    admin.delete_group_offsets(group, [second])
    assert {place: found.offset for place, found in admin.group_offsets(group).items()} == {first: 3}
    admin.delete_group(group)
    with pytest.raises(KafkaError) as raised:
        admin.delete_group(group)
    assert raised.value.code is ErrorCode.GROUP_ID_NOT_FOUND
