"""Load, find, store and forget the transactional ids of the partitions of `__transaction_state` that this broker leads.

Rules: see `coordinator`. Requests are answered only while the partition is led here and loaded; otherwise the answer is
COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, or COORDINATOR_NOT_AVAILABLE while this broker stops.
Must not know: what changes, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.base.limits.bounds import Bound
from pylogd.base.limits.names import MAX_TRANSACTIONAL_ID
from pylogd.base.limits.shares import Share
from pylogd.broker.metadata.topic_admin import TopicAdmin
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.broker.replica.internal_loader import InternalTopicLoader
from pylogd.broker.replica.internal_topic import InternalTopic, InternalTopicOptions, KeyValue
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.service import Replicas
from pylogd.broker.transactions.records import read_key, read_value, transaction_key, transaction_value
from pylogd.broker.transactions.states import TransactionState
from pylogd.broker.transactions.values import PartitionId, TransactionValue
from pylogd.config import Settings, internal_segment_size
from pylogd.store.paths import TRANSACTIONS_TOPIC
from pylogd.wire.records import BatchHeader, Record

log = Logger()

_NONE = ErrorCode.NONE


def _configs(settings: Settings) -> Mapping[str, str]:
    return {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(settings.integer("transaction.state.log.min.isr")),
        **internal_segment_size(settings.integer("transaction.state.log.segment.bytes")),
        "unclean.leader.election.enable": "false",
    }


TRANSACTIONS: Final = InternalTopicOptions(
    TRANSACTIONS_TOPIC,
    partitions="transaction.state.log.num.partitions",
    replication_factor="transaction.state.log.replication.factor",
    timeout="request.timeout.ms",
    configs=_configs,
    too_large=ErrorCode.UNKNOWN_SERVER_ERROR,
)


class Transaction:
    """A transactional id in memory.

    value: the value that was stored last.
    pending: the state to which the change that is being stored, or the markers under way, will lead; None if there is
        none.
    settled: called when nothing is pending any more.
    wanted: producer ids, epochs and partitions of the requests to add partitions that wait for that.
    """

    __slots__ = ("name", "pending", "settled", "value", "wanted")

    def __init__(self, name: str, value: TransactionValue) -> None:
        self.name = name
        self.value = value
        self.pending: TransactionState | None = None
        self.settled: list[Callable[[], object]] = []
        self.wanted: list[tuple[int, int, frozenset[PartitionId]]] = []

    @contextmanager
    def change(self, state: TransactionState) -> Iterator[None]:
        """Begin a change that leads to `state`: this state is pending until `settle` is called.

        If the body of the `with` statement fails, nothing is pending any more. Only this method makes a state pending.
        """
        self.pending = state
        try:
            yield
        except Exception:
            self.settle()
            raise

    def settle(self) -> None:
        """Note that nothing is pending any more."""
        self.pending = None
        waiting, self.settled = self.settled, []
        for one in waiting:
            one()


class Shard:
    """The transactional ids of one partition of `__transaction_state` that this broker leads.

    A new leadership makes a new shard.

    epoch: the leader epoch.
    """

    __slots__ = ("epoch", "loading", "partition", "transactions")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.loading = True
        self.transactions: dict[str, Transaction] = {}


class TransactionLoader(InternalTopicLoader[dict[str, TransactionValue]]):
    """Loads one partition once. It may be used by one thread at a time.

    end: the offset after the last record that was loaded.
    """

    contents = "the transactional id in it"

    def __init__(self, partition: Partition, slice_bytes: int) -> None:
        super().__init__(partition, slice_bytes)
        self.end = partition.log.log_end_offset
        self._values: dict[str, TransactionValue] = {}

    def apply(self, header: BatchHeader, record: Record) -> None:
        """Note the state in a record."""
        transactional_id = None if record.key is None else read_key(record.key)
        if transactional_id is None:
            return  # a kind of record that only newer brokers write
        if record.value is None:
            self._values.pop(transactional_id, None)
        else:
            self._values[transactional_id] = read_value(record.value)

    def make(self) -> dict[str, TransactionValue]:
        """Return the state of every transactional id."""
        return self._values


class TransactionShards:
    """The transactional ids that this broker coordinates.

    topic: the topic in which they are stored.
    on_loaded: called with a shard, the end offset of the load, and the transactions whose outcome is decided.
    on_unloaded: called with a shard that is no longer led here.
    """

    def __init__(
        self,
        replicas: Replicas,
        topics: TopicRegistry,
        topic_admin: TopicAdmin,
        settings: Settings,
        now_ms: Callable[[], int],
    ) -> None:
        self.topic = InternalTopic(TRANSACTIONS, replicas, topics, topic_admin, settings, now_ms)
        self.on_loaded: Callable[[Shard, int, list[Transaction]], object] = lambda *_: None
        self.on_unloaded: Callable[[Shard], object] = lambda _: None
        self._partitions = replicas.partitions
        self._disk_calls = replicas.disk_calls
        self._settings = settings
        self._shards: dict[int, Shard] = {}
        most = partial(settings.integer, "transactional.ids.max")
        most_of_one = partial(settings.integer, "transactional.ids.max.per.principal")
        self._bound = Bound("transactional id", "transactional.ids.max", most, most_of_one)
        self._undo: Callable[[], object] = lambda: None
        self._running = False

    def start(self) -> None:
        """Begin to follow the leadership of the topic."""
        self._running = True
        self._undo = self._partitions.on_leadership(self._leadership)

    def stop(self) -> None:
        """Forget every transactional id."""
        self._running = False
        self._undo()
        self._undo = lambda: None
        for index in list(self._shards):
            self._unload(index)

    # -- gaining and losing partitions

    def _leadership(self, partition: Partition, leads: bool) -> None:
        if partition.topic != TRANSACTIONS_TOPIC:
            return
        self._unload(partition.index)
        if leads:
            shard = self._shards[partition.index] = Shard(partition)
            self._load(shard)

    def _unload(self, index: int) -> None:
        shard = self._shards.pop(index, None)
        if shard is not None:
            self.on_unloaded(shard)
            for transaction in list(shard.transactions.values()):
                self.forget(shard, transaction.name)
                transaction.settle()

    def _load(self, shard: Shard) -> None:
        try:
            loader = TransactionLoader(
                shard.partition, self._settings.integer("transaction.state.log.load.buffer.size")
            )
        except PylogdError as error:
            self._load_failed(Failure(error), shard)
            return
        if loader.empty:
            shard.loading = False
            return
        in_thread = partial(self._disk_calls.at, shard.partition.log.directory)
        done = Deferred.fromCoroutine(loader.run(in_thread, lambda: self.current(shard)))
        done.addCallback(self._loaded, shard, loader).addErrback(self._load_failed, shard)

    def current(self, shard: Shard) -> bool:
        """Return whether a shard is still led here, in the same leader epoch."""
        return self._shards.get(shard.partition.index) is shard

    def _loaded(self, values: dict[str, TransactionValue] | None, shard: Shard, loader: TransactionLoader) -> None:
        if values is None:
            return
        shard.transactions = {name: Transaction(name, value) for name, value in values.items()}
        prepared = [one for one in shard.transactions.values() if one.value.state.prepared]
        shard.loading = False
        log.info(
            "{topic}-{index}: loaded {count} transactional ids from {records} records; {prepared} transactions are to "
            "be ended",
            topic=TRANSACTIONS_TOPIC, index=shard.partition.index, count=len(values), records=loader.records,
            prepared=len(prepared),
        )  # fmt: skip
        if prepared:
            self.on_loaded(shard, loader.end, prepared)

    def _load_failed(self, failure: Failure, shard: Shard) -> None:
        index = shard.partition.index
        if self.current(shard):
            del self._shards[index]
        log.failure(
            "Could not load the transactional ids in {topic}-{index}: they have no coordinator until the partition "
            "gets another leader or this broker restarts",
            failure, topic=TRANSACTIONS_TOPIC, index=index,
        )  # fmt: skip

    # -- finding transactional ids

    @staticmethod
    def check_name(transactional_id: str) -> ErrorCode:
        """Return NONE if a transactional id is valid."""
        valid = 0 < len(transactional_id) <= MAX_TRANSACTIONAL_ID
        return _NONE if valid else ErrorCode.INVALID_REQUEST

    def shard_of(self, transactional_id: str) -> Shard | ErrorCode:
        """Return the shard for a transactional id, existing or not, or the error code to answer with."""
        error = self.check_name(transactional_id)
        if error:
            return error
        if not self._running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        shard = self._shards.get(self.topic.index_of(transactional_id))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if shard.loading else shard

    def find(self, transactional_id: str) -> tuple[Shard, Transaction] | ErrorCode:
        """Return a producer's transactional id, or the error code to answer with."""
        shard = self.shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        found = shard.transactions.get(transactional_id)
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING if found is None else (shard, found)

    def admits(self, transactional_id: str, share: Share) -> bool:
        """Count a new transactional id for its client, and return True; return False if the client has too many."""
        total = sum(len(shard.transactions) for shard in self._shards.values())
        return self._bound.admits(transactional_id, share, total)

    def forget(self, shard: Shard, transactional_id: str) -> None:
        """Remove a transactional id from memory."""
        if shard.transactions.pop(transactional_id, None) is not None:
            self._bound.gone(transactional_id)

    # -- changing a transactional id

    async def change(
        self, shard: Shard, transaction: Transaction, value: TransactionValue, *, flexible: bool
    ) -> ErrorCode:
        """Store another value, which is in effect when the result is NONE.

        flexible: see `transaction_value`.
        """
        record = transaction_key(transaction.name), transaction_value(value, flexible=flexible)
        with transaction.change(value.state):
            error = await self.append(shard, [record])
            if not self.current(shard):
                return ErrorCode.NOT_COORDINATOR
            if not error:
                transaction.value = value
            transaction.settle()
            return error

    async def append(self, shard: Shard, records: list[KeyValue]) -> ErrorCode:
        """Append records to the partition of a shard. Return NONE once they are committed."""
        if not self.current(shard):
            return ErrorCode.NOT_COORDINATOR
        result = self.topic.append(shard.partition, records)
        return await result if isinstance(result, Deferred) else result

    # -- all of them

    def all(self) -> tuple[ErrorCode, Iterator[Transaction]]:
        """Return every transactional id that is coordinated here, or COORDINATOR_LOAD_IN_PROGRESS during a load."""
        if not self._running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, iter(())
        if any(shard.loading for shard in self._shards.values()):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, iter(())
        return _NONE, self._each()

    def _each(self) -> Iterator[Transaction]:
        for shard in list(self._shards.values()):
            yield from list(shard.transactions.values())

    def led(self) -> list[Shard]:
        """Return the shards that are led here now."""
        return list(self._shards.values())
