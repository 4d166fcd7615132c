"""Offsets in transactions: pending until the marker, in memory as after a new leader has read the log."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.records import Committed, offset_record
from pylogd.broker.groups.values import JoinAnswer, TransactionalCommit
from pylogd.broker.log.compaction.candidates import log_to_clean
from pylogd.broker.log.compaction.log_compaction import compact
from pylogd.broker.log.compaction.offset_map import OffsetMap
from pylogd.broker.log.compaction.passes import run_job
from pylogd.broker.log.storage import Storage
from pylogd.wire.records import CONTROL, TRANSACTIONAL, encode_batch
from tests.fakes.groups import PendingResult
from tests.fakes.metadata import result_of
from tests.fakes.parts import NODE, Parts
from tests.unit.broker.groups.test_group_coordinator import (
    DAY_MS,
    TOPIC,
    commit,
    form,
    home,
    offsets,
    request,
    restart,
    topic_id,
)

NONE = ErrorCode.NONE
_CONTROL_VALUE = struct.pack(">hi", 0, 0)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    yield from make(tmp_path)


def make(folder: Path) -> Iterator[Parts]:
    made = Parts(folder, offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0)
    made.create("t", 3)
    made.create("u")
    assert result_of(made.groups.coordinator_of("g")) == NODE  # type: ignore[arg-type]
    yield made
    made.close()


def in_transaction(
    parts: Parts,
    offset: int,
    producer_id: int = 1,
    *,
    topic: str = "t",
    index: int = 0,
    group_id: str = "g",
    joined: JoinAnswer | None = None,
    **fields: Any,
) -> Any:
    member, generation = (joined.member_id, joined.generation) if joined else ("", -1)
    committed = Committed(offset, -1, "note", parts.groups.now_ms, topic_id=topic_id(parts, topic))
    entries = [((topic, index), committed)]
    records = [offset_record(group_id, *entry) for entry in entries]
    wanted = {"epoch": 0, "member_id": member, "instance_id": None, "generation": generation, **fields}
    return parts.groups.commit_in_transaction(
        group_id, TransactionalCommit(producer_id=producer_id, offsets=entries, records=records, **wanted)
    )


def end(parts: Parts, producer_id: int = 1, *, committed: bool = True) -> None:
    """Append a marker, and tell the coordinator, as the handler of WriteTxnMarkers does."""
    partition = parts.partitions.by_name[TOPIC, 0]
    batch = encode_batch(
        [(struct.pack(">hh", 0, int(committed)), _CONTROL_VALUE, parts.groups.now_ms, ())],
        producer_id=producer_id, producer_epoch=0, attributes=TRANSACTIONAL | CONTROL,
    )  # fmt: skip
    partition.log.open()
    result = parts.replicas.append(partition, batch, True, own=True)
    parts.groups.transaction_ended(0, producer_id, result.base_offset, committed)


def test_offsets_count_once_the_transaction_is_committed(parts: Parts) -> None:
    assert in_transaction(parts, 7) == NONE
    assert offsets(parts) == {}
    assert parts.groups.unstable("g") == {("t", 0)}
    end(parts)
    assert offsets(parts) == {("t", 0): 7}
    assert parts.groups.unstable("g") == frozenset()


def test_offsets_of_an_aborted_transaction_never_count(parts: Parts) -> None:
    commit(parts, 3)
    in_transaction(parts, 7)
    end(parts, committed=False)
    assert offsets(parts) == {("t", 0): 3}
    restart(parts)
    assert offsets(parts) == {("t", 0): 3}


def test_a_marker_of_another_producer_ends_nothing(parts: Parts) -> None:
    in_transaction(parts, 7, 1)
    in_transaction(parts, 9, 2, index=1)
    end(parts, 2)
    assert offsets(parts) == {("t", 1): 9}
    assert parts.groups.unstable("g") == {("t", 0)}


def test_a_transaction_may_have_offsets_of_several_groups(parts: Parts) -> None:
    in_transaction(parts, 7)
    in_transaction(parts, 9, group_id="h")
    end(parts)
    assert (offsets(parts), offsets(parts, "h")) == ({("t", 0): 7}, {("t", 0): 9})


def test_a_new_leader_reads_open_committed_and_aborted_ones(parts: Parts) -> None:
    in_transaction(parts, 7, 1)
    in_transaction(parts, 8, 2, index=1)
    in_transaction(parts, 9, 3, index=2)
    end(parts, 1)
    end(parts, 2, committed=False)
    restart(parts)
    assert offsets(parts) == {("t", 0): 7}
    assert parts.groups.unstable("g") == {("t", 2)}
    end(parts, 3)
    assert offsets(parts) == {("t", 0): 7, ("t", 2): 9}


def test_the_end_of_a_transaction_while_groups_are_loaded(parts: Parts) -> None:
    in_transaction(parts, 7)
    partition = home(parts)
    shard = parts.groups._led.log.shards[partition.index]
    shard.loading = True
    end(parts)
    assert offsets(parts) == {}
    assert shard.markers == [(1, 1, True)]


@pytest.mark.parametrize("after", [False, True])
def test_the_later_record_counts(parts: Parts, after: bool) -> None:
    if not after:
        commit(parts, 20)
    in_transaction(parts, 10)
    if after:
        commit(parts, 20)
    end(parts)
    expected = {("t", 0): 20 if after else 10}
    assert offsets(parts) == expected
    restart(parts)
    assert offsets(parts) == expected


def test_members_and_generations_are_checked(parts: Parts) -> None:
    joined = form(parts)
    assert in_transaction(parts, 1, joined=joined) == NONE
    assert in_transaction(parts, 1, joined=joined._replace(generation=7)) == ErrorCode.ILLEGAL_GENERATION
    assert in_transaction(parts, 1, joined=joined._replace(member_id="x")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert in_transaction(parts, 1, generation=-1) == NONE  # versions 0 to 2 name no member
    assert in_transaction(parts, 1, member_id=joined.member_id) == ErrorCode.ILLEGAL_GENERATION
    assert in_transaction(parts, 1, instance_id="i") == ErrorCode.UNKNOWN_MEMBER_ID
    assert in_transaction(parts, 1, group_id="none", generation=3) == ErrorCode.ILLEGAL_GENERATION
    assert in_transaction(parts, 1, group_id="") == ErrorCode.INVALID_GROUP_ID


def test_a_rebalance_does_not_stop_them(parts: Parts) -> None:
    joined = PendingResult(parts.groups.join("g", request())).answer
    assert commit(parts, 7, joined=joined) == ErrorCode.REBALANCE_IN_PROGRESS
    assert in_transaction(parts, 7, joined=joined) == NONE


def test_nothing_under_an_open_transaction_expires(parts: Parts) -> None:
    commit(parts, 3)
    in_transaction(parts, 7)
    parts.time.advance(30 * DAY_MS / 1000)
    assert offsets(parts) == {("t", 0): 3}
    end(parts)
    assert offsets(parts) == {("t", 0): 7}
    parts.time.advance(30 * DAY_MS / 1000)
    assert offsets(parts) == {}
    in_transaction(parts, 9)
    parts.time.advance(30 * DAY_MS / 1000)
    end(parts)
    assert offsets(parts) == {("t", 0): 9}


@pytest.mark.parametrize("reload", [False, True])
def test_deletions_remove_pending_offsets(parts: Parts, reload: bool) -> None:
    in_transaction(parts, 7)
    in_transaction(parts, 8, index=1)
    error, answers = result_of(parts.groups.delete_offsets("g", [("t", 0)]))
    assert (error, answers) == (NONE, {("t", 0): NONE})
    if reload:
        restart(parts)
    end(parts)
    assert offsets(parts) == {("t", 1): 8}
    in_transaction(parts, 9)
    assert result_of(parts.groups.delete("g")) == NONE
    end(parts)
    assert offsets(parts) == {}
    restart(parts)
    assert offsets(parts) == {}


def compact_log(parts: Parts) -> None:
    """Compact the offsets topic, as far as no transaction is open."""
    log, now_ms = parts.partitions.by_name[TOPIC, 0].log, parts.groups.now_ms
    if log.log_end_offset == log.active.base_offset:
        return
    with log.lock:
        log.roll(log.log_end_offset, now_ms)
    log.seal()
    found = log_to_clean(log, now_ms)
    if found is not None:
        offset_map = OffsetMap(1 << 20)
        compact(
            log, found.first_dirty_offset, found.end_offset,
            lambda job, on_progress, install: run_job(Storage(log.storage.fs), offset_map, job, on_progress, install),
            now_ms=now_ms, on_progress=lambda _: None,
        )  # fmt: skip


def test_compaction_keeps_what_counts(parts: Parts) -> None:
    for number in range(8):
        commit(parts, number)
        in_transaction(parts, 100 + number, index=1)
        end(parts, committed=number % 2 == 0)
    partition = parts.partitions.by_name[TOPIC, 0]
    before, size = offsets(parts), partition.log.size
    compact_log(parts)
    assert partition.log.size < size
    restart(parts)
    assert offsets(parts) == before == {("t", 0): 7, ("t", 1): 106}


@pytest.mark.parametrize("committed", [True, False])
def test_compaction_under_an_open_transaction(parts: Parts, committed: bool) -> None:
    commit(parts, 3)
    in_transaction(parts, 7)
    compact_log(parts)
    end(parts, committed=committed)
    restart(parts)
    assert offsets(parts) == {("t", 0): 7 if committed else 3}
    compact_log(parts)
    restart(parts)
    assert offsets(parts) == {("t", 0): 7 if committed else 3}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["plain", "transaction", "commit", "abort", "delete", "restart", "compact"]),
            st.integers(1, 3),
            st.integers(0, 1),
        ),
        max_size=20,
    )
)
@settings(max_examples=30, deadline=None)
def test_memory_and_log_agree(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]) -> None:
    """After any history, a coordinator that reads the log has what the one has that wrote it."""
    made = make(tmp_path_factory.mktemp("parts"))
    parts = next(made)
    for number, (what, producer_id, index) in enumerate(steps):
        if what == "plain":
            commit(parts, number, index=index)
        elif what == "transaction":
            in_transaction(parts, number, producer_id, index=index)
        elif what == "delete":
            parts.groups.delete_offsets("g", [("t", index)])
        elif what == "restart":
            restart(parts)
        elif what == "compact":
            compact_log(parts)
        else:
            end(parts, producer_id, committed=what == "commit")
    before = offsets(parts), parts.groups.unstable("g")
    restart(parts)
    assert (offsets(parts), parts.groups.unstable("g")) == before
    assert next(made, None) is None
