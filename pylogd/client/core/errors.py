"""The exceptions of the client. An error code of a broker is a `KafkaError` (`pylogd.base.errors`).

Errors of connections are in `pylogd.base.errors`, since brokers are clients of each other.
`pylogd.base.errors.is_retriable` alone decides whether a retry may help.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pylogd.base.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    ClientError,
    ErrorCode,
    InvalidReply,
    KafkaError,
    RequestTimedOut,
    TlsFailed,
    UnsupportedByBroker,
    is_retriable,
)
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from pylogd.wire.records import Record

__all__ = [
    "AuthenticationFailed",
    "BrokerUnavailable",
    "ClientError",
    "Closed",
    "CommitFailed",
    "CorruptRecords",
    "DeliveryFailed",
    "DeserializationFailed",
    "GroupProtocolUnsupported",
    "InvalidReply",
    "LogTruncation",
    "ProducerFailed",
    "ProducerFenced",
    "RebootstrapRequired",
    "RequestTimedOut",
    "SerializationFailed",
    "TlsFailed",
    "TransactionAborted",
    "TransactionError",
    "UnknownTopic",
    "UnsupportedByBroker",
    "is_retriable",
]


class CorruptRecords(ClientError):
    """A fetched batch is damaged. To skip it, `seek` to `next_offset`, unless that is None."""

    def __init__(self, topic: str, partition: int, offset: int, next_offset: int | None, cause: str) -> None:
        """The batch is at `offset`. `next_offset` is from the batch's header, or None if the header can't be read."""
        super().__init__(f"{topic}-{partition}: at offset {offset}: {cause}")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset


class SerializationFailed(ClientError):
    """A producer's serializer raised an exception, which is the cause. The record was not sent.

    `field` is "key" or "value".
    """

    def __init__(self, topic: str, field: str, cause: BaseException) -> None:
        """cause: the exception of the serializer."""
        super().__init__(f"topic {topic!r}: can't serialize the {field} of a record: {cause!r}")
        self.topic = topic
        self.field = field


class DeserializationFailed(ClientError):
    """A consumer's deserializer raised an exception, which is the cause. The position stays at the record. To skip the
    record, call `consumer.seek(error.topic_partition, error.next_offset)`.

    `field` is "key" or "value"; `record` has both as bytes.
    """

    def __init__(self, record: Record, field: str, cause: BaseException) -> None:
        """cause: the exception of the deserializer."""
        super().__init__(
            f"{record.topic}-{record.partition}: can't deserialize the {field} of the record at offset "
            f"{record.offset}: {cause!r}"
        )
        self.topic = record.topic
        self.partition = record.partition
        self.topic_partition = (record.topic, record.partition)
        self.offset = record.offset
        self.next_offset = record.offset + 1
        self.field = field
        self.record = record


class LogTruncation(KafkaError):
    """The log was truncated by an unclean election: records that this consumer read no longer exist (KIP-320).

    `divergent_offsets` has for each partition the first offset whose record differs from what was read, with the leader
    epoch of the record before it; None if the leader can't tell. To continue there, `seek` to this offset.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        divergent_offsets: Mapping[TopicPartition, OffsetAndMetadata | None] | None = None,
    ) -> None:
        super().__init__(code, message)
        self.divergent_offsets = dict(divergent_offsets or {})

    def __reduce__(self) -> tuple[type[KafkaError], tuple[object, ...]]:
        return type(self), (self.code, self.message, self.divergent_offsets)

    @classmethod
    def of(
        cls, positions: Mapping[TopicPartition, int], divergences: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> LogTruncation:
        """Return the error for partitions by their positions, with the offsets at which the logs diverge from the read
        records.
        """
        texts = []
        for partition, found in divergences.items():
            where = "before that" if found is None else f"at offset {found.offset}"
            texts.append(f"{partition} was read up to offset {positions[partition]}, and its log was truncated {where}")
        return cls(ErrorCode.OFFSET_OUT_OF_RANGE, "; ".join(texts), divergences)


class UnknownTopic(KafkaError):
    """The topic does not exist. This error is not retried, unlike that of a topic that is being created."""

    topic = ""  # the requested name, if it is known

    @property
    def retriable(self) -> bool:
        """Never."""
        return False


class RebootstrapRequired(KafkaError):
    """The broker asks the client to rebootstrap: drop its metadata and ask the bootstrap servers (KIP-1102)."""

    @property
    def retriable(self) -> bool:
        """Always True: another broker is asked."""
        return True


class DeliveryFailed(ClientError):
    """The producer accepted records that were not written, or may not have been written.

    The cause is the first record's error.
    """

    def __init__(self, records: int, cause: BaseException) -> None:
        """`records` is the number of these records."""
        super().__init__(f"{records} records were not delivered: {cause}")
        self.records = records
        self.__cause__ = cause


class DeliveryTimedOut(RequestTimedOut):
    """A record was not acknowledged within `delivery_timeout`, retries included. It may or may not be written."""

    retriable = False


class BufferFull(ClientError):
    """The producer's buffer was full for `max_block` seconds. The record was not accepted."""


class TransactionError(ClientError):
    """Base class of errors of transactions.

    The subclasses `TransactionAborted` and `ProducerFailed` say how to continue.
    """


class TransactionAborted(TransactionError):
    """The transaction was aborted, or can only be aborted. Consumers with `read_committed` do not see its records.
    After `abort_transaction` the producer can begin another transaction; `with producer.transaction()` has called it
    already.

    The cause is the first error; it is None if the application aborted.
    """


class ProducerFailed(TransactionError):
    """The producer can't be used any more: close it. The coordinator aborts its open transaction, if there is one. The
    cause gives the reason: the transactional id may not be used, the transaction timeout is too long, ...
    """


class ProducerFenced(ProducerFailed):
    """A newer producer uses the same transactional id, or the coordinator aborted the transaction because it took
    longer than `transaction_timeout`.
    """


class CommitFailed(KafkaError):
    """Offsets were not committed, because the group was rebalanced without this consumer. Other members get these
    partitions and read uncommitted records again. The next `poll` joins the group again.
    """


class GroupProtocolUnsupported(UnsupportedByBroker):
    """The cluster does not support the newer group protocol (KIP-848), or has it turned off."""

    def __init__(self, cause: str) -> None:
        """cause: the error that shows it."""
        super().__init__(
            f'{cause}. group_protocol="consumer" needs brokers of Kafka 4.0 or pylogd, and the cluster\'s feature '
            f'group.version at 1 (pylogd features). Until then use group_protocol="classic"'
        )
        self.cause = cause

    def __reduce__(self) -> tuple[type[GroupProtocolUnsupported], tuple[str]]:
        return type(self), (self.cause,)


class Closed(ClientError):
    """The client was closed."""
