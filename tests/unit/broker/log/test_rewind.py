"""Producers after a truncation of a few batches: the state that the whole log has, found without reading it."""

from __future__ import annotations

from random import Random

import pytest

from pylogd.broker.log import truncation
from pylogd.broker.log.log import Log
from pylogd.broker.log.producers import Producers
from pylogd.broker.log.snapshots import restore_producers
from pylogd.broker.log.truncation import truncate_to
from tests.fakes.storage import MemoryStorage, append, contents, overwrite, values

State = dict[int, tuple[int, int, int, int]]


def state(producers: Producers) -> State:
    """Return what decides about the next batch of each producer."""
    return {
        number: (one.epoch, one.next_sequence, one.last_offset, one.last_seen_ms)
        for number, one in producers.by_id.items()
    }


def restored(storage: MemoryStorage, log: Log) -> Producers:
    """Return the producers as the whole log has them."""
    found = Producers()
    restore_producers(storage.fs, log.directory, log.segments, log.log_end_offset, found)
    return found


class Writer:
    """Appends batches of idempotent producers at random; each begins its epoch with sequence 0."""

    def __init__(self, log: Log, seed: int) -> None:
        self._log, self._rng = log, Random(seed)
        self._next: dict[int, tuple[int, int]] = {}

    def write(self, batches: int) -> None:
        for _ in range(batches):
            number = min(int(self._rng.expovariate(0.5)), 9)
            epoch, sequence = self._next.get(number, (0, 0))
            if self._rng.random() < 0.05:
                epoch, sequence = epoch + 1, 0
            count = self._rng.randint(1, 3)
            append(
                self._log, *[b"v"] * count, producer_id=number, producer_epoch=epoch, base_sequence=sequence,
                timestamp=self._log.log_end_offset,
            )  # fmt: skip
            self._next[number] = epoch, sequence + count


@pytest.mark.parametrize("seed", range(60))
def test_a_truncation_leaves_the_state_that_the_whole_log_has(seed: int) -> None:
    rng = Random(seed)
    storage = MemoryStorage(segment_bytes=rng.choice([600, 100_000]))
    log = storage.create()
    Writer(log, seed).write(rng.randint(1, 60))
    if rng.random() < 0.3:
        log.seal()
    truncate_to(log, max(log.log_end_offset - rng.randint(1, 30), 0))
    full = restored(storage, log)
    assert state(log.producers) == state(full)
    for number, producer in log.producers.by_id.items():  # each may know fewer batches than the other, but no others
        ours, theirs = producer.batches, full.by_id[number].batches
        common = min(len(ours), len(theirs))
        assert ours[-common:] == theirs[-common:]
    storage.check()


@pytest.fixture
def no_full_restoration(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the state was restored from the whole segment")

    monkeypatch.setattr(truncation, "restore_producers", refuse)


@pytest.mark.usefixtures("no_full_restoration")
@pytest.mark.parametrize("removed", [1, 4, 5, 9])
def test_a_truncation_of_a_few_batches_does_not_read_the_whole_segment(removed: int) -> None:
    storage = MemoryStorage()
    log = storage.create()
    for at in range(30):
        append(log, b"%d" % at, producer_id=7, producer_epoch=0, base_sequence=at)
    truncate_to(log, 30 - removed)
    assert log.producers.by_id[7].next_sequence == 30 - removed
    duplicate = log.producers.check(7, 0, 29 - removed, 0)
    assert duplicate is not None
    assert duplicate.base_offset == 29 - removed
    storage.check()


@pytest.mark.usefixtures("no_full_restoration")
def test_a_producer_whose_first_batch_is_removed_is_forgotten() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log, b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, b"b", producer_id=8, producer_epoch=0, base_sequence=0)
    truncate_to(log, 1)
    assert list(log.producers.by_id) == [7]
    assert values(log) == [b"a"]
    storage.check()


def test_batches_further_back_are_looked_for_in_larger_parts(
    monkeypatch: pytest.MonkeyPatch, no_full_restoration: None
) -> None:
    monkeypatch.setattr(truncation, "_FIRST_BYTES", 200)
    storage = MemoryStorage(index_interval_bytes=50)
    log = storage.create()
    append(log, b"a", producer_id=7, producer_epoch=3, base_sequence=4)
    for _ in range(20):
        append(log, b"b")
    for at in range(5):
        append(log, b"c", producer_id=7, producer_epoch=3, base_sequence=5 + at)
    truncate_to(log, 21)
    assert log.producers.by_id[7].next_sequence == 5
    assert log.producers.by_id[7].epoch == 3
    storage.check()


def test_what_is_damaged_can_be_removed() -> None:
    storage = MemoryStorage()
    log = storage.create()
    for at in range(3):
        append(log, b"%d" % at, producer_id=7, producer_epoch=0, base_sequence=at)
    path = log.segments[-1].path
    overwrite(storage.fs, path, contents(storage.fs, path)[: log.size // 3 * 2] + bytes(log.size // 3))
    truncate_to(log, 1)
    assert log.producers.by_id[7].next_sequence == 1
    storage.check()


@pytest.mark.parametrize("most", [100, 1 << 20])
def test_what_can_not_be_told_is_restored_in_full(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(truncation, "_MOST_BYTES", most)
    calls = []

    def restore(*args: object) -> None:
        calls.append(args)
        restore_producers(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(truncation, "restore_producers", restore)
    storage = MemoryStorage(segment_bytes=300)
    log = storage.create()
    append(log, b"a", producer_id=7, producer_epoch=1, base_sequence=0)
    for _ in range(20):
        append(log, b"b" * 20)
    append(log, b"c", producer_id=7, producer_epoch=2, base_sequence=0)
    truncate_to(log, 21 if most > 100 else 2)
    assert calls  # the last batch of that producer is in an earlier segment, or too much was removed
    assert log.producers.by_id[7].epoch == 1
    storage.check()
