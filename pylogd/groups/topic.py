"""The offsets topic `__consumer_offsets`: which partition stores a group, creating the topic, appending to it.

Strategy: a group is stored in the same partition as with Kafka, so that tools find it. The topic is created when a
client first asks for a coordinator. An append waits for every in-sync replica, as a producer with acks=all does; if
this broker is the only one in sync that is at once, and no Deferred is made.

Must not know: groups, members, requests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import mul
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.config import Settings
from pylogd.errors import ErrorCode, PylogdError
from pylogd.limits.names import MAX_GROUP_ID
from pylogd.log.errors import RecordListTooLarge, RecordTooLarge, StorageError
from pylogd.metadata.errors import TopicExists
from pylogd.metadata.image import OFFSETS_TOPIC, Topic
from pylogd.metadata.topic_admin import TopicAdmin
from pylogd.metadata.topics import TopicRegistry
from pylogd.replica.errors import NotEnoughReplicas, PartitionOffline
from pylogd.replica.partition import Partition
from pylogd.replica.roles import Role
from pylogd.replica.service import Replicas
from pylogd.replica.waiting import PendingAppend
from pylogd.wire.records import encode_batch

log = Logger()

#: How many tombstones one batch holds: a batch has a maximum size, and many offsets may be deleted at once.
MOST_RECORDS: Final = 1000

KeyValue = tuple[bytes, bytes | None]

_REFUSED: Final[tuple[tuple[type[PylogdError], ErrorCode], ...]] = (
    (RecordTooLarge, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    (RecordListTooLarge, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    (NotEnoughReplicas, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (PartitionOffline, ErrorCode.NOT_COORDINATOR),
    (StorageError, ErrorCode.NOT_COORDINATOR),
)


class OffsetsTopic:
    """The offsets topic as the group coordinator uses it."""

    def __init__(
        self,
        replicas: Replicas,
        topics: TopicRegistry,
        topic_admin: TopicAdmin,
        settings: Settings,
        now_ms: Callable[[], int],
    ) -> None:
        self._replicas = replicas.manager
        self._hosting = replicas.hosting
        self._topics = topics
        self._topic_admin = topic_admin
        self._settings = settings
        self._now_ms = now_ms
        self._creating: list[Deferred[None]] | None = None  # callers that wait for the topic to be created

    def index_of(self, group_id: str) -> int:
        """Return the partition that stores a group, also before the topic exists."""
        topic = self._topics.get(OFFSETS_TOPIC)
        count = self._settings.integer("offsets.topic.num.partitions") if topic is None else len(topic.partitions)
        return partition_of(group_id, count)

    def get(self) -> Topic | None:
        """Return the topic, or None if it does not exist."""
        return self._topics.get(OFFSETS_TOPIC)

    @property
    def is_being_created(self) -> bool:
        """Whether the topic is being created at this moment."""
        return self._creating is not None

    def ensure(self) -> Deferred[None]:
        """See that the topic is there. Fails as `TopicAdmin.create_topic` does."""
        waiting: Deferred[None] = Deferred()
        if self._creating is not None:
            self._creating.append(waiting)
            return waiting
        self._creating = [waiting]
        Deferred.fromCoroutine(self._create()).addBoth(self._created)
        return waiting

    async def _create(self) -> None:
        with suppress(TopicExists):
            await self._topic_admin.create_topic(
                OFFSETS_TOPIC,
                partitions=self._settings.integer("offsets.topic.num.partitions"),
                replication_factor=self._settings.integer("offsets.topic.replication.factor"),
                configs={
                    "cleanup.policy": "compact",
                    "segment.bytes": str(self._settings.integer("offsets.topic.segment.bytes")),
                },
            )
        await self._hosting.settled(OFFSETS_TOPIC)

    def _created(self, result: object) -> None:
        waiting, self._creating = self._creating or [], None
        for one in waiting:
            one.callback(result)  # type: ignore[arg-type]  # a Failure makes it fail

    def append(self, partition: Partition, records: Sequence[KeyValue]) -> ErrorCode | Deferred[ErrorCode]:
        """Append records as one batch. Returns NONE once they are committed, or why they were not.

        The Deferred must not be cancelled when a client disconnects: appended records may still be committed.
        """
        now_ms = self._now_ms()
        try:
            batch = encode_batch([(key, value, now_ms, ()) for key, value in records])
            if partition in self._replicas.append_queues:
                return Deferred.fromCoroutine(self._append_in_turn(partition, batch))
            result = self._replicas.append(partition, batch, True, own=True)
        except PylogdError as error:
            return _why_refused(partition, error)
        return self._appended(partition, result.last_offset)

    async def _append_in_turn(self, partition: Partition, batch: bytes) -> ErrorCode:
        try:
            result = await self._replicas.append_in_turn(partition, batch, True, own=True)
        except PylogdError as error:
            return _why_refused(partition, error)
        outcome = self._appended(partition, result.last_offset)
        return await outcome if isinstance(outcome, Deferred) else outcome

    def _appended(self, partition: Partition, last_offset: int) -> ErrorCode | Deferred[ErrorCode]:
        """Return NONE if appended records are committed, or a Deferred of the outcome."""
        if partition.high_watermark > last_offset:
            return ErrorCode.NONE
        return self._replicas.wait_for_replicas(
            [PendingAppend(partition, last_offset + 1, None)],
            self._settings.integer("offsets.commit.timeout.ms"),
        ).addCallback(_outcome)


def partition_of(group_id: str, count: int) -> int:
    """Return which of `count` partitions stores a group: the absolute value of Java's String.hashCode, modulo `count`.

    Source: Kafka's GroupMetadataManager.partitionFor.
    """
    raw = group_id.encode("utf-16-be")
    units = struct.unpack(f">{len(raw) // 2}H", raw)
    powers = _POWERS if len(units) <= len(_POWERS) else _powers_of_31(len(units))  # stored by an earlier release
    code = sum(map(mul, reversed(units), powers)) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % count


def _powers_of_31(count: int) -> list[int]:
    powers = [1]
    for _ in range(count - 1):
        powers.append(powers[-1] * 31 & 0xFFFFFFFF)
    return powers


_POWERS: Final = _powers_of_31(2 * MAX_GROUP_ID)  # of 31; a character takes up to two units


def _why_refused(partition: Partition, error: PylogdError) -> ErrorCode:
    for kind, code in _REFUSED:
        if isinstance(error, kind):
            return code
    log.failure("Unexpected error while appending to {topic}-{index}", topic=partition.topic, index=partition.index)
    return ErrorCode.UNKNOWN_SERVER_ERROR


def _outcome(late: list[PendingAppend]) -> ErrorCode:
    if not late:
        return ErrorCode.NONE
    leads = late[0].partition.role is Role.LEADING
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if leads else ErrorCode.NOT_COORDINATOR
