"""Message streams of a group's consumer, and a coordinator that fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import Consumer, KafkaError, Record
from pylogd.client.core.errors import CommitFailed, CorruptRecords, RequestTimedOut
from pylogd.wire.messages import (
    ApiKey,
)
from tests.fakes import broker as fake
from tests.fakes.broker import Misbehaviour
from tests.fakes.group_broker import GroupBroker, refuse, refuse_commit
from tests.unit.client.group_consumer.helpers import SECONDS, TP, Make, committed, read, until


def test_message_streams(server: GroupBroker, make: Make) -> None:
    consumer = make()
    one, two = consumer.create_message_streams("t", 2)["t"]
    seen: dict[int, list[Record]] = {1: [], 2: []}

    def work(number: int, stream: Iterator[Record]) -> None:
        seen[number].extend(stream)  # until the consumer is closed

    threads = [threading.Thread(target=work, args=args) for args in ((1, one), (2, two))]
    for thread in threads:
        thread.start()
    server.wait_until(lambda: len(seen[1]) == len(seen[2]) == 20)
    server.wait_until(lambda: committed(server) == dict.fromkeys(TP, 10))
    consumer.close()
    for thread in threads:
        thread.join(SECONDS)
    assert not {r.partition for r in seen[1]} & {r.partition for r in seen[2]}
    for records in seen.values():
        for partition in {r.partition for r in records}:
            assert [r.offset for r in records if r.partition == partition] == list(range(10))


def test_a_stream_commits_only_what_it_was_asked_beyond(server: GroupBroker, make: Make) -> None:
    consumer = make()
    [stream] = consumer.create_message_streams({"t": 1})["t"]
    for _ in range(15):
        last = next(stream)
    consumer.close()
    assert sum(committed(server).values()) == 14
    assert committed(server)[TP[last.partition]] == last.offset


# Faults


GROUP_APIS = [
    ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_COMMIT,
]  # fmt: skip
HELPED = {
    ApiKey.FIND_COORDINATOR: [ErrorCode.COORDINATOR_NOT_AVAILABLE],
    ApiKey.JOIN_GROUP: [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS,
    ],
    ApiKey.SYNC_GROUP: [
        ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS,
    ],
    ApiKey.HEARTBEAT: [
        ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS,
    ],
    ApiKey.OFFSET_FETCH: [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ],
    ApiKey.OFFSET_COMMIT: [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
}  # fmt: skip


@pytest.mark.parametrize(("api", "code"), [(api, code) for api, codes in HELPED.items() for code in codes])
def test_errors_that_the_consumer_recovers_from(server: GroupBroker, make: Make, api: int, code: ErrorCode) -> None:
    server.on(api, refuse(api, code))
    consumer = make(session_timeout=1.0)  # so that a lost member is removed soon
    consumer.subscribe("t")
    records = until([consumer], lambda: len(committed(server)) == 4 and set(committed(server).values()) == {10})
    records += until([consumer], lambda: len(server.asked(api)) >= 2)
    assert sorted({(r.partition, r.offset) for r in records}) == [(p, n) for p in range(4) for n in range(10)]


FATAL = [
    (ApiKey.FIND_COORDINATOR, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (ApiKey.JOIN_GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (ApiKey.JOIN_GROUP, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    (ApiKey.JOIN_GROUP, ErrorCode.INVALID_SESSION_TIMEOUT),
    (ApiKey.JOIN_GROUP, ErrorCode.GROUP_MAX_SIZE_REACHED),
    (ApiKey.SYNC_GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (ApiKey.HEARTBEAT, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (ApiKey.OFFSET_FETCH, ErrorCode.GROUP_AUTHORIZATION_FAILED),
]


@pytest.mark.parametrize(("api", "code"), FATAL)
def test_errors_that_are_not(server: GroupBroker, make: Make, api: int, code: ErrorCode) -> None:
    server.on(api, refuse(api, code))
    consumer = make()
    consumer.subscribe("t")
    with pytest.raises(KafkaError) as caught:
        until([consumer], lambda: False)
    assert caught.value.code is code
    until([consumer], lambda: len(consumer.assignment) == 4)  # the next poll tries again


def test_a_fenced_member_stays_out(server: GroupBroker, make: Make) -> None:
    consumer = make(group_instance_id="i")
    server.on(ApiKey.HEARTBEAT, refuse(ApiKey.HEARTBEAT, ErrorCode.FENCED_INSTANCE_ID))
    consumer.subscribe("t")
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            until([consumer], lambda: False)
        assert caught.value.code is ErrorCode.FENCED_INSTANCE_ID
    assert len(server.asked(ApiKey.JOIN_GROUP)) == 1


def test_a_static_member_does_not_leave_and_is_not_missed(server: GroupBroker, make: Make) -> None:
    first = make(group_instance_id="i")
    first.subscribe("t")
    until([first], lambda: len(first.assignment) == 4)
    first.close()
    assert not server.asked(ApiKey.LEAVE_GROUP)
    second = make(group_instance_id="i")
    second.subscribe("t")
    until([second], lambda: len(second.assignment) == 4)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, CommitFailed),
        (ErrorCode.ILLEGAL_GENERATION, CommitFailed),
        (ErrorCode.GROUP_ID_NOT_FOUND, CommitFailed),
        (ErrorCode.FENCED_INSTANCE_ID, CommitFailed),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, KafkaError),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, KafkaError),
    ],
)
def test_commits_that_fail(server: GroupBroker, make: Make, code: ErrorCode, kind: type[KafkaError]) -> None:
    consumer = make(auto_commit="off")
    consumer.subscribe("t")
    read(consumer, 40)
    server.on(ApiKey.OFFSET_COMMIT, refuse_commit(code))
    with pytest.raises(kind) as caught:
        consumer.commit()
    assert caught.value.code is code


@pytest.mark.parametrize("misbehaviour", [fake.close, fake.garbage], ids=lambda m: m.name)
@pytest.mark.parametrize("api", GROUP_APIS, ids=lambda api: api.name)
def test_a_misbehaving_coordinator(server: GroupBroker, make: Make, api: int, misbehaviour: Misbehaviour) -> None:
    server.on(api, misbehaviour)
    consumer = make()
    consumer.subscribe("t")
    records = until([consumer], lambda: len(committed(server)) == 4 and set(committed(server).values()) == {10})
    records += until([consumer], lambda: len(server.asked(api)) >= 2)
    assert sorted({(r.partition, r.offset) for r in records}) == [(p, n) for p in range(4) for n in range(10)]


@pytest.mark.parametrize("api", [ApiKey.FIND_COORDINATOR, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_COMMIT])
def test_an_incomplete_response(server: GroupBroker, make: Make, api: int) -> None:
    server.on(api, fake.cut)
    consumer = make()
    consumer.subscribe("t")
    until([consumer], lambda: len(server.asked(api)) >= 2 and list(committed(server).values()) == [10] * 4)


@pytest.mark.parametrize("api", [ApiKey.FIND_COORDINATOR, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_COMMIT])
def test_silence_ends_by_the_time_out(server: GroupBroker, make: Make, api: int) -> None:
    server.on(api, fake.silence)
    consumer = make(request_timeout=1.0)
    consumer.subscribe("t")
    until([consumer], lambda: len(committed(server)) == 4 and set(committed(server).values()) == {10})


def test_a_commit_that_is_never_answered(server: GroupBroker, make: Make) -> None:
    consumer = make(auto_commit="off")
    consumer.subscribe("t")
    read(consumer, 1)
    server.on(ApiKey.OFFSET_COMMIT, fake.silence, fake.silence)
    with pytest.raises(RequestTimedOut):
        consumer.commit(timeout=0.2)
    consumer.close(timeout=0.2)


def test_damage_in_a_group(server: GroupBroker, make: Make) -> None:
    batch = bytearray(server.logs[0][0])
    batch[-1] ^= 1
    server.logs[0] = [bytes(batch)]
    consumer = make()
    consumer.subscribe("t")
    with pytest.raises(CorruptRecords) as caught:
        until([consumer], lambda: False)
    assert caught.value.next_offset == 10
    consumer.seek(("t", 0), 10)
    until([consumer], lambda: committed(server) == dict.fromkeys(TP, 10))


def test_no_broker_at_all(make: Make) -> None:
    consumer = Consumer("127.0.0.1:1", group_id="g", retry_timeout=0.2)
    consumer.subscribe("t")
    assert consumer.poll(0.1) == []
    with pytest.raises(RequestTimedOut):
        consumer.committed([("t", 0)], timeout=0.1)
    consumer.close(timeout=0.3)
