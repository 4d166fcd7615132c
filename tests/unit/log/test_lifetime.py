"""Truncation, deletion of records, retention, and how the manager treats data directories."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest

from pylogd.log import checkpoints, retention
from pylogd.log.config import LogConfig
from pylogd.log.errors import InconsistentMetadata, LogDirLocked, OffsetOutOfRange, StorageFailure, TooManyPartitions
from pylogd.log.files import most_partitions
from pylogd.log.manager import LogManager
from pylogd.log.truncation import truncate_fully_and_start_at, truncate_to
from tests.fakes.storage import (
    DATA,
    START_MS,
    TOPIC_ID,
    House,
    append,
    contents,
    names,
    read_all,
    truncate,
    values,
)

SEGMENT = 200  # bytes, for two small batches


def small(**settings: Any) -> House:
    """A house of small segments."""
    return House(LogConfig(segment_bytes=SEGMENT, index_interval_bytes=50), **settings)


def fill(house: House, count: int = 10) -> list[bytes]:
    """Create a log of `count` batches with one record each; return the values."""
    log = house.create()
    expected = []
    for at in range(count):
        expected.append(b"%03d" % at + b"x" * 20)
        append(log, expected[-1], timestamp=START_MS + at, epoch=at // 3)
    return expected


@pytest.mark.parametrize("offset", range(11))
@pytest.mark.parametrize("sealed", [False, True])
def test_truncation(offset: int, sealed: bool) -> None:
    house = small()
    expected = fill(house)
    log = house.manager.logs["t", 0]
    if sealed:
        log.flush()
    assert truncate_to(log, offset) == offset
    assert values(log) == expected[:offset]
    assert all(start < offset for _, start in log.epochs.entries())
    append(log, b"new", epoch=9)
    assert values(log) == [*expected[:offset], b"new"]
    log.flush()
    house.check()
    assert values(house.restart()) == [*expected[:offset], b"new"]
    house.check()


def test_truncation_inside_a_batch_drops_the_batch() -> None:
    house = House()
    log = house.create()
    append(log, b"a", b"b")
    append(log, b"c", b"d")
    assert truncate_to(log, 3) == 2
    assert values(log) == [b"a", b"b"]
    house.check()


def test_a_truncated_log_keeps_its_topic_id_after_a_power_loss() -> None:
    house = House()
    append(house.create(), b"a")
    assert house.manager.truncate_to("t", 0, 0) == 0
    house.lose_power()
    assert house.manager.logs["t", 0].topic_id == TOPIC_ID
    house.check()


def test_restarting_at_an_offset() -> None:
    house = small()
    fill(house)
    log = house.manager.logs["t", 0]
    truncate_fully_and_start_at(log, 100)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (100, 100, 0)
    append(log, b"new", epoch=4)
    house.manager.checkpoint()
    assert values(house.restart()) == [b"new"]
    house.check()


def test_records_before_an_offset_are_deleted() -> None:
    house = small()
    expected = fill(house)
    log = house.manager.logs["t", 0]
    assert log.delete_records_before(5) == 5
    assert log.delete_records_before(3) == 5
    with pytest.raises(OffsetOutOfRange):
        log.delete_records_before(11)
    with pytest.raises(OffsetOutOfRange):
        log.read(4, 100)
    house.manager.tick()
    assert [segment.base_offset for segment in log.segments] == [4, 6, 8]
    assert values(log) == expected[5:]
    log = house.restart()
    assert log.log_start_offset == 5
    assert values(log) == expected[5:]
    assert log.delete_records_before(10) == 10
    house.manager.tick()
    append(log, b"new", epoch=9)
    assert values(house.restart()) == [b"new"]
    house.check()


def test_retention_by_time() -> None:
    house = small(retention_ms=1000, file_delete_delay_ms=500)
    expected = fill(house)
    log = house.manager.logs["t", 0]
    house.pass_time(1000 + 3)
    house.manager.tick()
    assert values(log) == expected[2:]
    assert log.log_start_offset == 2
    assert names(house.fs, ".deleted")
    house.pass_time(500)
    house.manager.tick()
    assert not [name for name in names(house.fs, ".deleted") if name.startswith("0" * 20)]
    house.check()


@pytest.mark.parametrize("step_ms", [-600_000, 70_000, 3_600_000])
def test_a_step_of_the_wall_clock_does_not_change_delays(step_ms: int) -> None:
    house = small(file_delete_delay_ms=60_000, flush_ms=60_000, retention_bytes=SEGMENT)
    fill(house)
    house.create("gone")
    house.manager.tick()
    house.manager.delete("gone", 0)
    log = house.manager.logs["t", 0]
    house.manager.checkpoint()
    append(log, b"more", timestamp=START_MS, epoch=9)
    waiting, end = set(names(house.fs, ".deleted")), log.log_end_offset
    assert waiting
    assert names(house.fs, "-delete", DATA)
    house.step_wall(step_ms)
    house.pass_time(59_999)
    house.manager.tick()
    assert waiting <= set(names(house.fs, ".deleted"))
    assert names(house.fs, "-delete", DATA)
    assert log.recovery_point < end
    house.pass_time(1)
    house.manager.tick()
    assert not waiting & set(names(house.fs, ".deleted"))
    assert not names(house.fs, "-delete", DATA)
    assert log.recovery_point == end
    house.check()


def test_retention_of_everything_leaves_an_empty_log_at_its_end() -> None:
    house = small(retention_ms=1000)
    fill(house)
    log = house.manager.logs["t", 0]
    house.pass_time(5000)
    house.manager.tick()
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (10, 10, 1)
    house.manager.tick()
    assert len(log.segments) == 1
    assert house.restart().log_end_offset == 10
    house.check()


def test_retention_by_size_never_goes_below_the_limit() -> None:
    house = small()
    expected = fill(house)
    log = house.manager.logs["t", 0]
    log.config = replace(log.config, retention_bytes=log.size - SEGMENT // 2)
    house.manager.tick()
    assert values(log) == expected
    log.config = replace(log.config, retention_bytes=0)
    house.manager.tick()
    assert values(log) == expected[8:]
    house.check()


def test_retention_keeps_uncommitted_records() -> None:
    house = small(retention_ms=0)
    expected = fill(house)
    log = house.manager.logs["t", 0]
    log.deletable_offset = 5
    house.pass_time(10_000)
    house.manager.tick()
    assert values(log) == expected[4:]
    house.check()


def test_compacted_topics_are_not_deleted_by_age() -> None:
    house = small(retention_ms=0, cleanup_policy=frozenset({"compact"}))
    expected = fill(house)
    house.pass_time(10_000)
    house.manager.tick()
    assert values(house.manager.logs["t", 0]) == expected
    house.check()


def test_flush_by_count_and_by_time() -> None:
    house = House(flush_messages=3, flush_ms=1000)
    log = house.create()
    for _ in range(3):
        append(log)
    house.manager.tick()
    assert log.recovery_point == 3
    append(log)
    house.manager.tick()
    assert log.recovery_point == 3
    house.pass_time(1000)
    house.manager.tick()
    assert log.recovery_point == 4
    house.check()


def test_a_sync_that_fails_is_no_flush() -> None:
    house = House()
    log = house.create()
    append(log)
    with house.fs.failing("fsync", errno.EIO), pytest.raises(StorageFailure):
        log.flush()
    assert log.recovery_point == 0
    house.check()


def test_the_name_of_a_deleted_partition_is_available_at_once() -> None:
    house = small(file_delete_delay_ms=500)
    fill(house)
    house.manager.delete("t", 0)
    house.manager.delete("t", 0)
    log = house.create()
    assert log.log_end_offset == 0
    append(log, b"new")
    assert len([name for name in house.fs.listdir(DATA) if name.endswith("-delete")]) == 1
    house.pass_time(500)
    house.manager.tick()
    assert not [name for name in house.fs.listdir(DATA) if name.endswith("-delete")]
    assert values(house.restart()) == [b"new"]
    house.manager.delete("t", 0)
    house.manager.close()
    assert house.start().logs == {}
    assert not [name for name in house.fs.listdir(DATA) if name.endswith("-delete")]
    house.check()


def test_a_long_topic_name_fits_the_deleted_name() -> None:
    house = House()
    house.create("n" * 249)
    house.manager.delete("n" * 249, 0)
    (name,) = [name for name in house.fs.listdir(DATA) if name.endswith("-delete")]
    assert len(name) <= 255


def test_the_topic_id_is_kept() -> None:
    house = House()
    house.create()
    assert house.restart().topic_id == TOPIC_ID
    house.manager.close()
    path = f"{DATA}/t-0/partition.metadata"
    house.fs.files[path].data[:] = b"version: 0\ntopic_id: nonsense\n"
    assert house.start().logs["t", 0].topic_id == bytes(16)


def test_the_topic_id_outlives_a_power_loss_before_the_first_flush() -> None:
    """A file system may write names before what they name."""
    house = House()
    house.create()
    house.fs.fsync_dir(DATA)
    house.fs.fsync_dir(f"{DATA}/t-0")
    house.lose_power()
    assert house.manager.logs["t", 0].topic_id == TOPIC_ID
    house.check()


@pytest.mark.parametrize("written", [True, False])
def test_a_power_loss_between_writing_the_topic_id_and_renaming_it(written: bool) -> None:
    house = House()
    house.create()
    path = f"{DATA}/t-0/partition.metadata"
    content = contents(house.fs, path)
    house.fs.kill()
    house.fs.rename(path, f"{path}.tmp")
    if not written:
        truncate(house.fs, f"{path}.tmp", len(content) // 2)
    assert house.start().logs["t", 0].topic_id == (TOPIC_ID if written else bytes(16))
    assert house.fs.exists(path) == written
    assert not house.fs.exists(f"{path}.tmp")


def test_a_second_broker_is_refused() -> None:
    house = House()
    with pytest.raises(LogDirLocked, match=r"/data is in use by another broker"):
        house.start()
    house.fs.kill()
    house.start()


def test_another_brokers_directory_is_refused() -> None:
    house = House()
    house.manager.close()
    for node_id, cluster_id, text in ((2, "c", "broker 1"), (1, "d", "cluster c")):
        manager = LogManager([DATA], fs=house.fs, now_ms=lambda: 0, node_id=node_id, cluster_id=cluster_id)
        with pytest.raises(InconsistentMetadata, match=text):
            manager.load()
    house.start()
    with pytest.raises(InconsistentMetadata):
        house.manager.adopt_cluster_id("d")


def test_a_cluster_id_is_adopted() -> None:
    house = House()
    house.manager.close()
    house.fs.files[f"{DATA}/meta.properties"].data[:] = b"# old\nversion=0\nbroker.id=1\n"
    manager = LogManager([DATA], fs=house.fs, now_ms=lambda: 0)
    manager.load()
    manager.adopt_cluster_id("new")
    properties = checkpoints.read_meta_properties(house.fs, DATA)
    assert properties is not None
    assert (properties.node_id, properties.cluster_id) == (1, "new")


def test_a_directory_is_suspect_after_a_machine_crash_but_not_after_a_process_crash() -> None:
    house = House()
    house.manager.close()

    def start(boot_id: str | None) -> LogManager:
        manager = LogManager([DATA], fs=house.fs, now_ms=lambda: 0, recovery_threads=1, boot_id=boot_id)
        manager.load()
        return manager

    manager = start("first")
    assert not manager.suspect  # it was stopped cleanly
    manager.trust()
    house.fs.kill()
    assert not start("first").suspect
    house.fs.lose_power()
    manager = start("second")
    assert manager.suspect == manager.directory_ids
    house.fs.kill()  # before the boot id was written
    manager = start("second")
    assert manager.suspect
    manager.trust()
    assert not manager.suspect
    house.fs.kill()
    manager = start("second")
    assert not manager.suspect
    manager.close()
    assert not start("third").suspect
    house.fs.kill()
    assert start(None).suspect  # without a boot id that is unknown


def test_each_directory_gets_an_id_of_its_own() -> None:
    house = House()
    house.manager.close()
    house.fs.files[f"{DATA}/meta.properties"].data[:] = b"# old\nversion=0\nbroker.id=1\n"
    manager = house.start()
    ids = manager.directory_ids
    manager.adopt_cluster_id("c")
    assert manager.directory_ids == ids
    manager.close()
    assert house.start().directory_ids == ids
    house.create()
    assert house.manager.directory_id_of(("t", 0)) in ids
    assert house.manager.directory_id_of(("t", 1)) is None
    assert House().manager.directory_ids != ids


def test_a_directory_that_can_not_be_read() -> None:
    house = House()
    house.manager.close()
    with house.fs.failing("listdir", errno.EACCES), pytest.raises(StorageFailure, match="Permission denied"):
        house.start()
    house.start()


def test_partitions_spread_over_directories() -> None:
    house = House()
    house.manager.close()
    manager = LogManager(["/a", "/b"], fs=house.fs, now_ms=lambda: START_MS)
    told: list[tuple[int, int, str]] = []
    manager.load()
    for partition in range(4):
        append(manager.create("t", partition, TOPIC_ID), b"x")
    usage = manager.usage()
    assert [(entry.path, len(entry.partitions)) for entry in usage] == [("/a", 2), ("/b", 2)]
    assert all(partition.size > 0 for entry in usage for partition in entry.partitions)
    manager.close()
    manager = LogManager(["/a", "/b"], fs=house.fs, now_ms=lambda: 0, recovery_threads=1)
    manager.load(lambda *progress: told.append(progress), lambda topic: LogConfig(retention_ms=5))
    assert told == [(1, 4, "t-0"), (2, 4, "t-2"), (3, 4, "t-1"), (4, 4, "t-3")]
    assert all(log.config.retention_ms == 5 and len(read_all(log)) == 1 for log in manager.logs.values())
    manager.delete("t", 1)
    manager.delete("t", 1)
    made = [manager.create("u", partition, TOPIC_ID).directory for partition in range(3)]
    assert made == ["/b/u-0", "/a/u-1", "/b/u-2"]
    manager.close()


def test_a_partition_in_two_directories_is_offline() -> None:
    house = House()
    append(house.create())
    house.manager.close()
    house.fs.mkdir("/b/t-0")
    manager = LogManager([DATA, "/b"], fs=house.fs, now_ms=lambda: 0)
    manager.load()
    assert manager.logs == {}
    assert "/b/t-0" in str(manager.offline["t", 0])
    with pytest.raises(type(manager.offline["t", 0])):
        manager.create("t", 0, TOPIC_ID)
    manager.close()
    assert not house.fs.exists(f"{DATA}/.kafka_cleanshutdown")


def test_create_is_idempotent() -> None:
    house = House()
    assert house.create() is house.create()


@pytest.mark.parametrize("appended", [1, 12])
def test_records_appended_during_retention_are_kept(monkeypatch: pytest.MonkeyPatch, appended: int) -> None:
    house = small(retention_ms=1000)
    fill(house, 3)
    log = house.manager.logs["t", 0]
    house.pass_time(10_000)
    judge = retention._reason
    late: list[bytes] = []

    def while_appending(*arguments: Any, active: bool) -> str | None:
        reason = judge(*arguments, active=active)
        if active and not late:
            late.extend(b"late %d" % at for at in range(appended))
            for value in late:
                append(log, value, timestamp=house.now_ms, epoch=9)
        return reason

    monkeypatch.setattr(retention, "_reason", while_appending)
    retention.retain(log, house.now_ms)
    assert values(log)[-appended:] == late
    house.check()


def test_logs_beyond_the_partition_limit_are_not_opened() -> None:
    house = House()
    for topic in ("a", "b", "c", "__own"):
        append(house.create(topic), b"value")
    house.manager.close()
    manager = LogManager([DATA], fs=house.fs, now_ms=lambda: START_MS, node_id=1, partition_limit=2)
    manager.load()
    assert set(manager.logs) == {("__own", 0), ("a", 0)}
    assert set(manager.offline) == {("b", 0), ("c", 0)}
    for topic in ("b", "new"):
        with pytest.raises(TooManyPartitions):
            manager.create(topic, 0, TOPIC_ID)
    assert not house.fs.exists(f"{DATA}/new-0")
    manager.create("__another", 0, TOPIC_ID)
    manager.delete("c", 0)
    assert not house.fs.exists(f"{DATA}/c-0")
    manager.close()
    assert house.fs.exists(f"{DATA}/.kafka_cleanshutdown")
    house.start()
    assert set(house.manager.logs) == {("__own", 0), ("__another", 0), ("a", 0), ("b", 0)}
    assert values(house.manager.logs["b", 0]) == [b"value"]
    house.check()


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 4096, 262_144])
def test_partitions_leave_descriptors_for_the_rest(descriptors: int) -> None:
    most = most_partitions(descriptors)
    assert descriptors // 4 <= most <= descriptors * 3 // 4
