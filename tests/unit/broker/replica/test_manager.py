"""Partitions follow the topic registry, appends complete waiting requests; both survive restarts and failing disks."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher

from pylogd.base.machine import UnexpectedEvent
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.replica.errors import FencedLeaderEpoch, NotEnoughReplicas, PartitionOffline, UnknownLeaderEpoch
from pylogd.broker.replica.roles import Role, RoleEvent
from pylogd.store.paths import topic_path
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch


@pytest.fixture
def logged() -> Iterator[list[LogEvent]]:
    events: list[LogEvent] = []
    observer = cast(ILogObserver, events.append)
    globalLogPublisher.addObserver(observer)
    yield events
    globalLogPublisher.removeObserver(observer)


def restart(parts: Parts) -> None:
    """Stop the broker's storage and start it again on the same files and the same metadata."""
    result_of(parts.replica_parts.stop())
    parts.logs.close()
    parts.boot()
    result_of(parts.replica_parts.start())


def strays(parts: Parts) -> list[str]:
    """Return the directories of stray logs."""
    return sorted(f"/data/{name}" for name in parts.fs.listdir("/data") if name.endswith("-stray"))


class TestFollowing:
    def test_a_topic_is_found_by_name_and_by_id(self, parts: Parts) -> None:
        topic = parts.create("t", partitions=2)
        for index in (0, 1):
            partition = parts.partitions.by_name["t", index]
            assert parts.partitions.by_id[topic.topic_id, index] is partition
            assert partition.role is Role.LEADING
            assert partition.isr == (1,)
        assert len(parts.logs.logs) == 2

    def test_files_are_made_and_deleted_in_a_thread(self, parts: Parts) -> None:
        parts.threads.hold = True
        result_of(parts.topic_admin.create_topic("t"))
        assert not parts.partitions.by_name
        settled = parts.hosting.settled("t")
        assert not settled.called
        parts.threads.release()
        assert settled.called
        assert ("t", 0) in parts.partitions.by_name

    def test_a_deleted_topic_is_gone_at_once_and_its_log_after_that(self, parts: Parts) -> None:
        topic = parts.create("t")
        partition = parts.partitions.by_name["t", 0]
        parts.threads.hold = True
        result_of(parts.topic_admin.delete_topic("t"))
        assert not parts.partitions.by_name
        assert not parts.partitions.by_id
        assert partition.role is Role.DELETED
        assert parts.logs.logs
        parts.threads.hold = False
        parts.threads.release()
        assert not parts.logs.logs
        assert topic.topic_id != parts.create("t").topic_id

    def test_a_deleted_topic_leaves_no_garbage(self, parts: Parts) -> None:
        """Cycles of thousands of partitions would hold the reactor, and take memory, until a full collection."""
        parts.create("t")
        parts.append("t", b"record")
        gc.collect()
        gc.disable()
        try:
            kept = weakref.ref(parts.logs.logs["t", 0])
            result_of(parts.topic_admin.delete_topic("t"))
            parts.time.advance(120)  # its files are removed too
            assert kept() is None
        finally:
            gc.enable()

    def test_deleted_while_it_is_made(self, parts: Parts) -> None:
        parts.threads.hold = True
        result_of(parts.topic_admin.create_topic("t", partitions=2))
        result_of(parts.topic_admin.delete_topic("t"))
        parts.threads.release()
        assert not parts.partitions.by_name
        assert not parts.logs.logs

    def test_deleted_and_created_again_at_once(self, parts: Parts) -> None:
        parts.create("t")
        parts.append("t", b"old")
        parts.threads.hold = True
        result_of(parts.topic_admin.delete_topic("t"))
        again = result_of(parts.topic_admin.create_topic("t"))
        parts.threads.release()
        assert parts.partitions.by_name["t", 0].topic_id == again.topic_id
        assert parts.logs.logs["t", 0].topic_id == again.topic_id
        assert parts.logs.logs["t", 0].log_end_offset == 0

    def test_more_partitions(self, parts: Parts) -> None:
        parts.create("t")
        first = parts.partitions.by_name["t", 0]
        result_of(parts.topic_admin.add_partitions("t", 3))
        assert parts.partitions.by_name["t", 0] is first
        assert {index for _, index in parts.partitions.by_name} == {0, 1, 2}

    def test_settings_of_the_topic_reach_its_logs(self, parts: Parts) -> None:
        parts.create("t", retention_ms="5000")
        log = parts.logs.logs["t", 0]
        assert log.config.retention_ms == 5000
        result_of(parts.topic_admin.set_topic_configs("t", {"max.message.bytes": "100", "min.insync.replicas": "2"}))
        assert (log.config.max_message_bytes, log.config.retention_ms) == (100, 7 * 24 * 3600 * 1000)
        assert parts.partitions.by_name["t", 0].min_insync_replicas == 2

    def test_settings_of_the_broker_reach_all_logs_without_their_own(self, parts: Parts) -> None:
        parts.create("t")
        parts.create("own", retention_ms="5000")
        result_of(parts.metadata.broker_configs.replace(None, {"log.retention.ms": "60000"}))
        assert parts.logs.logs["t", 0].config.retention_ms == 60000
        assert parts.logs.logs["own", 0].config.retention_ms == 5000


