"""The change feed of a large cluster: pauses between reads, and waits before a write is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock

from pylogd.broker.metadata.changes import MOST_PAUSE_SECONDS, UNPACED_BROKERS, ChangeFeed
from pylogd.store.errors import StoreClosed
from pylogd.store.interfaces import SessionState
from pylogd.store.sqlite import SqliteStore
from tests.fakes.metadata import result_of
from tests.unit.broker.metadata.conftest import InSession, Reader, write

#: Within which the last of 600 brokers reads what all are told of.
_TURN_SECONDS = 0.1


class TestPauses:
    """A feed of a large cluster beside one that writes."""

    @pytest.fixture
    def clock(self) -> Clock:
        made = Clock()
        made.advance(1000)
        return made

    @pytest.fixture
    def brokers(self) -> list[int]:
        return [600]

    @pytest.fixture
    def paced(self, store: SqliteStore, reader: Reader, clock: Clock, brokers: list[int]) -> Iterator[ChangeFeed]:
        made = ChangeFeed(store, cast(IReactorTime, clock), lambda: brokers[0])
        made.add(reader)
        result_of(made.start())
        clock.advance(MOST_PAUSE_SECONDS)
        yield made
        made.stop()
        assert not clock.getDelayedCalls()

    @pytest.fixture
    def writer(self, store: SqliteStore, paced: ChangeFeed) -> ChangeFeed:
        made = ChangeFeed(store)
        result_of(made.start())
        return made

    def test_writes_that_follow_one_another_are_read_together(
        self, paced: ChangeFeed, writer: ChangeFeed, reader: Reader, clock: Clock
    ) -> None:
        write(writer, "a")
        clock.advance(_TURN_SECONDS)
        assert reader.read == [None, ["/a"]]
        for name in "bcd":
            write(writer, name)
            clock.advance(0.01)
        assert reader.read == [None, ["/a"]]
        clock.advance(MOST_PAUSE_SECONDS)
        assert reader.read == [None, ["/a"], ["/b", "/c", "/d"]]

    @pytest.mark.parametrize(("count", "pause"), [(600, 0.25), (1000, 0.45), (2000, 0.95), (5000, MOST_PAUSE_SECONDS)])
    def test_a_pause_grows_with_the_cluster(
        self,
        paced: ChangeFeed,
        writer: ChangeFeed,
        reader: Reader,
        clock: Clock,
        brokers: list[int],
        count: int,
        pause: float,
    ) -> None:
        """Else the reads of more brokers would leave a server of ZooKeeper less time for writes."""
        brokers[0] = count
        write(writer, "a")
        result_of(Deferred.fromCoroutine(paced.catch_up()))  # a read, at a known time
        write(writer, "b")
        clock.advance(pause - 0.01)
        write(writer, "c")
        assert reader.read == [None, ["/a"]]
        clock.advance(0.02)
        assert reader.read == [None, ["/a"], ["/b", "/c"]]

    def test_brokers_of_a_large_cluster_read_one_after_the_other(
        self, store: SqliteStore, clock: Clock, brokers: list[int]
    ) -> None:
        """A thousand reads at the same moment would be in the way of the controller's own."""
        readers = [Reader() for _ in range(20)]
        feeds = []
        for number, one in enumerate(readers):
            feed = ChangeFeed(cast(Any, InSession(store, number)), cast(IReactorTime, clock), lambda: brokers[0])
            feed.add(one)
            result_of(feed.start())
            feeds.append(feed)
        clock.advance(MOST_PAUSE_SECONDS)
        writer = ChangeFeed(store)
        result_of(writer.start())
        write(writer, "a")
        have_read = []
        for _ in range(10):
            clock.advance(_TURN_SECONDS / 10)
            have_read.append(sum(["/a"] in one.read for one in readers))
        assert have_read[-1] == len(readers)
        assert all(after - before <= 8 for before, after in pairwise([0, *have_read]))
        for feed in feeds:
            feed.stop()

    def test_what_somebody_waits_for_is_read_at_once(
        self, paced: ChangeFeed, writer: ChangeFeed, reader: Reader, clock: Clock
    ) -> None:
        for name in "abc":
            write(writer, name)
        result_of(Deferred.fromCoroutine(paced.catch_up()))
        assert reader.read == [None, ["/a", "/b", "/c"]]
        write(paced, "d")
        assert reader.read[2:] == [["/d"]]
        clock.advance(MOST_PAUSE_SECONDS)
        write(writer, "e")
        clock.advance(_TURN_SECONDS)
        assert reader.read[3:] == [["/e"]]  # the watch was set again

    def test_a_restored_connection_ends_a_pause(
        self, paced: ChangeFeed, writer: ChangeFeed, reader: Reader, store: SqliteStore, clock: Clock
    ) -> None:
        write(writer, "a")
        clock.advance(_TURN_SECONDS)
        write(writer, "b")
        store._tell(SessionState.CONNECTED)
        assert reader.read == [None, ["/a"], ["/b"]]

    def test_brokers_of_a_small_cluster_do_not_pause(
        self, paced: ChangeFeed, writer: ChangeFeed, reader: Reader, brokers: list[int]
    ) -> None:
        brokers[0] = UNPACED_BROKERS
        write(writer, "a")
        write(writer, "b")
        assert reader.read == [None, ["/a"], ["/b"]]

    def test_a_feed_that_was_stopped_reads_nothing_after_a_pause(
        self, paced: ChangeFeed, writer: ChangeFeed, reader: Reader, clock: Clock
    ) -> None:
        write(writer, "a")
        clock.advance(_TURN_SECONDS)
        write(writer, "b")
        paced.stop()
        clock.advance(MOST_PAUSE_SECONDS)
        assert reader.read == [None, ["/a"]]


class TestBackoff:
    """The wait before a write is repeated that another broker's write has prevented."""

    def waits(self, store: SqliteStore, sessions: int, attempt: int, brokers: int) -> list[float]:
        """Return how long feeds in different sessions wait, in seconds."""
        clock = Clock()
        ended: list[float] = []
        for session in range(sessions):
            in_session = cast(Any, InSession(store, session))
            feed = ChangeFeed(in_session, cast(IReactorTime, clock), lambda: brokers)
            Deferred.fromCoroutine(feed.back_off(attempt)).addCallback(lambda _: ended.append(clock.seconds()))
        clock.pump([0.001] * 4100)
        assert len(ended) == sessions
        return ended

    def test_brokers_wait_for_different_times(self, store: SqliteStore) -> None:
        waits = self.waits(store, 20, 0, 40)
        assert max(waits) <= 0.17 and len(set(waits)) >= 10

    def test_a_wait_grows_with_attempts_and_brokers_up_to_four_seconds(self, store: SqliteStore) -> None:
        first, second, many = (max(self.waits(store, 20, *of)) for of in ((0, 40), (1, 40), (4, 2000)))
        assert first < second < 1 < many <= 4.01

    def test_a_feed_that_stops_ends_the_wait(self, store: SqliteStore) -> None:
        clock = Clock()
        feed = ChangeFeed(store, cast(IReactorTime, clock), lambda: 40)
        result_of(feed.start())
        done = Deferred.fromCoroutine(feed.back_off(0))
        feed.stop()
        with pytest.raises(StoreClosed):
            result_of(done)
        assert not clock.getDelayedCalls()

    def test_without_a_clock_there_is_no_wait(self, store: SqliteStore) -> None:
        result_of(Deferred.fromCoroutine(ChangeFeed(store).back_off(4)))
