"""How many groups and transactional ids clients may make on a broker, and that empty ones go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.shares import Share
from pylogd.broker.groups.consumer.heartbeats import Heartbeat
from pylogd.broker.groups.consumer.members import LEAVING
from pylogd.broker.groups.offset_memory import OFFSET_BYTES
from pylogd.broker.groups.records import Committed
from pylogd.broker.groups.values import JoinRequest, TransactionalCommit
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.fakes.groups import PendingResult
from tests.fakes.parts import Parts
from tests.fakes.transactions import TransactionFixture

NONE, FULL = ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE
ALICE, STRANGER = Share("User:alice", True), Share("10.0.0.9", False)
MOST, MOST_OF_ONE = 10, 4


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path, groups_max=MOST, groups_max_per_principal=MOST_OF_ONE)
    made.create("t")
    assert made.call(FindCoordinatorRequest("g"), 3).error_code == 0
    yield made
    made.close()


def join(parts: Parts, group_id: str, share: Share, *, needs_known_id: bool = True) -> Any:
    """Join a group; without a known id the client is told the id to join with, and then forgets it."""
    metadata = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff"
    request = JoinRequest(
        "", None, "c", "/h", 10.0, 60.0, "consumer", (("range", metadata),), needs_known_id, True, share
    )
    return PendingResult(parts.groups.join(group_id, request))


def commit(parts: Parts, group_id: str, share: Share) -> Any:
    topic = parts.topics.get("t")
    assert topic is not None
    committed = Committed(1, -1, "", parts.groups.now_ms, topic_id=topic.topic_id)
    return PendingResult(parts.groups.commit(group_id, "", None, -1, [(("t", 0), committed)], share=share)).answer


def beat(parts: Parts, group_id: str, share: Share, epoch: int = 0) -> Any:
    request = Heartbeat(
        "m", epoch, rebalance_ms=1000, topics=frozenset("t"), owned=frozenset(), share=share, client_host="/h"
    )
    return PendingResult(parts.groups.consumer_heartbeat(group_id, request, lambda _: frozenset())).answer


@pytest.mark.parametrize("way", ["join", "commit", "heartbeat"])
def test_one_client_can_make_a_bounded_number_of_groups(parts: Parts, way: str) -> None:
    def make(number: int, share: Share = STRANGER) -> ErrorCode:
        group_id = f"{share.name}-{number}"
        if way == "join":
            found: ErrorCode = join(parts, group_id, share).answer.error
            return NONE if found is ErrorCode.MEMBER_ID_REQUIRED else found
        return commit(parts, group_id, share) if way == "commit" else beat(parts, group_id, share).error  # type: ignore[no-any-return]

    assert [make(number) for number in range(100)] == [NONE] * MOST_OF_ONE + [FULL] * (100 - MOST_OF_ONE)
    assert make(0) in (NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNRELEASED_INSTANCE_ID), "a group that exists"
    assert make(0, ALICE) is NONE
    assert len(parts.groups.groups()[1]) == MOST_OF_ONE + 1


def test_strangers_leave_half_of_the_groups_to_known_clients(parts: Parts) -> None:
    made = [commit(parts, f"s-{number}", Share(f"10.0.0.{number}", False)) for number in range(MOST)]
    assert made == [NONE] * (MOST // 2) + [FULL] * (MOST // 2)
    assert [commit(parts, f"a-{number}", ALICE) for number in range(MOST_OF_ONE)] == [NONE] * MOST_OF_ONE


def test_a_group_whose_clients_never_joined_makes_room(parts: Parts) -> None:
    for number in range(MOST_OF_ONE):
        join(parts, f"g-{number}", STRANGER)
    assert join(parts, "more", STRANGER).answer.error is FULL
    parts.time.advance(10)  # their session timeout
    assert join(parts, "more", STRANGER).answer.error is ErrorCode.MEMBER_ID_REQUIRED
    assert [group.group_id for group in parts.groups.groups()[1]] == ["more"]


@pytest.mark.parametrize("newer", [False, True])
def test_empty_groups_go_when_there_is_no_room(parts: Parts, newer: bool) -> None:
    for number in range(MOST_OF_ONE):
        if newer:
            assert beat(parts, f"g-{number}", STRANGER).error is NONE
            assert beat(parts, f"g-{number}", STRANGER, LEAVING).error is NONE
        else:
            waiting = join(parts, f"g-{number}", STRANGER, needs_known_id=False)
            parts.time.advance(3)
            assert waiting.answer.error is NONE
    parts.time.advance(60)
    assert len(parts.groups.groups()[1]) == MOST_OF_ONE
    assert commit(parts, "more", STRANGER) is FULL
    parts.time.advance(0.1)
    assert commit(parts, "more", STRANGER) is NONE
    assert [group.group_id for group in parts.groups.groups()[1]] == ["more"]


def _held(parts: Parts) -> list[int]:
    """Return how many entries the tables of groups and their members have."""
    bound = parts.groups._led.bound
    tables = (parts.groups._groups, bound._made_by, bound._counts, parts.groups._consumers._held)
    return [len(table) for table in tables]


def test_nothing_is_held_of_groups_of_the_newer_protocol_that_have_expired(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    try:
        parts.create("t")
        assert parts.call(FindCoordinatorRequest("g"), 3).error_code == 0
        before, calls = _held(parts), len(parts.time.getDelayedCalls())
        for flood in range(3):
            for number in range(100):
                assert beat(parts, f"g-{flood}-{number}", Share(f"10.0.0.{number % 5}", False)).error is NONE
            assert min(_held(parts)) >= 5
            for _ in range(20):  # sessions end, then the sweep finds empty groups
                parts.time.advance(60)
            assert not parts.groups.groups()[1]
            assert _held(parts) == before
            assert len(parts.time.getDelayedCalls()) == calls
    finally:
        parts.close()


def test_a_commit_that_is_refused_leaves_no_group(parts: Parts) -> None:
    assert PendingResult(parts.groups.commit("g", "nobody", None, -1, [])).answer in (
        NONE, ErrorCode.UNKNOWN_MEMBER_ID,
    )  # fmt: skip
    assert not parts.groups.groups()[1]


@pytest.mark.parametrize("gone", [False, True])
def test_a_commit_that_stores_nothing_leaves_a_group_of_the_newer_protocol(parts: Parts, gone: bool) -> None:
    topic = parts.topics.get("t")
    assert topic is not None
    of_another = Committed(1, -1, "", parts.groups.now_ms, topic_id=bytes(15) + b"1")
    commits: list[Callable[[], Any]] = [
        lambda: parts.groups.commit("g", "nobody", None, 1, []),
        lambda: parts.groups.commit("g", "nobody", None, 1, [], knows_epochs=False),
        lambda: parts.groups.commit("g", "m", None, 1, []),
        lambda: parts.groups.commit("g", "m", None, 1, [(("t", 0), of_another)]),
        lambda: parts.groups.commit_in_transaction("g", TransactionalCommit(1, 0, "nobody", None, 1, [], [])),
        lambda: parts.groups.commit_in_transaction("g", TransactionalCommit(1, 0, "m", None, 1, [], [])),
    ]
    for one in commits:
        assert beat(parts, "g", ALICE).error is NONE
        if gone:
            assert beat(parts, "g", ALICE, LEAVING).error is NONE
        PendingResult(one())
        assert [group.group_id for group in parts.groups.groups()[1]] == ["g"]
        if not gone:
            assert PendingResult(parts.groups.commit("g", "m", None, 99, [])).answer is ErrorCode.STALE_MEMBER_EPOCH


def test_one_client_can_have_a_bounded_number_of_transactional_ids(tmp_path: Path) -> None:
    fixture = TransactionFixture(tmp_path, transactional_ids_max=10, transactional_ids_max_per_principal=3)
    stranger = Share("10.0.0.9", False)

    def make(name: str, share: Share) -> ErrorCode:
        error: ErrorCode = PendingResult(fixture.transactions.initialize(name, 1000, None, share)).answer.error
        return error

    full = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [make(f"s-{number}", stranger) for number in range(5)] == [NONE] * 3 + [full] * 2
    assert make("s-0", stranger) is NONE, "it has this one"
    assert [make(f"x-{number}", Share(f"10.0.0.{number}", False)) for number in range(4)] == [NONE] * 2 + [full] * 2
    assert [make(f"a-{number}", Share("User:alice", True)) for number in range(3)] == [NONE] * 3
    fixture.leaders.release()
    fixture.close()


def commit_metadata(parts: Parts, group_id: str, share: Share, size: int) -> Any:
    topic = parts.topics.get("t")
    assert topic is not None
    committed = Committed(1, -1, "x" * size, parts.groups.now_ms, topic_id=topic.topic_id)
    return PendingResult(parts.groups.commit(group_id, "", None, -1, [(("t", 0), committed)], share=share)).answer


def test_the_memory_for_offsets_is_bounded_and_known_partitions_are_committed_on(tmp_path: Path) -> None:
    bytes_of_one = 1000 + OFFSET_BYTES
    parts = Parts(tmp_path, group_offsets_max_bytes=12 * bytes_of_one)
    try:
        parts.create("t")
        assert parts.call(FindCoordinatorRequest("g"), 3).error_code == 0
        answers = [commit_metadata(parts, f"alice-{number}", ALICE, 1000) for number in range(5)]
        assert answers == [NONE] * 3 + [FULL] * 2  # a quarter
        answers = [commit_metadata(parts, f"s-{number}", Share(f"10.0.0.{number}", False), 1000) for number in range(8)]
        assert answers == [NONE] * 6 + [FULL] * 2  # half
        assert commit_metadata(parts, "bob", Share("User:bob", True), 1000) == NONE
        assert commit_metadata(parts, "alice-0", ALICE, 1000) == NONE  # as much as before
        assert commit_metadata(parts, "alice-0", ALICE, 1001) == FULL
        assert "alice-4" not in {group.group_id for group in parts.groups.groups()[1]}
        PendingResult(parts.groups.delete("alice-0"))
        assert commit_metadata(parts, "alice-4", ALICE, 1000) == FULL  # it was counted a moment ago
        parts.time.advance(11)
        assert commit_metadata(parts, "alice-4", ALICE, 1000) == NONE
    finally:
        parts.close()
