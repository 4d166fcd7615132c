"""Fetch sessions: epochs, errors, changes, the order of partitions, and evictions."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from twisted.internet.task import Clock

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.base.limits.shares import Share
from pylogd.broker.replica.purgatory import Purgatory
from pylogd.broker.replica.session_cache import EVICTABLE_AFTER_MS, FetchSessions
from pylogd.broker.replica.sessions import FetchSession, SessionPartition


@dataclass
class Want:
    partition: int
    fetch_offset: int = 0


class Time:
    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def now() -> Time:
    return Time()


@pytest.fixture
def sessions(now: Time) -> FetchSessions[Want]:
    return FetchSessions(2, now, Purgatory(Clock()))


def entries(*indexes: int, topic: str = "t") -> list[SessionPartition[Want]]:
    return [SessionPartition(topic, Want(index)) for index in indexes]


def made(sessions: FetchSessions[Want], *indexes: int, by_id: bool = False) -> FetchSession[Want]:
    session = sessions.create(entries(*indexes), by_id)
    assert session is not None
    return session


def order(session: FetchSession[Want]) -> list[int]:
    return [entry.wanted.partition for entry in session]


def refused(sessions: FetchSessions[Want], session_id: int, epoch: int, by_id: bool = False) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        sessions.resume(session_id, epoch, by_id)
    return caught.value.code


def test_epochs_count_up_from_one(sessions: FetchSessions[Want]) -> None:
    session = made(sessions, 0)
    for epoch in (1, 2, 3):
        assert sessions.resume(session.session_id, epoch, False) is session
    assert refused(sessions, session.session_id, 3) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refused(sessions, session.session_id, 5) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.resume(session.session_id, 4, False) is session


def test_the_epoch_wraps_to_one(sessions: FetchSessions[Want]) -> None:
    session = made(sessions, 0)
    session.epoch = 0x7FFFFFFF
    sessions.resume(session.session_id, 0x7FFFFFFF, False)
    assert session.epoch == 1


def test_an_unknown_session_is_refused(sessions: FetchSessions[Want]) -> None:
    assert refused(sessions, 17, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session = made(sessions, 0)
    sessions.close(session.session_id)
    sessions.close(session.session_id)
    assert refused(sessions, session.session_id, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_names_and_ids_do_not_mix(sessions: FetchSessions[Want]) -> None:
    session = made(sessions, 0, by_id=True)
    assert refused(sessions, session.session_id, 1, by_id=False) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert sessions.resume(session.session_id, 1, True) is session


def test_entries_are_added_changed_and_forgotten(sessions: FetchSessions[Want]) -> None:
    session = made(sessions, 0, 1)
    before = session.partitions["t", 0]
    before.told(5, 0)
    assert session.want("t", Want(0, fetch_offset=5)) is before
    assert before.wanted.fetch_offset == 5
    assert not before.is_news(5, 0)
    session.want("t", Want(2))
    session.forget("t", [1, 9])
    session.forget("unknown", [0])
    assert order(session) == [0, 2]


def test_which_partitions_have_changed(sessions: FetchSessions[Want]) -> None:
    entry = SessionPartition("t", Want(0))
    assert entry.is_news(0, 0)
    entry.told(10, 2)
    assert not entry.is_news(10, 2)
    assert entry.is_news(11, 2)
    assert entry.is_news(10, 3)
    entry.told_error()
    assert entry.is_news(10, 2)


def test_a_partition_that_returned_records_goes_to_the_end(sessions: FetchSessions[Want]) -> None:
    session = made(sessions, 0, 1, 2)
    session.served(session.partitions["t", 0])
    assert order(session) == [1, 2, 0]
    gone = session.partitions["t", 1]
    session.forget("t", [1])
    session.served(gone)
    assert order(session) == [2, 0]


def test_a_full_cache_makes_no_session(sessions: FetchSessions[Want], now: Time) -> None:
    made(sessions, 0)
    made(sessions, 1)
    now.now = EVICTABLE_AFTER_MS - 1
    assert sessions.create(entries(2), False) is None
    assert len(sessions) == 2


def test_the_session_unused_for_longest_is_evicted(sessions: FetchSessions[Want], now: Time) -> None:
    old, used = made(sessions, 0), made(sessions, 1)
    now.now = 10
    sessions.resume(old.session_id, 1, False)  # now `used` has been idle for longest
    now.now = EVICTABLE_AFTER_MS
    new = made(sessions, 2)
    assert refused(sessions, used.session_id, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.resume(old.session_id, 2, False) is old
    assert sessions.resume(new.session_id, 1, False) is new


def test_no_slots_no_sessions(now: Time) -> None:
    assert FetchSessions[Want](0, now, Purgatory(Clock())).create(entries(0), False) is None


def test_a_follower_takes_the_place_of_a_client_in_use(sessions: FetchSessions[Want], now: Time) -> None:
    client, follower = made(sessions, 0), sessions.create(entries(0), False, privileged=True)
    assert follower is not None
    assert sessions.create(entries(0), False) is None
    assert sessions.create(entries(0), False, privileged=True) is not None
    with pytest.raises(KafkaError):
        sessions.resume(client.session_id, 1, False)
    assert sessions.create(entries(0), False, privileged=True) is None
    assert sessions.resume(follower.session_id, 1, False) is follower
    now.now = EVICTABLE_AFTER_MS
    assert sessions.create(entries(0), False) is None  # though one has not been used for long
    assert sessions.create(entries(0), False, privileged=True) is not None


def test_a_larger_session_takes_the_place_of_the_smallest_that_is_not_new(
    sessions: FetchSessions[Want], now: Time
) -> None:
    """KIP-227: even if the smaller session is in use."""
    small, large = made(sessions, 0, 1), made(sessions, 0, 1, 2, 3)
    assert sessions.create(entries(0, 1, 2), False) is None  # both sessions have just been created
    now.now = EVICTABLE_AFTER_MS - 1
    sessions.resume(large.session_id, 1, False)
    sessions.resume(small.session_id, 1, False)
    now.now = EVICTABLE_AFTER_MS
    assert sessions.create(entries(0, 1), False) is None
    assert sessions.create(entries(0, 1, 2), False) is not None
    assert refused(sessions, small.session_id, 2) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.resume(large.session_id, 2, False) is large
    assert len(sessions) == 2


def test_a_follower_takes_the_place_of_the_smallest_client(sessions: FetchSessions[Want]) -> None:
    large, small = made(sessions, 0, 1, 2), made(sessions, 0)
    assert sessions.create(entries(0), False, privileged=True) is not None
    assert refused(sessions, small.session_id, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.resume(large.session_id, 1, False) is large


def test_no_client_however_large_takes_the_place_of_a_follower_in_use(sessions: FetchSessions[Want], now: Time) -> None:
    followers = [sessions.create(entries(0), False, privileged=True) for _ in range(2)]
    now.now = EVICTABLE_AFTER_MS - 1
    for follower in followers:
        assert follower is not None
        sessions.resume(follower.session_id, 1, False)
    now.now = EVICTABLE_AFTER_MS
    assert sessions.create(entries(*range(100)), False) is None
    assert sessions.create(entries(0, 1), False, privileged=True) is not None  # but a follower's larger session does


ANN, BOB = Share("User:ann", True), Share("User:bob", True)
EVE, MALLORY = Share("10.0.0.1", False), Share("10.0.0.2", False)


def opened(sessions: FetchSessions[Want], share: Share, partitions: int = 1) -> FetchSession[Want] | None:
    return sessions.create(entries(*range(partitions)), False, share=share)


def live(sessions: FetchSessions[Want], *wanted: FetchSession[Want] | None) -> list[bool]:
    return [session is not None and sessions._sessions.get(session.session_id) is session for session in wanted]


def shared(now: Time, slots: int = 10, most_partitions: int = 1000) -> FetchSessions[Want]:
    return FetchSessions(slots, now, Purgatory(Clock()), most_partitions)


def test_the_share_with_most_sessions_gives_way_and_takes_none_from_others(now: Time) -> None:
    sessions = shared(now)
    mine = opened(sessions, MALLORY)
    flood = [opened(sessions, EVE) for _ in range(2000)]
    assert live(sessions, mine) == [True]
    assert sum(live(sessions, *flood)) == 9
    assert sessions.evictions == 0, "a flood is refused; it does not replace its own sessions over and over"
    more = [opened(sessions, MALLORY) for _ in range(9)]
    assert sum(live(sessions, mine, *more)) == 5, "until both have as many"


def test_strangers_give_way_to_principals_though_they_have_fewer_sessions_each(now: Time) -> None:
    sessions = shared(now)
    crowd = [opened(sessions, Share(f"10.0.1.{number}", False)) for number in range(20)]
    mine = [opened(sessions, ANN) for _ in range(5)]
    assert sum(live(sessions, *crowd)) == 5
    assert live(sessions, *mine) == [True] * 5
    opened(sessions, Share("10.0.2.1", False))
    assert live(sessions, *mine) == [True] * 5
    assert opened(sessions, ANN) is not None, "it has half, not more"
    assert opened(sessions, ANN) is None, "it has more than half"
    assert opened(sessions, BOB) is not None


def test_a_principal_with_more_than_half_gives_way_to_strangers(now: Time) -> None:
    sessions = shared(now)
    mine = [opened(sessions, ANN) for _ in range(10)]
    flood = [opened(sessions, EVE) for _ in range(100)]
    assert sum(live(sessions, *mine)) == sum(live(sessions, *flood)) == 5


def test_an_unused_session_of_a_principal_does_not_go_for_a_stranger(now: Time) -> None:
    sessions = shared(now, slots=2)
    first, second = opened(sessions, ANN), opened(sessions, BOB)
    now.now = EVICTABLE_AFTER_MS
    assert opened(sessions, EVE) is None
    assert opened(sessions, BOB) is not None
    assert live(sessions, first, second) == [False, True]


def test_a_larger_session_replaces_a_smaller_one_of_its_own_share_only(now: Time) -> None:
    sessions = shared(now, slots=2)
    his, hers = opened(sessions, BOB), opened(sessions, ANN)
    now.now = EVICTABLE_AFTER_MS - 1
    for session in (his, hers):
        assert session is not None
        sessions.resume(session.session_id, 1, False)
    now.now = EVICTABLE_AFTER_MS
    assert opened(sessions, EVE, 50) is None
    assert opened(sessions, ANN, 2) is not None
    assert live(sessions, his, hers) == [True, False]


def test_a_follower_takes_the_place_of_the_share_with_most(now: Time) -> None:
    sessions = shared(now)
    mine = [opened(sessions, ANN) for _ in range(2)]
    crowd = [opened(sessions, EVE, 5) for _ in range(8)]
    for _ in range(6):
        assert sessions.create(entries(0), False, privileged=True) is not None
    assert live(sessions, *mine) == [True] * 2
    assert sum(live(sessions, *crowd)) == 2
    for _ in range(4):
        assert sessions.create(entries(0), False, privileged=True) is not None
    assert [opened(sessions, share) for share in (EVE, ANN)] == [None, None]


def test_partitions_are_shared_too(now: Time) -> None:
    sessions = shared(now, slots=1000, most_partitions=100)
    crowd = [opened(sessions, EVE, 20) for _ in range(6)]
    assert sum(live(sessions, *crowd)) == 5
    mine = opened(sessions, MALLORY, 20)
    assert live(sessions, mine) == [True], "the other share has more"
    assert sum(live(sessions, *crowd)) == 4
    assert opened(sessions, MALLORY, 50) is None, "it would have more than the other"
    known = opened(sessions, ANN, 60)
    assert live(sessions, known) == [True]
    assert sum(live(sessions, *crowd)) == 1


def test_a_session_that_grows_takes_partitions_of_the_share_with_most(now: Time) -> None:
    sessions = shared(now, slots=1000, most_partitions=100)
    flood = [opened(sessions, EVE, 30) for _ in range(3)]
    mine = opened(sessions, MALLORY, 10)
    assert mine is not None
    for index in range(10, 20):
        mine.want("t", Want(index))
    sessions.resized(mine)
    assert sum(live(sessions, *flood)) == 2
    for index in range(20, 90):
        mine.want("t", Want(index))
    with pytest.raises(KafkaError):
        sessions.resized(mine)
    assert sum(live(sessions, mine, *flood)) == 2
    assert opened(sessions, MALLORY, 40) is not None, "what was closed counts no more"


def test_what_shrinks_counts_less(now: Time) -> None:
    sessions = shared(now, most_partitions=100)
    mine = opened(sessions, ANN, 100)
    assert mine is not None
    mine.forget("t", range(60))
    sessions.resized(mine)
    assert opened(sessions, ANN, 60) is not None
