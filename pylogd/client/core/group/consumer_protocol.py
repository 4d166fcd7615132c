"""Encode and decode subscriptions and assignments of group members (Kafka's consumer protocol).

The coordinator passes these bytes on unread, so they must have the format of the Java client and librdkafka
 (ConsumerProtocolSubscription and ConsumerProtocolAssignment, KIP-429, KIP-792, KIP-881): a group may mix clients.

Rules: a newer version is read like this one, since newer versions only append fields; invalid bytes raise
`InvalidReply`. No I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pylogd.client.core.errors import InvalidReply
from pylogd.client.core.model import TopicPartition

#: The protocol type of consumer groups.
PROTOCOL_TYPE = "consumer"
NO_GENERATION = -1

_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 0  # every client reads this version, and later versions add nothing
_OWNED_FROM, _GENERATION_FROM, _RACK_FROM = 1, 2, 3
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's topics, and the partitions that it has `owned` since `generation`, if the assignor reports them."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None
    instance_id: str | None = None  # from the JoinGroup answer, not from these bytes


def encode_subscription(subscription: Subscription) -> bytes:
    """Encode a member's metadata for JoinGroup."""
    parts = [_INT16.pack(_SUBSCRIPTION_VERSION), _INT32.pack(len(subscription.topics))]
    parts += [_string(topic) for topic in subscription.topics]
    parts += [
        _bytes(subscription.user_data),
        encode_partitions(subscription.owned),
        _INT32.pack(subscription.generation),
        _INT16.pack(-1) if subscription.rack is None else _string(subscription.rack),
    ]
    return b"".join(parts)


def decode_subscription(data: bytes | memoryview, instance_id: str | None = None) -> Subscription:
    """Decode a member's metadata. Raises InvalidReply."""
    reader = _Reader(data)
    version = reader.int16()
    topics = tuple(reader.string() for _ in range(reader.count(_INT16.size)))
    user_data = reader.nullable_bytes()
    owned = reader.partitions() if version >= _OWNED_FROM else []
    generation = reader.int32() if version >= _GENERATION_FROM else NO_GENERATION
    rack = reader.nullable_string() if version >= _RACK_FROM else None
    return Subscription(topics, user_data, tuple(owned), generation, rack, instance_id)


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    """Encode a member's assignment for SyncGroup."""
    return b"".join((_INT16.pack(_ASSIGNMENT_VERSION), encode_partitions(partitions), _bytes(user_data)))


def decode_assignment(data: bytes | memoryview) -> list[TopicPartition]:
    """Decode an assignment. Empty bytes, which late members get, mean no partitions. Raises InvalidReply."""
    if not len(data):
        return []
    reader = _Reader(data)
    reader.int16()
    return reader.partitions()


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode partitions by topic, the form in all of these structures."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    parts = [_INT32.pack(len(by_topic))]
    for topic, indexes in by_topic.items():
        parts += (_string(topic), struct.pack(f">{len(indexes) + 1}i", len(indexes), *sorted(indexes)))
    return b"".join(parts)


def decode_sticky_data(data: bytes | memoryview) -> tuple[list[TopicPartition], int]:
    """Decode the user data of Java's sticky assignor: partitions and their generation. Raises InvalidReply."""
    reader = _Reader(data)
    partitions = reader.partitions()
    return partitions, reader.int32() if reader.left else NO_GENERATION


def encode_sticky_data(partitions: Sequence[TopicPartition], generation: int) -> bytes:
    """Encode the user data of Java's sticky assignor."""
    return encode_partitions(partitions) + _INT32.pack(generation)


def _string(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _bytes(data: bytes | None) -> bytes:
    return _INT32.pack(-1) if data is None else _INT32.pack(len(data)) + data


class _Reader:
    """Reads the classic encoding: big-endian integers, 16-bit lengths for strings and 32-bit lengths for all else."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = bytes(data)
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise InvalidReply(f"what a member of the group sent ends too soon, after {len(self._data)} bytes")
        self._at += size
        return self._data[self._at - size : self._at]

    def int16(self) -> int:
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.take(4))[0])

    def count(self, least: int) -> int:
        """Return the number of elements in an array, each of at least `least` bytes. Raises InvalidReply."""
        count = self.int32()
        if count < 0 or count * least > self.left:
            raise InvalidReply(f"a member of the group sent an array of {count} elements in {self.left} bytes")
        return count

    def string(self) -> str:
        found = self.nullable_string()
        if found is None:
            raise InvalidReply("a member of the group sent null where a string is required")
        return found

    def nullable_string(self) -> str | None:
        length = self.int16()
        if length < 0:
            return None
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise InvalidReply("a member of the group sent a text that is not UTF-8") from error

    def nullable_bytes(self) -> bytes | None:
        length = self.int32()
        return None if length < 0 else self.take(length)

    def partitions(self) -> list[TopicPartition]:
        found = []
        for _ in range(self.count(_INT16.size + _INT32.size)):
            topic = self.string()
            found += [TopicPartition(topic, self.int32()) for _ in range(self.count(_INT32.size))]
        return found
