"""A compacted topic in which brokers keep state: create it, find the partition of a key, append to it.

Strategy: the state of a group or transactional id is stored in the same partition as in Kafka, so that tools find it.
The topic is created when it is first needed. An append waits for every in-sync replica, like a producer with acks=all.
If this broker is the only in-sync replica, it does not wait and makes no Deferred.

Must not know: what is stored, requests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import mul
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.broker.log.append.result import AppendResult
from pylogd.broker.log.errors import (
    AppendInTurn,
    InvalidProducerEpoch,
    RecordListTooLarge,
    RecordTooLarge,
    StorageError,
)
from pylogd.broker.metadata.errors import TopicExists
from pylogd.broker.metadata.image import NO_LEADER, Topic
from pylogd.broker.metadata.topic_admin import TopicAdmin
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.broker.replica.errors import NotEnoughReplicas, NotLeader, PartitionOffline
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.roles import Role
from pylogd.broker.replica.service import Replicas
from pylogd.broker.replica.waiting import PendingAppend, shield
from pylogd.config import Settings
from pylogd.config.labels import COORDINATOR_LABELS, parse_coordinators
from pylogd.wire.records import encode_batch

log = Logger()

#: The most tombstones in one batch: a batch has a maximum size, and many keys may be deleted at once.
MOST_RECORDS: Final = 1000

#: Stands for the partition of a name that no partition stores.
NO_PARTITION: Final = -1
KeyValue = tuple[bytes, bytes | None]

_REFUSED: Final[tuple[tuple[type[Exception], ErrorCode], ...]] = (
    (NotEnoughReplicas, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (NotLeader, ErrorCode.NOT_COORDINATOR),
    (PartitionOffline, ErrorCode.NOT_COORDINATOR),
    (InvalidProducerEpoch, ErrorCode.INVALID_PRODUCER_EPOCH),
    (StorageError, ErrorCode.NOT_COORDINATOR),
)
#: Powers of 31 are computed once for names of up to this many UTF-16 units. Longer names are refused nowadays.
_MOST_UNITS: Final = 2048
#: The number of names whose partition is cached.
_MOST_NAMES: Final = 1024


class InternalTopicOptions(NamedTuple):
    """The name and settings of an internal topic.

    partitions, replication_factor: the settings with which it is created.
    timeout: the setting that limits, in milliseconds, how long an append waits for the replicas.
    configs: the topic's own settings.
    too_large: the error for records that do not fit into one batch.
    """

    name: str
    partitions: str
    replication_factor: str
    timeout: str
    configs: Callable[[Settings], Mapping[str, str]]
    too_large: ErrorCode


class InternalTopic:
    """An internal topic as a coordinator uses it."""

    def __init__(
        self,
        options: InternalTopicOptions,
        replicas: Replicas,
        topics: TopicRegistry,
        topic_admin: TopicAdmin,
        settings: Settings,
        now_ms: Callable[[], int],
    ) -> None:
        self.name = options.name
        self._options = options
        self._replicas = replicas.manager
        self._hosting = replicas.hosting
        self._topics = topics
        self._topic_admin = topic_admin
        self._settings = settings
        self._now_ms = now_ms
        self._creating: list[Deferred[None]] | None = None  # callers that wait for the topic to be created

    def index_of(self, name: str) -> int:
        """Return the partition that stores `name` (a group or transactional id), even before the topic exists.

        The result is NO_PARTITION if `coordinator.labels` names only partitions for it that the topic does not have.
        """
        topic = self._topics.get(self.name)
        if topic is None:
            count = self._settings.integer(self._options.partitions)
            return labelled_partition_of(name, count, ",".join(self._settings["coordinator.labels"]))
        return labelled_partition_of(name, len(topic.partitions), topic.configs.get(COORDINATOR_LABELS.name, ""))

    def get(self) -> Topic | None:
        """Return the topic, or None if it does not exist."""
        return self._topics.get(self.name)

    def coordinator_of(self, name: str) -> int | ErrorCode | Deferred[int | ErrorCode]:
        """Return the node id of the broker that coordinates `name` (a group or transactional id), or an error code.

        Creates the topic if it is missing.
        """
        if self.get() is None or self.is_being_created:
            return shield(self.ensure().addCallbacks(lambda _: self.leader_of(name), self._not_created))
        return self.leader_of(name)

    def leader_of(self, name: str) -> int | ErrorCode:
        """Return the node id of the leader of the partition that stores `name`; an error code if there is no leader."""
        topic = self.get()
        index = self.index_of(name)
        leader = NO_LEADER if topic is None or index == NO_PARTITION else topic.partitions[index].leader
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if leader == NO_LEADER else leader

    def _not_created(self, failure: Failure) -> ErrorCode:
        if failure.check(PylogdError):
            log.error("Could not create topic {topic}: {error}", topic=self.name, error=failure.value)
        else:
            log.failure("Could not create topic {topic}", failure, topic=self.name)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    @property
    def is_being_created(self) -> bool:
        """Whether the topic is being created at this moment."""
        return self._creating is not None

    def ensure(self) -> Deferred[None]:
        """Ensure that the topic exists. Fails with the errors of `TopicAdmin.create_topic`."""
        waiting: Deferred[None] = Deferred()
        if self._creating is not None:
            self._creating.append(waiting)
            return waiting
        self._creating = [waiting]
        Deferred.fromCoroutine(self._create()).addBoth(self._created)
        return waiting

    async def _create(self) -> None:
        options = self._options
        with suppress(TopicExists):
            await self._topic_admin.create_topic(
                self.name,
                partitions=self._settings.integer(options.partitions),
                replication_factor=self._settings.integer(options.replication_factor),
                configs=dict(options.configs(self._settings)),
            )
        await self._hosting.settled(self.name)

    def _created(self, result: object) -> None:
        waiting, self._creating = self._creating or [], None
        for one in waiting:
            one.callback(result)  # type: ignore[arg-type]  # a Failure makes it fail

    def append(
        self,
        partition: Partition,
        records: Sequence[KeyValue],
        on_append: Callable[[int], object] | None = None,
        **fields: Any,
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Append records as one batch. Returns NONE once they are committed, or an error code. Never fails.

        on_append: called with the offset of the first record once the records are in the log, before they are
            committed.
        fields: fields of the batch, for `encode_batch`.

        There is always an answer, since the caller has marked what it changes, and removes the mark with the answer.
        The Deferred must not be cancelled when a client disconnects: appended records may still be committed.
        """
        now_ms = self._now_ms()
        try:
            batch = encode_batch([(key, value, now_ms, ()) for key, value in records], **fields)
            if partition in self._replicas.append_queues:
                return Deferred.fromCoroutine(self._append_in_turn(partition, batch, on_append))
            result = self._replicas.append(partition, batch, True, own=True)
        except AppendInTurn:
            return Deferred.fromCoroutine(self._append_in_turn(partition, batch, on_append))
        except Exception as error:
            return self._why_refused(partition, error)
        return self._in_log(partition, result, on_append)

    async def _append_in_turn(
        self, partition: Partition, batch: bytes, on_append: Callable[[int], object] | None
    ) -> ErrorCode:
        try:
            result = await self._replicas.append_in_turn(partition, batch, True, own=True)
        except Exception as error:
            return self._why_refused(partition, error)
        outcome = self._in_log(partition, result, on_append)
        return await outcome if isinstance(outcome, Deferred) else outcome

    def _in_log(
        self, partition: Partition, result: AppendResult, on_append: Callable[[int], object] | None
    ) -> ErrorCode | Deferred[ErrorCode]:
        try:
            if on_append is not None:
                on_append(result.base_offset)
            return self.committed(partition, result.last_offset)
        except Exception as error:
            return self._why_refused(partition, error)

    def committed(self, partition: Partition, last_offset: int) -> ErrorCode | Deferred[ErrorCode]:
        """Return NONE if the records up to `last_offset` are committed, or a Deferred of the outcome."""
        if partition.high_watermark > last_offset:
            return ErrorCode.NONE
        return self._replicas.wait_for_replicas(
            [PendingAppend(partition, last_offset + 1, None)],
            self._settings.integer(self._options.timeout),
        ).addCallback(_outcome)

    def _why_refused(self, partition: Partition, error: Exception) -> ErrorCode:
        if isinstance(error, (RecordTooLarge, RecordListTooLarge)):
            return self._options.too_large
        for kind, code in _REFUSED:
            if isinstance(error, kind):
                return code
        log.failure("Unexpected error while appending to {topic}-{index}", topic=partition.topic, index=partition.index)
        return ErrorCode.UNKNOWN_SERVER_ERROR


