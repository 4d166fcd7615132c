"""What a start and a stop do with each of many small logs: counted, since a broker may have 10,000 of them."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from pylogd.broker.log.bulk_loader import SYNCED_TOGETHER
from pylogd.broker.log.files import replace_file
from pylogd.broker.log.snapshots import restore_producers
from tests.fakes.storage import DATA, START_MS, MemoryStorage, append, contents, flip_byte, names, truncate, values

LOG = f"{DATA}/t-3"
SEGMENT = f"{LOG}/{0:020d}"
EPOCHS = f"{LOG}/leader-epoch-checkpoint"
SNAPSHOT = f"{LOG}/{3:020d}.snapshot"
MARKER = f"{DATA}/.kafka_cleanshutdown"
LARGE = b"x" * 20_000


def filled(**options: int) -> MemoryStorage:
    """Return a storage with so many logs that their volume is synced, of three batches each; nothing is counted yet."""
    storage = MemoryStorage()
    for partition in range(SYNCED_TOGETHER):
        log = storage.create(partition=partition)
        for at, value in enumerate((b"1", b"2", b"3")):
            numbers = options | {"base_sequence": at} if options else {}
            append(log, value, epoch=1, timestamp=START_MS + at, **numbers)
    storage.fs.calls.clear()
    return storage


def idempotent() -> MemoryStorage:
    """Return the same, written by an idempotent producer."""
    return filled(producer_id=7, producer_epoch=0)


def calls_for_one_log(storage: MemoryStorage) -> list[str]:
    """Return the counted calls for one of the logs."""
    return [call for call in storage.fs.calls if call.partition(" ")[2].startswith(f"{LOG}/") or call.endswith(LOG)]


def check_all(storage: MemoryStorage, *more: bytes) -> None:
    """Check that each log has its records, producers apart, and that no file contradicts them."""
    for partition in range(SYNCED_TOGETHER):
        assert values(storage.manager.logs["t", partition]) == [b"1", b"2", b"3", *more]
    storage.check()


@pytest.mark.parametrize("fill", [filled, idempotent])
def test_a_recovery_reads_each_file_once_and_writes_none(fill: Callable[[], MemoryStorage]) -> None:
    storage = fill()
    storage.kill()
    metadata = f"{LOG}/partition.metadata"
    assert calls_for_one_log(storage) == [
        f"open {metadata}", f"pread {metadata}",
        f"listdir {LOG}", f"stamp {SEGMENT}.log", f"open {SEGMENT}.log", f"pread {SEGMENT}.log",
    ]  # fmt: skip
    assert storage.fs.open_paths() == [f"{DATA}/.lock"]
    check_all(storage)


def test_a_stop_writes_only_the_leader_epochs() -> None:
    storage = filled()
    storage.manager.close()
    assert calls_for_one_log(storage) == [
        f"open {EPOCHS}.tmp", f"pwritev {EPOCHS}.tmp", f"rename {EPOCHS}.tmp",
        f"listdir {LOG}", f"stamp {SEGMENT}.log", f"stamp {LOG}",
    ]  # fmt: skip
    syncs = [call for call in storage.fs.calls if "sync" in call and "tmp" not in call and call != f"fsync_dir {DATA}"]
    assert syncs == [f"sync_volume {DATA}/.lock"] * 2
    storage.fs.calls.clear()
    storage.lose_power()
    assert calls_for_one_log(storage) == [f"stamp {LOG}", f"stamp {SEGMENT}.log"]
    check_all(storage)


def test_a_stop_writes_a_snapshot_of_producers_that_a_start_does_not_read() -> None:
    storage = idempotent()
    storage.manager.close()
    made = [call for call in calls_for_one_log(storage) if call.startswith(("open", "rename"))]
    assert made == [f"open {EPOCHS}.tmp", f"open {SNAPSHOT}", f"rename {EPOCHS}.tmp"]
    storage.fs.calls.clear()
    storage.lose_power()
    assert calls_for_one_log(storage) == [f"stamp {LOG}", f"stamp {SEGMENT}.log", f"stamp {SNAPSHOT}"]
    assert all(log.producers.next_sequence(7, 0) == 3 for log in storage.manager.logs.values())
    check_all(storage)


def test_the_snapshot_of_many_producers_is_read_from_its_file() -> None:
    storage = MemoryStorage()
    log = storage.create(partition=3)
    for producer in range(30):
        append(log, b"1", producer_id=producer, producer_epoch=0, base_sequence=0)
    storage.manager.close()
    storage.fs.calls.clear()
    storage.start()
    assert any(call.startswith("pread") and call.endswith(".snapshot") for call in storage.fs.calls)
    assert len(storage.manager.logs["t", 3].producers) == 30
    storage.check()


def test_a_second_stop_writes_nothing() -> None:
    storage = idempotent()
    storage.manager.close()
    storage.start()
    storage.fs.calls.clear()
    storage.manager.close()
    assert calls_for_one_log(storage) == [
        f"listdir {LOG}", f"stamp {SEGMENT}.log", f"stamp {LOG}", f"stamp {SNAPSHOT}",
    ]  # fmt: skip


def stop_after_a_new_epoch(storage: MemoryStorage, operation: str, after: int) -> None:
    """Write the epochs, append one more batch of another epoch to each log, and stop, which fails at a call."""
    storage.restart()
    for log in storage.manager.logs.values():
        append(log, b"4", epoch=2)
    storage.fs.calls.clear()
    with storage.fs.failing(operation, errno.EIO, after=after, path="epoch" if operation == "rename" else ""):
        storage.manager.close()
    assert not storage.fs.exists(MARKER)


@pytest.mark.parametrize(("operation", "after"), [("sync_volume", 0), ("sync_volume", 1), ("rename", 0), ("rename", 9)])
@pytest.mark.parametrize("torn", [0, 3])
def test_leader_epochs_survive_a_loss_of_power_in_a_stop(operation: str, after: int, torn: int) -> None:
    storage = filled()
    stop_after_a_new_epoch(storage, operation, after)
    storage.fs.calls.clear()
    storage.lose_power(torn)
    for log in storage.manager.logs.values():
        kept = values(log)
        assert kept[:3] == [b"1", b"2", b"3"], "they were durable before"
        assert log.epochs.entries() == [(1, 0), (2, 3)][: len(kept) - 2]
    storage.check()


def test_a_file_of_leader_epochs_is_replaced_only_when_its_successor_is_durable() -> None:
    storage = filled()
    stop_after_a_new_epoch(storage, "sync_volume", 1)
    renamed = storage.fs.calls.index(f"rename {EPOCHS}.tmp")
    synced = [at for at, call in enumerate(storage.fs.calls) if call.startswith("sync_volume")]
    assert synced[-2] < renamed < synced[-1]
    storage.kill()
    check_all(storage, b"4")


def test_leader_epochs_that_could_not_be_written_replace_none() -> None:
    storage = filled()
    storage.restart()
    for log in storage.manager.logs.values():
        append(log, b"4", epoch=2)
    with storage.fs.failing("pwritev", errno.ENOSPC, path=f"{EPOCHS}.tmp", partial=2):
        storage.manager.close()
    assert contents(storage.fs, EPOCHS) == b"0\n1\n1 0\n"
    assert contents(storage.fs, EPOCHS.replace("t-3", "t-4")) == b"0\n2\n1 0\n2 3\n"
    assert not storage.fs.exists(MARKER)
    storage.kill()
    check_all(storage, b"4")


def test_a_small_log_without_index_files_finds_offsets_and_time_stamps(caplog: pytest.LogCaptureFixture) -> None:
    storage = filled()
    storage.manager.close()
    storage.start()
    log = storage.manager.logs["t", 3]
    assert [log.offset_for_timestamp(START_MS + at, allow_cold=True) for at in range(3)] == [
        (START_MS + at, at, 1) for at in range(3)
    ]
    assert values(log, 1) == [b"2", b"3"]
    assert not names(storage.fs, "index", LOG)
    assert "indexes" not in caplog.text
    check_all(storage)


def test_a_log_that_has_grown_gets_its_index_files_and_its_snapshot() -> None:
    storage = filled()
    storage.kill()
    append(storage.manager.logs["t", 3], LARGE, epoch=1)
    storage.manager.close()
    assert names(storage.fs, "index", LOG) == [f"{0:020d}.index", f"{0:020d}.timeindex"]
    assert names(storage.fs, "snapshot", LOG) == [f"{4:020d}.snapshot"]
    storage.start()
    storage.kill()
    assert names(storage.fs, "index", LOG) == [f"{0:020d}.index", f"{0:020d}.timeindex"]
    storage.check()


@pytest.mark.parametrize("harm", ["none", "truncated", "damaged"])
def test_a_recovery_replaces_the_index_files_of_a_small_log(harm: str) -> None:
    """Earlier versions wrote them. A time index would go on naming a batch that is gone."""
    storage = filled()
    storage.manager.close()
    storage.fs.unlink(MARKER)
    for suffix in ("index", "timeindex"):
        stamp = (START_MS + 2).to_bytes(8, "big") + (2).to_bytes(4, "big")
        replace_file(storage.fs, f"{SEGMENT}.{suffix}", stamp if suffix == "timeindex" else b"", sync=True)
    if harm == "truncated":
        truncate(storage.fs, f"{SEGMENT}.log", storage.fs.size(f"{SEGMENT}.log") - 1)
    elif harm == "damaged":
        flip_byte(storage.fs, f"{SEGMENT}.log", storage.fs.size(f"{SEGMENT}.log") - 1)
    storage.kill()
    log = storage.manager.logs["t", 3]
    kept = 3 if harm == "none" else 2
    assert log.max_timestamp(allow_cold=True) == (START_MS + kept - 1, kept - 1, 1)
    storage.check()


def test_a_damaged_batch_in_a_small_tail_is_found() -> None:
    storage = idempotent()
    flip_byte(storage.fs, f"{SEGMENT}.log", storage.fs.size(f"{SEGMENT}.log") - 1)
    storage.kill()
    log = storage.manager.logs["t", 3]
    assert values(log) == [b"1", b"2"]
    assert log.producers.next_sequence(7, 0) == 2
    assert storage.fs.size(f"{SEGMENT}.log") == log.size
    storage.check()


def test_a_stop_that_can_not_write_a_snapshot_is_not_clean() -> None:
    storage = idempotent()
    with storage.fs.failing("pwritev", errno.ENOSPC, path=SNAPSHOT):
        storage.manager.close()
    assert not storage.fs.exists(MARKER)
    storage.kill()
    check_all(storage)


def test_a_recovery_that_reads_all_segments_restores_the_producers_of_a_replay() -> None:
    storage = MemoryStorage(segment_bytes=200)
    log = storage.create()
    for at in range(7):
        append(log, b"%d" % at, producer_id=at % 2, producer_epoch=at // 6, base_sequence=at % 6 // 2)
    log = storage.kill()
    found = type(log.producers)()
    restore_producers(storage.fs, log.directory, log.segments, log.log_end_offset, found)
    assert log.producers.to_snapshot() == found.to_snapshot()
    assert len(found) == 2
    storage.check()
