"""Idempotent producers: duplicates are detected, gaps and old epochs refused, also after a restart."""

from __future__ import annotations

import errno
import tracemalloc
from typing import Any

import pytest

from pylogd.broker.log.append.result import AppendResult
from pylogd.broker.log.errors import InvalidProducerEpoch, InvalidRecord, OutOfOrderSequence, StorageFailure
from pylogd.broker.log.log import Log
from pylogd.broker.log.producers import MAX_SEQUENCE, REMEMBERED, Producers, SnapshotCorrupt, read_snapshot
from pylogd.broker.log.retention import retain
from pylogd.broker.log.transactions import VerificationGuard
from pylogd.broker.log.truncation import truncate_to
from tests.fakes.storage import START_MS, MemoryStorage, append, batch, flip_byte, names, values


def send(log: Log, sequence: int, *data: bytes, producer: int = 7, epoch: int = 0) -> AppendResult:
    """Append a batch of an idempotent producer."""
    return append(log, *(data or (b"v",)), producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def test_a_duplicate_is_answered_with_the_first_offsets() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log, b"other")
    first = send(log, 0, b"a", b"b")
    for sequence in range(2, 6):
        send(log, sequence)
    assert send(log, 0, b"a", b"b") == first._replace(duplicate=True)
    assert log.log_end_offset == 7
    send(log, 6)
    with pytest.raises(OutOfOrderSequence):
        send(log, 0, b"a", b"b")  # the sixth batch from the end, which is forgotten
    storage.check()


def test_gaps_and_partial_duplicates_are_refused() -> None:
    storage = MemoryStorage()
    log = storage.create()
    send(log, 0, b"a", b"b")
    for sequence in (1, 3, 5):
        with pytest.raises(OutOfOrderSequence):
            send(log, sequence)
    with pytest.raises(OutOfOrderSequence):
        send(log, 0, b"a")
    assert send(log, 2).base_offset == 2
    storage.check()


def test_an_unknown_producer_may_start_anywhere() -> None:
    storage = MemoryStorage()
    log = storage.create()
    assert send(log, 1000).base_offset == 0
    assert send(log, 1001).base_offset == 1
    storage.check()


