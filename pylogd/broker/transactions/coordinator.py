"""Coordinate the transactions of the transactional ids that this broker stores as a leader.

Strategy: a transactional id is coordinated by the leader of the partition of `__transaction_state` that stores it. When
this broker becomes the leader of such a partition it loads the ids in it, and ends the transactions whose outcome was
decided. When it loses the leadership it forgets them. `rules` decides what a producer may do, `transitions` computes
changes, and `markers` ends transactions at the leaders of their partitions.

Rules:
- A change takes effect once every in-sync replica has its record, even if the client has disconnected. Until then the
  change is pending, and every other change of the id is answered CONCURRENT_TRANSACTIONS.
- No marker is sent before every in-sync replica has the decision, not even after a failover. So a transaction can't be
  committed in one partition and aborted in another one.
- Markers carry the leader epoch of the partition that stores the id, and leaders refuse markers of an earlier
  coordinator.
Must not know: requests, connections.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from typing import Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.base.limits.names import MAX_TRANSACTION_PARTITIONS
from pylogd.base.limits.shares import NOBODY, Share
from pylogd.broker.metadata.feature_levels import TRANSACTION_VERSION
from pylogd.broker.metadata.service import Metadata
from pylogd.broker.replica.service import Replicas
from pylogd.broker.replica.waiting import shield
from pylogd.broker.transactions import rules
from pylogd.broker.transactions.markers import Ask, Marker, MarkerSender
from pylogd.broker.transactions.shards import Shard, Transaction, TransactionShards
from pylogd.broker.transactions.states import TransactionState
from pylogd.broker.transactions.sweeps import TransactionSweeps
from pylogd.broker.transactions.transitions import completed, ending, fenced, initialized, rotated, with_partitions
from pylogd.broker.transactions.values import (
    EPOCH_PER_TRANSACTION,
    MAX_EPOCH,
    NONE_YET,
    PartitionId,
    ProducerAnswer,
    TransactionValue,
)
from pylogd.config import Settings

log = Logger()

#: How long a request to add partitions waits until the previous transaction is completed, in seconds.
_SETTLE_SECONDS: Final = 0.1
#: The pause before a failed write that must succeed is repeated, in seconds.
_STORE_AGAIN_SECONDS: Final = 0.5
_NONE = ErrorCode.NONE


class TransactionCoordinator:
    """All transactional ids that this broker coordinates.

    Cancelling a Deferred that a method has returned, as a disconnect does, does not cancel the work under way.
    """

    def __init__(
        self,
        replicas: Replicas,
        metadata: Metadata,
        settings: Settings,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        *,
        send_markers: Ask,
        send_slow_markers: Ask | None = None,
    ) -> None:
        """Arguments:

        clock: times sweeps and retries.
        now_ms: the wall clock, for timeouts and expiry of transactions.
        send_markers, send_slow_markers: send a request to the broker with a node id; see `MarkerSender`.
        """
        topics = metadata.topics
        self._shards = TransactionShards(replicas, topics, metadata.topic_admin, settings, now_ms)
        self._shards.on_loaded = lambda *loaded: Deferred.fromCoroutine(self._resume(*loaded))
        self._settings = settings
        self._clock = clock
        self._now_ms = now_ms
        self._features = metadata.features
        self._next_producer_id = metadata.producer_ids.next
        self._markers = MarkerSender(send_markers, topics.leader_of, clock, send_slow_markers)
        self._shards.on_unloaded = self._markers.cancel
        self._sweeps = TransactionSweeps(self._shards, settings, clock, now_ms, self._fence, self._send_markers)
        self._timers: set[IDelayedCall] = set()

    # -- starting and stopping

    def start(self) -> None:
        """Begin to load and forget ids as the leadership of their partitions changes, and to sweep them.

        Call it before the replica manager starts.
        """
        self._shards.start()
        self._sweeps.start()

    def stop(self) -> None:
        """Forget every transactional id; requests are answered COORDINATOR_NOT_AVAILABLE."""
        self._markers.stop()
        self._sweeps.stop()
        for call in self._timers:
            call.cancel()
        self._timers.clear()
        self._shards.stop()

    def _later(self, seconds: float, function: Callable[[], object]) -> None:
        def run() -> None:
            self._timers.discard(call)
            function()

        call = self._clock.callLater(seconds, run)
        self._timers.add(call)

    # -- ending transactions after a failover

    async def _resume(self, shard: Shard, end: int, prepared: list[Transaction]) -> None:
        """Send markers for decisions that were loaded, once the in-sync replicas have the log up to `end`."""
        while self._shards.current(shard):
            with ExitStack() as changes:
                for transaction in prepared:
                    after = completed(transaction.value, self._now_ms())
                    changes.enter_context(transaction.change(after.state))
                outcome = self._shards.topic.committed(shard.partition, end - 1)
                error = await outcome if isinstance(outcome, Deferred) else outcome
            if not error:
                break
            await self._pause()
        if self._shards.current(shard):
            for transaction in prepared:
                self._send_markers(shard, transaction)

    async def _pause(self) -> None:
        """Wait before a failed write is repeated."""
        done: Deferred[None] = Deferred()
        self._later(_STORE_AGAIN_SECONDS, lambda: done.callback(None))
        await done

    # -- changing a transactional id

    async def _change(self, shard: Shard, transaction: Transaction, value: TransactionValue) -> ErrorCode:
        return await self._shards.change(shard, transaction, value, flexible=self._version > 0)

    @property
    def _version(self) -> int:
        """The version of transactions that the cluster uses."""
        return self._features.level(TRANSACTION_VERSION)

    def _send_markers(self, shard: Shard, transaction: Transaction) -> TransactionValue:
        """Start to write the markers of a decided transaction. Return its value once all are written."""
        value = transaction.value
        after = completed(value, self._now_ms())
        # There is no higher epoch than the highest, so its markers may have the transaction's epoch (`rules`).
        version = value.version if value.epoch < MAX_EPOCH else min(value.version, EPOCH_PER_TRANSACTION - 1)
        marker = Marker(
            shard, transaction.name, value.producer_id, value.epoch, set(value.partitions),
            lambda: Deferred.fromCoroutine(self._complete(shard, transaction)),
            commit=value.state is TransactionState.PREPARE_COMMIT, coordinator_epoch=shard.epoch, version=version,
        )  # fmt: skip
        with transaction.change(after.state):
            self._markers.send(marker)
        return after

    async def _complete(self, shard: Shard, transaction: Transaction) -> None:
        """Store that every partition has its marker. Repeat this until it succeeds."""
        while self._shards.current(shard):
            after = completed(transaction.value, self._now_ms())
            if not await self._change(shard, transaction, after):
                return
            if self._shards.current(shard):
                with transaction.change(after.state):
                    await self._pause()

    # -- finding coordinators

    def coordinator_of(self, transactional_id: str) -> int | ErrorCode | Deferred[int | ErrorCode]:
        """Return the node id of the coordinator of an id, which may be empty, or an error code. Creates the topic."""
        error = self._shards.check_name(transactional_id) if transactional_id else _NONE
        return error or self._shards.topic.coordinator_of(transactional_id)

    def known_coordinator_of(self, transactional_id: str) -> int | ErrorCode:
        """Do the work of `coordinator_of`, but answer COORDINATOR_NOT_AVAILABLE if the topic is missing."""
        return self._shards.check_name(transactional_id) or self._shards.topic.leader_of(transactional_id)

    # -- requests of producers

    def initialize(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None, share: Share = NOBODY
    ) -> Deferred[ProducerAnswer]:
        """Handle InitProducerId: give a producer its id and epoch, which fences all others with the transactional id.

        expected: the producer id and epoch that it has (KIP-360), None for a new producer.
        share: the share in which a new id counts.

        An open transaction is aborted. The answer is CONCURRENT_TRANSACTIONS until that is done.
        """
        return shield(Deferred.fromCoroutine(self._initialize(transactional_id, timeout_ms, expected, share)))

    async def _initialize(
        self, name: str, timeout_ms: int, expected: tuple[int, int] | None, share: Share
    ) -> ProducerAnswer:
        if not 0 < timeout_ms <= self._settings.integer("transaction.max.timeout.ms"):
            return ProducerAnswer(self._shards.check_name(name) or ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        shard = self._shards.shard_of(name)
        if isinstance(shard, ErrorCode):
            return ProducerAnswer(shard)
        transaction = shard.transactions.get(name)
        if transaction is not None:
            return await self._next_epoch(shard, transaction, timeout_ms, expected)
        if not self._shards.admits(name, share):
            return ProducerAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        producer_id = await self._new_id_for(shard)
        if isinstance(producer_id, ErrorCode):
            return ProducerAnswer(producer_id)
        value = TransactionValue(producer_id, NONE_YET, timeout_ms, self._now_ms())
        transaction = shard.transactions.setdefault(name, Transaction(name, value))
        answer = await self._next_epoch(shard, transaction, timeout_ms, expected)
        if transaction.value.epoch == NONE_YET and transaction.pending is None:  # the change could not be stored
            self._shards.forget(shard, name)
        return answer

    async def _new_id_for(self, shard: Shard) -> int | ErrorCode:
        """Return a producer id for a transactional id of a shard, or an error code."""
        try:
            new_id = await self._next_producer_id()
        except PylogdError as error:
            log.warn("Could not get a producer id for a transactional id: {error}", error=error)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return new_id if self._shards.current(shard) else ErrorCode.NOT_COORDINATOR

    async def _next_epoch(
        self, shard: Shard, transaction: Transaction, timeout_ms: int, expected: tuple[int, int] | None
    ) -> ProducerAnswer:
        """Give a producer the next epoch, with another producer id if there is no further epoch."""
        value = transaction.value
        error = rules.may_initialize(value, transaction.pending is not None, expected)
        if error:
            return ProducerAnswer(error)
        if value.state is TransactionState.ONGOING:
            error = await self._fence(shard, transaction)
            return ProducerAnswer(error or ErrorCode.CONCURRENT_TRANSACTIONS)
        expected_epoch = None if expected is None else expected[1]
        if value.exhausted and (expected_epoch in (None, value.epoch) or value.epoch == MAX_EPOCH):
            with transaction.change(TransactionState.EMPTY):
                new_id = await self._new_id_for(shard)
                if isinstance(new_id, ErrorCode):
                    transaction.settle()
                    return ProducerAnswer(new_id)
                after = rotated(value, new_id, timeout_ms, expected_epoch, self._now_ms())
        else:
            after = initialized(value, timeout_ms, expected_epoch, self._now_ms())
        error = await self._change(shard, transaction, after)
        return ProducerAnswer(error) if error else ProducerAnswer(_NONE, after.producer_id, after.epoch)

    def add(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[PartitionId], version: int
    ) -> Deferred[ErrorCode]:
        """Add partitions to a transaction, which begins with the first. Return NONE once they are stored.

        version: the version of transactions that the producer uses. From version 2 on the leaders of partitions ask,
            several at a time.

        While the previous transaction is being completed, or another leader's partitions are being added, the request
        waits, for at most `_SETTLE_SECONDS`. Waiting requests for the same transaction are handled together.
        """
        added = self._add_now_or_later(transactional_id, producer_id, epoch, frozenset(partitions), version)
        return shield(Deferred.fromCoroutine(added))

    async def _add_now_or_later(
        self, name: str, producer_id: int, epoch: int, partitions: frozenset[PartitionId], version: int
    ) -> ErrorCode:
        result = await self._add(name, producer_id, epoch, partitions, version)
        if result is ErrorCode.CONCURRENT_TRANSACTIONS:
            found = self._shards.find(name)
            if not isinstance(found, ErrorCode) and (version >= EPOCH_PER_TRANSACTION or found[1].value.state.prepared):
                return await self._add_when_settled(found[1], producer_id, epoch, partitions, version)
        return result

    async def _add_when_settled(
        self, transaction: Transaction, producer_id: int, epoch: int, partitions: frozenset[PartitionId], version: int
    ) -> ErrorCode:
        result = ErrorCode.CONCURRENT_TRANSACTIONS
        late = self._clock.seconds() + _SETTLE_SECONDS
        transaction.wanted.append((producer_id, epoch, partitions))
        try:
            while transaction.pending is not None and self._clock.seconds() < late:
                await self._when_settled(transaction, late)
                same = [more for *who, more in transaction.wanted if who == [producer_id, epoch]]
                result = await self._add(transaction.name, producer_id, epoch, partitions.union(*same), version)
                if result is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    break
        finally:
            transaction.wanted.remove((producer_id, epoch, partitions))
        return result

    async def _add(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: frozenset[PartitionId], version: int
    ) -> ErrorCode:
        found = self._shards.find(transactional_id)
        if isinstance(found, ErrorCode):
            return found
        shard, transaction = found
        error = rules.may_add(transaction.value, transaction.pending is not None, producer_id, epoch, partitions)
        if error is not None:
            return error
        if len(transaction.value.partitions | partitions) > MAX_TRANSACTION_PARTITIONS:
            return ErrorCode.INVALID_REQUEST
        after = with_partitions(transaction.value, partitions, version, self._now_ms())
        return await self._change(shard, transaction, after)

    def _when_settled(self, transaction: Transaction, late: float) -> Deferred[None]:
        """Return a Deferred that fires when the pending change is stored, but not later than at the time `late`."""
        if transaction.pending is None:
            return succeed(None)
        done: Deferred[None] = Deferred()

        def fire() -> None:
            if not done.called:
                if call.active():
                    call.cancel()
                self._timers.discard(call)
                done.callback(None)

        call = self._clock.callLater(late - self._clock.seconds(), fire)
        self._timers.add(call)
        transaction.settled.append(fire)
        return done

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[PartitionId]
    ) -> dict[PartitionId, ErrorCode]:
        """Return NONE for each partition that is in the producer's transaction, and an error code for the others."""
        found = self._shards.find(transactional_id)
        error = found if isinstance(found, ErrorCode) else rules.verify(found[1].value, producer_id, epoch)
        if error or isinstance(found, ErrorCode):
            return dict.fromkeys(partitions, error)
        present = found[1].value.partitions
        return {one: _NONE if one in present else ErrorCode.TRANSACTION_ABORTABLE for one in partitions}

    def end(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool, version: int
    ) -> Deferred[ProducerAnswer]:
        """Commit or abort a transaction. The answer is sent when the decision is stored; markers are written later.

        version: the version of transactions that the producer uses. From version 2 on the answer has the producer id
            and epoch to use next.
        """
        return shield(Deferred.fromCoroutine(self._end(transactional_id, producer_id, epoch, commit, version)))

    async def _end(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool, version: int
    ) -> ProducerAnswer:
        found = self._shards.find(transactional_id)
        if isinstance(found, ErrorCode):
            return ProducerAnswer(found)
        shard, transaction = found
        value = transaction.value
        error = rules.may_end(value, transaction.pending is not None, producer_id, epoch, commit, version)
        if error is not None:
            return ProducerAnswer(error) if error else ProducerAnswer(_NONE, value.producer_id, value.epoch)
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        return await self._decide(
            shard, transaction, version, state,
            lambda next_id: ending(value, commit, version, next_id, self._now_ms()),
        )  # fmt: skip

    async def _decide(
        self,
        shard: Shard,
        transaction: Transaction,
        version: int,
        state: TransactionState,
        decision: Callable[[int], TransactionValue],
    ) -> ProducerAnswer:
        """Store a decision, then start to write the markers. Every end of a transaction uses this method.

        version: the version of transactions by which the transaction ends.
        decision: called with the producer id with which the producer is to continue. The id is -1 if the present one
            has a further epoch, or if the producer asks for it (InitProducerId).
        """
        next_id: int | ErrorCode = NONE_YET
        with transaction.change(state):
            if version >= EPOCH_PER_TRANSACTION and transaction.value.exhausted:
                next_id = await self._new_id_for(shard)
                if isinstance(next_id, ErrorCode):
                    transaction.settle()
                    return ProducerAnswer(next_id)
            value = decision(next_id)
        error = await self._change(shard, transaction, value)
        if error:
            return ProducerAnswer(error)
        after = self._send_markers(shard, transaction)
        return ProducerAnswer(_NONE, after.producer_id, after.epoch)

    async def _fence(self, shard: Shard, transaction: Transaction) -> ErrorCode:
        """Abort an open transaction with a higher epoch. Return NONE once the decision is stored."""
        value, version = transaction.value, self._version
        answer = await self._decide(
            shard, transaction, version, TransactionState.PREPARE_ABORT,
            lambda next_id: fenced(value, version, next_id, self._now_ms()),
        )  # fmt: skip
        return answer.error

    # -- administration

    def transactions(self) -> tuple[ErrorCode, Iterator[Transaction]]:
        """Return every transactional id that is coordinated here, and an error code while some may be missing."""
        return self._shards.all()

    def describe(self, transactional_id: str) -> TransactionValue | ErrorCode:
        """Return the state of a transactional id, or the error code TRANSACTIONAL_ID_NOT_FOUND."""
        shard = self._shards.shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        found = shard.transactions.get(transactional_id)
        if found is None or found.pending is TransactionState.DEAD or found.value.epoch == NONE_YET:
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return found.value

    @property
    def now_ms(self) -> int:
        """The wall clock in milliseconds since 1970."""
        return self._now_ms()
