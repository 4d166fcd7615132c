"""Open transactions, markers and the transaction index of a log."""

from __future__ import annotations

import pytest

from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.dump import dump_file
from pylogd.broker.log.errors import (
    InvalidProducerEpoch,
    OutOfOrderSequence,
    StorageFailure,
    TransactionalIdMissing,
    TransactionNotOpen,
)
from pylogd.broker.log.index import IndexCorrupt, TransactionIndex
from pylogd.broker.log.log import Log
from pylogd.broker.log.markers import encode_marker
from pylogd.broker.log.transactions import (
    UNGUARDED,
    VERIFICATION_OFF,
    AbortedTransaction,
    TransactionTerms,
    UnstableTransactions,
)
from pylogd.broker.log.validator import AppendOrigin
from pylogd.broker.log.verify import verify_log_dir
from pylogd.wire.records import TRANSACTIONAL, parse_header
from tests.fakes.storage import DATA, START_MS, MemoryStorage, append, batch, contents, flip_byte, is_bad, names

INDEX = f"{DATA}/t-0/{0:020d}.txnindex"


def write(
    log: Log, producer: int, sequence: int, epoch: int = 0, terms: TransactionTerms | None = VERIFICATION_OFF
) -> int:
    """Append one transactional record; return its offset."""
    data = batch(
        b"v" * 20, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, attributes=TRANSACTIONAL
    )
    return log.append(data, leader_epoch=0, terms=terms).base_offset


def end(log: Log, producer: int, *, committed: bool = False, epoch: int = 0, version: int = 1) -> int:
    """Append a marker; return its offset."""
    data = encode_marker(producer, epoch, START_MS, committed=committed, coordinator_epoch=4)
    terms = TransactionTerms(version=version)
    return log.append(data, leader_epoch=0, origin=AppendOrigin.COORDINATOR, terms=terms).base_offset


def aborted(log: Log) -> list[AbortedTransaction]:
    """Return the aborted transactions of the whole log."""
    return [one for segment in log.segments for one in segment.get_indexes(allow_cold=True).aborted.entries]


def overlapping_log(storage: MemoryStorage) -> Log:
    """Return a log in several segments: producer 1 aborts at 6, producer 2 at 7, 3 commits at 8, 4 stays open."""
    log = storage.create()
    for producer in (1, 2, 3, 1, 2, 4):
        write(log, producer, 0 if producer not in log.producers.by_id else 1)
    end(log, 1)
    end(log, 2)
    end(log, 3, committed=True)
    append(log, b"plain")
    return log


EXPECTED = [AbortedTransaction(1, 0, 6, 1), AbortedTransaction(2, 1, 7, 2)]


@pytest.mark.parametrize("how", ["restart", "kill"])
@pytest.mark.parametrize("segment_bytes", [250, 1 << 20])
def test_the_index_and_what_is_open_survive(how: str, segment_bytes: int) -> None:
    storage = MemoryStorage(LogConfig(segment_bytes=segment_bytes, index_interval_bytes=0))
    log = overlapping_log(storage)
    assert aborted(log) == EXPECTED
    assert log.producers.unstable.first_open == 5
    snapshot = log.producers.to_snapshot()
    log = getattr(storage, how)()
    assert aborted(log) == EXPECTED
    assert log.producers.to_snapshot() == snapshot
    assert log.producers.unstable.first_open == 5
    records = log.read(0, 1 << 20, allow_cold=True)
    assert records is not None
    assert log.aborted_in(0, records, 10, allow_cold=True) == EXPECTED
    storage.check()


def test_the_index_of_a_segment_survives_a_crash_right_after_its_end() -> None:
    storage = MemoryStorage(segment_bytes=200)
    log = storage.create()
    write(log, 1, 0)
    end(log, 1)
    log.flush()  # the recovery point is the end of the first segment
    append(log, b"v" * 60)
    assert len(log.segments) == 2
    storage.manager.checkpoint()
    for _ in range(2):
        log = storage.kill()
        assert log.has_aborted
        assert aborted(log) == [AbortedTransaction(1, 0, 1, 2)]
    storage.check()


