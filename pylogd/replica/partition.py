"""What a broker knows of one partition that it hosts: its log, its leader epoch, who is in sync, what is committed.

Strategy: the log stores; the partition decides what of it may be seen. The high watermark is the end of what every
in-sync replica has. With this broker alone in sync that is the end of the log after each append; with followers it
moves as they catch up, and an append with acks=all waits for it in the purgatory.

Rules:
- A partition is Leading, Offline (its log could not be opened, or its disk failed) or Deleted; `TRANSITIONS` has every
  way between them. Deleted is the end: whoever waits on the partition looks at its role and answers that it is gone.
- Where only flushed records may be seen, the high watermark follows the flushes (`replica.flushing`).
- Consumers see offsets below the high watermark. An offset between it and the log's end is valid and empty.
- A leader epoch that a client sends must be ours: an older one is fenced, a newer one unknown to us (KIP-320).

It must not know requests, error codes or the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from pylogd.errors import PylogdError
from pylogd.log.config import NO_LIMIT
from pylogd.log.errors import OffsetOutOfRange, StorageError, StorageFailure

if TYPE_CHECKING:
    from pylogd.log.files import FileSlice
    from pylogd.log.log import AppendResult, Log
    from pylogd.wire.records import Buffer

#: A client that sends no leader epoch, and the answer where an epoch is not known.
NO_EPOCH = -1


class Role(Enum):
    """What this broker is to the partition."""

    LEADING = "Leading"
    OFFLINE = "Offline"
    DELETED = "Deleted"


TRANSITIONS: Mapping[Role, frozenset[Role]] = MappingProxyType(
    {
        Role.LEADING: frozenset({Role.OFFLINE, Role.DELETED}),
        Role.OFFLINE: frozenset({Role.DELETED}),
        Role.DELETED: frozenset(),
    }
)


class NotEnoughReplicas(PylogdError):
    """Fewer replicas are in sync than `min.insync.replicas` demands for acks=all. Nothing was appended."""


class FencedLeaderEpoch(PylogdError):
    """The client's leader epoch is older than ours: it should refresh its metadata."""


class UnknownLeaderEpoch(PylogdError):
    """The client's leader epoch is newer than ours: our metadata is behind."""


class PartitionOffline(PylogdError):
    """The partition's log could not be opened, or its disk has failed since."""


class Partition:
    """One hosted partition. `log` is None while it is Offline.

    key: (topic, index), under which operations wait in a purgatory.
    high_watermark: offset behind the last committed record.
    isr: broker ids of the in-sync replicas, this broker's among them.
    flush_at: an append of this offset or a later one has to be told to the partition's flusher.
    flush_visible: whether the high watermark stays with what has been flushed.
    """

    __slots__ = (
        "_log", "_on_failure", "flush_at", "flush_visible", "high_watermark", "index", "isr", "key", "leader_epoch",
        "leader_id", "min_insync_replicas", "role", "topic", "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: Log | None,
        leader_id: int,
        on_failure: Callable[[StorageError], object] | None = None,
    ) -> None:
        """`on_failure` is told, in whatever thread, what the storage raised."""
        self._on_failure = on_failure
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.key = (topic, index)
        self.leader_id = leader_id
        self.leader_epoch = 0
        self.isr: tuple[int, ...] = (leader_id,)
        self.min_insync_replicas = 1
        self.flush_at = NO_LIMIT
        self.flush_visible = False
        self._log = log
        self.role = Role.OFFLINE if log is None else Role.LEADING
        self.high_watermark = 0 if log is None else log.log_end_offset

    @property
    def log(self) -> Log:
        """The partition's log. Raises PartitionOffline."""
        if self._log is None:
            raise PartitionOffline(f"the log of {self.topic}-{self.index} is offline; see the broker's log")
        return self._log

    def become(self, role: Role) -> None:
        """Change role, along `TRANSITIONS` only."""
        if role not in TRANSITIONS[self.role]:
            raise ValueError(f"{self.topic}-{self.index} can't go from {self.role.value} to {role.value}")
        self.role = role

    def go_offline(self) -> None:
        """The log is lost to us until the next start. Whoever waits has to be told by the caller."""
        self.become(Role.OFFLINE)
        self._log = None
        self.flush_at = NO_LIMIT

    def check_epoch(self, epoch: int) -> None:
        """Refuse a client's leader epoch that is not ours. Raises FencedLeaderEpoch, UnknownLeaderEpoch."""
        if epoch in (self.leader_epoch, NO_EPOCH):
            return
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"leader epoch {epoch} is over, it is {self.leader_epoch} now")
        raise UnknownLeaderEpoch(f"leader epoch {epoch} is not known here, it is {self.leader_epoch}")

    def append(self, records: Buffer, acks_all: bool) -> AppendResult:
        """Append a client's batches, all or none. Raises NotEnoughReplicas, PartitionOffline and the log's errors."""
        isr = self.isr
        if acks_all and len(isr) < self.min_insync_replicas:
            raise NotEnoughReplicas(f"{len(isr)} in sync, min.insync.replicas is {self.min_insync_replicas}")
        log = self._log
        if log is None:
            log = self.log  # raises
        result = log.append(records, leader_epoch=self.leader_epoch)
        if len(isr) == 1 and not self.flush_visible:
            # The log's end, not the result's: a duplicate is answered with the offsets that it got the first time.
            self.high_watermark = log.log_end_offset
        return result

    def read(self, offset: int, max_bytes: int, *, min_one: bool, allow_cold: bool) -> FileSlice | None:
        """Committed batches from the one that holds `offset`, or None where there are none.

        The first batch comes whole even if it is larger than `max_bytes`, when `min_one`. Raises OffsetOutOfRange,
        ColdRead (unless `allow_cold`), StorageFailure, PartitionOffline.
        """
        log = self.log
        high_watermark = self.high_watermark
        if offset >= high_watermark:
            if offset > log.log_end_offset:
                raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
            return None
        try:
            return log.read(offset, max_bytes, end_offset=high_watermark, min_one=min_one, allow_cold=allow_cold)
        except StorageFailure as error:
            self.note_failure(error)
            raise

    def note_failure(self, error: PylogdError) -> None:
        """Somebody met `error` while using the log."""
        if self._on_failure is not None and isinstance(error, StorageFailure):
            self._on_failure(error)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Where a leader epoch ends: (largest epoch here that is not above it, offset behind its last record).

        An epoch older than all that the log knows ends where the first known one starts; (-1, -1) for one that is not
        known yet. The current epoch is known before its first record is there. Raises PartitionOffline.
        """
        log = self.log
        return (epoch, log.log_end_offset) if epoch == self.leader_epoch else log.end_offset_for_epoch(epoch)

    def divergence(self, epoch: int, offset: int) -> tuple[int, int] | None:
        """Where a client whose last record was of `epoch` and that goes on at `offset` parts from this log (KIP-595).

        (largest epoch that both have, its end offset), or None when the client's log is a prefix of this one. Raises
        OffsetOutOfRange for an epoch that is not known here.
        """
        log = self.log
        ours, end = self.end_offset_for_epoch(epoch)
        if ours == NO_EPOCH or end == NO_EPOCH:
            raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
        return (ours, end) if ours < epoch or end < offset else None
