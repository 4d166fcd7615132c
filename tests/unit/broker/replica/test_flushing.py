"""Flushes by count, by time and at a roll, in threads; and what consumers see meanwhile with `flush.visible`."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.waiting import PendingAppend
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch


def topic(parts: Parts, **configs: Any) -> Partition:
    """Return a topic's only partition. Settings of the topic have underscores for dots."""
    parts.create("t", 1, **configs)
    return parts.partitions.by_name["t", 0]


def append(parts: Parts, partition: Partition, count: int = 1) -> int:
    """Append that many batches of one record; return the log end offset."""
    for _ in range(count):
        parts.replicas.append(partition, batch(b"v"), True)
    return partition.log.log_end_offset


def committed(parts: Parts, partition: Partition) -> Deferred[list[PendingAppend]]:
    """Return a Deferred that fires when all appends are committed."""
    return parts.replicas.wait_for_replicas([PendingAppend(partition, partition.log.log_end_offset, None)], 1000)


def test_without_settings_nothing_is_flushed(parts: Parts) -> None:
    partition = topic(parts)
    append(parts, partition, 10)
    assert partition.log.recovery_point == 0
    assert partition.high_watermark == 10


def test_a_partition_without_flush_settings_has_a_flusher_from_its_first_roll_on(parts: Parts) -> None:
    partition = topic(parts, internal_segment_bytes="200")
    flushers = parts.replicas._flushers
    append(parts, partition, 2)
    assert partition.key not in flushers
    append(parts, partition)
    assert partition.key in flushers
    assert partition.log.recovery_point == 2, "the first segment is durable"


def test_by_count(parts: Parts) -> None:
    partition = topic(parts, flush_messages="3")
    append(parts, partition, 2)
    assert partition.log.recovery_point == 0
    append(parts, partition)
    assert partition.log.recovery_point == 3
    append(parts, partition, 4)
    assert partition.log.recovery_point == 6


def test_by_time_to_the_millisecond(parts: Parts) -> None:
    partition = topic(parts, flush_ms="7")
    append(parts, partition)
    parts.time.advance(0.005)
    append(parts, partition)
    assert partition.log.recovery_point == 0
    parts.time.advance(0.002)
    assert partition.log.recovery_point == 2
    append(parts, partition)
    parts.time.advance(0.007)
    assert partition.log.recovery_point == 3
    assert not [call for call in parts.time.getDelayedCalls() if call.getTime() - parts.time.seconds() < 1]


def test_a_rolled_segment_is_made_durable_at_once(parts: Parts) -> None:
    partition = topic(parts, internal_segment_bytes="200")
    append(parts, partition, 5)
    log = partition.log
    assert len(log.segments) > 1
    assert log.recovery_point == log.segments[-1].base_offset
    assert all(parts.fs.exists(path) for path in log.segments[0].file_paths()[:3])


def test_a_roll_during_a_flush_is_seen_to_after_it(parts: Parts) -> None:
    partition = topic(parts, internal_segment_bytes="200", flush_messages="1")
    parts.threads.hold = True
    append(parts, partition, 8)
    assert len(parts.threads.held) == 1
    parts.threads.release()
    assert partition.log.recovery_point == 8
    assert all(segment.file is None for segment in partition.log.segments[:-1])


def test_settings_change_while_in_use(parts: Parts) -> None:
    partition = topic(parts)
    append(parts, partition, 2)
    result_of(parts.topic_admin.set_topic_configs("t", {"flush.messages": "2"}))
    assert partition.log.recovery_point == 2
    result_of(parts.topic_admin.set_topic_configs("t", {"flush.ms": "50"}))
    append(parts, partition)
    parts.time.advance(0.05)
    assert partition.log.recovery_point == 3


class TestVisible:
    def test_records_after_the_flushed_offset_are_not_shown(self, parts: Parts) -> None:
        partition = topic(parts, flush_visible="true")
        parts.threads.hold = True
        append(parts, partition, 2)
        done = committed(parts, partition)
        assert partition.high_watermark == 0
        assert partition.read(0, 1000, min_one=True, allow_cold=True) is None
        assert not done.called
        parts.threads.release()
        assert partition.high_watermark == partition.log.recovery_point == 2
        assert result_of(done) == []

    def test_one_sync_serves_all_appends_that_arrived_meanwhile(self, parts: Parts) -> None:
        partition = topic(parts, flush_visible="true")
        parts.threads.hold = True
        append(parts, partition, 50)
        parts.fs.calls.clear()
        parts.threads.release()
        syncs = [call for call in parts.fs.calls if call.startswith("fsync ") and call.endswith(".log")]
        assert partition.high_watermark == 50
        assert len(syncs) <= 2

    def test_shown_records_survive_a_power_loss(self, parts: Parts) -> None:
        partition = topic(parts, flush_visible="true")
        append(parts, partition, 5)
        assert partition.high_watermark == 5
        result_of(parts.replica_parts.stop())
        parts.fs.lose_power()
        parts.boot()
        result_of(parts.replica_parts.start())
        assert parts.partitions.by_name["t", 0].high_watermark == 5

    def test_switched_off(self, parts: Parts) -> None:
        partition = topic(parts, flush_visible="true")
        parts.threads.hold = True
        append(parts, partition, 2)
        done = committed(parts, partition)
        result_of(parts.topic_admin.set_topic_configs("t", {}))
        assert partition.high_watermark == 2
        assert done.called
        parts.threads.release()

    def test_switched_on(self, parts: Parts) -> None:
        partition = topic(parts)
        append(parts, partition, 2)
        result_of(parts.topic_admin.set_topic_configs("t", {"flush.visible": "true"}))
        assert partition.log.recovery_point == 2
        append(parts, partition)
        assert partition.high_watermark == partition.log.recovery_point == 3

    def test_a_topic_deleted_during_a_flush(self, parts: Parts) -> None:
        partition = topic(parts, flush_visible="true")
        parts.threads.hold = True
        append(parts, partition)
        done = committed(parts, partition)
        result_of(parts.topic_admin.delete_topic("t"))
        assert len(result_of(done)) == 1
        parts.threads.release()
        assert not parts.logs.logs


def test_more_threads_flush_more_partitions_at_the_same_time(parts: Parts) -> None:
    """Half of `background.threads` are for flushes."""
    parts.create("t", 3, flush_messages="1")
    parts.threads.hold = True
    parts.replica_parts.resize(2)
    for index in range(3):
        parts.replicas.append(parts.partitions.by_name["t", index], batch(b"v"), True)
    assert len(parts.threads.held) == 1
    parts.replica_parts.resize(6)
    parts.threads.release()
    parts.threads.hold = True
    for index in range(3):
        parts.replicas.append(parts.partitions.by_name["t", index], batch(b"v"), True)
    assert len(parts.threads.held) == 3
    parts.threads.release()
