"""Truncation, deletion of records, retention, and the manager's checks of data directories."""

from __future__ import annotations

import errno
import itertools
from typing import Any

import pytest

from pylogd.broker.log import checkpoints, retention
from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.errors import (
    InconsistentMetadata,
    LogDirLocked,
    OffsetOutOfRange,
    StorageFailure,
    TooManyPartitions,
)
from pylogd.broker.log.files import most_cached_files, most_partitions, replace_file
from pylogd.broker.log.manager import LogManager
from pylogd.broker.log.truncation import truncate_fully_and_start_at, truncate_to
from tests.fakes.storage import (
    DATA,
    START_MS,
    TOPIC_ID,
    MemoryStorage,
    append,
    contents,
    names,
    read_all,
    truncate,
    values,
)

SEGMENT = 200  # bytes, for two small batches


def small(**settings: Any) -> MemoryStorage:
    """Return a storage with small segments."""
    return MemoryStorage(LogConfig(segment_bytes=SEGMENT, index_interval_bytes=50), **settings)


def fill(storage: MemoryStorage, count: int = 10) -> list[bytes]:
    """Create a log of `count` batches with one record each; return the values."""
    log = storage.create()
    expected = []
    for at in range(count):
        expected.append(b"%03d" % at + b"x" * 20)
        append(log, expected[-1], timestamp=START_MS + at, epoch=at // 3)
    return expected


@pytest.mark.parametrize("offset", range(11))
@pytest.mark.parametrize("sealed", [False, True])
def test_truncation(offset: int, sealed: bool) -> None:
    storage = small()
    expected = fill(storage)
    log = storage.manager.logs["t", 0]
    if sealed:
        log.flush()
    assert truncate_to(log, offset) == offset
    assert values(log) == expected[:offset]
    assert all(start < offset for _, start in log.epochs.entries())
    append(log, b"new", epoch=9)
    assert values(log) == [*expected[:offset], b"new"]
    log.flush()
    storage.check()
    assert values(storage.restart()) == [*expected[:offset], b"new"]
    storage.check()


def test_truncation_inside_a_batch_drops_the_batch() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log, b"a", b"b")
    append(log, b"c", b"d")
    assert truncate_to(log, 3) == 2
    assert values(log) == [b"a", b"b"]
    storage.check()


def test_a_truncated_log_keeps_its_topic_id_after_a_power_loss() -> None:
    storage = MemoryStorage()
    append(storage.create(), b"a")
    assert storage.manager.truncate_to("t", 0, 0) == 0
    storage.lose_power()
    assert storage.manager.logs["t", 0].topic_id == TOPIC_ID
    storage.check()


def test_restarting_at_an_offset() -> None:
    storage = small()
    fill(storage)
    log = storage.manager.logs["t", 0]
    truncate_fully_and_start_at(log, 100)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (100, 100, 0)
    append(log, b"new", epoch=4)
    storage.manager.checkpoint()
    assert values(storage.restart()) == [b"new"]
    storage.check()


def test_records_before_an_offset_are_deleted() -> None:
    storage = small()
    expected = fill(storage)
    log = storage.manager.logs["t", 0]
    assert log.delete_records_before(5) == 5
    assert log.delete_records_before(3) == 5
    with pytest.raises(OffsetOutOfRange):
        log.delete_records_before(11)
    with pytest.raises(OffsetOutOfRange):
        log.read(4, 100)
    storage.manager.tick()
    assert [segment.base_offset for segment in log.segments] == [4, 6, 8]
    assert values(log) == expected[5:]
    log = storage.restart()
    assert log.log_start_offset == 5
    assert values(log) == expected[5:]
    assert log.delete_records_before(10) == 10
    storage.manager.tick()
    append(log, b"new", epoch=9)
    assert values(storage.restart()) == [b"new"]
    storage.check()


def test_retention_by_time() -> None:
    storage = small(retention_ms=1000, file_delete_delay_ms=500)
    expected = fill(storage)
    log = storage.manager.logs["t", 0]
    storage.pass_time(1000 + 3)
    storage.manager.tick()
    assert values(log) == expected[2:]
    assert log.log_start_offset == 2
    assert names(storage.fs, ".deleted")
    storage.pass_time(500)
    storage.manager.tick()
    assert not [name for name in names(storage.fs, ".deleted") if name.startswith("0" * 20)]
    storage.check()


