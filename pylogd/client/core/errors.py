"""What a client's caller may have to catch. A code that a broker answered is a `KafkaError` (`pylogd.errors`).

What a connection raises is in `pylogd.errors`, for brokers are clients of each other, and so is `is_retriable`, the one
place that says whether trying again may help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pylogd.errors import (
    BrokerUnavailable,
    ClientError,
    InvalidReply,
    KafkaError,
    RequestTimedOut,
    UnsupportedByBroker,
    is_retriable,
)

if TYPE_CHECKING:
    from pylogd.wire.records import Record

__all__ = [
    "BrokerUnavailable",
    "ClientError",
    "Closed",
    "CommitFailed",
    "CorruptRecords",
    "DeliveryFailed",
    "DeserializationFailed",
    "InvalidReply",
    "RequestTimedOut",
    "SerializationFailed",
    "UnknownTopic",
    "UnsupportedByBroker",
    "is_retriable",
]


class CorruptRecords(ClientError):
    """A batch that was fetched fails its checks. `seek` to `next_offset` goes on behind it, if it is known."""

    def __init__(self, topic: str, partition: int, offset: int, next_offset: int | None, cause: str) -> None:
        """Of the batch at `offset`; `next_offset` is what its header says, if that can be read."""
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
        """`cause` is what the serializer raised."""
        super().__init__(f"topic {topic!r}: can't serialize the {field} of a record: {cause!r}")
        self.topic = topic
        self.field = field


class DeserializationFailed(ClientError):
    """A consumer's deserializer raised an exception, which is the cause. The position stays at the record;
    `consumer.seek(error.topic_partition, error.next_offset)` continues behind it.

    `field` is "key" or "value"; `record` has both as bytes.
    """

    def __init__(self, record: Record, field: str, cause: BaseException) -> None:
        """`cause` is what the deserializer raised."""
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


class UnknownTopic(KafkaError):
    """There is no topic of this name. Not worth another try, unlike a partition that is on its way."""

    @property
    def retriable(self) -> bool:
        """Never."""
        return False


class DeliveryFailed(ClientError):
    """Records that a producer took were not written, or not known to be. The cause is the first one's."""

    def __init__(self, records: int, cause: BaseException) -> None:
        """`records` is how many."""
        super().__init__(f"{records} records were not delivered: {cause}")
        self.records = records
        self.__cause__ = cause


class DeliveryTimedOut(RequestTimedOut):
    """A record was not delivered within `delivery_timeout`, tries and all. Whether it is written is not known."""

    retriable = False


class BufferFull(ClientError):
    """The producer's buffer had no room for a record within `max_block`. The record was not taken."""


class CommitFailed(KafkaError):
    """Offsets were not committed, since the group has moved on: others have, or are about to have, these partitions,
    and will read again what was not committed. `poll` joins the group again.
    """


class Closed(ClientError):
    """The client was closed."""