class TestRestart:
    def test_partitions_come_back_with_what_was_committed(self, parts: Parts) -> None:
        parts.create("t", partitions=2)
        parts.append("t", b"a", b"b", partition=1)
        restart(parts)
        assert parts.partitions.by_name["t", 1].high_watermark == 2
        assert parts.partitions.by_name["t", 0].high_watermark == 0

    @pytest.mark.parametrize("others", [True, False])
    def test_a_log_of_an_unknown_topic_is_kept_aside(self, parts: Parts, logged: list[LogEvent], others: bool) -> None:
        parts.create("t")
        parts.append("t", b"acknowledged")
        if others:
            parts.create("kept")
        result_of(parts.replica_parts.stop())
        result_of(parts.topic_admin.delete_topic("t"))  # or an older copy of the store, without the topic, was restored
        restart(parts)
        assert set(parts.logs.logs) == ({("kept", 0)} if others else set())
        (path,) = strays(parts)
        (event,) = [event for event in logged if "is not known to the metadata" in str(event.get("log_format"))]
        assert (event["topic"], event["path"]) == ("t", path)
        restart(parts)
        parts.time.advance(10 * 365 * 86400)
        parts.logs.tick()
        assert strays(parts) == [path]
        assert b"acknowledged" in parts.fs.files[f"{path}/{0:020d}.log"].data

    def test_a_stray_log_comes_back_by_its_old_name(self, parts: Parts) -> None:
        topic = parts.create("t")
        parts.append("t", b"a", b"b")
        result_of(parts.replica_parts.stop())
        result_of(parts.topic_admin.delete_topic("t"))
        restart(parts)
        (path,) = strays(parts)
        result_of(parts.replica_parts.stop())
        parts.logs.close()
        result_of(
            Deferred.fromCoroutine(parts.topic_admin._write_new(topic))
        )  # the newer copy of the store is restored
        parts.fs.rename(path, "/data/t-0")
        parts.boot()
        result_of(parts.replica_parts.start())
        assert parts.partitions.by_name["t", 0].high_watermark == 2
        assert not strays(parts)

    def test_a_partition_that_the_topic_does_not_have_is_kept_aside(self, parts: Parts) -> None:
        topic = parts.create("t", partitions=2)
        parts.append("t", b"old", partition=1)
        result_of(parts.replica_parts.stop())
        fewer = replace(topic, partitions=topic.partitions[:1])
        result_of(parts.topic_admin.delete_topic("t"))
        result_of(Deferred.fromCoroutine(parts.topic_admin._write_new(fewer)))
        restart(parts)
        assert set(parts.logs.logs) == {("t", 0)}
        result_of(parts.topic_admin.add_partitions("t", 2))
        result_of(parts.hosting.settled("t"))
        assert parts.partitions.by_name["t", 1].log.log_end_offset == 0
        assert len(strays(parts)) == 1

    def test_logs_of_a_topic_that_cannot_be_read_are_left_alone(self, parts: Parts) -> None:
        parts.create("t")
        parts.append("t", b"a", b"b")
        store, path = parts.metadata.store, topic_path("t")
        sound = result_of(store.get(path)).data
        result_of(parts.replica_parts.stop())
        result_of(parts.topic_admin.delete_topic("t"))
        result_of(store.create(path, b"junk"))
        parts.topics._feed._seen = -1
        parts.create("u")
        restart(parts)
        assert set(parts.logs.logs) == {("t", 0), ("u", 0)}
        assert set(parts.partitions.by_name) == {("u", 0)}
        result_of(store.set(path, sound))
        parts.create("v")
        result_of(parts.hosting.settled("t"))
        assert parts.partitions.by_name["t", 0].log.log_end_offset == 2

    def test_topics_that_a_new_session_does_not_have_are_kept_aside(self, parts: Parts) -> None:
        parts.create("t")
        parts.create("u")
        parts.append("t", b"acknowledged")
        result_of(parts.topic_admin.delete_topic("u"))  # a deletion that the broker is notified of: the log is deleted
        assert not strays(parts)
        feed = parts.topics._feed
        feed._session_id, feed._seen = -1, -1  # as after a lost session
        result_of(parts.topic_admin.delete_topic("t"))
        result_of(parts.hosting.settled("t"))
        assert not parts.partitions.by_name
        assert len(strays(parts)) == 1

    def test_a_topic_made_anew_meanwhile_starts_empty(self, parts: Parts) -> None:
        parts.create("t")
        parts.append("t", b"old")
        result_of(parts.replica_parts.stop())
        result_of(parts.topic_admin.delete_topic("t"))
        again = result_of(parts.topic_admin.create_topic("t"))
        restart(parts)
        assert parts.logs.logs["t", 0].topic_id == again.topic_id
        assert parts.partitions.by_name["t", 0].high_watermark == 0
        assert len(strays(parts)) == 1


