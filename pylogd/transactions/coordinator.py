"""Coordinate the transactions of the transactional ids that this broker stores as a leader.

Strategy: a transactional id is coordinated by the leader of the partition of `__transaction_state` that stores it. When
this broker becomes the leader of such a partition it loads the ids in it, and ends the transactions whose outcome was
decided; when it loses the leadership it forgets them. `rules` says what a producer may do, `transitions` what changes,
`markers` ends transactions at the leaders of their partitions.

Rules:
- A change takes effect once every in-sync replica has its record, even if the client has disconnected. Until then it is
  pending, and every other change of the id is answered CONCURRENT_TRANSACTIONS.
- No marker is sent before every in-sync replica has the decision, not even after a failover. So a transaction can't be
  committed in one partition and aborted in another one.
- Markers carry the leader epoch of the partition that stores the id: leaders refuse those of an earlier coordinator.
Must not know: requests, connections.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from pylogd.config import Settings
from pylogd.errors import ErrorCode, PylogdError
from pylogd.limits.transactions import MAX_TRANSACTION_PARTITIONS
from pylogd.metadata.feature_levels import TRANSACTION_VERSION
from pylogd.metadata.features import Features
from pylogd.metadata.topic_admin import TopicAdmin
from pylogd.metadata.topics import TopicRegistry
from pylogd.replica.internal_topic import MOST_RECORDS
from pylogd.replica.service import Replicas
from pylogd.replica.waiting import shield, shielded, then
from pylogd.transactions import rules
from pylogd.transactions.markers import Ask, Marker, MarkerSender
from pylogd.transactions.records import transaction_key
from pylogd.transactions.shards import Shard, Transaction, TransactionShards
from pylogd.transactions.states import TransactionState
from pylogd.transactions.transitions import completed, ending, fenced, initialized, rotated, with_partitions
from pylogd.transactions.values import (
    EPOCH_PER_TRANSACTION,
    NONE_YET,
    PartitionId,
    ProducerAnswer,
    TransactionValue,
)

log = Logger()

#: How many transactional ids one turn of the reactor checks for timeouts or expiry.
_SWEPT_AT_ONCE: Final = 500
#: How long a request to add partitions waits until the previous transaction is completed, in seconds.
_SETTLE_SECONDS: Final = 0.1
#: The pause before a failed write that must succeed is repeated, in seconds.
_STORE_AGAIN_SECONDS: Final = 0.5
_NONE = ErrorCode.NONE


class TransactionCoordinator:
    """All transactional ids that this broker coordinates. Methods return their answer, or a Deferred if it waits."""

    def __init__(
        self,
        replicas: Replicas,
        topics: TopicRegistry,
        topic_admin: TopicAdmin,
        settings: Settings,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        *,
        features: Features,
        next_producer_id: Callable[[], Deferred[int]],
        send_markers: Ask,
        send_slow_markers: Ask | None = None,
    ) -> None:
        """`clock` times sweeps and retries; `now_ms` is the wall clock, for timeouts and expiry of transactions.

        send_markers, send_slow_markers: send a request to the broker with a node id, see `MarkerSender`.
        """
        self._shards = TransactionShards(replicas, topics, topic_admin, settings, now_ms)
        self._shards.on_loaded = self._resume
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._now_ms = now_ms
        self._features = features
        self._next_producer_id = next_producer_id
        self._markers = MarkerSender(send_markers, self._leader_of, clock, send_slow_markers)
        self._shards.on_unloaded = self._markers.cancel
        self._timers: set[IDelayedCall] = set()

    # -- starting and stopping

    def start(self) -> None:
        """Begin to load and forget ids as the leadership of their partitions changes, and to check for timeouts.

        Call it before the replica manager starts.
        """
        self._shards.start()
        self._every("transaction.abort.timed.out.transaction.cleanup.interval.ms", self._abort_late)
        self._every("transaction.remove.expired.transaction.cleanup.interval.ms", self._remove_expired)

    def stop(self) -> None:
        """Forget every transactional id; requests are answered COORDINATOR_NOT_AVAILABLE."""
        self._markers.stop()
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

    def _every(self, setting: str, function: Callable[[], object]) -> None:
        def run() -> None:
            self._every(setting, function)
            function()

        self._later(self._settings.integer(setting) / 1000, run)

    def _leader_of(self, topic: str, index: int) -> int | None:
        found = self._topics.get(topic)
        return None if found is None or index >= len(found.partitions) else found.partitions[index].leader

    # -- ending transactions after a failover

    def _resume(self, shard: Shard, end: int, prepared: list[Transaction]) -> None:
        """Send markers for decisions that were loaded, once the log up to `end` is in the in-sync set."""
        if not self._shards.current(shard):
            return
        for transaction in prepared:
            transaction.pending = completed(transaction.value, self._now_ms()).state
        outcome = self._shards.topic.committed(shard.partition, end - 1)

        def resume(error: ErrorCode) -> None:
            if error:
                self._later(_STORE_AGAIN_SECONDS, lambda: self._resume(shard, end, prepared))
            elif self._shards.current(shard):
                for transaction in prepared:
                    self._send_markers(shard, transaction)

        then(outcome, resume)

    # -- changing a transactional id

    def _change(
        self, shard: Shard, transaction: Transaction, value: TransactionValue
    ) -> ErrorCode | Deferred[ErrorCode]:
        return self._shards.change(shard, transaction, value, flexible=self._version > 0)

    @property
    def _version(self) -> int:
        """The version of transactions that the cluster uses."""
        return self._features.level(TRANSACTION_VERSION)

    def _send_markers(self, shard: Shard, transaction: Transaction) -> TransactionValue:
        """Start to write the markers of a decided transaction. Return its value once all are written."""
        value = transaction.value
        after = completed(value, self._now_ms())
        transaction.pending = after.state
        marker = Marker(
            shard, transaction.name, value.producer_id, value.epoch, value.partitions,
            lambda: self._complete(shard, transaction), commit=value.state is TransactionState.PREPARE_COMMIT,
            coordinator_epoch=shard.epoch, version=value.version,
        )  # fmt: skip
        self._markers.send(marker)
        return after

    def _complete(self, shard: Shard, transaction: Transaction) -> None:
        """Store that every partition has its marker. Repeated until that succeeds."""
        if not self._shards.current(shard):
            return
        after = completed(transaction.value, self._now_ms())

        def stored(error: ErrorCode) -> None:
            if error and self._shards.current(shard):
                transaction.pending = after.state
                self._later(_STORE_AGAIN_SECONDS, lambda: self._complete(shard, transaction))

        then(self._change(shard, transaction, after), stored)

    # -- finding coordinators

    def coordinator_of(self, transactional_id: str) -> int | ErrorCode | Deferred[int | ErrorCode]:
        """Return the node id of the coordinator of a transactional id, or an error code.

        Creates `__transaction_state` if it is missing.
        """
        return self._shards.check_name(transactional_id) or self._shards.topic.coordinator_of(transactional_id)

    def known_coordinator_of(self, transactional_id: str) -> int | ErrorCode:
        """As `coordinator_of`, but COORDINATOR_NOT_AVAILABLE if the topic is missing: nothing is created."""
        return self._shards.check_name(transactional_id) or self._shards.topic.leader_of(transactional_id)

    # -- requests of producers

    def initialize(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None
    ) -> ProducerAnswer | Deferred[ProducerAnswer]:
        """Handle InitProducerId: give a producer its id and epoch, which fences all others with the transactional id.

        expected: the producer id and epoch that it has (KIP-360), None for a new producer. A transaction that is open
        is aborted; the answer is CONCURRENT_TRANSACTIONS until that is done.
        """
        if not 0 < timeout_ms <= self._settings.integer("transaction.max.timeout.ms"):
            error = self._shards.check_name(transactional_id)
            return ProducerAnswer(error or ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        shard = self._shards.shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return ProducerAnswer(shard)
        transaction = shard.transactions.get(transactional_id)
        if transaction is None:
            made = self._initialize_new(shard, transactional_id, timeout_ms, expected)
            return shield(Deferred.fromCoroutine(made))
        return shielded(self._initialize(shard, transaction, timeout_ms, expected))

    async def _initialize_new(
        self, shard: Shard, name: str, timeout_ms: int, expected: tuple[int, int] | None
    ) -> ProducerAnswer:
        producer_id = await self._new_id()
        if isinstance(producer_id, ErrorCode):
            return ProducerAnswer(producer_id)
        if not self._shards.current(shard):
            return ProducerAnswer(ErrorCode.NOT_COORDINATOR)
        value = TransactionValue(producer_id, NONE_YET, timeout_ms, self._now_ms())
        transaction = shard.transactions.setdefault(name, Transaction(name, value))
        answer = self._initialize(shard, transaction, timeout_ms, expected)
        if isinstance(answer, Deferred):
            answer = await answer
        if transaction.value.epoch == NONE_YET and transaction.pending is None:  # it could not be stored
            shard.transactions.pop(name, None)
        return answer

    async def _new_id(self) -> int | ErrorCode:
        try:
            return await self._next_producer_id()
        except PylogdError as error:
            log.warn("Could not get a producer id for a transactional id: {error}", error=error)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _initialize(
        self, shard: Shard, transaction: Transaction, timeout_ms: int, expected: tuple[int, int] | None
    ) -> ProducerAnswer | Deferred[ProducerAnswer]:
        value = transaction.value
        error = rules.may_initialize(value, transaction.pending is not None, expected)
        if error:
            return ProducerAnswer(error)
        if value.state is TransactionState.ONGOING:
            return then(
                self._fence(shard, transaction),
                lambda error: ProducerAnswer(error or ErrorCode.CONCURRENT_TRANSACTIONS),
            )
        expected_epoch = None if expected is None else expected[1]
        if value.exhausted and expected_epoch in (None, value.epoch):
            transaction.pending = TransactionState.EMPTY  # while the id is fetched
            return Deferred.fromCoroutine(self._rotate(shard, transaction, timeout_ms, expected_epoch is not None))
        after = initialized(value, timeout_ms, expected_epoch, self._now_ms())
        return self._answer_with(after, self._change(shard, transaction, after))

    async def _rotate(self, shard: Shard, transaction: Transaction, timeout_ms: int, keep_last: bool) -> ProducerAnswer:
        producer_id = await self._new_id()
        if isinstance(producer_id, ErrorCode) or not self._shards.current(shard):
            transaction.settle()
            return ProducerAnswer(producer_id if isinstance(producer_id, ErrorCode) else ErrorCode.NOT_COORDINATOR)
        after = rotated(transaction.value, producer_id, timeout_ms, self._now_ms(), keep_last=keep_last)
        answer = self._answer_with(after, self._change(shard, transaction, after))
        return await answer if isinstance(answer, Deferred) else answer

    @staticmethod
    def _answer_with(
        value: TransactionValue, result: ErrorCode | Deferred[ErrorCode]
    ) -> ProducerAnswer | Deferred[ProducerAnswer]:
        return then(
            result,
            lambda error: ProducerAnswer(error) if error else ProducerAnswer(_NONE, value.producer_id, value.epoch),
        )

    def add(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[PartitionId], version: int
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Add partitions to a transaction, which begins with the first. Return NONE once that is stored.

        version: of transactions, as the producer uses them; from 2 on the leaders of partitions ask, several at a time.
        While the previous transaction is being completed, or another leader's partitions are being added, the request
        waits, up to `_SETTLE_SECONDS`. What waits for the same transaction is added together.
        """
        wanted = frozenset(partitions)
        result = self._add(transactional_id, producer_id, epoch, wanted, version)
        if result is not ErrorCode.CONCURRENT_TRANSACTIONS:
            return shielded(result)
        found = self._shards.find(transactional_id)
        several = version >= EPOCH_PER_TRANSACTION
        if isinstance(found, ErrorCode) or not (several or found[1].value.state.prepared):
            return result
        later = self._add_when_settled(found[1], producer_id, epoch, wanted, version)
        return shield(Deferred.fromCoroutine(later))

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
                answer = self._add(transaction.name, producer_id, epoch, partitions.union(*same), version)
                result = await answer if isinstance(answer, Deferred) else answer
                if result is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    break
        finally:
            transaction.wanted.remove((producer_id, epoch, partitions))
        return result

    def _add(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: frozenset[PartitionId], version: int
    ) -> ErrorCode | Deferred[ErrorCode]:
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
        return self._change(shard, transaction, after)

    def _when_settled(self, transaction: Transaction, late: float) -> Deferred[None]:
        """Return a Deferred that fires when the pending change is stored, at the latest at the time `late`."""
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
        """Return NONE for each partition that is in the producer's transaction, else why it is not."""
        found = self._shards.find(transactional_id)
        error = found if isinstance(found, ErrorCode) else rules.verify(found[1].value, producer_id, epoch)
        if error or isinstance(found, ErrorCode):
            return dict.fromkeys(partitions, error)
        present = found[1].value.partitions
        return {one: _NONE if one in present else ErrorCode.TRANSACTION_ABORTABLE for one in partitions}

    def end(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool, version: int
    ) -> ProducerAnswer | Deferred[ProducerAnswer]:
        """Commit or abort a transaction. The answer is sent when the decision is stored; markers are written
        afterwards.

        version: of transactions, as the producer uses them; from 2 on the answer has its next producer id and epoch.
        """
        found = self._shards.find(transactional_id)
        if isinstance(found, ErrorCode):
            return ProducerAnswer(found)
        shard, transaction = found
        value = transaction.value
        error = rules.may_end(value, transaction.pending is not None, producer_id, epoch, commit, version)
        if error is not None:
            return ProducerAnswer(error) if error else ProducerAnswer(_NONE, value.producer_id, value.epoch)
        if version >= EPOCH_PER_TRANSACTION and value.exhausted:
            transaction.pending = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
            return shield(Deferred.fromCoroutine(self._end_with_new_id(shard, transaction, commit, version)))
        return shielded(self._end(shard, transaction, ending(value, commit, version, NONE_YET, self._now_ms())))

    async def _end_with_new_id(
        self, shard: Shard, transaction: Transaction, commit: bool, version: int
    ) -> ProducerAnswer:
        next_id = await self._new_id()
        if isinstance(next_id, ErrorCode) or not self._shards.current(shard):
            transaction.settle()
            return ProducerAnswer(next_id if isinstance(next_id, ErrorCode) else ErrorCode.NOT_COORDINATOR)
        after = ending(transaction.value, commit, version, next_id, self._now_ms())
        answer = self._end(shard, transaction, after)
        return await answer if isinstance(answer, Deferred) else answer

    def _end(
        self, shard: Shard, transaction: Transaction, value: TransactionValue
    ) -> ProducerAnswer | Deferred[ProducerAnswer]:
        """Store the decision, then start to write the markers."""

        def stored(error: ErrorCode) -> ProducerAnswer:
            if error:
                return ProducerAnswer(error)
            after = self._send_markers(shard, transaction)
            return ProducerAnswer(_NONE, after.producer_id, after.epoch)

        return then(self._change(shard, transaction, value), stored)

    def _fence(self, shard: Shard, transaction: Transaction) -> ErrorCode | Deferred[ErrorCode]:
        """Abort an open transaction with a higher epoch. Return NONE once that is decided."""
        after = fenced(transaction.value, self._version, self._now_ms())
        return then(self._end(shard, transaction, after), lambda answer: answer.error)

    # -- administration

    def transactions(self) -> tuple[ErrorCode, Iterator[Transaction]]:
        """Return every transactional id that is coordinated here; an error code while some may be missing."""
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

    # -- timeouts and expiry

    def _abort_late(self) -> None:
        """Abort transactions that have been open for longer than their producer's timeout."""

        def abort(shard: Shard, transactions: list[Transaction]) -> None:
            now_ms = self._now_ms()
            for transaction in transactions:
                value = transaction.value
                late = value.state is TransactionState.ONGOING and value.started_ms + value.timeout_ms < now_ms
                if late and transaction.pending is None:
                    log.info("{name}: aborting the transaction, which was not ended within {seconds:g} s",
                             name=transaction.name, seconds=value.timeout_ms / 1000)  # fmt: skip
                    self._fence(shard, transaction)

        self._sweep(abort)

    def _remove_expired(self) -> None:
        """Remove transactional ids without changes for `transactional.id.expiration.ms`."""

        def remove(shard: Shard, transactions: list[Transaction]) -> None:
            before = self._now_ms() - self._settings.integer("transactional.id.expiration.ms")
            expired = [
                one for one in transactions
                if one.pending is None and one.value.state.may_expire and one.value.updated_ms <= before
            ]  # fmt: skip
            for at in range(0, len(expired), MOST_RECORDS):
                self._remove(shard, expired[at : at + MOST_RECORDS])

        self._sweep(remove)

    def _remove(self, shard: Shard, transactions: list[Transaction]) -> None:
        for transaction in transactions:
            transaction.pending = TransactionState.DEAD

        def stored(error: ErrorCode) -> None:
            for transaction in transactions:
                if not error:
                    shard.transactions.pop(transaction.name, None)
                transaction.settle()

        then(self._shards.append(shard, [(transaction_key(one.name), None) for one in transactions]), stored)

    def _sweep(self, work: Callable[[Shard, list[Transaction]], None]) -> None:
        """Call `work` with all transactional ids, `_SWEPT_AT_ONCE` in each turn of the reactor."""
        shards = [(shard, iter(list(shard.transactions.values()))) for shard in self._shards.led()]
        self._sweep_some(shards, work)

    def _sweep_some(
        self, shards: list[tuple[Shard, Iterator[Transaction]]], work: Callable[[Shard, list[Transaction]], None]
    ) -> None:
        left = _SWEPT_AT_ONCE
        while shards and left > 0:
            shard, rest = shards[-1]
            some = list(islice(rest, left))
            left -= len(some)
            if some and self._shards.current(shard):
                work(shard, some)
            else:
                shards.pop()
        if shards:
            self._later(0, lambda: self._sweep_some(shards, work))
