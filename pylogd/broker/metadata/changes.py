"""How brokers learn of metadata writes, including their own: every write sets one node, `/changes`.

Strategy: a write is one `multi` that ends with setting `/changes` to the list of written paths. The version of
`/changes` counts the writes, so a broker needs only one watch, however many topics there are. A broker that is one
version behind reads only the paths named there. A broker that is further behind finds the paths of the missed writes in
`change_log`. A broker that has missed more than that log has, or that has a new session, reads everything again, but
decodes only nodes with a new version. A broker learns of its own writes in the same way: `write` fires when the broker
has read its write back, so look-ups change in one way only. It need not decode its own writes.

In a large cluster one server of ZooKeeper would be busy for a second if every broker read each of a dozen successive
writes. So a broker without waiting callers pauses between two reads, and then reads several writes together. Also, not
all brokers read the first of several writes at the same moment, so that the server can answer the writing broker in
between.

Rules: `reload` and `refresh` of a reader never run concurrently. The content that they read may be newer than the
version for which they were started, but not older. A `refresh` is repeated if the connection was lost during it.
`/changes` also has the new content of partition states, if it is small enough. Then a fail-over costs each broker one
read, however many topics are affected.

Must not know: what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.broker.metadata.change_log import LogReader, new_entry, trim
from pylogd.broker.metadata.change_notes import Change, News, decode_change, encode_change
from pylogd.broker.metadata.feed_machine import FEED, FeedEvent, FeedState
from pylogd.broker.metadata.staggering import share, sleep
from pylogd.store.errors import ConnectionLost, SessionExpired, StoreClosed
from pylogd.store.interfaces import (
    IMetadataStore,
    Node,
    Operation,
    Result,
    SessionState,
    SetData,
    WatchEvent,
)
from pylogd.store.paths import CHANGE_LOG, CHANGES

log = Logger()

#: The most paths that a write names. After a larger write everything is read again.
MAX_PATHS: Final = 1000
#: The number of versions of a node in ZooKeeper, where a version is a signed 32-bit number.
_VERSIONS: Final = 1 << 32
#: Up to this many brokers read without a pause. Each further broker makes the pause between two reads this many seconds
#: longer: two and a half times what a server takes for the two requests of one broker, so that it has time for writes.
UNPACED_BROKERS: Final = 100
_PAUSE_SECONDS: Final = 0.000_5
#: The longest pause, in seconds; 2,100 brokers reach it.
MOST_PAUSE_SECONDS: Final = 1.0
#: Brokers without a pause begin to read one after the other; this is the average time between two of them, in seconds.
_APART_SECONDS: Final = 0.000_15
#: If another broker wrote first, a failed write is repeated after a random pause. In a cluster of n brokers the first
#: pause is at most n * n times this many seconds, because n brokers may write and n brokers read each write. The limit
#: doubles with each repetition, up to `_MOST_BACKOFF_SECONDS`.
_BACKOFF_SECONDS: Final = 0.000_1
_MOST_BACKOFF_SECONDS: Final = 4.0
_RESTING = (FeedState.WATCHED, FeedState.FAILED)


class IReader(Protocol):
    """An object that keeps a part of the metadata in memory."""

    async def reload(self, store: IMetadataStore) -> None:
        """Read the whole part again."""

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """Read again the parts that a write has changed; paths of other readers are ignored."""


class ChangeFeed:
    """Keeps the readers of one broker up to date with the metadata store."""

    def __init__(
        self, store: IMetadataStore, clock: IReactorTime | None = None, brokers: Callable[[], int] = lambda: 1
    ) -> None:
        """Make the feed.

        clock: times pauses between reads; None for no pauses.
        brokers: returns how many brokers read from the same store.
        """
        self._store = store
        self._clock = clock
        self._brokers = brokers
        self._read_at = 0.0  # when the last read ended, in seconds of the clock
        self._paused: IDelayedCall | None = None  # the call that ends a pause before a read
        self._log = LogReader(store)
        self._readers: list[IReader] = []
        self._seen = -1  # the position of `/changes`; -1 if everything has to be read
        self._position_read: int | None = None  # the position that was read last
        self._seen_in = 0  # the transaction that wrote this position
        self._session_id: int | None = None  # the session of the last complete read
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
        """Add a reader to keep up to date. Call this before `start`."""
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
        """Stop reading. Writes that were not read back, or wait to be repeated, fail with `StoreClosed`."""
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
        """Do the operations, all or none. Return their results when the readers have read them back.

        paths: the paths that readers have to read again.
        states: the new content of some of these paths.

        Raises the errors of `multi`.
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
        """Wait until the readers have the present state of the store, whoever wrote it. Raises the errors of `get`."""
        await self.seen(self._position((await self._store.get(CHANGES)).stat.version))

    async def back_off(self, attempt: int) -> None:
        """Wait before repeating a write that another broker's write has prevented. Each broker waits differently long.

        attempt: the number of the attempt, from 0; the longest wait doubles with each attempt. Without a clock there is
            no wait.

        Raises `StoreClosed`.
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
        """Return a version of `/changes` as a number that keeps growing when ZooKeeper's 32 bits wrap around."""
        read = self._position_read
        if read is None:
            return version % _VERSIONS
        half = _VERSIONS // 2
        return read + (version - read + half) % _VERSIONS - half

    def seen(self, position: int) -> Deferred[None]:
        """Return a Deferred that fires when the readers have read up to this position of `/changes`."""
        if self._seen >= position:
            return succeed(None)
        deferred: Deferred[None] = Deferred()
        self._waiters.append((position, deferred))
        self._wake(FeedEvent.WRITTEN)
        return deferred

    def _wake(self, event: FeedEvent) -> None:
        """Note why to read, and begin. If a round is under way, another one follows it."""
        if self._end_pause():
            event = FeedEvent.CHANGED
        resting = self._machine.state in _RESTING
        if self._machine.handle(event) is not FeedState.STOPPED and resting:
            Deferred.fromCoroutine(self._run()).addErrback(self._failed)

    async def _run(self) -> None:
        """Read in rounds until no caller waits for a newer version."""
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
        """Let the readers read the changes up to this content of `/changes`."""
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
        """Return the seconds between two reads for which no caller waits."""
        return min(max(self._brokers() - UNPACED_BROKERS, 0) * _PAUSE_SECONDS, MOST_PAUSE_SECONDS)

    def _turn(self) -> float:
        """Return after how many seconds this broker reads a write that all brokers read; 0 in a small cluster."""
        brokers = self._brokers()
        crowd = brokers if brokers > UNPACED_BROKERS else 0
        return crowd * _APART_SECONDS * share(self._store.session_id, self._seen)

    def _end_pause(self) -> bool:
        """Read without waiting for the end of a pause. Return whether there was a pause."""
        paused, self._paused = self._paused, None
        if paused is None:
            return False
        if paused.active():
            paused.cancel()
        return True

    def _session(self, state: SessionState) -> None:
        """Set the watch again. If the session is not that of the last read, read everything again.

        In the same session `/changes` tells how much was missed: often nothing, after an election of ZooKeeper's
        servers.
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