class TestStop:
    def test_a_topic_that_is_being_made_is_finished_first(self, parts: Parts) -> None:
        parts.threads.hold = True
        result_of(parts.topic_admin.create_topic("t"))
        stopped = parts.replica_parts.stop()
        assert not stopped.called
        parts.threads.release()
        assert stopped.called
        assert ("t", 0) in parts.logs.logs


class TestTrouble:
    def test_a_log_that_cannot_be_made_is_offline(self, parts: Parts) -> None:
        with parts.fs.failing("mkdir", errno.ENOSPC, path="t-1"):
            parts.create("t", partitions=2)
        assert parts.partitions.by_name["t", 0].role is Role.LEADING
        offline = parts.partitions.by_name["t", 1]
        assert not offline.online
        with pytest.raises(PartitionOffline):
            parts.replicas.append(offline, batch(), False)
        with pytest.raises(PartitionOffline):
            offline.read(0, 100, min_one=True, allow_cold=False)
        result_of(parts.topic_admin.delete_topic("t"))
        assert offline.role is Role.DELETED

    def test_a_failing_disk_does_not_flood_the_log(self, parts: Parts, logged: list[LogEvent]) -> None:
        parts.create("t")
        partition = parts.partitions.by_name["t", 0]
        with parts.fs.failing("pwritev", errno.ENOSPC, lasting=True):
            for _ in range(100):
                with pytest.raises(StorageFailure):
                    parts.replicas.append(partition, batch(), False)
        reports = [event for event in logged if "storage failed" in str(event.get("log_format"))]
        assert len(reports) == 7
        assert partition.high_watermark == 0

    def test_a_log_that_cannot_be_deleted_is_reported(self, parts: Parts, logged: list[LogEvent]) -> None:
        parts.create("t")
        with parts.fs.failing("rename", errno.EIO):
            result_of(parts.topic_admin.delete_topic("t"))
        assert not parts.partitions.by_name
        assert any("Could not delete" in str(event.get("log_format")) for event in logged)

    def test_housekeeping_continues_after_a_failed_round(
        self, parts: Parts, logged: list[LogEvent], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rounds: list[int] = []

        def tick(path: str | None) -> None:
            rounds.append(1)
            raise OSError("no")

        monkeypatch.setattr(parts.logs, "tick", tick)
        parts.time.advance(60)
        parts.time.advance(60)
        assert len(rounds) == 2


class TestPartition:
    def test_roles_change_only_as_declared(self, parts: Parts) -> None:
        parts.create("t")
        partition = parts.partitions.by_name["t", 0]
        with pytest.raises(UnexpectedEvent, match="no transition from LEADING by LEAD"):
            partition.change_role(RoleEvent.LEAD)

    def test_epochs(self, parts: Parts) -> None:
        parts.create("t")
        partition = parts.partitions.by_name["t", 0]
        partition.leader_epoch = 3
        for epoch in (-1, 3):
            partition.check_epoch(epoch)
        with pytest.raises(FencedLeaderEpoch):
            partition.check_epoch(2)
        with pytest.raises(UnknownLeaderEpoch):
            partition.check_epoch(4)

    def test_nothing_is_appended_without_enough_replicas(self, parts: Parts) -> None:
        parts.create("t", min_insync_replicas="2")
        partition = parts.set_state("t", replicas=(1, 2), isr=(1,))
        with pytest.raises(NotEnoughReplicas):
            partition.append(batch(), True)
        assert partition.log.log_end_offset == 0
        partition.append(batch(), False)
        assert partition.high_watermark == 0  # and nothing is committed (KIP-966)


class TestLeadership:
    def test_listeners_are_called_at_every_begin_and_end_of_leadership(self, parts: Parts) -> None:
        heard: list[tuple[str, int, bool]] = []

        def broken(_partition: object, _leads: bool) -> None:
            raise RuntimeError("a listener that fails harms nobody")

        parts.partitions.on_leadership(broken)
        undo = parts.partitions.on_leadership(lambda found, leads: heard.append((*found.key, leads)))
        parts.create("led", 2)
        assert heard == [("led", 0, True), ("led", 1, True)]
        parts.hosting.went_offline([("led", 0)])
        assert heard[2:] == [("led", 0, False)]
        result_of(parts.topic_admin.delete_topic("led"))
        result_of(parts.hosting.settled("led"))
        assert heard[3:] == [("led", 1, False)]  # the other partition was announced before
        undo()
        parts.create("more")
        assert len(heard) == 4
