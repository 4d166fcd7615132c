"""Encode and decode the records of the offsets topic, in Kafka's own formats, so that Kafka's tools can read them.

A key begins with its version. Keys of versions 0 and 1 have a group, a topic and a partition. Their value is a
committed offset, written in version 3, or in version 1 if the client has set an expiry time. Keys of version 2 have a
group. Their value is the group with its members, written in version 3. A null value deletes the key. Strings are
preceded by their length as int16, bytes by their length as int32.
Source: the schemas of Kafka's group coordinator (OffsetCommitKey/Value, GroupMetadataKey/Value).

The id of an offset's topic is a tagged field of version 4 (since Kafka 4.1). Earlier releases of pylogd do not read
version 4, so here the tagged fields follow the fields of version 3 or 1. Those releases and Kafka ignore the additional
bytes.

Rules: value versions up to 4 of offsets and up to 3 of groups are read. A key version that only newer brokers write is
decoded as None. Other malformed records raise InvalidRecord.
Must not know: groups in memory, logs.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pylogd.broker.replica.internal_records import (
    INT,
    LONG,
    SHORT,
    InvalidRecord,
    RecordCursor,
    bytes_field,
    tags_field,
    text_field,
)

NO_EPOCH = -1
NEVER = -1
#: Stands for the id of an offset's topic in records of releases that did not store it.
NO_TOPIC_ID = bytes(16)

_OFFSET_KEYS = (0, 1)
_GROUP_KEY = 2
_OFFSET_VALUE = 3
_OFFSET_VALUE_WITH_EXPIRY = 1
_FLEXIBLE_OFFSET_VALUE = 4
_TOPIC_ID_TAG = 0
_TOPIC_ID_FIELD = tags_field({_TOPIC_ID_TAG: NO_TOPIC_ID})[: -len(NO_TOPIC_ID)]  # without the id
_GROUP_VALUE = 3
_WITH_STATE_TIME = 2

_OFFSET_HEAD = struct.Struct(">hqi")


#: A topic and the index of one of its partitions.
PartitionId = tuple[str, int]


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a group."""

    group_id: str


class Committed(NamedTuple):
    """A committed offset. Times are in milliseconds since 1970; `expires_ms` is -1 unless the client has set it.

    topic_id: the id of the topic for which it was committed. It does not apply to a later topic with the same name.
    """

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int = NEVER
    topic_id: bytes = NO_TOPIC_ID


class StoredMember(NamedTuple):
    """A member in a group's record. The timeouts are in milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_ms: int
    session_ms: int
    metadata: bytes
    assignment: bytes


class StoredGroup(NamedTuple):
    """The value of a group's record: one generation with its members."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[StoredMember, ...]


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """Encode the key of a committed offset."""
    return SHORT.pack(_OFFSET_KEYS[-1]) + text_field(group_id) + text_field(topic) + INT.pack(partition)


def group_key(group_id: str) -> bytes:
    """Encode the key of a group."""
    return SHORT.pack(_GROUP_KEY) + text_field(group_id)


def offset_value(committed: Committed) -> bytes:
    """Encode a committed offset."""
    offset, epoch, metadata, committed_ms, expires_ms, topic_id = committed
    tags = b"" if topic_id == NO_TOPIC_ID else _TOPIC_ID_FIELD + topic_id
    if expires_ms != NEVER:
        head = SHORT.pack(_OFFSET_VALUE_WITH_EXPIRY) + LONG.pack(offset)
        return head + text_field(metadata) + LONG.pack(committed_ms) + LONG.pack(expires_ms) + tags
    return _OFFSET_HEAD.pack(_OFFSET_VALUE, offset, epoch) + text_field(metadata) + LONG.pack(committed_ms) + tags


def offset_record(group_id: str, partition: PartitionId, committed: Committed) -> tuple[bytes, bytes]:
    """Return the key and the value that store a committed offset."""
    return offset_key(group_id, *partition), offset_value(committed)


