"""Failed and full log directories are found and reported to the cluster."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred, fail

from pylogd.base.errors import ErrorCode
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.files import remove_tree
from pylogd.broker.metadata.image import Outages, TopicUpdate
from pylogd.broker.replica.outages import OutageReporter
from pylogd.broker.replica.roles import Role
from pylogd.store.errors import ConnectionLost
from pylogd.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from pylogd.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts

NONE = Outages()


class Reporting:
    """A broker with two data directories and a topic with a partition in each, and its reporter."""

    def __init__(self, folder: Path) -> None:
        self.parts = Parts(folder, log_dirs="/a,/b")
        topic = self.parts.create("t", partitions=2)
        assert self.parts.logs.logs["t", 0].directory == "/a/t-0"
        self.in_a, self.in_b = (topic.topic_id, 0), (topic.topic_id, 1)
        self.refused = 0
        self.reports: list[Outages] = []
        self.reporter = OutageReporter(
            self.parts.partitions,
            self.parts.logs,
            self.report,
            self.parts.clock,
            self.parts.replica_parts.disk_calls,
            1.0,
        )
        self.parts.logs.on_directory_full = self.reporter.changed
        self.reporter.start()
        self.parts.time.advance(0)

    def report(self, outages: Outages) -> Deferred[None]:
        """Report to the cluster, after as many failures as `refused` says."""
        self.reports.append(outages)
        if self.refused:
            self.refused -= 1
            return fail(ConnectionLost("the store is away"))
        return self.parts.cluster.own.report_outages(outages)

    @property
    def reported(self) -> Outages:
        """Return the outages of this broker in the metadata."""
        return self.parts.cluster.brokers[self.parts.node_id].outages

    def append(self, index: int) -> None:
        """Append, and run the calls that this schedules."""
        try:
            self.parts.append("t", b"v", partition=index)
        finally:
            self.parts.time.advance(0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Reporting]:
    made = Reporting(tmp_path)
    yield made
    result_of(made.reporter.stop())
    made.parts.close()


def test_nothing_is_reported_while_all_is_well(broker: Reporting) -> None:
    broker.append(0)
    broker.parts.time.pump([1.0] * 25)
    assert broker.reports == []


def test_a_directory_that_fails_in_use_is_reported(broker: Reporting) -> None:
    with broker.parts.fs.failing("pwritev", errno.EIO, path="/a/"), pytest.raises(StorageFailure):
        broker.append(0)
    assert broker.reported == Outages(offline=frozenset({broker.in_a}))
    assert broker.reports == [broker.reported]


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EIO, errno.ESTALE])
def test_a_directory_that_fails_under_idle_replicas_is_found(broker: Reporting, error: int) -> None:
    with broker.parts.fs.failing("identity", error, path="/b"):
        broker.parts.time.advance(0.9)
        assert broker.reported == NONE
        broker.parts.time.pump([0.1, 0])
    assert broker.reported == Outages(offline=frozenset({broker.in_b}))
    assert broker.parts.logs.healthy == ["/a"]


def test_another_directory_at_the_path_is_found(broker: Reporting) -> None:
    broker.parts.fs.identities["/a"] = 7
    broker.parts.time.pump([1.0, 0])
    assert broker.reported == Outages(offline=frozenset({broker.in_a}))


def test_a_volume_that_can_only_be_read_is_found(broker: Reporting) -> None:
    with broker.parts.fs.failing("open", errno.EROFS, path="/a/", lasting=True):
        broker.parts.time.pump([1.0] * 10)
        broker.parts.time.advance(0)
    assert broker.reported == Outages(offline=frozenset({broker.in_a}))


def test_a_full_volume_is_reported_until_it_has_room(broker: Reporting) -> None:
    fs, time = broker.parts.fs, broker.parts.time
    with fs.failing("pwritev", errno.ENOSPC, path="/a/", lasting=True), pytest.raises(StorageFailure):
        broker.append(0)
    assert broker.reported == Outages(full=frozenset({broker.in_a}))
    fs.usable_bytes = 1 << 20  # too little free space to use the directory again: it would soon be full
    time.pump([1.0] * 3)
    assert broker.reported == Outages(full=frozenset({broker.in_a}))
    fs.usable_bytes = 1 << 39
    with fs.failing("pwritev", errno.EDQUOT, path="/a/", lasting=True):
        time.pump([1.0] * 3)
    assert broker.reported == Outages(full=frozenset({broker.in_a}))
    time.pump([1.0, 0])
    assert broker.reported == NONE
    broker.append(0)
    assert "probe.tmp" not in fs.listdir("/a")


def test_new_partitions_are_put_where_there_is_room(broker: Reporting) -> None:
    with broker.parts.fs.failing("pwritev", errno.ENOSPC, path="/a/", lasting=True), pytest.raises(StorageFailure):
        broker.append(0)
    broker.parts.create("new", partitions=2)
    assert {broker.parts.logs.logs["new", index].directory for index in range(2)} == {"/b/new-0", "/b/new-1"}


def test_a_report_that_the_store_refuses_is_sent_again(broker: Reporting) -> None:
    broker.refused = 2
    with broker.parts.fs.failing("pwritev", errno.EIO, path="/a/"), pytest.raises(StorageFailure):
        broker.append(0)
    assert broker.reported == NONE
    broker.parts.time.pump([1.0, 1.0, 0])
    assert broker.reported == Outages(offline=frozenset({broker.in_a}))
    assert len(broker.reports) == 3


def test_a_check_under_way_is_waited_for_at_a_stop(broker: Reporting) -> None:
    broker.parts.threads.hold = True
    broker.parts.time.advance(1.0)
    done = broker.reporter.stop()
    assert not done.called
    broker.parts.threads.release()
    assert done.called
    broker.parts.threads.hold = False
    calls = broker.parts.fs.calls
    before = len(calls)
    broker.parts.time.advance(1.0)
    assert not [call for call in calls[before:] if call.startswith("identity")]


def test_a_directory_that_fails_at_the_start_is_reported_but_not_what_was_lost_before(broker: Reporting) -> None:
    """Partition 0 is in it. The copy of partition 1 was lost with an earlier directory, as its state says."""
    parts = broker.parts
    result_of(broker.reporter.stop())
    result_of(parts.replica_parts.stop())
    parts.logs.close()
    topic = parts.topics.get("t")
    assert topic is not None
    lost = replace(
        topic.partitions[1], leader=-1, isr=(), last_known_leader=parts.node_id, lost=("former",), partition_epoch=1
    )
    result_of(parts.topics.write_states([TopicUpdate(topic, (topic.partitions[0], lost))]))
    remove_tree(parts.fs, "/b/t-1")
    with parts.fs.failing("listdir", errno.EIO, path="/a", lasting=True):
        parts.boot()
        result_of(parts.replica_parts.start())
        broker.reporter = OutageReporter(
            parts.partitions, parts.logs, broker.report, parts.clock, parts.replica_parts.disk_calls, 1.0
        )
        broker.reporter.start()
        parts.time.advance(0)
    assert broker.reported == Outages(offline=frozenset({broker.in_a}))
    assert [parts.partitions.by_name["t", index].role for index in range(2)] == [Role.OFFLINE] * 2
    assert parts.fs.listdir("/b") and not {"t-0", "t-1"} & set(parts.fs.listdir("/b")), "no empty log is made"


def test_clients_are_told(broker: Reporting) -> None:
    asked = MetadataRequest([MetadataRequestTopic(name="t")])
    everything = MetadataRequest(None)
    for request in (asked, everything):
        found = broker.parts.call(request, 9).topics[0].partitions
        assert [list(one.offline_replicas) for one in found] == [[], []]
    with broker.parts.fs.failing("pwritev", errno.EIO, path="/a/"), pytest.raises(StorageFailure):
        broker.append(0)
    for request in (asked, everything):
        found = broker.parts.call(request, 9).topics[0].partitions
        assert [list(one.offline_replicas) for one in found] == [[1], []]
    described = broker.parts.call(DescribeTopicPartitionsRequest([TopicRequest("t")]), 0).topics[0]
    assert described.error_code == ErrorCode.NONE
    assert [list(one.offline_replicas) for one in described.partitions] == [[1], []]


def test_an_operator_reopens_a_directory(broker: Reporting) -> None:
    parts = broker.parts
    broker.append(0)
    with parts.fs.failing("pwritev", errno.EIO, path="/a/"), pytest.raises(StorageFailure):
        broker.append(0)
    with parts.fs.failing("open", errno.EIO, path="/a/", lasting=True):
        assert alter(parts, "/a", 0) == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.reported == Outages(offline=frozenset({broker.in_a}))
    assert alter(parts, "/a", 0) == ErrorCode.NONE
    parts.time.advance(0)
    assert broker.reported == NONE
    assert parts.logs.healthy == ["/a", "/b"]
    assert parts.partitions.by_name["t", 0].role is Role.LEADING
    broker.append(0)
    assert parts.partitions.by_name["t", 0].high_watermark == 2
    assert alter(parts, "/a", 0) == ErrorCode.NONE, "it is in use"
    assert alter(parts, "/a", 1) == ErrorCode.INVALID_REQUEST, "it lies in the other directory"
    assert alter(parts, "/a", 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(parts, "/c", 0) == ErrorCode.LOG_DIR_NOT_FOUND
    with parts.fs.failing("pwritev", errno.EIO, path="/a/"), pytest.raises(StorageFailure):
        broker.append(0)
    assert broker.reported == Outages(offline=frozenset({broker.in_a})), "it is watched as before"


def test_another_disk_is_not_taken_for_the_one_that_failed(broker: Reporting) -> None:
    fs = broker.parts.fs
    with fs.failing("pwritev", errno.EIO, path="/a/"), pytest.raises(StorageFailure):
        broker.append(0)
    fs.rename("/a", "/away")
    assert alter(broker.parts, "/a", 0) == ErrorCode.KAFKA_STORAGE_ERROR
    assert not fs.exists("/a"), "none is made where a disk is not mounted"
    fs.mkdir("/a")
    assert alter(broker.parts, "/a", 0) == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_topic_that_was_deleted_meanwhile_is_not_brought_back(broker: Reporting) -> None:
    parts = broker.parts
    with parts.fs.failing("pwritev", errno.EIO, path="/a/"), pytest.raises(StorageFailure):
        broker.append(0)
    result_of(parts.topic_admin.delete_topic("t"))
    assert alter(parts, "/a", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ("t", 0) not in parts.logs.logs
    assert not parts.fs.exists("/a/t-0")
    parts.time.advance(0)
    assert broker.reported == NONE


def test_an_operator_need_not_wait_until_a_volume_has_plenty_of_room(broker: Reporting) -> None:
    with broker.parts.fs.failing("pwritev", errno.ENOSPC, path="/a/", lasting=True), pytest.raises(StorageFailure):
        broker.append(0)
    broker.parts.fs.usable_bytes = 1 << 20
    assert alter(broker.parts, "/a", 0) == ErrorCode.NONE
    broker.parts.time.advance(0)
    assert broker.reported == NONE


def alter(parts: Parts, path: str, index: int) -> int:
    """Return the error code of AlterReplicaLogDirs for a partition of t."""
    topics = [AlterReplicaLogDirTopic("t", [index])]
    answer = parts.call(AlterReplicaLogDirsRequest([AlterReplicaLogDir(path, topics)]))
    return int(answer.results[0].partitions[0].error_code)