@pytest.mark.parametrize("step_ms", [-600_000, 70_000, 3_600_000])
def test_a_step_of_the_wall_clock_does_not_change_delays(step_ms: int) -> None:
    storage = small(file_delete_delay_ms=60_000, flush_ms=60_000, retention_bytes=SEGMENT)
    fill(storage)
    storage.create("gone")
    storage.manager.tick()
    storage.manager.delete("gone", 0)
    log = storage.manager.logs["t", 0]
    storage.manager.checkpoint()
    append(log, b"more", timestamp=START_MS, epoch=9)
    waiting, end = set(names(storage.fs, ".deleted")), log.log_end_offset
    assert waiting
    assert names(storage.fs, "-delete", DATA)
    storage.step_wall(step_ms)
    storage.pass_time(59_999)
    storage.manager.tick()
    assert waiting <= set(names(storage.fs, ".deleted"))
    assert names(storage.fs, "-delete", DATA)
    assert log.recovery_point < end
    storage.pass_time(1)
    storage.manager.tick()
    assert not waiting & set(names(storage.fs, ".deleted"))
    assert not names(storage.fs, "-delete", DATA)
    assert log.recovery_point == end
    storage.check()


def test_retention_of_everything_leaves_an_empty_log_at_its_end() -> None:
    storage = small(retention_ms=1000)
    fill(storage)
    log = storage.manager.logs["t", 0]
    storage.pass_time(5000)
    storage.manager.tick()
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (10, 10, 1)
    storage.manager.tick()
    assert len(log.segments) == 1
    assert storage.restart().log_end_offset == 10
    storage.check()


def test_retention_by_size_never_goes_below_the_limit() -> None:
    storage = small()
    expected = fill(storage)
    log = storage.manager.logs["t", 0]
    log.config = log.config._replace(retention_bytes=log.size - SEGMENT // 2)
    storage.manager.tick()
    assert values(log) == expected
    log.config = log.config._replace(retention_bytes=0)
    storage.manager.tick()
    assert values(log) == expected[8:]
    storage.check()


def test_retention_keeps_uncommitted_records() -> None:
    storage = small(retention_ms=0)
    expected = fill(storage)
    log = storage.manager.logs["t", 0]
    log.deletable_offset = 5
    storage.pass_time(10_000)
    storage.manager.tick()
    assert values(log) == expected[4:]
    storage.check()


def test_compacted_topics_are_not_deleted_by_age() -> None:
    storage = small(retention_ms=0, cleanup_policy=frozenset({"compact"}))
    expected = fill(storage)
    storage.pass_time(10_000)
    storage.manager.tick()
    assert values(storage.manager.logs["t", 0]) == expected
    storage.check()


def test_flush_by_count_and_by_time() -> None:
    storage = MemoryStorage(flush_messages=3, flush_ms=1000)
    log = storage.create()
    for _ in range(3):
        append(log)
    storage.manager.tick()
    assert log.recovery_point == 3
    append(log)
    storage.manager.tick()
    assert log.recovery_point == 3
    storage.pass_time(1000)
    storage.manager.tick()
    assert log.recovery_point == 4
    storage.check()


def test_a_sync_that_fails_is_no_flush() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log)
    with storage.fs.failing("fsync", errno.EIO), pytest.raises(StorageFailure):
        log.flush()
    assert log.recovery_point == 0
    storage.check()


def test_the_name_of_a_deleted_partition_is_available_at_once() -> None:
    storage = small(file_delete_delay_ms=500)
    fill(storage)
    storage.manager.delete("t", 0)
    storage.manager.delete("t", 0)
    log = storage.create()
    assert log.log_end_offset == 0
    append(log, b"new")
    assert len([name for name in storage.fs.listdir(DATA) if name.endswith("-delete")]) == 1
    storage.pass_time(500)
    storage.manager.tick()
    assert not [name for name in storage.fs.listdir(DATA) if name.endswith("-delete")]
    assert values(storage.restart()) == [b"new"]
    storage.manager.delete("t", 0)
    storage.manager.close()
    assert storage.start().logs == {}
    assert not [name for name in storage.fs.listdir(DATA) if name.endswith("-delete")]
    storage.check()


def test_a_long_topic_name_fits_the_deleted_name() -> None:
    storage = MemoryStorage()
    storage.create("n" * 249)
    storage.manager.delete("n" * 249, 0)
    (name,) = [name for name in storage.fs.listdir(DATA) if name.endswith("-delete")]
    assert len(name) <= 255


def test_the_topic_id_is_kept() -> None:
    storage = MemoryStorage()
    storage.create()
    assert storage.restart().topic_id == TOPIC_ID
    storage.manager.close()
    path = f"{DATA}/t-0/partition.metadata"
    replace_file(storage.fs, path, b"version: 0\ntopic_id: nonsense\n", sync=False)
    assert storage.start().logs["t", 0].topic_id == bytes(16)


