"""Fetch sessions: how many partitions they may hold together, and when their memory is released."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api import HANDLERS
from pylogd.broker.api.context import RequestContext
from pylogd.credentials.principal import Principal
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.fakes.metadata import result_of
from tests.fakes.parts import FakeConnection, Parts


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path, max_incremental_fetch_session_cache_partitions=1000)
    yield made
    made.close()


def open_session(parts: Parts, connection: Any, partitions: int, first: int = 0, **fields: Any) -> Any:
    wanted = [FetchPartition(index) for index in range(first, first + partitions)]
    request = FetchRequest(session_epoch=0, topics=[FetchTopic("nope", partitions=wanted)], **fields)
    answer = HANDLERS[FetchRequest.API_KEY](RequestContext(parts, connection, 12, "c"), request)
    return result_of(answer, lambda: parts.time.advance(0)) if isinstance(answer, Deferred) else answer


def test_all_have_a_bounded_number_of_partitions(parts: Parts) -> None:
    ids = [open_session(parts, FakeConnection(), 400).session_id for _ in range(4)]
    assert [bool(session_id) for session_id in ids] == [True, True, False, False]
    assert open_session(parts, FakeConnection(), 200).session_id
    assert not open_session(parts, FakeConnection(), 1).session_id


def test_sessions_of_brokers_are_not_counted(parts: Parts) -> None:
    assert open_session(parts, FakeConnection(), 5000, replica_id=2).session_id
    assert open_session(parts, FakeConnection(), 1000).session_id


def test_unused_sessions_are_evicted(parts: Parts) -> None:
    assert open_session(parts, FakeConnection(), 900).session_id
    assert not open_session(parts, FakeConnection(), 900).session_id
    parts.time.advance(121)
    assert open_session(parts, FakeConnection(), 900).session_id
    assert len(parts.fetch_sessions) == 1


def test_one_that_grows_too_large_is_closed(parts: Parts) -> None:
    connection = FakeConnection()
    session_id = open_session(parts, connection, 900).session_id
    more = FetchTopic("nope", partitions=[FetchPartition(index) for index in range(900, 1200)])
    request = FetchRequest(session_id=session_id, session_epoch=1, topics=[more])
    answer = HANDLERS[FetchRequest.API_KEY](RequestContext(parts, connection, 12, "c"), request)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(parts.fetch_sessions) == 0


def test_they_end_with_their_connection(parts: Parts) -> None:
    leaving, staying = FakeConnection(), FakeConnection()
    for connection in (leaving, leaving, staying):
        assert open_session(parts, connection, 100).session_id
    assert leaving.on_lost is not None
    leaving.on_lost()
    assert len(parts.fetch_sessions) == 1
    assert not parts.fetch_sessions._owned.keys() & {leaving}


def test_each_principal_or_address_has_a_share(parts: Parts) -> None:
    ann, eve, mallory = FakeConnection(), FakeConnection(), FakeConnection()
    ann.principal, mallory.host = Principal("User", "ann"), "127.0.0.2"
    assert all(open_session(parts, eve, 100).session_id for _ in range(10))
    assert not open_session(parts, eve, 1).session_id
    assert open_session(parts, mallory, 100).session_id, "its address has fewer"
    assert open_session(parts, ann, 500).session_id, "she has said who she is"
    assert len(parts.fetch_sessions) == 6


@pytest.mark.parametrize("epoch", [1, -1, 0])
def test_who_guesses_an_id_learns_nothing_and_disturbs_nobody(parts: Parts, epoch: int) -> None:
    owner, stranger = FakeConnection(), FakeConnection()
    owner.principal = Principal("User", "alice")
    session_id = open_session(parts, owner, 10).session_id
    request = FetchRequest(session_id=session_id, session_epoch=epoch, topics=[])
    answer = HANDLERS[FetchRequest.API_KEY](RequestContext(parts, stranger, 12, "c"), request)
    assert answer.error_code == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND if epoch == 1 else ErrorCode.NONE)
    assert not answer.responses
    more = FetchRequest(session_id=session_id, session_epoch=1, topics=[])
    answer = HANDLERS[FetchRequest.API_KEY](RequestContext(parts, owner, 12, "c"), more)
    assert (answer.error_code, answer.session_id) == (ErrorCode.NONE, session_id)


def test_their_memory_is_given_back(parts: Parts) -> None:
    tracemalloc.start()
    try:
        assert open_session(parts, FakeConnection(), 100).session_id  # creates whatever is created once
        kept = []
        for _ in range(3):  # a thread of an earlier test may take memory meanwhile
            before, _ = tracemalloc.get_traced_memory()
            connection = FakeConnection()
            assert open_session(parts, connection, 800).session_id
            held, _ = tracemalloc.get_traced_memory()
            assert held - before > 100_000
            assert connection.on_lost is not None
            connection.on_lost()
            del connection
            after, _ = tracemalloc.get_traced_memory()
            kept.append(after - before)
    finally:
        tracemalloc.stop()
    assert min(kept) < 20_000


def test_many_partitions_are_looked_at_in_several_turns(parts: Parts) -> None:
    """A session checks unknown partitions in each fetch, since the client has to get the error each time."""
    turns: list[float] = []
    call_later = parts.time.callLater

    def note(delay: float, *args: Any, **named: Any) -> Any:
        turns.append(delay)
        return call_later(delay, *args, **named)

    parts.time.callLater = note  # type: ignore[method-assign]
    connection = FakeConnection()
    answer = open_session(parts, connection, 1000)
    assert len(answer.responses[0].partitions) == 1000
    assert turns == [0, 0]
    request = FetchRequest(session_id=answer.session_id, session_epoch=1)
    again = HANDLERS[FetchRequest.API_KEY](RequestContext(parts, connection, 12, "c"), request)
    answer = result_of(again, lambda: parts.time.advance(0))
    assert len(answer.responses[0].partitions) == 1000
    assert turns == [0, 0, 0, 0]
    del parts.time.callLater
