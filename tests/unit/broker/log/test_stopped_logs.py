"""The state of all logs that a clean stop leaves: believed only if nothing has changed, and never after a crash."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from pylogd.broker.log.append.direct import BatchList
from pylogd.broker.log.errors import LogAtRest
from pylogd.broker.log.files import replace_file
from pylogd.broker.log.stopped_logs import STOPPED_LOGS
from tests.fakes.storage import DATA, MemoryStorage, append, batch, contents, flip_byte, truncate, values

PATH = f"{DATA}/{STOPPED_LOGS}"
LOG = f"{DATA}/t-0/{0:020d}.log"


def stopped(partitions: int = 3, **settings: Any) -> MemoryStorage:
    """Return a storage that was stopped, with records 1, 2 and 3 in each log; nothing is counted yet."""
    storage = MemoryStorage(**settings)
    for index in range(partitions):
        log = storage.create(partition=index)
        for value in (b"1", b"2", b"3"):
            append(log, value, epoch=1)
    storage.manager.close()
    storage.fs.calls.clear()
    return storage


def started(storage: MemoryStorage) -> list[str]:
    """Start; return the calls on files of partitions."""
    storage.manager = storage.start()
    return [call for call in storage.fs.calls if f"{DATA}/t-" in call]


def test_a_start_compares_two_stamps_of_each_log() -> None:
    storage = stopped(3)
    paths = [path for index in range(3) for path in (f"{DATA}/t-{index}", LOG.replace("t-0", f"t-{index}"))]
    assert started(storage) == [f"stamp {path}" for path in paths]
    assert not storage.fs.exists(PATH), "it is gone before anything changes"
    for log in storage.manager.logs.values():
        assert log.at_rest
        assert (log.log_end_offset, log.recovery_point, log.epochs.entries()) == (3, 3, [(1, 0)])
        assert values(log) == [b"1", b"2", b"3"]
        assert not log.at_rest, "a reader opens it"
    storage.check()


def test_a_log_at_rest_is_opened_before_an_append_and_goes_on() -> None:
    storage = stopped(1, segment_bytes=200)
    started(storage)
    log = storage.manager.logs["t", 0]
    with pytest.raises(LogAtRest):
        log.append(batch(b"4"), leader_epoch=1, may_inspect=False)
    assert not log.append_batches(BatchList([memoryview(batch(b"4"))]), leader_epoch=1)
    log.open()
    log.open()  # again is no error
    assert log.append(batch(b"4"), leader_epoch=1, may_inspect=False).base_offset == 3
    assert values(log) == values(storage.restart()) == [b"1", b"2", b"3", b"4"]
    storage.check()


def test_a_stop_of_logs_at_rest_leaves_the_same_state() -> None:
    storage = stopped(2)
    first = contents(storage.fs, PATH)
    started(storage)
    storage.manager.close()
    assert contents(storage.fs, PATH) == first


def test_producers_are_restored() -> None:
    storage = MemoryStorage()
    append(storage.create(), b"1", producer_id=7, producer_epoch=0, base_sequence=0)
    log = storage.restart()
    assert log.at_rest
    assert log.producers.next_sequence(7, 0) == 1
    storage.check()


def test_nothing_is_believed_after_a_crash() -> None:
    storage = stopped(1)
    record = contents(storage.fs, PATH)
    started(storage)
    append(storage.manager.logs["t", 0], b"4", epoch=1)
    replace_file(storage.fs, PATH, record, sync=False)  # as if its removal had not reached the disk
    log = storage.kill()
    assert values(log) == [b"1", b"2", b"3", b"4"]
    storage.check()


def test_a_power_loss_after_a_stop_loses_nothing() -> None:
    storage = stopped(3)
    storage.lose_power()
    for index in range(3):
        assert values(storage.manager.logs["t", index]) == [b"1", b"2", b"3"]
    storage.check()


@pytest.mark.parametrize(
    "change",
    [
        lambda fs: truncate(fs, LOG, 100),
        lambda fs: flip_byte(fs, LOG, 10),
        lambda fs: fs.unlink(LOG),
        lambda fs: replace_file(fs, f"{DATA}/t-0/leader-epoch-checkpoint", b"0\n0\n", sync=False),
        lambda fs: replace_file(fs, f"{DATA}/t-0/notes.txt", b"mine", sync=False),
        lambda fs: replace_file(fs, f"{DATA}/recovery-point-offset-checkpoint", b"nonsense", sync=False),
        lambda fs: flip_byte(fs, PATH, 40),
        lambda fs: flip_byte(fs, PATH, 0),
        lambda fs: fs.unlink(PATH),
    ],
    ids=["shorter", "damaged", "gone", "epochs", "new file", "checkpoint", "record damaged", "version", "no record"],
)  # fmt: skip
def test_what_was_changed_after_the_stop_is_loaded_from_its_files(change: object) -> None:
    storage = stopped(2)
    assert callable(change)
    change(storage.fs)
    assert f"listdir {DATA}/t-0" in started(storage)
    assert values(storage.manager.logs["t", 1]) == [b"1", b"2", b"3"]


def test_a_directory_with_leftovers_is_left_out() -> None:
    storage = MemoryStorage(segment_bytes=200)
    log = storage.create()
    for value in (b"1", b"2", b"3"):
        append(log, value)
    log.flush()
    log.delete_records_before(2)
    storage.manager.tick()
    assert any(path.endswith(".deleted") for path in storage.fs.files)
    storage.manager.close()
    assert contents(storage.fs, PATH).endswith(b"\n[]")
    storage.manager = storage.start()
    assert not any(path.endswith(".deleted") for path in storage.fs.files)
    assert values(storage.manager.logs["t", 0]) == [b"3"]
    storage.check()


def test_without_space_for_the_record_there_is_no_marker() -> None:
    storage = MemoryStorage()
    append(storage.create(), b"1")
    with storage.fs.failing("pwritev", errno.ENOSPC, path=STOPPED_LOGS):
        storage.manager.close()
    assert not storage.fs.exists(f"{DATA}/.kafka_cleanshutdown")
    assert values(storage.start().logs["t", 0]) == [b"1"]


def test_a_log_that_ends_before_its_start_offset_is_loaded_from_its_files() -> None:
    storage = stopped(1)
    replace_file(storage.fs, f"{DATA}/log-start-offset-checkpoint", b"0\n1\nt 0 9\n", sync=False)
    started(storage)
    log = storage.manager.logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset) == (9, 9)
    storage.check()
