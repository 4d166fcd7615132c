"""Consumers of a group share partitions, commit, and continue at the committed offsets."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import KafkaError, Record, TopicPartition
from pylogd.client.core.errors import ClientError, Closed, CommitFailed
from pylogd.client.core.model import OffsetAndMetadata
from pylogd.client.evented.group import BrokerGroup
from pylogd.wire.messages import (
    ApiKey,
)
from tests.fakes.group_broker import GroupBroker, fill, refuse_commit
from tests.unit.client.group_consumer.helpers import SECONDS, TP, Make, committed, read, until


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


def test_the_next_consumer_continues_at_the_committed_offsets(server: GroupBroker, make: Make) -> None:
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
    records += until([one], lambda: len(one.assignment) == 4 and committed(server) == dict.fromkeys(TP, 10))
    assert {(r.partition, r.offset) for r in records} == {(p, n) for p in range(4) for n in range(10)}


def test_auto_commit_in_the_background(server: GroupBroker, make: Make) -> None:
    consumer = make()
    consumer.subscribe("t")
    read(consumer, 40)
    until([consumer], lambda: committed(server) == dict.fromkeys(TP, 10))


def test_it_commits_before_it_returns_records(server: GroupBroker, make: Make) -> None:
    consumer = make(auto_commit="before", max_poll_records=3)
    consumer.subscribe("t")
    seen: dict[TopicPartition, int] = {}
    for _ in range(5):
        for record in read(consumer, 1):
            partition = TopicPartition(record.topic, record.partition)
            seen[partition] = record.offset + 1
            assert committed(server)[partition] >= record.offset + 1


def test_records_whose_commit_failed_are_not_returned(server: GroupBroker, make: Make) -> None:
    def forget(request: Any) -> Any:
        with server.lock:
            del server.groups.group("g").members[request.member_id]
        return refuse_commit(ErrorCode.UNKNOWN_MEMBER_ID)(request)

    consumer = make(auto_commit="before")
    consumer.subscribe("t")
    server.on(ApiKey.OFFSET_COMMIT, forget)
    with pytest.raises(CommitFailed):
        read(consumer, 1)
    assert len(read(consumer, 40)) == 40  # all records, once the group has the partition again


def test_commits_by_the_application(server: GroupBroker, make: Make) -> None:
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


def test_a_paused_partition_stays_paused_when_it_starts_again(server: GroupBroker, make: Make) -> None:
    consumer = make(auto_commit="off")
    consumer.subscribe("t")
    read(consumer, 40)
    consumer.pause(TP[0])
    consumer.seek_to_committed()
    assert {record.partition for record in read(consumer, 30)} == {1, 2, 3}
    assert consumer.paused == [TP[0]]
    consumer.resume(TP[0])
    assert {record.partition for record in read(consumer, 10)} == {0}


def test_an_iteration_that_commits_before_gives_up_no_more_than_it_handed_out(server: GroupBroker, make: Make) -> None:
    consumer = make(auto_commit="before")
    consumer.subscribe("t")
    last = [record for _, record in zip(range(3), consumer, strict=False)][-1]
    assert committed(server)[TP[last.partition]] == 10, "the whole chunk is committed before its first record comes"
    consumer.close()
    assert committed(server)[TP[last.partition]] == last.offset + 1


def test_an_iteration_over_slow_records_reports_and_commits_between_them(
    server: GroupBroker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 40 records come with one poll, and processing each takes two heartbeat intervals."""
    monkeypatch.setattr("pylogd.client.evented.consumer._CALLBACK_PERIOD", 0.0)
    consumer = make(max_poll_interval=3600.0)
    consumer.subscribe("t")
    reported: list[bool] = []
    group = consumer._consumer.group
    assert isinstance(group, BrokerGroup)
    polled = group.polled

    def note(polling: bool) -> None:
        reported.append(polling)
        polled(polling)

    monkeypatch.setattr(group, "polled", note)
    for handed_out, record in enumerate(consumer, 1):
        if found := committed(server):
            assert found[TP[record.partition]] <= record.offset, "the record in work is not committed"
            if reported.count(False) > reported.count(True):  # it reports without a poll
                break
        assert handed_out < 40, "nothing was committed or reported before the whole poll was handed out"
        server.wait_until_asked(ApiKey.HEARTBEAT, len(server.asked(ApiKey.HEARTBEAT)) + 2, SECONDS)
    assert reported[-1] is False


def test_a_poll_returns_500_records_unless_told_otherwise(server: GroupBroker, make: Make) -> None:
    fill(server, 0, 2000)
    consumer = make(fetch_max_wait_ms=1000, auto_commit="off")
    consumer.assign([("t", 0)])
    sizes: list[int] = []
    while sum(sizes) < 2010:
        sizes.append(len(consumer.poll(SECONDS)))
    assert max(sizes) == 500


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


def test_the_last_poll_is_not_committed_after_an_error(server: GroupBroker, make: Make) -> None:
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


def test_an_exception_of_a_listener_is_raised_by_poll(server: GroupBroker, make: Make) -> None:
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
    for name in ("auto_commit", "auto_offset_reset", "isolation", "coordinator"):
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
    assert all(partitions == TP for partitions in lost)  # a slow machine may lose its membership more than once
