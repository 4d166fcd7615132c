"""Offsets belong to the topic for which they were committed, by its id, and not to a later topic of that name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.records import NO_TOPIC_ID, Committed, OffsetKey
from pylogd.broker.groups.values import TransactionalCommit
from pylogd.store.errors import CorruptMetadata
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.fakes.groups import PendingResult
from tests.fakes.metadata import result_of
from tests.fakes.parts import NODE, Parts
from tests.unit.broker.groups.test_group_coordinator import TOPIC, commit, home, offsets, restart, stored, topic_id
from tests.unit.broker.groups.test_transactional_offsets import end, in_transaction, make

NONE = ErrorCode.NONE


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    yield from make(tmp_path)


def delete(parts: Parts, name: str = "t") -> None:
    result_of(parts.topic_admin.delete_topic(name))


def recreate(parts: Parts, name: str = "t") -> None:
    delete(parts, name)
    parts.create(name, 3)


def start_again(parts: Parts) -> None:
    """Start a broker whose coordinator was stopped."""
    result_of(parts.replica_parts.stop())
    parts.logs.close()
    parts.boot()
    result_of(parts.replica_parts.start())


def live_keys(parts: Parts) -> set[tuple[str, int]]:
    """Return the partitions with an offset in the log that is not deleted."""
    found = stored(parts.partitions.by_name[TOPIC, 0])
    return {(key.topic, key.partition) for key, value in found.items() if isinstance(key, OffsetKey) and value}


def fetched(parts: Parts, version: int, *names: str, ids: tuple[bytes, ...] = ()) -> list[tuple[int, int]]:
    """Return what OffsetFetch answers for partition 0 of topics: the offset and the error code."""
    topics = [OffsetFetchRequestTopics(name, partition_indexes=[0]) for name in names]
    topics += [OffsetFetchRequestTopics("", one, [0]) for one in ids]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=topics)])
    answer = parts.call(request, version).groups[0]
    return [(one.committed_offset, one.error_code) for topic in answer.topics for one in topic.partitions]


@pytest.mark.parametrize("turns", [0, 3])
def test_a_new_topic_of_that_name_has_no_offsets(parts: Parts, turns: int) -> None:
    """It does not matter whether the old ones were removed yet."""
    commit(parts, 1000)
    old = topic_id(parts, "t")
    recreate(parts)
    for _ in range(turns):
        parts.time.advance(0)
    new = topic_id(parts, "t")
    assert offsets(parts) == {}
    assert fetched(parts, 9, "t") == [(-1, 0)]
    assert fetched(parts, 10, ids=(new, old)) == [(-1, 0), (-1, ErrorCode.UNKNOWN_TOPIC_ID)]
    assert live_keys(parts) == (set() if turns else {("t", 0)})
    assert commit(parts, 5) == NONE
    assert fetched(parts, 10, ids=(new,)) == [(5, 0)]
    restart(parts)
    assert offsets(parts) == {("t", 0): 5}


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_while_nobody_coordinates_its_groups(parts: Parts, again: bool) -> None:
    commit(parts, 1000)
    commit(parts, 7, "u")
    in_transaction(parts, 1001, index=1)
    parts.groups.stop()  # the last thing that this coordinator does
    delete(parts)
    if again:
        parts.create("t", 3)
    start_again(parts)
    assert offsets(parts) == {("u", 0): 7}
    assert parts.groups.unstable("g") == frozenset()
    for _ in range(3):
        parts.time.advance(0)
    assert live_keys(parts) == {("u", 0)}
    end(parts)
    assert offsets(parts) == {("u", 0): 7}


def test_a_clock_that_is_set_back_between_commit_and_deletion(parts: Parts) -> None:
    commit(parts, 1000)
    parts.wall_step_ms = -600_000
    recreate(parts)
    assert offsets(parts) == {}
    parts.time.advance(0)
    assert live_keys(parts) == set()


def test_an_offset_in_a_transaction_is_bound_to_its_topic(parts: Parts) -> None:
    in_transaction(parts, 1000)
    recreate(parts)
    assert parts.groups.unstable("g") == frozenset()
    commit(parts, 5)
    end(parts)
    assert offsets(parts) == {("t", 0): 5}
    restart(parts)
    assert offsets(parts) == {("t", 0): 5}


def test_a_commit_that_waits_for_replicas_is_not_deleted_with_the_old_topics(parts: Parts) -> None:
    """The deletion would lie behind it in the log."""
    commit(parts, 1000)
    partition = home(parts)
    parts.set_state(TOPIC, 0, replicas=(NODE, 2), isr=(NODE, 2))
    recreate(parts)
    committed = PendingResult(commit(parts, 5))
    for _ in range(3):
        parts.time.advance(0)
    partition.high_watermark = partition.log.log_end_offset
    parts.replicas.append_waits.check(partition.key)
    assert committed.answer == NONE
    parts.set_state(TOPIC, 0, replicas=(NODE,), isr=(NODE,))
    parts.time.advance(601)
    assert offsets(parts) == {("t", 0): 5}
    restart(parts)
    assert offsets(parts) == {("t", 0): 5}


def test_an_append_that_fails_unexpectedly_keeps_no_group_from_being_swept(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(parts, 1000)
    group = parts.groups._groups["g"]

    def fails(*_args: object, **_named: object) -> None:
        raise RuntimeError("a fault of the program")

    with monkeypatch.context() as patch:
        patch.setattr(parts.groups._led.log.topic, "append", fails)
        for attempt in (commit, in_transaction):
            with pytest.raises(RuntimeError):
                attempt(parts, 7)
        assert group.uncommitted == 0
        waiting: Deferred[ErrorCode] = Deferred()
        patch.setattr(parts.groups._led.log.topic, "append", lambda *_args, **_named: waiting)
        answer = commit(parts, 8)
        assert group.uncommitted == 1
        waiting.errback(RuntimeError("a fault of the program"))
        answer.addErrback(lambda failure: failure.trap(RuntimeError))
        assert group.uncommitted == 0


def test_a_commit_for_a_topic_that_is_deleted_before_it_is_written(parts: Parts) -> None:
    """A request may take several turns: its records do not lie behind those of a newer topic."""
    old = Committed(1000, -1, "", 7, topic_id=topic_id(parts, "t"))
    recreate(parts)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert parts.groups.commit("g", "", None, -1, [(("t", 0), old)]) == unknown
    staged = TransactionalCommit(1, 0, "", None, -1, [(("t", 0), old)], [])
    assert parts.groups.commit_in_transaction("g", staged) == unknown
    assert offsets(parts) == {}


def without_ids(parts: Parts, offset: int, topic: str = "t") -> Any:
    """Commit an offset in the form of releases that did not store the ids of topics."""
    committed = Committed(offset, -1, "", parts.groups.now_ms)
    assert committed.topic_id == NO_TOPIC_ID
    return parts.groups.commit("g", "", None, -1, [((topic, 0), committed)])


def test_offsets_of_an_earlier_release_are_bound_when_they_are_loaded(parts: Parts) -> None:
    without_ids(parts, 1000)
    without_ids(parts, 7, "u")
    restart(parts)
    assert offsets(parts) == {("t", 0): 1000, ("u", 0): 7}
    restart(parts)  # the ids were stored
    recreate(parts)
    assert offsets(parts) == {("u", 0): 7}
    restart(parts)
    assert offsets(parts) == {("u", 0): 7}


def test_the_ids_are_not_stored_over_what_a_transaction_may_change(parts: Parts) -> None:
    without_ids(parts, 1000)
    without_ids(parts, 7, "u")
    in_transaction(parts, 1001)
    restart(parts)
    end(parts)
    assert offsets(parts) == {("t", 0): 1001, ("u", 0): 7}
    restart(parts)
    assert offsets(parts) == {("t", 0): 1001, ("u", 0): 7}


def test_offsets_of_an_earlier_release_whose_topic_is_deleted(parts: Parts) -> None:
    without_ids(parts, 1000)
    parts.groups.stop()
    delete(parts)
    start_again(parts)
    parts.create("t", 3)
    assert offsets(parts) == {}
    parts.time.advance(0)
    assert live_keys(parts) == set()


def test_offsets_of_a_topic_that_cannot_be_read_are_kept(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(parts, 1000)
    kept = topic_id(parts, "t")
    monkeypatch.setattr(parts.topics, "_by_name", {"u": parts.topics.get("u"), TOPIC: parts.topics.get(TOPIC)})
    assert parts.topics.was_deleted("t", kept)
    parts.topics.unreadable = {"t": CorruptMetadata("/brokers/topics/t", "broken")}
    assert not parts.topics.was_deleted("t", kept)
    assert offsets(parts) == {("t", 0): 1000}


def test_one_sweep_serves_many_deletions(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"d{number}" for number in range(20)]
    for number, name in enumerate(names):
        parts.create(name)
        commit(parts, number, name)
    led, searches = parts.groups._led, count()
    find = led._sweepable
    monkeypatch.setattr(led._sweeps, "_groups", lambda: [found for found in find() if next(searches) >= 0])
    for name in names:
        delete(parts, name)
    for _ in range(3):
        parts.time.advance(0)
    assert live_keys(parts) == set()
    assert next(searches) < 3


@pytest.mark.parametrize("version", [9, 10])
def test_requests_store_the_id(parts: Parts, version: int) -> None:
    partitions = [OffsetCommitRequestPartition(0, 11, -1, "")]
    by_id = topic_id(parts, "t") if version >= 10 else NO_TOPIC_ID
    topic = OffsetCommitRequestTopic("" if version >= 10 else "t", by_id, partitions)
    parts.call(OffsetCommitRequest("g", -1, "", topics=[topic]), version)
    assert parts.groups.committed("g")["t", 0].topic_id == topic_id(parts, "t")
    recreate(parts)
    found = parts.call(OffsetCommitRequest("g", -1, "", topics=[topic]), version).topics[0].partitions[0].error_code
    assert found == (NONE if version < 10 else ErrorCode.UNKNOWN_TOPIC_ID)