def group_value(group: StoredGroup) -> bytes:
    """Encode a group."""
    parts = [
        SHORT.pack(_GROUP_VALUE), text_field(group.protocol_type), INT.pack(group.generation),
        text_field(group.protocol), text_field(group.leader), LONG.pack(group.state_since_ms),
        INT.pack(len(group.members)),
    ]  # fmt: skip
    for member in group.members:
        texts = (member.member_id, member.instance_id, member.client_id, member.client_host)
        parts += map(text_field, texts)
        parts += (
            INT.pack(member.rebalance_ms), INT.pack(member.session_ms), bytes_field(member.metadata),
            bytes_field(member.assignment),
        )  # fmt: skip
    return b"".join(parts)


def read_key(data: bytes) -> OffsetKey | GroupKey | None:
    """Decode a key; None for a version that only newer brokers write. Raises InvalidRecord."""
    cursor = RecordCursor(data)
    version = cursor.number(SHORT)
    if version in _OFFSET_KEYS:
        return OffsetKey(cursor.text(), cursor.text(), cursor.number(INT))
    return GroupKey(cursor.text()) if version == _GROUP_KEY else None


def read_offset_value(data: bytes) -> Committed:
    """Decode a committed offset. Raises InvalidRecord."""
    cursor = RecordCursor(data)
    version = cursor.number(SHORT)
    if not 0 <= version <= _FLEXIBLE_OFFSET_VALUE:
        raise InvalidRecord(f"an offset has version {version}; versions 0 to {_FLEXIBLE_OFFSET_VALUE} are supported")
    offset = cursor.number(LONG)
    epoch = cursor.number(INT) if version >= _OFFSET_VALUE else NO_EPOCH
    metadata = cursor.compact_text() if version >= _FLEXIBLE_OFFSET_VALUE else cursor.text()
    committed_ms = cursor.number(LONG)
    expires_ms = cursor.number(LONG) if version == _OFFSET_VALUE_WITH_EXPIRY else NEVER
    tags = {} if cursor.at_end else cursor.tags()
    topic_id = tags.get(_TOPIC_ID_TAG, NO_TOPIC_ID)
    if len(topic_id) != len(NO_TOPIC_ID):
        raise InvalidRecord(f"the topic id of an offset has {len(topic_id)} bytes, not {len(NO_TOPIC_ID)}")
    return Committed(offset, epoch, metadata, committed_ms, expires_ms, topic_id)


def read_group_value(data: bytes) -> StoredGroup:
    """Decode a group. Raises InvalidRecord."""
    cursor = RecordCursor(data)
    version = cursor.number(SHORT)
    if not 0 <= version <= _GROUP_VALUE:
        raise InvalidRecord(f"a group has version {version}; versions 0 to {_GROUP_VALUE} are supported")
    protocol_type, generation = cursor.text(), cursor.number(INT)
    protocol, leader = cursor.nullable_text(), cursor.nullable_text()
    since = cursor.number(LONG) if version >= _WITH_STATE_TIME else NEVER
    count = cursor.number(INT)
    if not 0 <= count <= len(data):
        raise InvalidRecord(f"a group of {count} members does not fit in {len(data)} bytes")
    members = tuple(_read_member(cursor, version) for _ in range(count))
    return StoredGroup(protocol_type, generation, protocol, leader, since, members)


def _read_member(cursor: RecordCursor, version: int) -> StoredMember:
    member_id = cursor.text()
    instance_id = cursor.nullable_text() if version >= _GROUP_VALUE else None
    client_id, client_host = cursor.text(), cursor.text()
    rebalance = cursor.number(INT) if version >= 1 else NEVER
    session = cursor.number(INT)
    metadata, assignment = cursor.sized(), cursor.sized()
    rebalance = session if rebalance == NEVER else rebalance
    return StoredMember(member_id, instance_id, client_id, client_host, rebalance, session, metadata, assignment)


def consumer_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a consumer's subscription, or None if `metadata` is not a subscription.

    Source: Kafka's ConsumerProtocolSubscription. Each of its versions begins with the version and the topics.
    """
    cursor = RecordCursor(metadata)
    try:
        if cursor.number(SHORT) < 0:
            return None
        count = cursor.number(INT)
        return frozenset(cursor.text() for _ in range(count)) if 0 <= count <= len(metadata) else None
    except InvalidRecord:
        return None
