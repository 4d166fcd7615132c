"""The offsets topic: which partition keeps a group, how it comes into being, how records get into it.

Strategy: a group lies in the partition that Kafka would put it in, so that a tool can find it. The topic is made when
somebody first asks for a coordinator. An append waits until every in-sync replica has it, as a producer with acks=all
does; with this broker alone in sync that is at once, and no Deferred is made.

Must not know: groups, members, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.config import Settings
from pylogd.errors import ErrorCode, PylogdError
from pylogd.log.errors import RecordListTooLarge, RecordTooLarge, StorageError
from pylogd.metadata.cluster import Cluster
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

#: Tombstones of one batch: many offsets may go at once, and a batch has a largest size.
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
    """The topic as the coordinator uses it."""

    def __init__(
        self,
        replicas: Replicas,
        topics: TopicRegistry,
        topic_admin: TopicAdmin,
        cluster: Cluster,
        settings: Settings,
        now_ms: Callable[[], int],
    ) -> None:
        self._replicas = replicas.manager
        self._hosting = replicas.hosting
        self._topics = topics
        self._topic_admin = topic_admin
        self._cluster = cluster
        self._settings = settings
        self._now_ms = now_ms
        self._makers: list[Deferred[None]] | None = None  # who waits for the topic that is being made

    def index_of(self, group_id: str) -> int:
        """The partition that keeps a group. The topic may not be there yet."""
        topic = self._topics.get(OFFSETS_TOPIC)
        count = self._settings.integer("offsets.topic.num.partitions") if topic is None else len(topic.partitions)
        return partition_of(group_id, count)

    def get(self) -> Topic | None:
        """The topic, if it is there."""
        return self._topics.get(OFFSETS_TOPIC)

    @property
    def making(self) -> bool:
        """Whether it is being made at this moment."""
        return self._makers is not None

    def ensure(self) -> Deferred[None]:
        """See that the topic is there. Fails as `TopicAdmin.create_topic` does."""
        waiting: Deferred[None] = Deferred()
        if self._makers is not None:
            self._makers.append(waiting)
            return waiting
        self._makers = [waiting]
        Deferred.fromCoroutine(self._make()).addBoth(self._made)
        return waiting

    async def _make(self) -> None:
        copies = self._settings.integer("offsets.topic.replication.factor")
        with suppress(TopicExists):
            await self._topic_admin.create_topic(
                OFFSETS_TOPIC,
                partitions=self._settings.integer("offsets.topic.num.partitions"),
                replication_factor=max(1, min(copies, len(self._cluster.brokers))),
                configs={
                    "cleanup.policy": "compact",
                    "segment.bytes": str(self._settings.integer("offsets.topic.segment.bytes")),
                },
            )
        await self._hosting.settled(OFFSETS_TOPIC)

    def _made(self, result: object) -> None:
        waiting, self._makers = self._makers or [], None
        for one in waiting:
            one.callback(result)  # type: ignore[arg-type]  # a Failure makes it fail

    def append(self, partition: Partition, records: Sequence[KeyValue]) -> ErrorCode | Deferred[ErrorCode]:
        """Append one batch; how that went, once it is committed.

        A Deferred of it must not be cancelled by a client that leaves: what is in the log counts.
        """
        now_ms = self._now_ms()
        try:
            batch = encode_batch([(key, value, now_ms, ()) for key, value in records])
            result = self._replicas.append(partition, batch, True, own=True)
        except PylogdError as error:
            return _why_refused(partition, error)
        if partition.high_watermark > result.last_offset:
            return ErrorCode.NONE
        return self._replicas.wait_for_replicas(
            [PendingAppend(partition, result.last_offset + 1, None)],
            self._settings.integer("offsets.commit.timeout.ms"),
        ).addCallback(_outcome)


def partition_of(group_id: str, count: int) -> int:
    """The partition of `count` that Kafka keeps a group in: by Java's hash of the id."""
    units = group_id.encode("utf-16-be")
    code = 0
    for at in range(0, len(units), 2):
        code = (code * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % count


def _why_refused(partition: Partition, error: PylogdError) -> ErrorCode:
    for kind, code in _REFUSED:
        if isinstance(error, kind):
            return code
    log.failure("could not append to {topic}-{index}", topic=partition.topic, index=partition.index)
    return ErrorCode.UNKNOWN_SERVER_ERROR


def _outcome(late: list[PendingAppend]) -> ErrorCode:
    if not late:
        return ErrorCode.NONE
    leads = late[0].partition.role is Role.LEADING
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if leads else ErrorCode.NOT_COORDINATOR