def test_epochs() -> None:
    storage = MemoryStorage()
    log = storage.create()
    send(log, 0, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        send(log, 1, epoch=0)
    with pytest.raises(OutOfOrderSequence):
        send(log, 1, epoch=2)
    assert send(log, 0, epoch=2).base_offset == 1
    with pytest.raises(InvalidProducerEpoch):
        send(log, 0, epoch=1)
    storage.check()


def test_sequences_start_over() -> None:
    storage = MemoryStorage()
    log = storage.create()
    send(log, MAX_SEQUENCE - 1)
    last = send(log, MAX_SEQUENCE, b"a", b"b", b"c")
    assert send(log, 2).base_offset == 4
    assert send(log, MAX_SEQUENCE, b"a", b"b", b"c") == last._replace(duplicate=True)
    assert values(storage.kill()) == [b"v", b"a", b"b", b"c", b"v"]
    storage.check()


def test_a_new_batch_behind_a_repeated_one_is_not_taken_for_a_repetition() -> None:
    """KIP-98 requests have one batch for a partition: the answer to several could not say which are in the log."""
    storage = MemoryStorage()
    log = storage.create()
    options: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    first, second = batch(b"a", b"b", base_sequence=0, **options), batch(b"c", base_sequence=2, **options)
    log.append(first, leader_epoch=0)
    for records in (first + second, second + first, second + batch(b"d", base_sequence=3, **options)):
        with pytest.raises(InvalidRecord, match="only one record batch"):
            log.append(records, leader_epoch=0)
    assert values(log) == [b"a", b"b"]
    assert not log.append(second, leader_epoch=0).duplicate
    storage.check()


def test_state_survives_a_clean_stop_a_crash_and_a_lost_snapshot() -> None:
    storage = MemoryStorage(segment_bytes=200)
    log = storage.create()
    for sequence in range(6):
        send(log, sequence)
    log = storage.restart()
    assert send(log, 5).duplicate
    send(log, 6)
    log = storage.kill()
    assert send(log, 6).duplicate
    send(log, 7)
    storage.manager.close()
    for name in names(storage.fs, ".snapshot"):
        flip_byte(storage.fs, f"/data/t-0/{name}", 7)
    log = storage.start().logs["t", 0]
    assert send(log, 7).duplicate
    send(log, 8)
    storage.check()


def test_truncation_restores_the_state_of_producers() -> None:
    storage = MemoryStorage(segment_bytes=200)
    log = storage.create()
    for sequence in range(8):
        send(log, sequence)
    truncate_to(log, 3)
    assert send(log, 2).duplicate
    with pytest.raises(OutOfOrderSequence):
        send(log, 5)
    assert send(log, 3).base_offset == 3
    truncate_to(log, 0)
    assert send(log, 0).base_offset == 0
    storage.check()


def test_retention_leaves_the_state() -> None:
    storage = MemoryStorage(segment_bytes=200, retention_ms=1000)
    log = storage.create()
    for sequence in range(7):
        send(log, sequence)
    storage.pass_time(5000)
    storage.manager.tick()
    assert log.log_start_offset == 7
    log = storage.kill()
    assert send(log, 6).duplicate
    storage.check()


@pytest.mark.parametrize("kept", [1, 0])
def test_retention_leaves_the_state_if_a_crash_came_before_the_snapshot(kept: int) -> None:
    storage = MemoryStorage(segment_bytes=200)
    log = storage.create()
    for sequence in range(7):
        send(log, sequence)
    if not kept:
        log.roll(log.log_end_offset, storage.now_ms)  # the active segment is empty
    storage.manager.checkpoint()
    log = storage.kill()
    assert not names(storage.fs, ".snapshot")
    log.deletable_offset = log.log_end_offset
    log.delete_records_before(7 - kept)
    storage.manager.tick()
    assert log.segments[0].base_offset == 7 - kept
    storage.manager.checkpoint()
    log = storage.kill()
    assert send(log, 5).duplicate
    assert send(log, 6).duplicate
    assert send(log, 7).base_offset == 7
    storage.check()


def test_a_full_disk_keeps_batches_that_no_snapshot_covers() -> None:
    storage = MemoryStorage(segment_bytes=200)
    log = storage.create()
    for sequence in range(7):
        send(log, sequence)
    storage.manager.checkpoint()
    log = storage.kill()
    log.deletable_offset = log.log_end_offset
    log.delete_records_before(6)
    assert retain(log, storage.now_ms, durable_only=True) == 0
    assert retain(log, storage.now_ms) > 0
    log = storage.kill()
    assert send(log, 6).duplicate


def test_inactive_producers_are_removed() -> None:
    storage = MemoryStorage(producer_id_expiration_ms=1000)
    log = storage.create()
    send(log, 0)
    storage.pass_time(1000)
    storage.manager.tick()
    assert len(log.producers) == 1
    storage.pass_time(1)
    storage.manager.tick()
    assert len(log.producers) == 0
    assert send(log, 50).base_offset == 1
    storage.check()


def test_those_that_have_not_written_for_longest_are_forgotten() -> None:
    storage = MemoryStorage(producer_ids_max=16)
    log = storage.create()
    for producer in range(16):
        send(log, 0, producer=producer)
    send(log, 1, producer=0)
    send(log, 0, producer=16)
    assert list(log.producers.by_id) == [0, *range(3, 17)]
    assert send(log, 1, producer=0).duplicate
    assert not send(log, 0, producer=1).duplicate
    log = storage.kill()
    send(log, 0, producer=100)
    assert len(log.producers) <= 16
    storage.check()


@pytest.mark.parametrize(("batches", "most"), [(1, 360), (20, 540)])
def test_a_producer_takes_few_bytes(batches: int, most: int) -> None:
    producers = Producers()
    tracemalloc.start()
    try:
        for producer in range(10_000):
            for sequence in range(batches):
                producers.wrote(producer + 1000, 0, sequence, 0, 1_000_000_000_000 + sequence, START_MS + producer)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 10_000 * most


def test_a_snapshot_is_read_as_it_was_written() -> None:
    producers = Producers()
    producers.wrote(7, 1, 5, 2, 100, START_MS)
    producers.wrote(9, 0, 0, 0, 103, START_MS + 1)
    data = producers.to_snapshot()
    assert [entry[:6] for entry in read_snapshot(data)] == [
        (7, 1, 7, 102, 2, START_MS), (9, 0, 0, 103, 0, START_MS + 1),
    ]  # fmt: skip
    twin = Producers()
    twin.restore(data)
    assert twin.to_snapshot() == data
    for bad in (b"", data[:-1], b"\0\2" + data[2:], data[:8] + b"\xff" + data[9:]):
        with pytest.raises(SnapshotCorrupt):
            read_snapshot(bad)


def test_a_snapshot_has_all_batches_that_may_be_sent_again() -> None:
    producers = Producers()
    for number in range(7):
        producers.wrote(7, 1, 3 * number, 2, 100 + 3 * number, START_MS + number)
    producers.wrote(9, 0, 0, 1, 200, START_MS)
    twin = Producers()
    twin.restore(producers.to_snapshot())
    assert twin.by_id[7].batches == producers.by_id[7].batches
    assert len(read_snapshot(producers.to_snapshot())) == REMEMBERED + 1
    # Kafka, and pylogd before, take the last entry of a producer, and write no others.
    last = read_snapshot(producers.to_snapshot())[REMEMBERED - 1]
    assert (last.last_sequence, last.last_offset) == (20, 120)


def test_other_producers_have_no_state() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log)
    assert len(log.producers) == 0
    storage.check()


def test_batches_after_one_that_could_not_be_written_fail_in_the_same_way() -> None:
    """With OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka would begin a new epoch and send again what other replicas have."""
    storage = MemoryStorage()
    log = storage.create()
    send(log, 0)
    with storage.fs.failing("pwritev", errno.ENOSPC), pytest.raises(StorageFailure):
        send(log, 1)
    with pytest.raises(StorageFailure) as caught:
        send(log, 2)
    assert caught.value.is_full and isinstance(caught.value.__cause__, OutOfOrderSequence)
    send(log, 1)
    with pytest.raises(OutOfOrderSequence):
        send(log, 3)
    send(log, 2)
    assert log.log_end_offset == 3


def test_a_gap_long_after_a_failed_write_is_a_gap() -> None:
    storage = MemoryStorage()
    log = storage.create()
    send(log, 0)
    with storage.fs.failing("pwritev", errno.ENOSPC), pytest.raises(StorageFailure):
        send(log, 1)
    storage.seconds += 31.0
    with pytest.raises(OutOfOrderSequence):
        send(log, 2)


def test_verifications_of_producers_that_somebody_made_up_are_forgotten() -> None:
    producers = Producers(most=100)
    first = VerificationGuard(0, 0, False, 0)
    assert producers.keep_guard(1, first) is first
    assert producers.keep_guard(1, VerificationGuard(0, 0, False, 0)) is first
    for producer_id in range(1000):
        producers.keep_guard(2 + producer_id, VerificationGuard(0, 0, False, 0))
    assert len(producers.guards) == 100
    assert not producers.is_verified(1, 0, first)
