"""How brokers hear of metadata writes, including their own: every write sets one node, `/changes`.

Strategy: a write is one `multi` that ends with setting `/changes` to the list of paths written. Its version counts the
writes, so a broker needs only one watch, however many topics there are. A broker that is one version behind reads only
the paths named there; one that is further behind finds those of the missed writes in `change_log`. A broker that has
missed more than that log has, or whose session is a new one, reads everything again, but decodes only what has another
version. A broker's own write takes the same way: `write` fires when the broker has read it back, so look-ups change in
one way only. It need not decode what it wrote itself.

In a large cluster one server of ZooKeeper would be busy for a second if every broker read each of a dozen writes that
follow one another. So a broker that nobody waits for pauses between two reads, and then reads several writes together.
Also the first of several writes is not read by all brokers at the same moment, so that the server answers in between
the one that writes.

Rules: `reload` and `refresh` of a reader never run concurrently. What they read may be newer than the version for which
they were started, but not older. A `refresh` is repeated if the connection was lost during it. `/changes` also has the
new content of partition states, if it is small enough: then a fail-over costs each broker one read, however many topics
it concerns.

Must not know: what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.metadata.change_log import LogReader, new_entry, trim
from pylogd.metadata.change_notes import Change, News, decode_change, encode_change
from pylogd.metadata.errors import ConnectionLost, SessionExpired, StoreClosed
from pylogd.metadata.feed_machine import FEED, FeedEvent, FeedState
from pylogd.metadata.interfaces import (
    IMetadataStore,
    Node,
    Operation,
    Result,
    SessionState,
    SetData,
    WatchEvent,
)
from pylogd.metadata.layout import CHANGE_LOG, CHANGES
from pylogd.metadata.spread import share, sleep

log = Logger()

#: The most paths that a write names; after a larger one everything is read again.
MAX_PATHS: Final = 1000
#: How many versions a node can have in ZooKeeper, whose number is a signed one of 32 bits.
_VERSIONS: Final = 1 << 32
#: Up to so many brokers read without a pause. For each more, a pause between two reads is longer by so many seconds:
#: two and a half times what a server takes for the two requests of one broker, so that it has time for writes.
UNPACED_BROKERS: Final = 100
_PAUSE_SECONDS: Final = 0.000_5
#: The longest pause, in seconds. It is that of 2,100 brokers.
MOST_PAUSE_SECONDS: Final = 1.0
#: Brokers that are not in a pause begin to read one after the other, on average one in each such time, in seconds.
_APART_SECONDS: Final = 0.000_15
#: A write that failed because another broker wrote first is repeated after a random pause. In a cluster of n brokers
#: the first pause is at most n * n times this many seconds, because n brokers may write and each write is read by n
#: brokers. This limit doubles with each repetition, up to `_MOST_BACKOFF_SECONDS`.
_BACKOFF_SECONDS: Final = 0.000_1
_MOST_BACKOFF_SECONDS: Final = 4.0
_RESTING = (FeedState.WATCHED, FeedState.FAILED)


class IReader(Protocol):
    """An object that keeps a part of the metadata in memory."""

    async def reload(self, store: IMetadataStore) -> None:
        """Read the whole part again."""

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """Read again what a write has changed; paths of other parts are ignored."""


class ChangeFeed:
    """Keeps the readers of one broker up to date with the metadata store."""

    def __init__(
        self, store: IMetadataStore, clock: IReactorTime | None = None, brokers: Callable[[], int] = lambda: 1
    ) -> None:
        """clock: for pauses between reads; None for no pauses. brokers: returns how many read at the same store."""
        self._store = store
        self._clock = clock
        self._brokers = brokers
        self._read_at = 0.0  # when the last read ended, in seconds of the clock
        self._paused: IDelayedCall | None = None  # a read that a pause delays
        self._log = LogReader(store)
        self._readers: list[IReader] = []
        self._seen = -1  # the position of `/changes`; -1 if everything has to be read
        self._position_read: int | None = None  # the position that was read last
        self._seen_in = 0  # the transaction that wrote it
        self._session_id: int | None = None  # in which everything was read last
        self._machine = FEED.machine()
        self._waiters: list[tuple[int, Deferred[None]]] = []
        self._own: dict[int, Change] = {}  # this broker's writes that it has not read back, by position of `/changes`
        self._forget: Callable[[], None] | None = None
        self._backing_off: set[Deferred[None]] = set()

    @property
    def in_new_session(self) -> bool:
        """Whether no complete read was made yet in the store's present session."""
        return self._session_id != self._store.session_id

    def add(self, reader: IReader) -> None:
        """Keep a reader up to date. To be called before `start`."""
        self._readers.append(reader)

    def start(self) -> Deferred[None]:
        """Read everything; fires when that is done."""

        async def start() -> None:
            await self._store.ensure(CHANGE_LOG)
            self._machine.handle(FeedEvent.START)
            self._forget = self._store.on_session(self._session)
            await self._run()

        return Deferred.fromCoroutine(start())

    def stop(self) -> None:
        """Read nothing more. Writes that were not read back, or wait to be repeated, fail with `StoreClosed`."""
        self._end_pause()
        for wait in list(self._backing_off):
            wait.cancel()
        self._machine.handle(FeedEvent.STOP)
        if self._forget is not None:
            self._forget()
            self._forget = None
        waiters, self._waiters = self._waiters, []
        for _, deferred in waiters:
            deferred.errback(StoreClosed("the metadata is closed"))

    async def write(
        self, operations: Sequence[Operation], paths: Sequence[str], states: Mapping[str, News] | None = None
    ) -> Sequence[Result]:
        """Do the operations, all or none; return their results when the readers have read them back.

        paths: what the readers have to read again. states: the new content of some of them. Raises what `multi` raises.
        """
        change = Change(paths, states or {}) if len(paths) <= MAX_PATHS else None
        note = b"" if change is None else encode_change(change)
        results = await self._store.multi([*operations, SetData(CHANGES, note), new_entry(change, note)])
        *results, version, entry = results
        assert isinstance(version, int) and isinstance(entry, str)
        position = self._position(version)
        if change is not None:
            self._own[position] = change
        Deferred.fromCoroutine(trim(self._store, entry))
        await self.seen(position)
        return results

    async def catch_up(self) -> None:
        """Wait until the readers have what the store has now, whoever wrote it. Raises what `get` raises."""
        await self.seen(self._position((await self._store.get(CHANGES)).stat.version))

    async def back_off(self, attempt: int) -> None:
        """Wait before a write is repeated that another broker's write has prevented: each broker for another time.

        attempt: from 0; the longest wait doubles with each. Without a clock there is no wait. Raises `StoreClosed`.
        """
        if self._clock is None:
            return
        most = min(self._brokers() ** 2 * _BACKOFF_SECONDS * 2**attempt, _MOST_BACKOFF_SECONDS)
        wait = sleep(self._clock, most * share(self._store.session_id, self._seen))
        self._backing_off.add(wait)
        try:
            await wait
        except CancelledError:
            raise StoreClosed("the metadata is closed") from None
        finally:
            self._backing_off.discard(wait)

    def _position(self, version: int) -> int:
        """Return a version of `/changes` as a number, 0 or more, that goes on where ZooKeeper's 32 bits start over."""
        read = self._position_read
        if read is None:
            return version % _VERSIONS
        half = _VERSIONS // 2
        return read + (version - read + half) % _VERSIONS - half

    def seen(self, position: int) -> Deferred[None]:
        """Return a Deferred that fires when the readers have read up to that position of `/changes`."""
        if self._seen >= position:
            return succeed(None)
        deferred: Deferred[None] = Deferred()
        self._waiters.append((position, deferred))
        self._wake(FeedEvent.WRITTEN)
        return deferred

    def _wake(self, event: FeedEvent) -> None:
        """Note why to read, and begin unless a round is under way, which is then followed by another one."""
        if self._end_pause():
            event = FeedEvent.CHANGED
        resting = self._machine.state in _RESTING
        if self._machine.handle(event) is not FeedState.STOPPED and resting:
            Deferred.fromCoroutine(self._run()).addErrback(self._failed)

    async def _run(self) -> None:
        """Read in rounds until nobody waits for a newer version."""
        machine = self._machine
        await self._round()
        while machine.state is FeedState.OUTDATED or (machine.state is FeedState.READING and self._waiters):
            await self._round()
        machine.handle(FeedEvent.DONE)

    async def _round(self) -> None:
        watch = self._changed if self._machine.state is FeedState.OUTDATED else None
        self._machine.handle(FeedEvent.ROUND)
        session_id = self._store.session_id
        try:
            node = await self._store.get(CHANGES, watch)
            await self._read(node)
        except BaseException as error:
            self._machine.handle(FeedEvent.BROKE)
            if not isinstance(error, ConnectionLost | SessionExpired):
                self._seen = -1  # the next round reads everything
            raise
        position = self._position_read = self._position(node.stat.version)
        self._seen, self._seen_in, self._session_id = position, node.stat.modified, session_id
        self._read_at = 0.0 if self._clock is None else self._clock.seconds()
        self._own = {written: change for written, change in self._own.items() if written > position}
        due = [deferred for wanted, deferred in self._waiters if wanted <= position]
        self._waiters = [(wanted, deferred) for wanted, deferred in self._waiters if wanted > position]
        for deferred in due:
            deferred.callback(None)

    async def _read(self, node: Node) -> None:
        """Let the readers read what has changed up to this content of `/changes`."""
        changes = await self._changes_until(node)
        if changes is None:
            self._log.forget()
            for reader in self._readers:
                await reader.reload(self._store)
            return
        for change in changes:
            for reader in self._readers:
                await reader.refresh(self._store, change)

    async def _changes_until(self, node: Node) -> list[Change] | None:
        """Return the changes since the version that was read last; None if they are not known."""
        position, seen = self._position(node.stat.version), self._seen
        if seen < 0:
            return None
        missed = position - seen
        changes = [change for written, change in sorted(self._own.items()) if seen < written <= position]
        if len(changes) < missed and missed > 1:
            return await self._log.missed(missed, self._seen_in, node)
        if len(changes) < missed:
            change = decode_change(node.data)
            if change is None:
                return None
            changes = [change]
        self._log.passed(missed)
        return changes

    def _changed(self, _: WatchEvent) -> None:
        clock = self._clock
        seconds = 0.0 if clock is None else max(self._read_at + self._pause() - clock.seconds(), self._turn())
        if clock is None or seconds <= 0 or self._waiters or self._machine.state is FeedState.STOPPED:
            self._wake(FeedEvent.CHANGED)
        else:
            self._end_pause()
            self._paused = clock.callLater(seconds, self._wake, FeedEvent.CHANGED)

    def _pause(self) -> float:
        """Return how many seconds have to pass between two reads for which nobody waits."""
        return min(max(self._brokers() - UNPACED_BROKERS, 0) * _PAUSE_SECONDS, MOST_PAUSE_SECONDS)

    def _turn(self) -> float:
        """Return after how many seconds this broker reads what all others read too; 0 in a small cluster."""
        brokers = self._brokers()
        crowd = brokers if brokers > UNPACED_BROKERS else 0
        return crowd * _APART_SECONDS * share(self._store.session_id, self._seen)

    def _end_pause(self) -> bool:
        """Read without waiting for the end of a pause; return whether there was one."""
        paused, self._paused = self._paused, None
        if paused is None:
            return False
        if paused.active():
            paused.cancel()
        return True

    def _session(self, state: SessionState) -> None:
        """Set the watch again. In another session than the last read's everything is read again.

        In the same one `/changes` tells how much was missed: often nothing, after an election of ZooKeeper's servers.
        """
        if state is SessionState.CONNECTED:
            if self.in_new_session:
                self._seen = -1
            self._wake(FeedEvent.CHANGED)

    def _failed(self, failure: Failure) -> None:
        """Fail the writes that wait for this round. The next write or session starts another one."""
        if failure.check(ConnectionLost, SessionExpired):
            log.warn("Can't read the metadata until the session is restored: {error}", error=failure.getErrorMessage())
        elif self._machine.state is not FeedState.STOPPED:
            log.failure("Unexpected error while reading the metadata", failure=failure)
        waiters, self._waiters = self._waiters, []
        for _, deferred in waiters:
            deferred.errback(failure)
