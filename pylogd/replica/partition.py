"""What a broker knows of one partition that it hosts: its log, its role, who is in sync, what is committed.

Strategy: the log stores; the partition decides what of it may be seen and who may change it. `apply` follows the
partition's state in the metadata. A leader appends what clients send and moves the high watermark to the least end of
the in-sync replicas: at once where it is alone, else as followers come for more. A follower appends what its leader
has, offsets, epochs and all, and takes the leader's word for the high watermark.

Rules:
- A partition is Leading, Following, Offline (its log could not be opened, or its disk failed) or Deleted (gone from
  here); `TRANSITIONS` has every way between them. Deleted is the end.
- Leader epochs only grow: a state that is older than what is known here changes nothing.
- The high watermark never goes back but where an unclean election makes a follower drop what it had. It does not move
  while fewer replicas are in sync than `min.insync.replicas` asks for (KIP-966, `metadata.eligibility`).
- Where only flushed records may be seen, the leader's own end is that of what it has flushed (`replica.flushing`).
- Consumers see offsets below the high watermark. An offset between it and the log's end is valid and empty.
- A leader epoch that a client sends must be ours: an older one is fenced, a newer one unknown to us (KIP-320).

It must not know requests, error codes or the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from pylogd.errors import PylogdError
from pylogd.log.config import NO_LIMIT
from pylogd.log.errors import OffsetOutOfRange, StorageError, StorageFailure
from pylogd.log.validator import AppendOrigin
from pylogd.metadata.eligibility import commits
from pylogd.replica.insync import UNKNOWN, Follower, PendingIsr, committed_end, low_watermark

if TYPE_CHECKING:
    from pylogd.log.files import FileSlice
    from pylogd.log.log import AppendResult, Log
    from pylogd.log.validator import Inspections
    from pylogd.metadata.image import PartitionState
    from pylogd.wire.records import Buffer

#: A client that sends no leader epoch, and the answer where an epoch is not known.
NO_EPOCH = -1


class Role(Enum):
    """What this broker is to the partition."""

    LEADING = "Leading"
    FOLLOWING = "Following"
    OFFLINE = "Offline"
    DELETED = "Deleted"


TRANSITIONS: Mapping[Role, frozenset[Role]] = MappingProxyType(
    {
        Role.LEADING: frozenset({Role.FOLLOWING, Role.OFFLINE, Role.DELETED}),
        Role.FOLLOWING: frozenset({Role.LEADING, Role.OFFLINE, Role.DELETED}),
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


class NotLeader(PylogdError):
    """Another broker leads the partition, or none does."""


class OffsetNotAvailable(PylogdError):
    """A new leader does not know yet how far its log is committed (KIP-207): ask again soon."""


class PartitionOffline(PylogdError):
    """The partition's log could not be opened, or its disk has failed since."""


