"""The blocking consumer in a group, on a broker that can be told to misbehave."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pylogd.client import Consumer, KafkaError, Record, TopicPartition
from pylogd.client.core.errors import ClientError, Closed, CommitFailed, CorruptRecords, RequestTimedOut
from pylogd.client.core.model import OffsetAndMetadata
from pylogd.errors import ErrorCode
from pylogd.wire.messages import (
    ApiKey,
    find_coordinator,
    heartbeat,
    join_group,
    offset_commit,
    offset_fetch,
    sync_group,
)
from pylogd.wire.records import encode_batch
from tests.fakes import broker as fake
from tests.fakes.broker import Misbehaviour
from tests.fakes.group_broker import GroupBroker

Make = Callable[..., Consumer]
SECONDS = 120.0
TP = [TopicPartition("t", index) for index in range(4)]


@pytest.fixture
def server() -> Iterator[GroupBroker]:
    with GroupBroker(partitions=4) as server:
        for partition in range(4):
            fill(server, partition, 10)
        yield server


def fill(server: GroupBroker, partition: int, count: int) -> None:
    start = server.ends[partition]
    records = [(None, b"%d-%d" % (partition, n), 1000 + n, ()) for n in range(start, start + count)]
    server.append(partition, encode_batch(records))


@pytest.fixture
def make(server: GroupBroker) -> Iterator[Make]:
    made = []

    def make(**options: Any) -> Consumer:
        options = {
            "group_id": "g", "heartbeat_interval": 0.05, "auto_commit_interval": 0.05, "request_timeout": 5.0,
            "fetch_max_wait_ms": 20, "session_timeout": 30.0, **options,
        }  # fmt: skip
        made.append(Consumer(server.address, **options))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def until(consumers: list[Consumer], condition: Callable[[], object]) -> list[Record]:
    """Poll until it holds; what came."""
    records: list[Record] = []
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        for consumer in consumers:
            records += consumer.poll(0.02)
    return records


def read(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + SECONDS
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count}"
        records += consumer.poll(0.02)
    return records


def committed(server: GroupBroker) -> dict[tuple[str, int], int]:
    with server.lock:
        return {partition: offset for partition, (offset, _) in server.groups.group("g").offsets.items()}


def test_alone_it_reads_everything_and_commits_at_the_end(server: GroupBroker, make: Make) -> None:
    consumer = make(auto_commit_interval=3600.0)
    consumer.subscribe("t")
    assert len(read(consumer, 40)) == 40
    assert sorted(consumer.assignment) == TP
    consumer.close()
    assert committed(server) == dict.fromkeys(TP, 10)
    assert len(server.asked(ApiKey.LEAVE_GROUP)) == 1
    with pytest.raises(Closed):
        consumer.poll()


def test_the_next_goes_on_where_the_last_one_committed(server: GroupBroker, make: Make) -> None:
    first = make()
    first.subscribe(["t"])
    read(first, 40)
    first.close()
    fill(server, 2, 5)
    second = make()
    second.subscribe(["t"])
    assert [(r.partition, r.offset) for r in read(second, 5)] == [(2, n) for n in range(10, 15)]


def test_two_share(server: GroupBroker, make: Make) -> None:
    one, two = make(), make()
    told: list[tuple[str, list[TopicPartition]]] = []
    one.subscribe(
        "t", on_assign=lambda ps: told.append(("assign", ps)), on_revoke=lambda ps: told.append(("revoke", ps))
    )
    records = until([one], lambda: len(one.assignment) == 4)
    two.subscribe("t")
    records += until([one, two], lambda: len(two.assignment) == 2 == len(one.assignment))
    assert sorted(one.assignment + two.assignment) == TP
    assert told == [("assign", TP), ("revoke", TP), ("assign", sorted(one.assignment))]
    two.close()
    records += until([one], lambda: len(one.assignment) == 4 and set(committed(server).values()) == {10})
    assert {(r.partition, r.offset) for r in records} == {(p, n) for p in range(4) for n in range(10)}


def test_auto_commit_in_the_background(server: GroupBroker, make: Make) -> None:
    consumer = make()
    consumer.subscribe("t")
    read(consumer, 40)
    until([consumer], lambda: committed(server) == dict.fromkeys(TP, 10))


def test_before_it_hands_out_it_has_committed(server: GroupBroker, make: Make) -> None:
    consumer = make(auto_commit="before", max_poll_records=3)
    consumer.subscribe("t")
    seen: dict[TopicPartition, int] = {}
    for _ in range(5):
        for record in read(consumer, 1):
            partition = TopicPartition(record.topic, record.partition)
            seen[partition] = record.offset + 1
            assert committed(server)[partition] >= record.offset + 1


def test_what_could_not_be_committed_before_is_not_handed_out(server: GroupBroker, make: Make) -> None:
    def forget(request: Any) -> Any:
        with server.lock:
            del server.groups.group("g").members[request.member_id]
        return refuse_commit(ErrorCode.UNKNOWN_MEMBER_ID)(request)

    consumer = make(auto_commit="before")
    consumer.subscribe("t")
    server.on(ApiKey.OFFSET_COMMIT, forget)
    with pytest.raises(CommitFailed):
        read(consumer, 1)
    assert len(read(consumer, 40)) == 40  # all of it, once the group has it again


def test_by_hand(server: GroupBroker, make: Make) -> None:
    consumer = make(auto_commit="off", max_poll_records=4)
    consumer.subscribe("t")
    records = read(consumer, 1)
    assert committed(server) == {}
    consumer.commit()
    assert committed(server) == {partition: consumer.position(partition) for partition in TP}
    consumer.commit({("t", records[0].partition): 1})
    consumer.commit({("t", records[0].partition): OffsetAndMetadata(2, "a note")})
    assert consumer.committed(TP)[TP[records[0].partition]] == OffsetAndMetadata(2, "a note")
    consumer.commit({("t", records[0].partition): 3}, wait=False)
    server.wait_until(lambda: committed(server)[TP[records[0].partition]] == 3)
    consumer.close()
    assert committed(server)[TP[records[0].partition]] == 3


def test_an_iteration_counts_record_by_record(server: GroupBroker, make: Make) -> None:
    consumer = make(auto_commit="off")
    consumer.subscribe("t")
    last = [record for _, record in zip(range(15), consumer, strict=False)][-1]
    consumer.commit()
    assert sum(committed(server).values()) == 15
    assert committed(server)[TP[last.partition]] == last.offset + 1


def test_a_record_in_work_when_it_is_closed_comes_again(server: GroupBroker, make: Make) -> None:
    consumer = make(auto_commit_interval=3600.0)
    consumer.subscribe("t")
    seen: list[Record] = []
    with pytest.raises(RuntimeError), consumer:
        for record in consumer:
            seen.append(record)
            if len(seen) == 15:
                raise RuntimeError("it can't be processed")
    assert sum(committed(server).values()) == 14
    assert committed(server)[TP[seen[-1].partition]] == seen[-1].offset


def test_what_was_polled_last_is_not_committed_after_an_error(server: GroupBroker, make: Make) -> None:
    consumer = make(auto_commit_interval=3600.0, max_poll_records=5)
    consumer.subscribe("t")
    with pytest.raises(RuntimeError), consumer:
        done = len(read(consumer, 10))
        last = read(consumer, 1)
        raise RuntimeError("it can't be processed")
    assert sum(committed(server).values()) == done
    assert committed(server)[TP[last[0].partition]] == last[0].offset


def test_a_listener_may_seek(server: GroupBroker, make: Make) -> None:
    consumer = make()

    def rewind(partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            consumer.seek(partition, 7)

    consumer.subscribe("t", on_assign=rewind)
    assert {r.offset for r in read(consumer, 12)} == {7, 8, 9}


def test_what_a_listener_raises_comes_out_of_poll(server: GroupBroker, make: Make) -> None:
    consumer = make()

    def raises(_: object) -> None:
        raise RuntimeError("no")

    consumer.subscribe("t", on_assign=raises)
    with pytest.raises(RuntimeError):
        read(consumer, 1)
    assert len(read(consumer, 40)) == 40


def test_latest_and_none(server: GroupBroker, make: Make) -> None:
    latest = make(auto_offset_reset="latest")
    latest.subscribe("t")
    until([latest], lambda: len(latest.assignment) == 4)
    assert {latest.position(p) for p in latest.assignment} == {10}
    latest.close()
    none = make(group_id="other", auto_offset_reset="none")
    none.subscribe("t")
    with pytest.raises(KafkaError) as caught:
        read(none, 1)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_pattern(server: GroupBroker, make: Make) -> None:
    consumer = make(metadata_max_age=0.05)
    consumer.subscribe(re.compile("x|t"))
    assert len(read(consumer, 40)) == 40
    other = make(metadata_max_age=0.05, group_id="other")
    other.subscribe(re.compile("late.*"))
    until([other], lambda: server.groups.group("other").state == "Stable")
    server.topic = "later"
    until([other], lambda: len(other.assignment) == 4)


def test_assigned_by_hand_with_a_group_for_the_offsets(server: GroupBroker, make: Make) -> None:
    consumer = make()
    consumer.assign([TP[1]])
    assert len(read(consumer, 10)) == 10
    with pytest.raises(ValueError, match="by hand"):
        consumer.subscribe("t")
    consumer.close()
    assert committed(server) == {TP[1]: 10}
    again = make()
    again.assign(TP[:2])
    assert (again.position(TP[0]), again.position(TP[1])) == (0, 10)
    assert not server.asked(ApiKey.JOIN_GROUP)


def test_wrong_use(server: GroupBroker, make: Make) -> None:
    with pytest.raises(ValueError, match="group_id"):
        make(group_id=None).subscribe("t")
    consumer = make()
    consumer.subscribe("t")
    with pytest.raises(ValueError, match="unsubscribe"):
        consumer.assign(TP)
    for name in ("auto_commit", "auto_offset_reset", "isolation_level", "coordinator"):
        with pytest.raises(ValueError, match=name):
            make(**{name: "x"})
    with pytest.raises(ValueError, match="there is no assignor"):
        make(assignors=["x"])
    with pytest.raises(ValueError, match="mixed"):
        make(assignors=["range", "cooperative-sticky"])


def test_unsubscribe_commits_and_leaves(server: GroupBroker, make: Make) -> None:
    consumer = make(auto_commit_interval=3600.0)
    consumer.subscribe("t")
    read(consumer, 40)
    consumer.unsubscribe()
    assert committed(server) == dict.fromkeys(TP, 10)
    assert consumer.assignment == []
    server.wait_until_asked(ApiKey.LEAVE_GROUP)
    consumer.subscribe("t")
    until([consumer], lambda: len(consumer.assignment) == 4)


def test_pausing(server: GroupBroker, make: Make) -> None:
    consumer = make(max_poll_records=3)
    consumer.subscribe("t")
    records = read(consumer, 1)
    partition = TP[records[0].partition]
    consumer.pause(partition)
    assert consumer.paused == [partition]
    records += read(consumer, 30)
    assert len([r for r in records if TP[r.partition] == partition]) == len(records) - 30
    consumer.resume(partition)
    records += read(consumer, 40 - len(records))
    assert sorted((r.partition, r.offset) for r in records) == [(p, n) for p in range(4) for n in range(10)]


def test_wakeup_and_close_from_another_thread(server: GroupBroker, make: Make) -> None:
    consumer = make()
    consumer.assign({TP[0]: 10})
    timer = threading.Timer(0.05, consumer.wakeup)
    timer.start()
    assert consumer.poll(SECONDS) == []
    closer = threading.Timer(0.05, consumer.close)
    closer.start()
    with pytest.raises(Closed):
        consumer.poll(SECONDS)
    timer.join()
    closer.join()


def test_not_in_a_child_process(server: GroupBroker, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = make()
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(ClientError, match="fork"):
        consumer.poll()
    monkeypatch.undo()


def test_a_slow_application_is_out_and_comes_back(server: GroupBroker, make: Make) -> None:
    consumer = make(max_poll_interval=0.5)
    lost: list[list[TopicPartition]] = []
    consumer.subscribe("t", on_lost=lost.append)
    until([consumer], lambda: len(consumer.assignment) == 4)
    server.wait_until_asked(ApiKey.LEAVE_GROUP, seconds=SECONDS)
    with pytest.raises(CommitFailed):
        consumer.commit({TP[0]: 1})
    until([consumer], lambda: lost and len(consumer.assignment) == 4)
    assert all(partitions == TP for partitions in lost)  # a slow machine may be out more than once


# Streams


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


# Trouble


def refuse_commit(code: ErrorCode) -> Callable[[Any], Any]:
    def act(request: Any) -> Any:
        return offset_commit.OffsetCommitResponse(
            topics=[
                offset_commit.OffsetCommitResponseTopic(
                    t.name,
                    partitions=[
                        offset_commit.OffsetCommitResponsePartition(p.partition_index, code) for p in t.partitions
                    ],
                )
                for t in request.topics
            ]
        )

    return act


def refuse(api: int, code: ErrorCode) -> Callable[[Any], Any]:
    def act(request: Any) -> Any:
        if api == ApiKey.FIND_COORDINATOR:
            found = [find_coordinator.Coordinator(k, -1, "", -1, code) for k in request.coordinator_keys]
            return find_coordinator.FindCoordinatorResponse(coordinators=found)
        if api == ApiKey.OFFSET_FETCH:
            groups = [offset_fetch.OffsetFetchResponseGroup(request.groups[0].group_id, error_code=code)]
            return offset_fetch.OffsetFetchResponse(groups=groups)
        if api == ApiKey.OFFSET_COMMIT:
            return refuse_commit(code)(request)
        module: Any = {
            ApiKey.JOIN_GROUP: join_group.JoinGroupResponse,
            ApiKey.SYNC_GROUP: sync_group.SyncGroupResponse,
            ApiKey.HEARTBEAT: heartbeat.HeartbeatResponse,
        }[ApiKey(api)]
        return module(error_code=code)

    return act


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
def test_errors_that_are_got_over(server: GroupBroker, make: Make, api: int, code: ErrorCode) -> None:
    server.on(api, refuse(api, code))
    consumer = make(session_timeout=1.0)  # so that a member that the group lost is soon missed
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
def test_misbehaviour(server: GroupBroker, make: Make, api: int, misbehaviour: Misbehaviour) -> None:
    server.on(api, misbehaviour)
    consumer = make()
    consumer.subscribe("t")
    records = until([consumer], lambda: len(committed(server)) == 4 and set(committed(server).values()) == {10})
    records += until([consumer], lambda: len(server.asked(api)) >= 2)
    assert sorted({(r.partition, r.offset) for r in records}) == [(p, n) for p in range(4) for n in range(10)]


@pytest.mark.parametrize("api", [ApiKey.FIND_COORDINATOR, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_COMMIT])
def test_half_an_answer(server: GroupBroker, make: Make, api: int) -> None:
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
