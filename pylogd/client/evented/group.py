"""A consumer's part in a group, on an event loop: membership and commits.

Strategy: a `Participation` is driven like any other machine, whether the application polls or not. The application's
coroutines carry out the events of the group, and wait for commits with a `Notifier`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.client.core.call import Call
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.consumer.start_offsets import Committed
from pylogd.client.core.errors import Closed, CommitFailed, RequestTimedOut
from pylogd.client.core.group.assignment import Topics
from pylogd.client.core.group.consumer_protocol import NO_GENERATION
from pylogd.client.core.group.member_model import Event, GroupMetadata
from pylogd.client.core.group.membership import GroupMember
from pylogd.client.core.group.participation import OffsetLookup, Offsets, Participation
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.evented.driver import Driver
from pylogd.client.evented.loop import Notifier


class ConsumerGroup(Protocol):
    """A consumer's part in a group, with any kind of coordinator."""

    #: whether an event wakes a `poll`; otherwise `poll` has to check for events periodically
    wakes: bool
    #: whether `may_fetch` may become false while records are handed out
    leased: bool

    def on_commit(self, call: Callable[[Offsets], object]) -> None:
        """Call `call` with committed offsets from now on, in the application's or the loop's thread."""
        ...

    @property
    def has_event(self) -> bool:
        """Whether `next_event` may return an event."""
        ...

    @property
    def may_fetch(self) -> bool:
        """Whether records may be returned now."""
        ...

    def stream_of(self, partition: TopicPartition) -> int | None:
        """Return the number of the stream that the coordinator chose for a partition, or None."""
        ...

    def subscribe(self, topics: Topics) -> None:
        """Become a member that reads these topics."""
        ...

    async def leave(self) -> None:
        """Leave the group, after all partitions were given up."""
        ...

    def polled(self, polling: bool) -> None:
        """Record that the application begins or ends a poll."""
        ...

    def next_event(self) -> Event | None:
        """Return the next event for the application, or None. Call `done` when the application has handled it."""
        ...

    def done(self, event: Event) -> None:
        """Record that the application has carried out an event."""
        ...

    def metadata(self) -> GroupMetadata:
        """Return the group member that commits offsets at the moment. Raises ValueError if it is unknown."""
        ...

    def look_up(
        self, partitions: list[TopicPartition], done: Callable[[Committed | None, PylogdError | None], None]
    ) -> None:
        """Look up the group's committed offsets; call `done` once."""
        ...

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit in the background."""
        ...

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float) -> None:
        """Commit, and wait until it is done."""
        ...

    async def close(self, timeout: float) -> None:
        """Commit the waiting offsets, and leave the group."""
        ...

    def stop(self) -> None:
        """Stop sending."""
        ...


class BrokerGroup:
    """A group by its id, and this consumer's membership in it if it subscribes. Times are in seconds."""

    wakes = True
    leased = False

    def __init__(
        self,
        driver: Driver,
        options: ConsumerOptions,
        on_event: Callable[[], None],
        warn: Callable[..., None],
    ) -> None:
        """on_event: called when `next_event` has an event.
        warn: logs a line, for each commit that failed in the background.
        """
        self._driver = driver
        self._loop = driver.loop
        self._settings = options.member
        self._part = Participation(
            options.member, stable=options.read_committed, request_timeout=options.request_timeout, on_event=on_event,
            unheard=partial(warn, "group %s: the offset of %s was not committed: %s", options.group_id),
        )  # fmt: skip
        self._changed = Notifier(driver.loop)
        self._stopped = False
        driver.add(self)

    def on_commit(self, call: Callable[[Offsets], object]) -> None:
        """Have `call` called with committed offsets."""
        self._part.on_commit = call

    @property
    def member(self) -> GroupMember:
        """The state machine."""
        return self._part.member

    @property
    def has_event(self) -> bool:
        """Whether `next_event` may return an event."""
        return self._part.has_event

    @property
    def may_fetch(self) -> bool:
        """Always true: partitions are given up by events."""
        return True

    def stream_of(self, partition: TopicPartition) -> int | None:
        """Return None: the consumer chooses the stream."""
        return None

    def subscribe(self, topics: Topics) -> None:
        """Become a member that reads topics by name, or topics whose whole names match a pattern."""
        self._part.subscribe(topics if isinstance(topics, re.Pattern) else list(topics), self._loop.now())
        self._driver.soon()

    async def leave(self) -> None:
        """Leave the group, after all partitions were given up."""
        self._part.leave(self._loop.now())
        self._driver.soon()

    def polled(self, polling: bool) -> None:
        """Record that the application begins or ends a poll."""
        self._part.polled(polling, self._loop.now())
        if polling and self._part.member.is_away:
            self._driver.soon()

    def next_event(self) -> Event | None:
        """Return the next event for the application, or None. Call `done` when the application has handled it."""
        return self._part.next_event()

    def done(self, event: Event) -> None:
        """Record that the application has carried out an event."""
        self._part.done(event, self._loop.now())
        self._driver.soon()

    # Offsets

    def metadata(self) -> GroupMetadata:
        """Return the group member with which offsets are committed now; it names no member if the consumer has not
        subscribed.

        Raises CommitFailed if the consumer has subscribed and is not a member now.
        """
        found = self._part.member.identity
        if self._part.subscribed and found.generation == NO_GENERATION:
            raise CommitFailed(
                ErrorCode.UNKNOWN_MEMBER_ID, f"group {found.group_id}: this consumer is not a member of it"
            )
        return found

    def commit_soon(self, offsets: Offsets) -> None:
        """Commit in the background."""
        self._part.queue.put(offsets)
        self._driver.soon()

    async def commit(self, offsets: Offsets, timeout: float) -> None:
        """Commit, and wait until it is done. Raises CommitFailed, KafkaError, RequestTimedOut, Closed."""
        awaited = self._part.begin_commit(offsets)
        deadline = self._loop.now() + timeout
        try:
            self._driver.soon()
            while self._part.queue.holds(offsets) and self._loop.now() < deadline:
                self._check()
                await self._changed.wait(deadline)
            if awaited.errors:
                raise awaited.errors[0]
            if self._part.queue.holds(offsets):
                group = self._settings.group_id
                raise RequestTimedOut(f"group {group}: the commit was not answered in {timeout:g} s")
        finally:
            self._part.end_commit(awaited)

    def look_up(
        self, partitions: list[TopicPartition], done: Callable[[Committed | None, PylogdError | None], None]
    ) -> None:
        """Look up the group's committed offsets; call `done` once."""

        def answered(lookup: OffsetLookup) -> None:
            if lookup.error is not None:
                done(None, lookup.error)
            else:
                done(lookup.offsets, None)

        if self._stopped:
            done(None, Closed("the consumer is closed"))
            return
        self._part.look_up(OffsetLookup(partitions, answered))
        self._driver.soon()

    async def close(self, timeout: float) -> None:
        """Commit the waiting offsets and leave the group, both within `timeout`."""
        deadline = self._loop.now() + timeout
        self._driver.soon()
        while self._part.queue and self._loop.now() < deadline and self.member.error is None:
            await self._changed.wait(deadline)
        self._part.leave(self._loop.now())
        self._driver.soon()
        while not self.member.is_out and self._loop.now() < deadline:
            await self._changed.wait(deadline)
        self.stop()

    def stop(self) -> None:
        """Stop; look-ups fail with Closed."""
        if not self._stopped:
            self._stopped = True
            self._driver.remove(self)
            self._part.fail_lookups(Closed("the consumer is closed"))
            self._changed.notify()

    def _check(self) -> None:
        if self._stopped:
            raise Closed("the consumer is closed")

    # What the driver calls

    def turn(self, now: float) -> list[Call]:
        """Do the due work, and return the requests to send."""
        return self._part.due(now)

    def next_time(self, now: float) -> float | None:
        """Return when to call `turn`, unless an event comes first."""
        return self._part.next_time(now)

    def settle(self) -> None:
        """Wake callers that wait for a commit."""
        self._changed.notify()

    def reset(self) -> None:
        """Drop all requests in flight: the connections are closed, and no answer will arrive."""
        self._part.reset(self._loop.now())
