"""What a leader knows of its followers, and which records are committed because of it."""

from __future__ import annotations

from pylogd.broker.replica.followers import UNKNOWN, Follower, committed_end, low_watermark


def follower(end: int, start: int = 0) -> Follower:
    one = Follower(0.0)
    one.fetched(end, start, end, 0.0)
    return one


def test_committed_is_what_all_in_sync_replicas_have() -> None:
    followers = {2: follower(5), 3: follower(7)}
    assert committed_end(9, (1, 2, 3), followers) == 5
    assert committed_end(9, (1, 3), followers) == 7
    assert committed_end(9, (1,), followers) == 9


def test_nothing_is_committed_before_every_follower_has_fetched() -> None:
    assert committed_end(9, (1, 2, 3), {2: follower(5), 3: Follower(0.0)}) == UNKNOWN


def test_the_low_watermark_is_that_of_whoever_has_most() -> None:
    assert low_watermark(4, (2, 3), {2: follower(5, 1), 3: follower(5, 3)}) == 1
    assert low_watermark(4, (), {2: follower(5, 1)}) == 4


def test_a_follower_at_the_end_never_lags() -> None:
    one = Follower(0.0)
    one.fetched(5, 0, 5, 1.0)
    assert not one.lags(5, 1000.0, 10.0)
    assert one.lags(6, 1000.0, 10.0)


def test_a_follower_that_always_has_what_was_there_the_last_time_keeps_up() -> None:
    one = Follower(0.0)
    for second in range(100):  # never at the log end, since the leader gets new records all the time
        one.fetched(second * 10, 0, second * 10 + 10, float(second))
    assert not one.lags(2000, 100.0, 5.0)


def test_a_follower_that_falls_behind_lags_from_when_it_last_had_all() -> None:
    one = Follower(0.0)
    one.fetched(10, 0, 10, 1.0)
    one.fetched(11, 0, 30, 2.0)
    one.fetched(12, 0, 50, 3.0)
    assert not one.lags(50, 11.0, 10.0)
    assert one.lags(50, 12.1, 10.0)


def test_a_new_leader_gives_followers_time_to_fetch() -> None:
    one = Follower(100.0)
    assert not one.lags(5, 109.0, 10.0)
    assert one.lags(5, 111.0, 10.0)
