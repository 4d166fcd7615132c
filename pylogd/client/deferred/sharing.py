"""What a group's coordinator tells a consumer on Twisted, carried out: partitions given up and taken on, commits.

Rules: as the blocking face's (`client/sharing.py`). On revocation: what is processed is committed, the listener is
told, reading stops, and only then does the coordinator hear of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from twisted.logger import Logger

from pylogd.client.core.consumer.reader import Reader
from pylogd.client.core.group.member_model import Event, Failed, Revoke
from pylogd.client.core.group.sharing import COMMIT_SECONDS, Holdings
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.deferred.start_offsets import Placing
from pylogd.errors import PylogdError

log = Logger()

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class Group(Protocol):
    """A consumer's part in a group, by whatever coordinator."""

    @property
    def has_event(self) -> bool:
        """Whether `next_event` may have something."""
        ...

    @property
    def may_fetch(self) -> bool:
        """Whether records may be handed out now."""
        ...

    def subscribe(self, topics: Iterable[str] | re.Pattern[str]) -> None:
        """Be a member that reads these topics, or those whose whole names match."""
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

    async def look_up(self, partitions: list[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed."""
        ...

    def commit_soon(self, offsets: Offsets) -> None:
        """Commit in the background."""
        ...

    async def commit(self, offsets: Offsets, timeout: float) -> None:
        """Commit now."""
        ...

    async def close(self, timeout: float) -> None:
        """Commit what waits, and leave."""
        ...


class Share(Holdings):
    """A consumer's share of the work of its group."""

    def __init__(
        self, group: Group, reader: Reader, placing: Placing, *, commits: bool, interval: float, now: float
    ) -> None:
        """As `Holdings`."""
        super().__init__(group, reader, placing, commits=commits, interval=interval, now=now)
        self.group = group

    async def obey(self) -> None:
        """Do what the coordinator says. Raises what the listener raises, and what keeps us out of the group."""
        while self.group.has_event and (event := self.group.next_event()) is not None:
            if isinstance(event, Failed):
                self.group.done(event)
                raise event.error
            try:
                if isinstance(event, Revoke):
                    await self.give_up(sorted(event.partitions), lost=event.lost)
                else:
                    self.take_on(sorted(event.added))
            finally:
                self.group.done(event)

    async def give_up(self, partitions: list[TopicPartition], *, lost: bool = False) -> None:
        """Read these no more."""
        try:
            if not lost and self._commits:
                await self._commit_or_log(partitions)
            self.listener.gone(partitions, lost)
        finally:
            self.forget(partitions)

    async def commit(self, offsets: Offsets, timeout: float) -> None:
        """Commit now. Raises CommitFailed and others."""
        if offsets:
            await self.group.commit(offsets, timeout)
            self._note(offsets)

    async def close(self, progress: Mapping[TopicPartition, int], timeout: float) -> None:
        """Commit this progress, if commits are ours to do, and leave the group, within `timeout` seconds."""
        try:
            if self._commits:
                self.commit_soon(self.unsaved(progress))
            if self.assigned:
                self.listener.gone(sorted(self.assigned), lost=False)
        finally:
            await self.group.close(max(0.0, timeout))

    async def _commit_or_log(self, partitions: list[TopicPartition]) -> None:
        positions = self.progress()
        offsets = self.unsaved({p: positions[p] for p in partitions if p in positions})
        try:
            await self.commit(offsets, COMMIT_SECONDS)
        except PylogdError as error:
            log.warn("what was given up will be read again from what was committed before: {error}", error=error)