@pytest.mark.parametrize("suffix", [".txnindex", ".timeindex"])
def test_a_crash_while_the_indexes_are_written_leaves_none_that_lacks_transactions(suffix: str) -> None:
    storage = MemoryStorage(segment_bytes=200)
    log = storage.create()
    write(log, 1, 0)
    end(log, 1)
    log.flush()
    storage.manager.checkpoint()
    append(log, b"v" * 60)
    with storage.fs.failing("rename", 5, path=suffix), pytest.raises(StorageFailure):
        log.seal()
    assert aborted(storage.kill()) == [AbortedTransaction(1, 0, 1, 2)]
    storage.check()


def test_the_index_survives_a_power_loss_after_a_clean_stop() -> None:
    storage = MemoryStorage()
    log = storage.create()
    write(log, 1, 0)
    end(log, 1)
    storage.manager.close()
    storage.lose_power()
    log = storage.manager.logs["t", 0]
    assert aborted(log) == [AbortedTransaction(1, 0, 1, 2)]
    storage.check()


def test_no_transaction_is_open_in_a_log_that_lost_its_end() -> None:
    """Records were deleted up to an offset that is no longer there: the marker may be among what was lost."""
    storage = MemoryStorage()
    log = storage.create()
    write(log, 1, 0)
    log.flush()
    end(log, 1)
    append(log, b"plain")
    log.delete_records_before(3)
    storage.manager.checkpoint()
    storage.lose_power()
    log = storage.manager.logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    for _ in range(2):
        assert log.producers.unstable.first_open is None
        assert list(log.producers.entries()) == []
        log = storage.kill()
    storage.check()


def test_a_damaged_index_is_found_and_rebuilt() -> None:
    storage = MemoryStorage()
    overlapping_log(storage)
    storage.manager.close()
    good = contents(storage.fs, INDEX)
    assert len(good) == 2 * 34
    for at in (0, 59):  # the version, and the offset of a marker
        flip_byte(storage.fs, INDEX, at)
        bad = [finding for finding in verify_log_dir(DATA, fs=storage.fs) if is_bad(finding)]
        assert [finding.path for finding in bad] == [INDEX]
        if at == 0:
            assert aborted(storage.start().logs["t", 0]) == EXPECTED
            storage.manager.close()
            assert contents(storage.fs, INDEX) == good


def test_truncation_opens_a_transaction_again() -> None:
    storage = MemoryStorage()
    overlapping_log(storage)
    storage.manager.truncate_to("t", 0, 7)
    log = storage.manager.logs["t", 0]
    assert aborted(log) == EXPECTED[:1]
    assert log.producers.unstable.first_open == 1
    assert end(log, 2, committed=True) == 7
    assert aborted(log) == EXPECTED[:1]
    storage.check()


def test_the_files_are_deleted_with_their_segment() -> None:
    storage = MemoryStorage(LogConfig(segment_bytes=250, index_interval_bytes=0))
    log = overlapping_log(storage)
    log.seal()
    assert names(storage.fs, ".txnindex")
    log.delete_records_before(log.log_end_offset)
    storage.manager.tick()
    assert not names(storage.fs, ".txnindex") and names(storage.fs, ".txnindex.deleted")
    storage.pass_time(61_000)
    storage.manager.tick()
    assert not names(storage.fs, ".deleted")


def test_files_are_printed() -> None:
    storage = MemoryStorage()
    overlapping_log(storage)
    storage.manager.close()
    assert list(dump_file(INDEX, fs=storage.fs)) == [
        "producer 1, first offset 0, last offset 6, last stable offset 1",
        "producer 2, first offset 1, last offset 7, last stable offset 2",
    ]
    lines = list(dump_file(INDEX.replace("txnindex", "log"), fs=storage.fs))
    assert "abort of coordinator epoch 4" in lines[6] and "commit of coordinator epoch 4" in lines[8]


