"""The partitions that a group assigned to a consumer, and their committed offsets: the part that never waits.

Rules: everything happens in the application's own calls. On revocation, processed records are committed, the listener
is called, reading stops, and only then is the coordinator told. On assignment, the listener is called first, and may
`seek`; other partitions start at the group's committed offsets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pylogd.client.core.consumer.reader import Reader
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition

COMMIT_SECONDS = 10.0  # the longest time for which a commit may delay a rebalance

RebalanceCallback = Callable[[list[TopicPartition]], Any]
#: topics by name, by a pattern of whole names, or by name with a number of streams
Topics = Collection[str] | re.Pattern[str] | Mapping[str, int]


def is_subscribed(topics: Topics, name: str) -> bool:
    """Return whether a subscription has a topic."""
    return bool(topics.fullmatch(name)) if isinstance(topics, re.Pattern) else name in topics


@dataclass(slots=True)
class RebalanceListener:
    """Callbacks of the application. Other members may read `lost` partitions already, so nothing can be committed."""

    assigned: RebalanceCallback | None = None
    revoked: RebalanceCallback | None = None
    lost: RebalanceCallback | None = None

    def when_gone(self, lost: bool) -> RebalanceCallback | None:
        """Return the callback for partitions that are no longer read."""
        return (self.lost or self.revoked) if lost else self.revoked


class StartQueue(Protocol):
    """The partitions whose start offsets are being found."""

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Find the start offsets of partitions."""
        ...

    def discard(self, partition: TopicPartition) -> None:
        """Forget a partition."""
        ...


class Committer(Protocol):
    """The part of a group that commits in the background."""

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit in the background."""
        ...


class StreamProgress(Protocol):
    """How far the message streams of a consumer have come."""

    def progress(self) -> Mapping[TopicPartition, int]:
        """Return the offset up to which each partition is processed."""
        ...

    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the offset after the last record that was handed out."""
        ...


class GroupAssignment:
    """See the module. Times are in seconds."""

    def __init__(
        self, group: Committer, reader: Reader, starts: StartQueue, *, commits: bool, interval: float, now: float
    ) -> None:
        """`commits` is whether to commit automatically, every `interval` seconds and before partitions are given up."""
        self._committer = group
        self.listener = RebalanceListener()
        self.assigned: set[TopicPartition] = set()  # by the group, if the consumer is subscribed
        self.subscribed = False
        self._reader = reader
        self._starts = starts
        self._commits = commits
        self._interval = interval
        self._commit_at = now + interval
        #: message streams, which replace the application's polls
        self.streams: StreamProgress | None = None
        self._saved: dict[TopicPartition, int] = {}

    def take_on(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions too, after the listener was called."""
        self.assigned.update(partitions)
        self._starts.add(partitions)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions, without a call of the listener."""
        for partition in partitions:
            self.assigned.discard(partition)
            self._saved.pop(partition, None)
            self._starts.discard(partition)
            self._reader.forget(partition)

    # Commits

    def with_epochs(self, progress: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return offsets to commit, with the leader epochs by which a later reader finds a truncated log (KIP-320)."""
        epoch = self._reader.epoch
        return {p: OffsetAndMetadata(offset, leader_epoch=epoch(p)) for p, offset in progress.items()}

    def progress(self) -> Mapping[TopicPartition, int]:
        """Return the offset after the last record that was handed out, or that a stream has processed."""
        return self._reader.progress() if self.streams is None else self.streams.progress()

    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the offset after the last record that was handed out, also by a stream."""
        return self._reader.progress() if self.streams is None else self.streams.positions()

    def processed(self, *, polled: bool = True) -> Mapping[TopicPartition, int]:
        """Return the offset up to which each partition is processed, without the current record of an iteration.

        polled: whether the records of the last poll are processed.
        """
        if self.streams is not None:
            return self.streams.progress()
        return {**self._reader.progress(), **self._reader.buffer.unprocessed(polled=not polled)}

    def unsaved(self, progress: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets of the progress that are not committed yet."""
        saved = self._saved
        return self.with_epochs({p: offset for p, offset in progress.items() if saved.get(p) != offset})

    def commit_if_due(self, now: float) -> None:
        """Commit the offsets of all returned records in the background, if the interval is over."""
        if self._commits and now >= self._commit_at:
            self._commit_at = now + self._interval
            self.commit_soon(self.unsaved(self.progress()))

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit in the background."""
        if offsets:
            self.note_committed(offsets)
            self._committer.commit_soon(offsets)

    def note_committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Record offsets that are committed, or will be."""
        self._saved.update((partition, committed.offset) for partition, committed in offsets.items())
