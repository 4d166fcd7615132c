"""What every face of the client promises of consumer groups, by either protocol."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import KafkaError, Record, RequestTimedOut, TopicPartition, UnknownTopic
from pylogd.client.core.errors import CommitFailed
from pylogd.client.core.model import OffsetAndMetadata, OffsetSpec
from tests.contract.clients.conftest import PROTOCOLS
from tests.contract.clients.helpers import eventually, fill, name, numbers, places
from tests.faces import Face, poll_until

Options = Mapping[str, Any]


def test_commits(face: Face, topic: str, member: Options) -> None:
    fill(face, topic, 100)
    group, first, second = name("group"), *places(topic)
    consumer = face.consumer(group_id=group, auto_commit="off", **member)
    assert consumer.committed([first, second]) == {first: None, second: None}
    consumer.assign([first])
    assert len(consumer.poll(30, max_records=20)) == 20
    consumer.commit()
    consumer.commit({second: OffsetAndMetadata(7, "note")})
    found = consumer.committed([first, second])
    assert (found[first].offset, found[second].offset, found[second].metadata) == (20, 7, "note")
    consumer.close()
    again = face.consumer(group_id=group, auto_commit="off", **member)
    again.assign([first, second])
    assert (again.position(first), again.position(second)) == (20, 7)


def test_a_group_of_one_commits_what_it_processed(face: Face, topic: str, member: Options) -> None:
    fill(face, topic, 100)
    group = name("group")
    consumer = face.consumer(group_id=group, **member)
    consumer.subscribe(topic)
    assert sorted(numbers(poll_until([consumer], lambda records: len(records) >= 100))) == list(range(100))
    consumer.close()
    fill(face, topic, 2)
    again = face.consumer(group_id=group, **member)
    again.subscribe([topic])
    assert sorted(numbers(poll_until([again], lambda records: len(records) >= 2))) == [0, 1]


def test_two_members_share_and_one_takes_over(face: Face, topic: str, member: Options) -> None:
    group = name("group")
    told: list[tuple[str, list[TopicPartition]]] = []
    first = face.consumer(group_id=group, **member)
    first.subscribe(
        topic, on_assign=lambda p: told.append(("assigned", p)), on_revoke=lambda p: told.append(("revoked", p))
    )
    poll_until([first], lambda _: len(first.assignment) == 2)
    assert [found for found in told if found[1]] == [("assigned", places(topic))]
    second = face.consumer(group_id=group, **member)
    second.subscribe(topic)
    poll_until([first, second], lambda _: len(first.assignment) == len(second.assignment) == 1)
    stops = places(topic) if "group_protocol" not in member else second.assignment
    assert ("revoked", stops) in told
    assert sorted(first.assignment + second.assignment) == places(topic)
    fill(face, topic, 20)
    assert sorted(numbers(poll_until([first, second], lambda records: len(records) >= 20))) == list(range(20))
    second.close()
    poll_until([first], lambda _: len(first.assignment) == 2)
    fill(face, topic, 20)
    assert sorted(numbers(poll_until([first], lambda records: len(records) >= 20))) == list(range(20))


def test_a_pattern_and_leaving(face: Face, admin: Any, member: Options) -> None:
    prefix = name("some")
    for suffix in ("a", "b"):
        admin.create_topic(f"{prefix}.{suffix}", 1)
    consumer = face.consumer(group_id=name("group"), **member)
    consumer.subscribe(re.compile(re.escape(prefix.upper()) + r"\..*", re.IGNORECASE))
    poll_until([consumer], lambda _: len(consumer.assignment) == 2)
    admin.create_topic(f"{prefix}.c", 1)
    poll_until([consumer], lambda _: len(consumer.assignment) == 3)
    consumer.unsubscribe()
    assert consumer.assignment == []


def test_a_changed_subscription(face: Face, admin: Any, topic: str, member: Options) -> None:
    other = name("other")
    admin.create_topic(other, 1)
    consumer = face.consumer(group_id=name("group"), **member)
    consumer.subscribe(topic)
    poll_until([consumer], lambda _: consumer.assignment == places(topic))
    consumer.subscribe([topic, other])
    poll_until([consumer], lambda _: sorted(consumer.assignment) == sorted([*places(topic), TopicPartition(other, 0)]))
    consumer.subscribe([other])
    poll_until([consumer], lambda _: consumer.assignment == [TopicPartition(other, 0)])


def test_pausing_and_seeking_in_a_group(face: Face, topic: str, member: Options) -> None:
    fill(face, topic, 20)
    first, second = places(topic)
    consumer = face.consumer(group_id=name("group"), auto_commit="off", **member)
    consumer.subscribe(topic, on_assign=lambda found: [consumer.seek(place, 4) for place in found])
    assert len(poll_until([consumer], lambda records: len(records) >= 12)) == 12
    consumer.pause(first)
    consumer.seek(second, 8)
    found = poll_until([consumer], lambda records: len(records) >= 2)
    assert [(record.partition, record.offset) for record in found] == [(1, 8), (1, 9)]


def test_a_commit_for_what_is_not_ours_fails(face: Face, topic: str, member: Options) -> None:
    group = name("group")
    first = face.consumer(group_id=group, **member)
    first.subscribe(topic)
    poll_until([first], lambda _: len(first.assignment) == 2)
    stranger = face.consumer(group_id=group, **member)
    with pytest.raises((CommitFailed, RequestTimedOut)):
        stranger.commit({(topic, 0): 1}, timeout=20)


def test_message_streams(face: Face, topic: str, member: Options) -> None:
    fill(face, topic, 40)
    consumer = face.consumer(group_id=name("group"), **member)
    streams = consumer.create_message_streams(topic, 2)[topic]
    assert len(streams) == 2
    found = [face.take(stream, 20) for stream in streams]
    assert sorted(numbers(found[0] + found[1])) == list(range(40))
    for records in found:
        assert len({record.partition for record in records}) == 1
    consumer.close()


def test_a_static_member_comes_back_to_its_partition(face: Face, topic: str, member: Options) -> None:
    group = name("group")
    static = face.consumer(group_id=group, group_instance_id="one", **member)
    other = face.consumer(group_id=group, **member)
    static.subscribe(topic)
    other.subscribe(topic)
    poll_until([static, other], lambda _: len(static.assignment) == len(other.assignment) == 1)
    had = static.assignment
    static.close()
    back = face.consumer(group_id=group, group_instance_id="one", **member)
    back.subscribe(topic)
    poll_until([back, other], lambda _: back.assignment == had)
    assert len(other.assignment) == 1


def test_groups_as_the_administrator_sees_them(face: Face, admin: Any, topic: str, member: Options) -> None:
    fill(face, topic, 10)
    group, first, second = name("group"), *places(topic)
    consumer = face.consumer(group_id=group, client_id="tester", **member)
    consumer.subscribe(topic)
    poll_until([consumer], lambda records: len(records) >= 10)
    assert group in [listing.group_id for listing in admin.list_groups()]
    described = admin.describe_group(group)
    assert described.state == "Stable"
    [found] = described.members
    assert (found.client_id, found.topics, found.assignment) == ("tester", (topic,), (first, second))
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


# The newer protocol (KIP-848)


def test_members_change_to_the_newer_protocol_and_back_one_by_one(face: Face, topic: str) -> None:
    group = name("group")
    members = [face.consumer(group_id=group, **PROTOCOLS["classic"]) for _ in range(2)]
    found: list[int] = []
    sent = 0
    for protocol in ("classic", "consumer", "consumer", "classic", "classic"):
        if sent:
            members.pop(0).close()
            members.append(face.consumer(group_id=group, **PROTOCOLS[protocol]))
        for member in members:
            member.subscribe(topic)
        poll_until(members, lambda _: [len(member.assignment) for member in members] == [1, 1])
        fill(face, topic, 10)
        sent += 10
        found += numbers(poll_until(members, lambda records: len(records) >= 10))
    assert sorted(found) == sorted([*range(10)] * 5), "nothing was lost, and nothing came twice"


def test_a_topic_that_is_made_anew_is_read_from_its_beginning(face: Face, admin: Any) -> None:
    topic = name("anew")
    admin.create_topic(topic, 1)
    fill(face, topic, 5, 1)
    told: list[str] = []
    consumer = face.consumer(group_id=name("group"), group_protocol="consumer")
    consumer.subscribe(topic, on_assign=lambda p: told.append(f"+{len(p)}"), on_revoke=lambda p: told.append("-1"))
    assert numbers(poll_until([consumer], lambda records: len(records) >= 5)) == [0, 1, 2, 3, 4]
    consumer.commit()
    admin.delete_topic(topic)

    def made() -> bool:
        try:
            admin.create_topic(topic, 1)
        except KafkaError as error:
            assert error.code is ErrorCode.TOPIC_ALREADY_EXISTS
            return False
        return True

    assert eventually(made)
    fill(face, topic, 3, 1)
    records: list[Record] = []

    def changes() -> list[str]:
        return [found for found in told if found != "+0"]

    def read() -> bool:
        with contextlib.suppress(UnknownTopic):  # the consumer may look at it in between
            records.extend(consumer.poll(0.1))
        return len(records) >= 3 and len(changes()) >= 3

    assert eventually(read)
    assert set(numbers(records)) == {0, 1, 2}, "it may read them before the coordinator tells of the new topic, too"
    assert changes() == ["+1", "-1", "+1"]


@pytest.mark.parametrize(
    ("options", "topics", "code"),
    [
        ({"group_remote_assignor": "none-of-that"}, "t", ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({}, re.compile("(?=t)"), ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_what_the_coordinator_refuses(face: Face, options: Options, topics: Any, code: ErrorCode) -> None:
    consumer = face.consumer(group_id=name("group"), group_protocol="consumer", **options)
    consumer.subscribe(topics)
    with pytest.raises(KafkaError) as raised:
        poll_until([consumer], lambda _: False)
    assert raised.value.code is code


def test_an_instance_id_has_one_member_at_a_time(face: Face, topic: str) -> None:
    group = name("group")
    first = face.consumer(group_id=group, group_instance_id="one", group_protocol="consumer")
    first.subscribe(topic)
    poll_until([first], lambda _: len(first.assignment) == 2)
    second = face.consumer(group_id=group, group_instance_id="one", group_protocol="consumer")
    second.subscribe(topic)
    with pytest.raises(KafkaError) as raised:
        poll_until([second], lambda _: False)
    assert raised.value.code is ErrorCode.UNRELEASED_INSTANCE_ID
    first.close()
    poll_until([second], lambda _: len(second.assignment) == 2)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_assignors_of_the_broker(face: Face, topic: str, admin: Any, assignor: str) -> None:
    group = name("group")
    consumer = face.consumer(group_id=group, group_protocol="consumer", group_remote_assignor=assignor)
    consumer.subscribe(topic)
    poll_until([consumer], lambda _: len(consumer.assignment) == 2)
    assert admin.describe_group(group).protocol == assignor
