"""What a group's coordinator tells a consumer, carried out: partitions given up and taken on, offsets committed.

Rules: all of it happens in the application's own calls. On revocation: what is processed is committed, the listener is
told, reading stops, and only then does the coordinator hear of it. On assignment: the listener is told first, and may
`seek`; partitions that it leaves alone begin at what the group committed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pylogd.client.core.consumer.reader import Reader
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition

COMMIT_SECONDS = 10.0  # how long a commit may hold up a rebalance

Told = Callable[[list[TopicPartition]], Any]
#: by name, by a pattern of whole names, or by name with a number of streams
Topics = Iterable[str] | re.Pattern[str] | Mapping[str, int]


@dataclass(slots=True)
class Listener:
    """Whom to tell. `lost` partitions may be read by others already: nothing can be committed for them."""

    assigned: Told | None = None
    revoked: Told | None = None
    lost: Told | None = None

    def when_gone(self, lost: bool) -> Told | None:
        """Return whom to tell of partitions that are no longer read."""
        return (self.lost or self.revoked) if lost else self.revoked


class Places(Protocol):
    """Where partitions without a position wait for one."""

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """These are to be placed."""
        ...

    def discard(self, partition: TopicPartition) -> None:
        """It is not read any more."""
        ...


class Background(Protocol):
    """A group, as far as what never waits needs it."""

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit in the background."""
        ...


class Holdings:
    """What a group gave a consumer, and what of it is committed: the part that never waits, for all faces."""

    def __init__(
        self, group: Background, reader: Reader, placing: Places, *, commits: bool, interval: float, now: float
    ) -> None:
        """`commits`: whether to commit by itself, every `interval` seconds and before anything is given up."""
        self._background = group
        self.listener = Listener()
        self.assigned: set[TopicPartition] = set()  # by the group, where it is subscribed
        self.subscribed = False
        self._reader = reader
        self._placing = placing
        self._commits = commits
        self._interval = interval
        self._commit_at = now + interval
        self.progress: Callable[[], Mapping[TopicPartition, int]] = lambda: reader.positions
        self._saved: dict[TopicPartition, int] = {}

    def take_on(self, partitions: list[TopicPartition]) -> None:
        """Read these too, once the listener was told."""
        self.assigned.update(partitions)
        self._placing.add(partitions)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no more, without a word."""
        for partition in partitions:
            self.assigned.discard(partition)
            self._saved.pop(partition, None)
            self._placing.discard(partition)
            self._reader.forget(partition)

    # Commits

    def placed(self, positions: Mapping[TopicPartition, int]) -> None:
        """These are the committed offsets."""
        self._saved.update(positions)

    def unsaved(self, progress: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What of the progress is not committed yet."""
        saved = self._saved
        return {p: OffsetAndMetadata(offset) for p, offset in progress.items() if saved.get(p) != offset}

    def commit_if_due(self, now: float, progress: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit in the background what is processed, from time to time: by default all that was handed out."""
        if self._commits and now >= self._commit_at:
            self._commit_at = now + self._interval
            self.commit_soon(self.unsaved(self.progress() if progress is None else progress))

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit in the background."""
        if offsets:
            self.note_committed(offsets)
            self._background.commit_soon(offsets)

    def note_committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """These are committed, or will be."""
        self._saved.update((partition, committed.offset) for partition, committed in offsets.items())