def test_a_first_batch_needs_its_guard() -> None:
    log = MemoryStorage().create()
    with pytest.raises(TransactionalIdMissing):
        write(log, 1, 0, terms=None)
    with pytest.raises(TransactionNotOpen):
        write(log, 1, 0, terms=UNGUARDED)
    header = parse_header(batch(producer_id=1, producer_epoch=0, base_sequence=3))
    guard = log.producers.begin_verification(header, False, START_MS)
    lower = header._replace(base_sequence=2)
    assert log.producers.begin_verification(lower, False, START_MS) is guard
    with pytest.raises(OutOfOrderSequence):
        write(log, 1, 3, terms=TransactionTerms(guard))  # the batch before it was not appended
    assert write(log, 1, 2, terms=TransactionTerms(guard)) == 0
    assert write(log, 1, 3, terms=UNGUARDED) == 1
    end(log, 1, committed=True)
    with pytest.raises(TransactionNotOpen):
        write(log, 1, 4, terms=TransactionTerms(guard))


def test_a_new_producer_of_version_2_begins_with_sequence_0() -> None:
    log = MemoryStorage().create()
    header = parse_header(batch(producer_id=1, producer_epoch=0, base_sequence=3))
    guard = log.producers.begin_verification(header, True, START_MS)
    with pytest.raises(OutOfOrderSequence):
        write(log, 1, 3, terms=TransactionTerms(guard))


def test_a_marker_raises_the_epoch() -> None:
    storage = MemoryStorage()
    log = storage.create()
    write(log, 1, 0)
    end(log, 1, committed=True, epoch=1, version=2)
    with pytest.raises(InvalidProducerEpoch):
        write(log, 1, 1)
    for _ in range(2):
        assert log.producers.next_sequence(1, 1) == 0
        log = storage.restart()
    assert write(log, 1, 0, epoch=1) == 2
    storage.check()


def test_a_transaction_in_the_highest_epoch_can_be_ended() -> None:
    """There is no higher epoch for its marker. As in Kafka (KAFKA-20090)."""
    storage = MemoryStorage()
    log = storage.create()
    for epoch, refused in ((32766, True), (32767, False)):
        write(log, 1, 0, epoch=epoch)
        if refused:
            with pytest.raises(InvalidProducerEpoch):
                end(log, 1, committed=True, epoch=epoch, version=2)
            end(log, 1, committed=True, epoch=epoch, version=1)
        else:
            end(log, 1, committed=True, epoch=epoch, version=2)
        assert not len(log.producers.unstable)
    storage.check()


def test_producers_in_a_transaction_are_never_forgotten() -> None:
    storage = MemoryStorage(producer_ids_max=4)
    log = storage.create()
    write(log, 1, 0)
    for producer in range(2, 30):
        append(log, producer_id=producer, producer_epoch=0, base_sequence=0)
    assert 1 in log.producers.by_id and len(log.producers) <= 4
    log.producers.expire(START_MS + 10**9)
    assert list(log.producers.by_id) == [1]
    end(log, 1)
    log.producers.expire(START_MS + 10**9)
    assert not len(log.producers)


def test_what_is_stable() -> None:
    unstable = UnstableTransactions()
    assert unstable.stable_end(7) == 7 and not unstable.active
    unstable.begin(1, 3)
    unstable.begin(2, 5)
    assert [unstable.stable_end(end) for end in (2, 3, 7)] == [2, 3, 3]
    assert unstable.end(1, 8) == 5  # what would be stable if all were replicated
    assert [unstable.stable_end(end) for end in (7, 8, 9)] == [3, 3, 5]
    assert unstable.end(2, 9) == 10
    assert (unstable.stable_end(9), unstable.active) == (5, True)
    assert (unstable.stable_end(10), unstable.active) == (10, False)


def test_index_entries() -> None:
    index = TransactionIndex(EXPECTED)
    assert TransactionIndex.from_bytes(index.to_bytes(), 0).entries == EXPECTED
    assert index.overlapping(0, 1) == (EXPECTED[:1], True)
    assert index.overlapping(0, 10) == (EXPECTED, False)
    assert index.overlapping(7, 10) == (EXPECTED[1:], False)
    assert index.overlapping(8, 10) == ([], False)
    for data in (index.to_bytes()[:-1], b"\0\1" + index.to_bytes()[2:], index.to_bytes()[34:] + index.to_bytes()[:34]):
        with pytest.raises(IndexCorrupt):
            TransactionIndex.from_bytes(data, 0)