def test_the_topic_id_outlives_a_power_loss_before_the_first_flush() -> None:
    """A file system may make a directory entry durable before the file's contents."""
    storage = MemoryStorage()
    storage.create()
    storage.fs.fsync_dir(DATA)
    storage.fs.fsync_dir(f"{DATA}/t-0")
    storage.lose_power()
    assert storage.manager.logs["t", 0].topic_id == TOPIC_ID
    storage.check()


@pytest.mark.parametrize("written", [True, False])
def test_a_power_loss_between_writing_the_topic_id_and_renaming_it(written: bool) -> None:
    storage = MemoryStorage()
    storage.create()
    path = f"{DATA}/t-0/partition.metadata"
    content = contents(storage.fs, path)
    storage.fs.kill()
    storage.fs.rename(path, f"{path}.tmp")
    if not written:
        truncate(storage.fs, f"{path}.tmp", len(content) // 2)
    assert storage.start().logs["t", 0].topic_id == (TOPIC_ID if written else bytes(16))
    assert storage.fs.exists(path) == written
    assert not storage.fs.exists(f"{path}.tmp")


def test_a_second_broker_is_refused() -> None:
    storage = MemoryStorage()
    with pytest.raises(LogDirLocked, match=r"/data is in use by another broker"):
        storage.start()
    storage.fs.kill()
    storage.start()


def test_another_brokers_directory_is_refused() -> None:
    storage = MemoryStorage()
    storage.manager.close()
    for node_id, cluster_id, text in ((2, "c", "broker 1"), (1, "d", "cluster c")):
        manager = LogManager([DATA], fs=storage.fs, now_ms=lambda: 0, node_id=node_id, cluster_id=cluster_id)
        with pytest.raises(InconsistentMetadata, match=text):
            manager.load()
    storage.start()
    with pytest.raises(InconsistentMetadata):
        storage.manager.adopt_cluster_id("d")


def test_a_cluster_id_is_adopted() -> None:
    storage = MemoryStorage()
    storage.manager.close()
    storage.fs.files[f"{DATA}/meta.properties"].data[:] = b"# old\nversion=0\nbroker.id=1\n"
    manager = LogManager([DATA], fs=storage.fs, now_ms=lambda: 0)
    manager.load()
    manager.adopt_cluster_id("new")
    properties = checkpoints.read_meta_properties(storage.fs, DATA)
    assert properties is not None
    assert (properties.node_id, properties.cluster_id) == (1, "new")


def test_a_directory_is_suspect_after_a_machine_crash_but_not_after_a_process_crash() -> None:
    storage = MemoryStorage()
    storage.manager.close()

    def start(boot_id: str | None) -> LogManager:
        manager = LogManager([DATA], fs=storage.fs, now_ms=lambda: 0, recovery_threads=1, boot_id=boot_id)
        manager.load()
        return manager

    manager = start("first")
    assert not manager.suspect  # the broker stopped cleanly
    manager.trust()
    storage.fs.kill()
    assert not start("first").suspect
    storage.fs.lose_power()
    manager = start("second")
    assert manager.suspect == manager.directory_ids
    storage.fs.kill()  # stopped before the boot id was written
    manager = start("second")
    assert manager.suspect
    manager.trust()
    assert not manager.suspect
    storage.fs.kill()
    manager = start("second")
    assert not manager.suspect
    manager.close()
    assert not start("third").suspect
    storage.fs.kill()
    assert start(None).suspect  # without a boot id it is unknown whether the machine restarted


def test_each_directory_gets_an_id_of_its_own() -> None:
    storage = MemoryStorage()
    storage.manager.close()
    storage.fs.files[f"{DATA}/meta.properties"].data[:] = b"# old\nversion=0\nbroker.id=1\n"
    manager = storage.start()
    ids = manager.directory_ids
    manager.adopt_cluster_id("c")
    assert manager.directory_ids == ids
    manager.close()
    assert storage.start().directory_ids == ids
    storage.create()
    assert storage.manager.directory_id_of(("t", 0)) in ids
    assert storage.manager.directory_id_of(("t", 1)) is None
    assert MemoryStorage().manager.directory_ids != ids


def test_a_directory_that_can_not_be_read() -> None:
    storage = MemoryStorage()
    storage.manager.close()
    with storage.fs.failing("listdir", errno.EACCES), pytest.raises(StorageFailure, match="Permission denied"):
        storage.start()
    storage.start()


def test_partitions_spread_over_directories() -> None:
    storage = MemoryStorage()
    storage.manager.close()
    manager = LogManager(["/a", "/b"], fs=storage.fs, now_ms=lambda: START_MS)
    manager.load()
    for partition in range(4):
        append(manager.create("t", partition, TOPIC_ID), b"x")
    usage = manager.usage()
    assert [(entry.path, len(entry.partitions)) for entry in usage] == [("/a", 2), ("/b", 2)]
    assert all(partition.size > 0 for entry in usage for partition in entry.partitions)
    manager.close()
    manager = LogManager(["/a", "/b"], fs=storage.fs, now_ms=lambda: 0, recovery_threads=1)
    manager.load(config_of=lambda topic: LogConfig(retention_ms=5))
    assert all(log.config.retention_ms == 5 and len(read_all(log)) == 1 for log in manager.logs.values())
    manager.delete("t", 1)
    manager.delete("t", 1)
    made = [manager.create("u", partition, TOPIC_ID).directory for partition in range(3)]
    assert made == ["/b/u-0", "/a/u-1", "/b/u-2"]
    manager.close()


@pytest.mark.parametrize(("step", "expected"), [(0.0, [(4, 4)]), (1.0, [(1, 4), (2, 4), (3, 4), (4, 4)])])
def test_progress_is_told_every_second_and_at_the_end(step: float, expected: list[tuple[int, int]]) -> None:
    """step: how many seconds pass between two looks at the clock."""
    storage = MemoryStorage()
    for partition in range(4):
        storage.manager.create("t", partition, TOPIC_ID)
    storage.manager.close()
    told: list[tuple[int, int]] = []
    manager = LogManager([DATA], fs=storage.fs, now_ms=lambda: START_MS, seconds=itertools.count(step=step).__next__)
    manager.load(lambda *progress: told.append(progress))
    assert told == expected
    manager.close()


def test_a_partition_in_two_directories_is_offline() -> None:
    storage = MemoryStorage()
    append(storage.create())
    storage.manager.close()
    storage.fs.mkdir("/b/t-0")
    manager = LogManager([DATA, "/b"], fs=storage.fs, now_ms=lambda: 0)
    manager.load()
    assert manager.logs == {}
    assert "/b/t-0" in str(manager.offline["t", 0])
    with pytest.raises(type(manager.offline["t", 0])):
        manager.create("t", 0, TOPIC_ID)
    manager.close()
    assert not storage.fs.exists(f"{DATA}/.kafka_cleanshutdown")


def test_create_is_idempotent() -> None:
    storage = MemoryStorage()
    assert storage.create() is storage.create()


@pytest.mark.parametrize("appended", [1, 12])
def test_records_appended_during_retention_are_kept(monkeypatch: pytest.MonkeyPatch, appended: int) -> None:
    storage = small(retention_ms=1000)
    fill(storage, 3)
    log = storage.manager.logs["t", 0]
    storage.pass_time(10_000)
    judge = retention._reason
    late: list[bytes] = []

    def while_appending(*arguments: Any, active: bool) -> str | None:
        reason = judge(*arguments, active=active)
        if active and not late:
            late.extend(b"late %d" % at for at in range(appended))
            for value in late:
                append(log, value, timestamp=storage.now_ms, epoch=9)
        return reason

    monkeypatch.setattr(retention, "_reason", while_appending)
    retention.retain(log, storage.now_ms)
    assert values(log)[-appended:] == late
    storage.check()


def test_logs_beyond_the_partition_limit_are_not_opened() -> None:
    storage = MemoryStorage()
    for topic in ("a", "b", "c", "__own"):
        append(storage.create(topic), b"value")
    storage.manager.close()
    manager = LogManager([DATA], fs=storage.fs, now_ms=lambda: START_MS, node_id=1, partition_limit=2)
    manager.load()
    assert set(manager.logs) == {("__own", 0), ("a", 0)}
    assert set(manager.offline) == {("b", 0), ("c", 0)}
    for topic in ("b", "new"):
        with pytest.raises(TooManyPartitions):
            manager.create(topic, 0, TOPIC_ID)
    assert not storage.fs.exists(f"{DATA}/new-0")
    manager.create("__another", 0, TOPIC_ID)
    manager.delete("c", 0)
    assert not storage.fs.exists(f"{DATA}/c-0")
    manager.close()
    assert storage.fs.exists(f"{DATA}/.kafka_cleanshutdown")
    storage.start()
    assert set(storage.manager.logs) == {("__own", 0), ("__another", 0), ("a", 0), ("b", 0)}
    assert values(storage.manager.logs["b", 0]) == [b"value"]
    storage.check()


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 4096, 262_144])
def test_partitions_leave_descriptors_for_the_rest(descriptors: int) -> None:
    most = most_partitions(descriptors)
    assert descriptors // 4 <= most <= descriptors * 3 // 4
    assert 256 <= most_cached_files(descriptors) <= max(descriptors // 16, 256)
