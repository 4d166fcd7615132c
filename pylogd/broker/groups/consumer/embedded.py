"""Encode and decode subscriptions and assignments of the classic protocol (Kafka's consumer protocol).

In a classic group only the members interpret these bytes. If classic members are in a group of the newer protocol, the
coordinator has to interpret them: it reads subscriptions, and writes assignments.

Rules: a newer version is read like our version, since newer versions only append fields. Malformed bytes raise
InvalidRecord.
Source: Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment (KIP-429, KIP-792, KIP-881).
Must not know: groups, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from pylogd.broker.replica.internal_records import INT, SHORT, InvalidRecord, RecordCursor, text_field

T = TypeVar("T")

#: The protocol type of groups whose members are consumers.
CONSUMER: Final = "consumer"
_OWNED_FROM, _GENERATION_FROM, _RACK_FROM = 1, 2, 3
_LAST_VERSION: Final = 3
_NULL: Final = INT.pack(-1)


class Subscription(NamedTuple):
    """The subscription of a member.

    owned: the partitions that the member had, as (topic, index); none before version 1.
    """

    topics: frozenset[str]
    owned: frozenset[tuple[str, int]] = frozenset()
    rack: str | None = None


def read_subscription(data: bytes) -> Subscription:
    """Decode a member's metadata. Raises InvalidRecord."""
    cursor = RecordCursor(data)
    version = _read_version(cursor)
    topics = frozenset(_array(cursor, RecordCursor.text, len(data)))
    cursor.sized()  # skip the user data of the assignor
    owned = _partitions(cursor, len(data)) if version >= _OWNED_FROM else frozenset()
    if version >= _GENERATION_FROM:
        cursor.number(INT)
    rack = cursor.nullable_text() if version >= _RACK_FROM else None
    return Subscription(topics, owned, rack or None)


def read_assignment(data: bytes) -> tuple[frozenset[tuple[str, int]], bytes]:
    """Decode an assignment: the partitions, as (topic, index), and the assignor's user data. Raises InvalidRecord.

    Empty bytes mean an assignment without partitions.
    """
    if not data:
        return frozenset(), b""
    cursor = RecordCursor(data)
    _read_version(cursor)
    return _partitions(cursor, len(data)), cursor.sized()


def assignment_for(partitions: Mapping[str, Sequence[int]], metadata: bytes) -> bytes:
    """Encode an assignment, in the version that the member's metadata has.

    partitions: the indexes by topic.

    Raises InvalidRecord if the metadata has no version.
    """
    version = min(_read_version(RecordCursor(metadata)), _LAST_VERSION)
    parts = [SHORT.pack(version), INT.pack(len(partitions))]
    for topic, indexes in partitions.items():
        parts += (text_field(topic), INT.pack(len(indexes)), *map(INT.pack, indexes))
    return b"".join((*parts, _NULL))


def _read_version(cursor: RecordCursor) -> int:
    version = cursor.number(SHORT)
    if version < 0:
        raise InvalidRecord(f"there is no version {version} of subscriptions and assignments")
    return version


def _array(cursor: RecordCursor, read: Callable[[RecordCursor], T], most: int) -> list[T]:
    count = cursor.number(INT)
    if not 0 <= count <= most:
        raise InvalidRecord(f"an array of {count} elements does not fit in {most} bytes")
    return [read(cursor) for _ in range(count)]


def _partitions(cursor: RecordCursor, most: int) -> frozenset[tuple[str, int]]:
    def read(cursor: RecordCursor) -> list[tuple[str, int]]:
        topic = cursor.text()
        return [(topic, index) for index in _array(cursor, lambda one: one.number(INT), most)]

    return frozenset(partition for topic in _array(cursor, read, most) for partition in topic)
