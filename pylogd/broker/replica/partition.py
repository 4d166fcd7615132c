"""One partition that this broker hosts: its log, its role, its in-sync replicas, and what is committed.

Strategy: the log stores records; the partition decides which may be read and who may change them. `apply` follows the
partition's state in the metadata. A leader appends what clients send and moves the high watermark to the lowest log end
of the in-sync replicas: at once if it is the only one, otherwise as followers fetch. A follower appends its leader's
batches unchanged, and adopts the leader's high watermark.

Rules:
- The role changes only as `replica.roles` declares.
- Leader epochs only grow: a state that is older than the one known here changes nothing.
- The high watermark moves back only if a follower truncates its log after an unclean election. It does not move while
  fewer replicas are in sync than `min.insync.replicas` demands (KIP-966, `metadata.eligibility`).
- With `flush.visible` the leader's own end is the end of what it has flushed (`replica.flushing`).
- Consumers see offsets below the high watermark. An offset between it and the log's end is valid and has no records.
- A leader epoch that a client sends has to be the partition's: an older one is fenced, a newer one is unknown here
  (KIP-320).

Must not know: requests, error codes, the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from pylogd.base.errors import PylogdError
from pylogd.broker.log.append.direct import BatchRun
from pylogd.broker.log.config import NO_LIMIT
from pylogd.broker.log.errors import OffsetOutOfRange, StorageError, StorageFailure
from pylogd.broker.log.validator import AppendOrigin
from pylogd.broker.metadata.eligibility import commits
from pylogd.broker.replica.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeader,
    OffsetNotAvailable,
    PartitionOffline,
    UnknownLeaderEpoch,
)
from pylogd.broker.replica.followers import UNKNOWN, Follower, PendingIsr, committed_end, low_watermark
from pylogd.broker.replica.roles import ROLES, Role, RoleEvent

if TYPE_CHECKING:
    from pylogd.broker.log.append.result import AppendResult
    from pylogd.broker.log.files import FileSlice
    from pylogd.broker.log.log import Log
    from pylogd.broker.log.transactions import TransactionTerms
    from pylogd.broker.log.validator import Inspections
    from pylogd.broker.metadata.image import PartitionState
    from pylogd.wire.records import Buffer

_NO_FOLLOWERS: Mapping[int, Follower] = MappingProxyType({})
#: Stands for a leader epoch or a broker epoch that is not known, or that the client did not send.
NO_EPOCH = -1


class Partition:
    """One hosted partition, and the totals of its traffic. It has no log while it is offline.

    key: (topic, index), under which operations wait in a purgatory.
    led_log: its log, while this broker leads.
    state: the last state in the metadata that was applied, None before the first.
    high_watermark: the offset after the last committed record, as far as this broker knows.
    isr: broker ids of the in-sync replicas, as in the metadata.
    alone: at a leader, whether no other replica counts for the high watermark, so that an append is committed at once.
    committing: at a leader, whether the high watermark may move, since enough replicas are in sync (KIP-966).
    enough_in_sync: whether acks=all is accepted: `min.insync.replicas` or all replicas are in sync.
    followers: at a leader, its followers by broker id.
    epoch_start: at a leader, its log end when it was elected.
    announced_epoch: the leader epoch in which its leadership was announced (`partition_registry`), None without one.
    flush_at: an append at this offset or a later one must call the partition's flusher.
    flush_visible: whether the high watermark is limited to what has been flushed.
    produced: Produce requests that the fast path answered. This and the totals below never decrease.
    appends: appends by the general path.
    failed_appends: how many of `appends` failed, except for errors that Kafka's brokers blame on the client
        (`api.traffic`).
    fetches, fetched_bytes: fetches of clients that found records, and the bytes of these records.
    copies, copied_bytes: the same for followers.
    fetch_errors: fetches that were answered with an error.
    failed_fetches: how many of `fetch_errors` count as failures, by the same rule as `failed_appends`.
    """

    __slots__ = (
        "_log", "_on_failure", "alone", "announced_epoch", "appends", "committing", "copied_bytes", "copies",
        "enough_in_sync", "epoch_start", "failed_appends", "failed_fetches", "fetch_errors", "fetched_bytes",
        "fetches", "flush_at", "flush_visible", "followers", "high_watermark", "index", "isr", "key", "leader_epoch",
        "leader_id", "led_log", "min_insync_replicas", "node_id", "pending_isr", "produced", "role", "state", "topic",
        "topic_id",
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
        """on_failure: called with storage errors, in any thread. high_watermark: the value in the last checkpoint."""
        self.produced = self.appends = self.failed_appends = 0
        self.fetches = self.fetched_bytes = self.copies = self.copied_bytes = 0
        self.fetch_errors = self.failed_fetches = 0
        self._on_failure = on_failure
        self.topic, self.topic_id, self.index = topic, topic_id, index
        self.key = (topic, index) if log is None else log.key  # both share one object
        self.node_id = node_id
        self.state: PartitionState | None = None
        self.leader_id = self.leader_epoch = NO_EPOCH
        self.epoch_start = UNKNOWN
        self.isr: tuple[int, ...] = ()
        self.alone = self.committing = False
        self.pending_isr: PendingIsr | None = None
        self.followers: Mapping[int, Follower] = _NO_FOLLOWERS
        self.announced_epoch: int | None = None
        self.min_insync_replicas, self.enough_in_sync = 1, False
        self.flush_at, self.flush_visible = NO_LIMIT, False
        self._log = log
        self.led_log: Log | None = None
        self.role = Role.OFFLINE if log is None else Role.FOLLOWING
        self.high_watermark = 0
        if log is not None:
            self.high_watermark = max(min(high_watermark, log.log_end_offset), log.log_start_offset)

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index}, {self.role.name.lower()}, epoch {self.leader_epoch})"

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
        """Whether this broker leads the partition."""
        return self.role is Role.LEADING

    # -- roles

    def change_role(self, event: RoleEvent) -> None:
        """Change to the role to which `event` leads. Raises UnexpectedEvent."""
        role = self.role = ROLES.next(self.role, event)
        self.led_log = self._log if role is Role.LEADING else None
        if role is not Role.LEADING:
            self.alone = self.committing = False
            self.followers = _NO_FOLLOWERS
            self.pending_isr = None

    def go_offline(self) -> None:
        """Note that the log can't be used any more. The caller has to check operations that wait on the partition."""
        self.change_role(RoleEvent.FAIL)
        self._log = None
        self.flush_at = NO_LIMIT

    def apply(self, state: PartitionState, now: float) -> bool:
        """Apply the partition's state in the metadata; return whether the leader epoch or the role has changed.

        A state that is older than the known one is ignored. A state of the same age may name other replicas: these are
        in another node, and a write may come between the reads of both nodes. `now` is in seconds of the clock for
        fetches.
        """
        known = self.state
        age = state.leader_epoch, state.partition_epoch
        before_age = (-1, -1) if known is None else (known.leader_epoch, known.partition_epoch)
        if known is not None and age <= before_age:
            if age < before_age or state.isr != known.isr or _same_assignment(state, known):
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
            self.change_role(RoleEvent.FOLLOW)
        self._protect(self.high_watermark)
        return (self.role, self.leader_epoch) != before

    def _lead(self, state: PartitionState, newer: bool, now: float) -> None:
        if self.role is not Role.LEADING:
            self.change_role(RoleEvent.LEAD)
            newer = True
        known = _NO_FOLLOWERS if newer else self.followers
        others = [one for one in state.replicas if one != self.node_id] if len(state.replicas) > 1 else []
        self.followers = {one: known.get(one) or Follower(now) for one in others} if others else _NO_FOLLOWERS
        if newer:
            self.epoch_start = self.log.log_end_offset
        self._count()

    def configure(self, min_insync_replicas: int) -> None:
        """Use another value of `min.insync.replicas`."""
        self.min_insync_replicas = min_insync_replicas
        self._count_in_sync()
        if self.led_log is not None:
            self._count()

    def _count_in_sync(self) -> None:
        state, least, count = self.state, self.min_insync_replicas, len(self.isr)
        self.enough_in_sync = state is not None and (count >= least or count >= state.effective_min_insync(least))

    def _count(self) -> None:
        """Compute what is committed, after the in-sync set or a proposed set has changed."""
        self.committing = self.state is not None and commits(self.state, self.min_insync_replicas)
        self.alone = self.committing and {self.node_id}.issuperset(self._maximal_isr())
        self.advance()

    def _maximal_isr(self) -> tuple[int, ...]:
        pending = self.pending_isr
        return self.isr if pending is None else (*self.isr, *pending.isr, *pending.counted)

    def propose_isr(self, isr: tuple[int, ...], now: float) -> None:
        """Propose an in-sync set to the metadata. Replicas that are new in it count for the high watermark from now on.

        Replicas of earlier proposals, which may have been written, still count.
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
        """Note that a write of the proposed in-sync set had no answer: it may have been done."""
        if self.pending_isr is not None:
            self.pending_isr = self.pending_isr._replace(unanswered=True)

    def withdraw_isr(self) -> None:
        """Withdraw the proposed in-sync set, which was not and will not be written."""
        self.pending_isr = None
        self._count()

    def check_epoch(self, epoch: int) -> None:
        """Check a client's leader epoch. Raises FencedLeaderEpoch or UnknownLeaderEpoch if it differs."""
        if epoch in (self.leader_epoch, NO_EPOCH):
            return
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"leader epoch {epoch} is over, the present one is {self.leader_epoch}")
        raise UnknownLeaderEpoch(f"leader epoch {epoch} is not known here yet, only {self.leader_epoch}")

    def check_leading(self) -> None:
        """Raise NotLeader or PartitionOffline unless this broker leads the partition."""
        if self.role is not Role.LEADING:
            if self.role is Role.OFFLINE:
                raise PartitionOffline(f"the log of {self.topic}-{self.index} is offline; see the broker's log")
            raise NotLeader(f"broker {self.leader_id} leads {self.topic}-{self.index}, in epoch {self.leader_epoch}")

    # -- what is committed

    def advance(self) -> bool:
        """Move a leader's high watermark to the lowest end of all counted replicas; return whether it moved."""
        log = self.led_log
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
        """Keep uncommitted records from retention and compaction, since they may have to be truncated."""
        if self._log is not None:
            self._log.deletable_offset = None if self.state is None or len(self.state.replicas) == 1 else offset

    @property
    def latest_offset(self) -> int:
        """The log end that consumers see. Raises OffsetNotAvailable if a new leader does not know it yet (KIP-207)."""
        if self.high_watermark < self.epoch_start:
            raise OffsetNotAvailable(f"{self.topic}-{self.index} has a new leader, which does not know its end yet")
        return self.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The end of what is committed and in no open transaction. Raises PartitionOffline. Reactor thread only."""
        log, high_watermark = self.log, self.high_watermark
        return max(log.producers.unstable.stable_end(high_watermark), min(log.log_start_offset, high_watermark))

    @property
    def low_watermark(self) -> int:
        """The lowest log start of all in-sync replicas, -1 if one is not known. Raises PartitionOffline."""
        return low_watermark(self.log.log_start_offset, self.isr, self.followers)

    # -- as a leader

    def append(
        self, records: Buffer, acks_all: bool, inspections: Inspections | None = None, *, own: bool = False,
        terms: TransactionTerms | None = None,
    ) -> AppendResult:  # fmt: skip
        """Append batches, which get their offsets here, all or none.

        inspections: the result of `Log.inspect`.
        own: whether the records are the broker's own, which are not inspected.
        terms: describes the transaction of transactional batches and markers.
        Raises NotEnoughReplicas, NotLeader, PartitionOffline and the log's errors (InspectionNeeded without
        inspections).
        """
        log = self.led_log
        if log is None or (acks_all and not self.enough_in_sync):
            self.check_append(acks_all)
            log = self.log
        origin = AppendOrigin.COORDINATOR if own else AppendOrigin.CLIENT
        result = log.append(
            records, leader_epoch=self.leader_epoch, origin=origin, inspections=inspections, may_inspect=False,
            terms=terms,
        )  # fmt: skip
        self.appended_to(log)
        return result

    def check_append(self, acks_all: bool) -> None:
        """Raise NotLeader, PartitionOffline or NotEnoughReplicas if clients' batches can't be appended now."""
        if self.led_log is None:
            self.check_leading()
        if acks_all and not self.enough_in_sync:
            raise NotEnoughReplicas(f"{len(self.isr)} in sync, min.insync.replicas is {self.min_insync_replicas}")

    def appended_to(self, log: Log) -> None:
        """Commit what was appended to a log that is still led, if it needs no other replica and no flush."""
        if self.alone and not self.flush_visible and self.led_log is log:
            # The log's end, not that of a result: a duplicate is answered with the offsets of the first append.
            self.high_watermark = log.log_end_offset

    def append_batches(self, run: BatchRun, acks_all: bool) -> int:
        """Append as `Log.append_batches` does. Append nothing, and return 0, where `append` would refuse."""
        log = self.led_log
        if log is None or (acks_all and not self.enough_in_sync):
            return 0
        count = log.append_batches(run, leader_epoch=self.leader_epoch)
        self.appended_to(log)
        return count

    def check_follower(self, node_id: int, epoch: int) -> None:
        """Check a follower's leader epoch, and that it has a replica. Raises as `check_epoch` does, or NotLeader."""
        if epoch != self.leader_epoch:
            self.check_epoch(epoch)
            raise UnknownLeaderEpoch(f"follower {node_id} sent no leader epoch")
        if node_id not in self.followers:
            raise NotLeader(f"broker {node_id} is not known here to have a replica of {self.topic}-{self.index}")

    def follower_fetched(
        self, node_id: int, offset: int, log_start: int, now: float, broker_epoch: int = NO_EPOCH
    ) -> bool:
        """Note a follower's fetch from `offset`, in this leader epoch and with a log that does not diverge.

        log_start: the follower's log start.
        broker_epoch: the epoch that the follower sent (KIP-903).
        Returns whether the high watermark or the follower's log start has moved.
        """
        follower = self.followers.get(node_id)
        log = self.led_log
        if follower is None or log is None:
            return False
        follower.broker_epoch = broker_epoch
        moved, started = offset != follower.log_end, log_start != follower.log_start
        follower.fetched(offset, log_start, log.log_end_offset, now)
        return (moved and not self.alone and self.advance()) or started

    def may_join(self, node_id: int) -> bool:
        """Return whether a follower may join: it has all committed records, and all records of earlier epochs."""
        follower = self.followers.get(node_id)
        return (
            follower is not None
            and node_id not in self.isr
            and self.pending_isr is None
            and follower.log_end >= self.high_watermark
            and follower.log_end >= self.epoch_start
        )

    def lagging(self, now: float, most: float) -> list[int]:
        """Return the in-sync followers that were not caught up for longer than `most` seconds."""
        if self.led_log is None:
            return []
        end = self.led_log.log_end_offset
        return [n for n in self.isr if n in self.followers and self.followers[n].lags(end, now, most)]

    @property
    def all_caught_up(self) -> bool:
        """Whether all in-sync followers have fetched up to this leader's log end."""
        if self.led_log is None:
            return True
        end = self.led_log.log_end_offset
        return all(self.followers[n].log_end >= end for n in self.isr if n in self.followers)

    def read_for_follower(self, offset: int, max_bytes: int, *, min_one: bool, allow_cold: bool) -> FileSlice | None:
        """Read like `read`, but up to the log's end, with batches that compaction emptied. Raises NotLeader too."""
        self.check_leading()
        return self.read_before(offset, max_bytes, None, min_one, allow_cold, empty=True)

    # -- as a follower

    def append_fetched(self, batches: Buffer, leader_hw: int, leader_start: int) -> bool:
        """Append whole batches of the leader, unchanged; return whether the high watermark or the log start moved.

        leader_hw, leader_start: the leader's high watermark and log start when it sent them. Raises the log's errors.
        """
        log = self.log
        if len(batches):
            log.append(batches, leader_epoch=self.leader_epoch, origin=AppendOrigin.REPLICATION, may_inspect=False)
        return self.heard(leader_hw, leader_start)

    def heard(self, leader_hw: int, leader_start: int) -> bool:
        """Adopt the leader's high watermark and log start; return whether one of them moved here."""
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
        """Bring the high watermark into the log's range, after the log was truncated."""
        log = self.log
        self.high_watermark = max(min(self.high_watermark, log.log_end_offset), log.log_start_offset)
        self._protect(self.high_watermark)

    # -- reading

    def read(self, offset: int, max_bytes: int, *, min_one: bool, allow_cold: bool) -> FileSlice | None:
        """Return committed batches from the one that has `offset` on, or None if there are none.

        min_one: whether the first batch is returned even if it is larger than `max_bytes`.
        allow_cold: whether to wait for the disk; otherwise ColdRead is raised.
        Raises OffsetOutOfRange, ColdRead, StorageFailure or PartitionOffline.
        """
        high_watermark = self.high_watermark
        if offset >= high_watermark:
            log = self.log
            if offset > log.log_end_offset:
                raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
            return None
        return self.read_before(offset, max_bytes, high_watermark, min_one, allow_cold)

    def read_before(
        self, offset: int, max_bytes: int, end: int | None, min_one: bool, allow_cold: bool, empty: bool = False
    ) -> FileSlice | None:
        """Read like `read`, but up to offset `end`, None for the log's end. empty: see `SegmentsView.look_up`."""
        try:
            return self.log.read(offset, max_bytes, end_offset=end, min_one=min_one, allow_cold=allow_cold, empty=empty)
        except StorageFailure as error:
            self.note_failure(error)
            raise

    def note_failure(self, error: PylogdError) -> None:
        """Report an error of the log, if it is an error of the storage."""
        if self._on_failure is not None and isinstance(error, StorageFailure):
            self._on_failure(error)

    # -- epochs

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the newest epoch here that is not newer than `epoch`, and the offset after its last record.

        An epoch older than all known ones ends where the first known one starts; the result is (-1, -1) for an epoch
        that is not known yet. The current epoch is known before it has a record. Raises PartitionOffline.
        """
        log = self.log
        latest = log.epochs.latest
        if epoch == self.leader_epoch:
            return epoch, log.log_end_offset
        if latest < epoch < self.leader_epoch:  # no record here has it, nor the current epoch yet
            has_records = log.log_start_offset < log.log_end_offset
            return (latest if latest >= 0 and has_records else epoch), log.log_end_offset
        return log.end_offset_for_epoch(epoch)

    def divergence(self, epoch: int, offset: int) -> tuple[int, int] | None:
        """Return where a client's log, whose last record has `epoch` and whose end is `offset`, diverges (KIP-595).

        The result is the newest epoch that both have, with its end offset, or None if the client's log is a prefix of
        this one. Raises OffsetOutOfRange for an epoch that is not known here.
        """
        log = self.log
        ours, end = self.end_offset_for_epoch(epoch)
        if ours == NO_EPOCH or end == NO_EPOCH:
            raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
        return (ours, end) if ours < epoch or end < offset else None


def _same_assignment(one: PartitionState, other: PartitionState) -> bool:
    """Return whether two states have the same replicas and the same reassignment."""
    return (one.replicas, one.adding, one.removing, one.latest_until_ms) == (
        other.replicas, other.adding, other.removing, other.latest_until_ms
    )  # fmt: skip