@lru_cache(maxsize=_MOST_NAMES)
def labelled_partition_of(name: str, count: int, labels: str) -> int:
    """Return which of `count` partitions stores `name`, among those that `coordinator.labels` gives it.

    labels: the value of that setting of the topic; "" for all partitions.

    The result is NO_PARTITION if the topic has none of these partitions.
    """
    if not labels:
        return partition_of(name, count)
    chosen = parse_coordinators(labels).partitions(name, count)
    return chosen[partition_of(name, len(chosen))] if chosen else NO_PARTITION


@lru_cache(maxsize=_MOST_NAMES)
def partition_of(name: str, count: int) -> int:
    """Return which of `count` partitions stores `name`.

    It is the absolute value of Java's String.hashCode, modulo `count`.

    Source: partitionFor of Kafka's GroupMetadataManager and TransactionStateManager.
    """
    raw = name.encode("utf-16-be")
    units = struct.unpack(f">{len(raw) // 2}H", raw)
    # A longer name was stored by an earlier release.
    powers = _POWERS if len(units) <= len(_POWERS) else _powers_of_31(len(units))
    code = sum(map(mul, reversed(units), powers)) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % count


def _powers_of_31(count: int) -> list[int]:
    powers = [1]
    for _ in range(count - 1):
        powers.append(powers[-1] * 31 & 0xFFFFFFFF)
    return powers


_POWERS: Final = _powers_of_31(_MOST_UNITS)  # a character takes up to two units


def _outcome(late: list[PendingAppend]) -> ErrorCode:
    if not late:
        return ErrorCode.NONE
    leads = late[0].partition.role is Role.LEADING
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if leads else ErrorCode.NOT_COORDINATOR