class Partition:
    """One hosted partition. There is no log while it is Offline.

    key: (topic, index), under which operations wait in a purgatory.
    state: what the metadata says of the partition, as far as it was followed; None before the first.
    high_watermark: offset behind the last committed record that this broker knows of.
    isr: broker ids of the in-sync replicas as written in the metadata. alone: whether nobody else counts for the high
        watermark, with a replica that was asked to join counted in, so that what a leader appends is committed at once.
    committing: of a leader, whether the high watermark may move: enough replicas are in sync (KIP-966).
    enough_in_sync: whether acks=all is accepted: as many are in sync as `min.insync.replicas` asks for, or all.
    followers: of a leader, by broker id. epoch_start: of a leader, the log's end when it became one.
    flush_at: an append of this offset or a later one has to be told to the partition's flusher.
    flush_visible: whether the high watermark stays with what has been flushed.
    """

    __slots__ = (
        "_log", "_on_failure", "_writable", "alone", "committing", "enough_in_sync", "epoch_start", "flush_at",
        "flush_visible", "followers", "high_watermark", "index", "isr", "key", "leader_epoch", "leader_id",
        "min_insync_replicas", "node_id", "pending_isr", "role", "state", "topic", "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: Log | None,
        node_id: int,
        on_failure: Callable[[StorageError], object] | None = None,
        high_watermark: int = 0,
    ) -> None:
        """`on_failure` is told, in whatever thread, what the storage raised. `high_watermark`: as last remembered."""
        self._on_failure = on_failure
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.key = (topic, index)
        self.node_id = node_id
        self.state: PartitionState | None = None
        self.leader_id = NO_EPOCH
        self.leader_epoch = NO_EPOCH
        self.epoch_start = UNKNOWN
        self.isr: tuple[int, ...] = ()
        self.alone = self.committing = False
        self.pending_isr: PendingIsr | None = None
        self.followers: dict[int, Follower] = {}
        self.min_insync_replicas = 1
        self.enough_in_sync = False
        self.flush_at = NO_LIMIT
        self.flush_visible = False
        self._log = log
        self._writable: Log | None = None  # the log while clients may write to it
        self.role = Role.OFFLINE if log is None else Role.FOLLOWING
        self.high_watermark = 0
        if log is not None:
            self.high_watermark = max(min(high_watermark, log.log_end_offset), log.log_start_offset)

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index}, {self.role.value}, epoch {self.leader_epoch})"

    @property
    def log(self) -> Log:
        """The partition's log. Raises PartitionOffline."""
        if self._log is None:
            raise PartitionOffline(f"the log of {self.topic}-{self.index} is offline; see the broker's log")
        return self._log

    @property
    def online(self) -> bool:
        """Whether there is a log."""
        return self.role is Role.LEADING or self.role is Role.FOLLOWING

    @property
    def leading(self) -> bool:
        """Whether this broker leads it."""
        return self.role is Role.LEADING

    # -- roles

    def become(self, role: Role) -> None:
        """Change role, along `TRANSITIONS` only."""
        if role not in TRANSITIONS[self.role]:
            raise ValueError(f"{self.topic}-{self.index} can't go from {self.role.value} to {role.value}")
        self.role = role
        self._writable = self._log if role is Role.LEADING else None
        if role is not Role.LEADING:
            self.alone = self.committing = False
            self.followers = {}
            self.pending_isr = None

    def go_offline(self) -> None:
        """The log is lost to us until the next start. Whoever waits has to be told by the caller."""
        self.become(Role.OFFLINE)
        self._log = None
        self.flush_at = NO_LIMIT

    def apply(self, state: PartitionState, now: float) -> bool:
        """Follow what the metadata says of the partition; whether it has another leader epoch or role for it.

        A state that is older than the one known is passed over. `now`: seconds, as followers' fetches are timed.

        One of the same age may name other replicas: these and the rest are in two nodes, which are read one after the
        other, and a write may come in between. The second reading has both.
        """
        known = self.state
        age = state.leader_epoch, state.partition_epoch
        before_age = (-1, -1) if known is None else (known.leader_epoch, known.partition_epoch)
        if known is not None and age <= before_age:
            if age < before_age or state.isr != known.isr or _moved_alike(state, known):
                return False
        else:
            self.pending_isr = None
        before = self.role, self.leader_epoch
        newer = state.leader_epoch > self.leader_epoch
        self.state = state
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.isr = state.isr
        self._count_in_sync()
        if not self.online:
            return newer
        if state.leader == self.node_id:
            self._lead(state, newer, now)
        elif self.role is Role.LEADING:
            self.become(Role.FOLLOWING)
        self._protect(self.high_watermark)
        return (self.role, self.leader_epoch) != before

    def _lead(self, state: PartitionState, newer: bool, now: float) -> None:
        if self.role is not Role.LEADING:
            self.become(Role.LEADING)
            newer = True
        known = {} if newer else self.followers
        self.followers = {
            node_id: known.get(node_id) or Follower(now) for node_id in state.replicas if node_id != self.node_id
        }
        if newer:
            self.epoch_start = self.log.log_end_offset
        self._count()

    def configure(self, min_insync_replicas: int) -> None:
        """Go by another `min.insync.replicas`."""
        self.min_insync_replicas = min_insync_replicas
        self._count_in_sync()
        if self._writable is not None:
            self._count()

    def _count_in_sync(self) -> None:
        state, least = self.state, self.min_insync_replicas
        self.enough_in_sync = state is not None and len(state.isr) >= state.effective_min_insync(least)

    def _count(self) -> None:
        """The in-sync set has changed, or is about to: see who counts, and what is committed then."""
        self.committing = self.state is not None and commits(self.state, self.min_insync_replicas)
        self.alone = self.committing and not any(node_id != self.node_id for node_id in self._maximal_isr())
        self.advance()

    def _maximal_isr(self) -> tuple[int, ...]:
        pending = self.pending_isr
        return self.isr if pending is None else (*self.isr, *pending.isr, *pending.counted)

    def propose_isr(self, isr: tuple[int, ...], now: float) -> None:
        """The metadata is asked to make `isr` the in-sync set: whoever is new in it counts from now on.

        What was asked for before, and may have been done, still counts.
        """
        pending = self.pending_isr
        if pending is not None and pending.isr == isr:
            self.pending_isr = pending._replace(asked_at=now)
            return
        epochs = {n: self.followers[n].broker_epoch for n in isr if n in self.followers and n not in self.isr}
        self.pending_isr = PendingIsr(isr, now, epochs)
        if pending is not None:
            counted = tuple({*pending.counted, *pending.isr})
            self.pending_isr = PendingIsr(isr, now, epochs, counted, pending.unanswered)
        self._count()

    def unanswered_isr(self) -> None:
        """What was proposed may have been written: no answer came."""
        if self.pending_isr is not None:
            self.pending_isr = self.pending_isr._replace(unanswered=True)

    def withdraw_isr(self) -> None:
        """What was proposed was not written, and won't be."""
        self.pending_isr = None
        self._count()

    def check_epoch(self, epoch: int) -> None:
        """Refuse a client's leader epoch that is not ours. Raises FencedLeaderEpoch, UnknownLeaderEpoch."""
        if epoch in (self.leader_epoch, NO_EPOCH):
            return
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"leader epoch {epoch} is over, it is {self.leader_epoch} now")
        raise UnknownLeaderEpoch(f"leader epoch {epoch} is not known here, it is {self.leader_epoch}")

    def check_leading(self) -> None:
        """Raises NotLeader, or PartitionOffline, unless this broker leads."""
        if self.role is not Role.LEADING:
            if self.role is Role.OFFLINE:
                raise PartitionOffline(f"the log of {self.topic}-{self.index} is offline; see the broker's log")
            raise NotLeader(f"broker {self.leader_id} leads {self.topic}-{self.index}, in epoch {self.leader_epoch}")

    # -- what is committed

    def advance(self) -> bool:
        """Move a leader's high watermark to what every replica that counts has; whether it moved."""
        log = self._writable
        if log is None or not self.committing:
            return False
        end = log.recovery_point if self.flush_visible else log.log_end_offset
        if not self.alone:
            end = committed_end(end, self._maximal_isr(), self.followers)
        if end <= self.high_watermark:
            return False
        self.high_watermark = end
        self._protect(end)
        return True

    def _protect(self, offset: int) -> None:
        """What is not committed is neither deleted by age nor compacted: it may yet be dropped for another's."""
        if self._log is not None:
            self._log.deletable_offset = None if self.state is None or len(self.state.replicas) == 1 else offset

    @property
    def latest_offset(self) -> int:
        """The end as consumers see it. Raises OffsetNotAvailable where a new leader does not know it (KIP-207)."""
        if self.high_watermark < self.epoch_start:
            raise OffsetNotAvailable(f"{self.topic}-{self.index} has a new leader; its end is not known yet")
        return self.high_watermark

    @property
    def low_watermark(self) -> int:
        """Where the last of the in-sync replicas' logs begins, -1 if one was not heard of. Raises PartitionOffline."""
        return low_watermark(self.log.log_start_offset, self.isr, self.followers)

    # -- as a leader

    def append(
        self, records: Buffer, acks_all: bool, inspections: Inspections | None = None, *, own: bool = False
    ) -> AppendResult:
        """Append batches that get their offsets here, all or none.

        inspections: what `Log.inspect` found in them. own: they are the broker's, and not looked into. Raises
        NotEnoughReplicas, NotLeader, PartitionOffline and the log's errors, of which InspectionNeeded means that
        `inspections` can't be done without.
        """
        log = self._writable
        if log is None:
            self.check_leading()
            log = self.log
        if acks_all and not self.enough_in_sync:
            raise NotEnoughReplicas(f"{len(self.isr)} in sync, min.insync.replicas is {self.min_insync_replicas}")
        origin = AppendOrigin.COORDINATOR if own else AppendOrigin.CLIENT
        result = log.append(
            records, leader_epoch=self.leader_epoch, origin=origin, inspections=inspections, may_inspect=False
        )
        if self.alone and not self.flush_visible:
            # The log's end, not the result's: a duplicate is answered with the offsets that it got the first time.
            self.high_watermark = log.log_end_offset
        return result

    def append_batches(self, batches: Sequence[memoryview], acks_all: bool) -> list[int]:
        """As `Log.append_batches`. Append and return nothing where `append` would refuse."""
        log = self._writable
        if log is None or (acks_all and not self.enough_in_sync):
            return []
        bases = log.append_batches(batches, leader_epoch=self.leader_epoch)
        if self.alone and not self.flush_visible:
            self.high_watermark = log.log_end_offset
        return bases

    def check_follower(self, node_id: int, epoch: int) -> None:
        """Refuse a follower that is none, or that follows another epoch. Raises as `check_epoch`, and NotLeader."""
        if epoch != self.leader_epoch:
            self.check_epoch(epoch)
            raise UnknownLeaderEpoch(f"follower {node_id} does not say which leader epoch it follows")
        if node_id not in self.followers:
            raise NotLeader(f"broker {node_id} has no replica of {self.topic}-{self.index}, as far as is known here")

    def follower_fetched(
        self, node_id: int, offset: int, log_start: int, now: float, broker_epoch: int = NO_EPOCH
    ) -> bool:
        """A follower asks for `offset`, in our leader epoch and on our history; whether that moved the high watermark,
        or it has another log start. `broker_epoch`: as the follower says (KIP-903).
        """
        follower = self.followers.get(node_id)
        log = self._writable
        if follower is None or log is None:
            return False
        follower.broker_epoch = broker_epoch
        moved, started = offset != follower.log_end, log_start != follower.log_start
        follower.fetched(offset, log_start, log.log_end_offset, now)
        return (moved and not self.alone and self.advance()) or started

    def may_join(self, node_id: int) -> bool:
        """Whether a follower out of sync has all that is committed, and all from before this leader's time."""
        follower = self.followers.get(node_id)
        return (
            follower is not None
            and node_id not in self.isr
            and self.pending_isr is None
            and follower.log_end >= self.high_watermark
            and follower.log_end >= self.epoch_start
        )

    def lagging(self, now: float, most: float) -> list[int]:
        """The in-sync followers that lack something, and have for longer than `most` seconds."""
        if self._writable is None:
            return []
        end = self._writable.log_end_offset
        return [n for n in self.isr if n in self.followers and self.followers[n].lags(end, now, most)]

    @property
    def all_caught_up(self) -> bool:
        """Whether no in-sync follower of this leader lacks anything, as far as they have said."""
        if self._writable is None:
            return True
        end = self._writable.log_end_offset
        return all(self.followers[n].log_end >= end for n in self.isr if n in self.followers)

    def read_for_follower(self, offset: int, max_bytes: int, *, min_one: bool, allow_cold: bool) -> FileSlice | None:
        """As `read`, up to the log's end and with the batches that compaction emptied. Raises NotLeader too."""
        self.check_leading()
        return self._read(offset, max_bytes, None, min_one, allow_cold, empty=True)

    # -- as a follower

    def append_fetched(self, batches: Buffer, leader_hw: int, leader_start: int) -> bool:
        """Append whole batches of the leader, as they are; whether the high watermark or the log's start moved.

        Raises the log's errors.

        `leader_hw`, `leader_start`: the leader's high watermark and log start when it sent them.
        """
        log = self.log
        if len(batches):
            log.append(batches, leader_epoch=self.leader_epoch, origin=AppendOrigin.REPLICATION)
        return self.heard(leader_hw, leader_start)

    def heard(self, leader_hw: int, leader_start: int) -> bool:
        """The leader has told its high watermark and log start; whether one of ours moved."""
        log = self.log
        end = min(leader_hw, log.log_end_offset)
        moved = end > self.high_watermark
        if moved:
            self.high_watermark = end
            self._protect(end)
        if leader_start > log.log_start_offset:
            before = log.log_start_offset
            moved |= log.delete_records_before(min(leader_start, self.high_watermark)) != before
        return moved

    def truncated(self) -> None:
        """The log was cut, or begun anew elsewhere: what is committed can't lie outside of it."""
        log = self.log
        self.high_watermark = max(min(self.high_watermark, log.log_end_offset), log.log_start_offset)
        self._protect(self.high_watermark)

    # -- reading

    def read(self, offset: int, max_bytes: int, *, min_one: bool, allow_cold: bool) -> FileSlice | None:
        """Committed batches from the one that holds `offset`, or None where there are none.

        The first batch comes whole even if it is larger than `max_bytes`, when `min_one`. Raises OffsetOutOfRange,
        ColdRead (unless `allow_cold`), StorageFailure, PartitionOffline.
        """
        high_watermark = self.high_watermark
        if offset >= high_watermark:
            log = self.log
            if offset > log.log_end_offset:
                raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
            return None
        return self._read(offset, max_bytes, high_watermark, min_one, allow_cold)

    def _read(
        self, offset: int, max_bytes: int, end: int | None, min_one: bool, allow_cold: bool, empty: bool = False
    ) -> FileSlice | None:
        try:
            return self.log.read(offset, max_bytes, end_offset=end, min_one=min_one, allow_cold=allow_cold, empty=empty)
        except StorageFailure as error:
            self.note_failure(error)
            raise

    def note_failure(self, error: PylogdError) -> None:
        """Somebody met `error` while using the log."""
        if self._on_failure is not None and isinstance(error, StorageFailure):
            self._on_failure(error)

    # -- epochs

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Where a leader epoch ends: (largest epoch here that is not above it, offset behind its last record).

        An epoch older than all that the log knows ends where the first known one starts; (-1, -1) for one that is not
        known yet. The current epoch is known before its first record is there. Raises PartitionOffline.
        """
        log = self.log
        latest = log.epochs.latest
        if epoch == self.leader_epoch:
            return epoch, log.log_end_offset
        if latest < epoch < self.leader_epoch:  # nothing of it came here, nor of the current epoch yet
            return (latest if latest >= 0 else epoch), log.log_end_offset
        return log.end_offset_for_epoch(epoch)

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


def _moved_alike(one: PartitionState, other: PartitionState) -> bool:
    """Whether two states say the same of where the replicas are, and are to be."""
    return (one.replicas, one.adding, one.removing, one.latest_until_ms) == (
        other.replicas, other.adding, other.removing, other.latest_until_ms
    )  # fmt: skip
