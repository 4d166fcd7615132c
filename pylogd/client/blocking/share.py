"""Carry out what a group's coordinator decides, in the blocking face: assignments, revocations, commits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from pylogd.client.blocking.start_offsets import Committed, Placing
from pylogd.client.core.consumer.reader import Reader
from pylogd.client.core.group.member_model import Event, Failed, Revoke
from pylogd.client.core.group.sharing import COMMIT_SECONDS, Holdings, Topics
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.errors import PylogdError

_log = logging.getLogger(__name__)


class Group(Committed, Protocol):
    """A consumer's part in a group, by whatever coordinator: `group.BrokerGroup`, or the one on ZooKeeper."""

    @property
    def has_event(self) -> bool:
        """Whether `next_event` may have something."""
        ...

    @property
    def wakes(self) -> bool:
        """Whether an event ends a wait; else events have to be looked for now and then."""
        ...

    def stream_of(self, partition: TopicPartition) -> int | None:
        """Which stream the coordinator has chosen for a partition, if it chooses."""
        ...

    @property
    def may_fetch(self) -> bool:
        """Whether records may be handed out now."""
        ...

    def subscribe(self, topics: Topics) -> None:
        """Be a member that reads these topics."""
        ...

    def leave(self) -> None:
        """Be a member no more; whatever it had is given up."""
        ...

    def polled(self, polling: bool) -> None:
        """The application begins or ends to poll."""
        ...

    def next_event(self) -> Event | None:
        """What to do now."""
        ...

    def done(self, event: Event) -> None:
        """It is done."""
        ...

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit in the background."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float) -> None:
        """Commit now."""
        ...

    def close(self, timeout: float) -> None:
        """Commit what waits, and leave."""
        ...


class Share(Holdings):
    """A consumer's share of the work of its group, where calls wait."""

    def __init__(
        self, group: Group, reader: Reader, placing: Placing, *, commits: bool, interval: float, now: float
    ) -> None:
        """As `Holdings`."""
        super().__init__(group, reader, placing, commits=commits, interval=interval, now=now)
        self.group = group

    # Events

    def obey(self) -> None:
        """Do what the coordinator says. Raises what the listener raises, and what keeps us out of the group."""
        while self.group.has_event and (event := self.group.next_event()) is not None:
            if isinstance(event, Failed):
                self.group.done(event)
                raise event.error
            try:
                if isinstance(event, Revoke):
                    self.give_up(sorted(event.partitions), lost=event.lost)
                else:
                    self.take_on(sorted(event.added))
            finally:
                self.group.done(event)

    def give_up(self, partitions: list[TopicPartition], *, lost: bool = False) -> None:
        """Read these no more."""
        try:
            if not lost and self._commits:
                self._commit_or_log(partitions)
            self.listener.gone(partitions, lost)
        finally:
            self.forget(partitions)

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float) -> None:
        """Commit now. Raises CommitFailed and others."""
        if offsets:
            self.group.commit(offsets, timeout)
            self._note(offsets)

    def close(self, progress: Mapping[TopicPartition, int], timeout: float) -> None:
        """Commit this progress, if commits are ours to do, and leave the group, within `timeout` seconds."""
        try:
            if self._commits:
                self.commit_soon(self.unsaved(progress))
            if self.assigned:
                self.listener.gone(sorted(self.assigned), lost=False)
        finally:
            self.group.close(max(0.0, timeout))

    def _commit_or_log(self, partitions: list[TopicPartition]) -> None:
        positions = self.progress()
        offsets = self.unsaved({p: positions[p] for p in partitions if p in positions})
        try:
            self.commit(offsets, COMMIT_SECONDS)
        except PylogdError as error:
            _log.warning("what was given up will be read again from what was committed before: %s", error)
