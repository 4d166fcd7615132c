"""A round of maintenance looks closely at logs that have changed, or of which something expires, and at no others."""

from __future__ import annotations

import pytest

from pylogd.broker.log import maintenance
from pylogd.broker.log.log import Log
from tests.fakes.storage import MemoryStorage, append, values

HOUR_MS = 3_600_000


class Rounds:
    """The logs that rounds maintain."""

    def __init__(self, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
        self._storage = storage
        self._maintained: list[int] = []
        maintain = maintenance._maintain

        def counted(log: Log, now_ms: int, now: float) -> None:
            self._maintained.append(log.partition)
            maintain(log, now_ms, now)

        monkeypatch.setattr(maintenance, "_maintain", counted)

    def maintained(self) -> list[int]:
        """Have a round; return the partitions of the logs that were maintained."""
        self._maintained.clear()
        self._storage.manager.tick()
        return list(self._maintained)


@pytest.fixture
def storage() -> MemoryStorage:
    """Return a storage with ten logs, of which records expire after an hour."""
    storage = MemoryStorage(retention_ms=HOUR_MS, segment_bytes=200)
    for index in range(10):
        append(storage.create(partition=index), b"v", timestamp=storage.now_ms)
    return storage


@pytest.fixture
def rounds(storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """Return the rounds of the storage."""
    return Rounds(storage, monkeypatch)


def test_idle_logs_cost_a_comparison(storage: MemoryStorage, rounds: Rounds) -> None:
    assert rounds.maintained() == list(range(10))
    storage.fs.calls.clear()
    assert rounds.maintained() == []
    assert storage.fs.calls == []
    storage.check()


def test_what_has_changed_is_maintained(storage: MemoryStorage, rounds: Rounds) -> None:
    rounds.maintained()
    logs = [storage.manager.logs["t", index] for index in range(10)]
    append(logs[1], b"w")
    logs[2].delete_records_before(1)
    logs[3].config = logs[3].config._replace(retention_bytes=0)
    logs[4].deletable_offset = 0
    storage.manager.truncate_to("t", 5, 0)
    assert rounds.maintained() == [1, 2, 3, 4, 5]
    assert rounds.maintained() == []
    storage.check()


def test_what_expires_is_deleted_in_time_and_its_files_after_the_delay(storage: MemoryStorage, rounds: Rounds) -> None:
    rounds.maintained()
    storage.pass_time(HOUR_MS)
    assert rounds.maintained() == []
    storage.pass_time(1)
    assert rounds.maintained() == list(range(10))
    assert not any(map(values, storage.manager.logs.values()))
    assert rounds.maintained() == list(range(10)), "as long as files are to be removed"
    storage.pass_time(storage.config.file_delete_delay_ms)
    rounds.maintained()
    assert not any(path.endswith(".deleted") for path in storage.fs.files)
    assert rounds.maintained() == []
    storage.check()


def test_a_log_with_producers_is_maintained_until_they_expire(storage: MemoryStorage, rounds: Rounds) -> None:
    rounds.maintained()
    append(storage.manager.logs["t", 7], b"w", producer_id=7, producer_epoch=0, base_sequence=0)
    assert [rounds.maintained() for _ in range(2)] == [[7], [7]]


def test_a_new_log_of_the_same_name_is_not_taken_for_the_old_one(storage: MemoryStorage, rounds: Rounds) -> None:
    rounds.maintained()
    storage.manager.delete("t", 0)
    append(storage.create(), b"v", timestamp=storage.now_ms)
    assert rounds.maintained() == [0]


def test_a_log_that_is_flushed_by_time_is_maintained_until_it_is_flushed() -> None:
    storage = MemoryStorage(flush_ms=1000)
    log = storage.create()
    append(log, b"v")
    storage.manager.tick()
    assert log.recovery_point < 1
    storage.pass_time(1000)
    storage.manager.tick()
    assert log.recovery_point == 1
