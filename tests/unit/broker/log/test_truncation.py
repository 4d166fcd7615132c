"""The state of a log after a truncation, a restart at an offset or a compaction, and what replicas fetch of it."""

from __future__ import annotations

import errno
from unittest.mock import patch

import pytest

from pylogd.broker.log.compaction.jobs import CompactionResult, SourcesChanged
from pylogd.broker.log.compaction.log_compaction import compact
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.log import Log
from pylogd.broker.log.reading import SegmentsView
from pylogd.broker.log.truncation import truncate_to
from pylogd.broker.log.validator import AppendOrigin
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.roles import RoleEvent
from pylogd.wire.records import iter_batches
from tests.fakes.compaction import CompactedStorage, put
from tests.fakes.storage import TOPIC_ID, MemoryStorage, append, names, values


def with_producer() -> tuple[MemoryStorage, Log]:
    """Create a log with batches and snapshots of an idempotent producer."""
    storage = MemoryStorage(segment_bytes=300)
    log = storage.create()
    for at in range(8):
        append(log, b"%d" % at, producer_id=5, producer_epoch=0, base_sequence=at)
    log.seal()
    assert names(storage.fs, ".snapshot")
    return storage, log


@pytest.mark.parametrize("offset", [4, 50])
def test_a_restarted_log_has_no_producers(offset: int) -> None:
    storage, log = with_producer()
    storage.manager.begin_at("t", 0, offset)
    assert not len(log.producers)
    assert not names(storage.fs, ".snapshot")
    log.flush()
    assert not len(storage.kill().producers)
    storage.check()


def test_a_restarted_log_drops_snapshots_not_yet_written() -> None:
    storage = MemoryStorage(segment_bytes=300)
    log = storage.create()
    for at in range(8):
        append(log, b"%d" % at, producer_id=5, producer_epoch=0, base_sequence=at)
    storage.manager.begin_at("t", 0, 50)
    log.flush()
    assert not len(storage.kill().producers)
    storage.check()


def test_records_appended_after_a_truncation_are_not_marked_as_compacted() -> None:
    storage = CompactedStorage()
    log = storage.create()
    for at in range(60):
        put(storage, log, (b"k%d" % (at % 3), b"%d" % at))
    storage.clean()
    cleaned = log.cleaned_offset
    storage.manager.truncate_to("t", 0, 5)
    for at in range(120):
        put(storage, log, (b"k%d" % (at % 3), b"%d" % at))
    assert log.log_end_offset > cleaned > 5
    log.flush()
    assert storage.kill().cleaned_offset <= 5
    storage.check()


def test_a_truncation_whose_checkpoints_can_not_be_written_leaves_no_mark_of_compaction() -> None:
    storage = CompactedStorage()
    log = storage.create()
    for at in range(60):
        put(storage, log, (b"k%d" % (at % 3), b"%d" % at))
    storage.clean()
    cleaned = log.cleaned_offset
    with storage.fs.failing("rename", errno.ENOSPC, path="recovery-point"), pytest.raises(StorageFailure):
        storage.manager.truncate_to("t", 0, 5)
    for at in range(120):
        put(storage, log, (b"k%d" % (at % 3), b"%d" % at))
    assert log.log_end_offset > cleaned > 5
    assert storage.kill().cleaned_offset <= 5
    storage.check()


def test_a_log_truncated_during_compaction_is_not_marked_as_compacted() -> None:
    storage = CompactedStorage()
    log = storage.create()
    for at in range(60):
        put(storage, log, (b"k%d" % at, b"%d" % at))
    log.seal()
    bound = log.active.base_offset

    def run_job(*_: object) -> CompactionResult:
        truncate_to(log, 5)
        return CompactionResult(0, bound)  # nothing was dropped, so no segment was installed

    with pytest.raises(SourcesChanged):
        compact(log, 0, bound, run_job, now_ms=storage.now_ms, on_progress=lambda _: None)
    assert log.cleaned_offset == 0
    storage.check()


def test_a_replica_fetches_empty_batches_with_the_last_sequence_of_a_producer() -> None:
    storage = CompactedStorage()
    log = storage.create()
    put(storage, log, (b"k", b"1"), producer_id=5, producer_epoch=0, base_sequence=0)
    put(storage, log, (b"k", b"2"), producer_id=5, producer_epoch=0, base_sequence=1)
    for at in range(60):
        put(storage, log, (b"k", b"%d" % at))
    storage.clean()
    leader = Partition("t", TOPIC_ID, 0, log, 1)
    leader.change_role(RoleEvent.LEAD)
    replica = storage.create("replica")
    while replica.log_end_offset < log.log_end_offset:  # one batch at a time
        found = leader.read_for_follower(replica.log_end_offset, 1, min_one=True, allow_cold=True)
        assert found is not None
        replica.append(found.read(), leader_epoch=0, origin=AppendOrigin.REPLICATION)
    assert log.producers.by_id[5].next_sequence == 2
    assert replica.producers.by_id[5].next_sequence == 2
    consumed = leader.log.read(0, 1, allow_cold=True)
    assert consumed is not None
    assert [header.record_count > 0 for header, _ in iter_batches(consumed.read())] == [True]
    storage.manager.delete("replica", 0)  # it has the gaps of its leader, which `check` would report
    storage.check()


def test_a_read_in_a_thread_ends_where_the_log_ended_when_it_began() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log, b"committed")
    look_up = SegmentsView.look_up

    def beside_an_append(*args: object, **how: object) -> object:
        append(log, b"not committed")
        return look_up(*args, **how)  # type: ignore[arg-type]

    with patch.object(SegmentsView, "look_up", beside_an_append):
        found = log.read(0, 1 << 20, end_offset=1, allow_cold=True)
    assert found is not None
    assert [header.base_offset for header, _ in iter_batches(found.read())] == [0]
    assert values(log) == [b"committed", b"not committed"]
    storage.check()


def test_a_loss_of_power_leaves_no_segment_without_those_before_it() -> None:
    storage = MemoryStorage(segment_bytes=350)
    log = storage.create()
    while len(log.segments) < 3:
        append(log, *[b"value"] * 3)
    append(log, b"more")
    assert not log.recovery_point  # nothing was flushed
    kept = storage.manager.truncate_to("t", 0, log.active.base_offset + 1)
    storage.lose_power()
    log = storage.manager.logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset) == (0, kept)
    assert len(values(log)) == kept
    storage.check()
