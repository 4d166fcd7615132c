"""Encode and decode the records of consumer groups in the offsets topic, in Kafka's own formats.

A key begins with its type as int16, strings in it are preceded by their length as int16. A value begins with its
version (0) as int16; the rest is in the flexible format: lengths are varints, one more than the length, with 0 for
null, and each structure ends with its tagged fields. A null value deletes the key.

    type  key                       value
    3     group                     group epoch; hash of the topics' metadata
    4     group                     (written by Kafka before 4.1; ignored)
    5     group, member             what the member said of itself
    6     group                     assignment epoch
    7     group, member             partitions that it is to have
    8     group, member             member epochs, state, partitions that it has and gives up
    16    group, expression         topics that the regular expression matched

Rules: whatever is malformed raises InvalidRecord. Tagged fields that are not known are skipped.
Source: the schemas of Kafka's group coordinator (ConsumerGroup*Key, ConsumerGroup*Value); KIP-848, KIP-1101, KIP-1251.
Must not know: groups in memory, logs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias, TypeVar

from pylogd.groups.consumer.members import Assigned, ConsumerMember, MemberState, TopicPartition, partitions_by_topic
from pylogd.groups.records import InvalidRecord

T = TypeVar("T")


class RecordType(IntEnum):
    """What a record of a consumer group is about."""

    GROUP = 3
    PARTITIONS = 4
    MEMBER = 5
    TARGET = 6
    TARGET_OF_MEMBER = 7
    CURRENT_OF_MEMBER = 8
    REGULAR_EXPRESSION = 16


class GroupEpoch(NamedTuple):
    """The group epoch, and a number that changes with the topics that the group subscribes to."""

    group_id: str
    epoch: int
    metadata_hash: int = 0


class MemberMetadata(NamedTuple):
    """What a member said of itself: everything in ConsumerMember but epochs and partitions."""

    group_id: str
    member: ConsumerMember


class AssignmentEpoch(NamedTuple):
    """The group epoch that the target assignment is made for, and when it was made (milliseconds since 1970)."""

    group_id: str
    epoch: int
    made_ms: int = 0


class TargetAssignment(NamedTuple):
    """The partitions that a member is to have."""

    group_id: str
    member_id: str
    partitions: frozenset[TopicPartition]


class CurrentAssignment(NamedTuple):
    """How far a member is: its epochs, its state, what it has and gives up."""

    group_id: str
    member_id: str
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Assigned
    revoking: Assigned


class RegularExpression(NamedTuple):
    """The topics that a regular expression matched, at a version of the metadata and a time in ms since 1970."""

    group_id: str
    expression: str
    topics: frozenset[str]
    version: int
    matched_ms: int


class Removed(NamedTuple):
    """A record was deleted. name: the member id or the regular expression, if the key has one."""

    kind: RecordType
    group_id: str
    name: str = ""


Record: TypeAlias = (
    "GroupEpoch | MemberMetadata | AssignmentEpoch | TargetAssignment | CurrentAssignment | RegularExpression | Removed"
)

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_VERSION: Final = _SHORT.pack(0)
_NO_TAGS: Final = b"\0"
_UUID_BYTES: Final = 16
#: Types whose keys have a second field.
_NAMED: Final = frozenset(
    {RecordType.MEMBER, RecordType.TARGET_OF_MEMBER, RecordType.CURRENT_OF_MEMBER, RecordType.REGULAR_EXPRESSION}
)


# -- encoding


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """Return the key and the value that store a record."""
    kind, name = _kind_and_name(record)
    key = _SHORT.pack(kind) + _key_text(record.group_id) + (_key_text(name) if kind in _NAMED else b"")
    return key, None if isinstance(record, Removed) else _VERSION + _value(record)


def _kind_and_name(record: Record) -> tuple[RecordType, str]:
    match record:
        case Removed():
            return record.kind, record.name
        case GroupEpoch():
            return RecordType.GROUP, ""
        case MemberMetadata():
            return RecordType.MEMBER, record.member.member_id
        case AssignmentEpoch():
            return RecordType.TARGET, ""
        case TargetAssignment():
            return RecordType.TARGET_OF_MEMBER, record.member_id
        case CurrentAssignment():
            return RecordType.CURRENT_OF_MEMBER, record.member_id
        case RegularExpression():
            return RecordType.REGULAR_EXPRESSION, record.expression


def _value(record: Record) -> bytes:
    match record:
        case GroupEpoch():
            tags = {0: _LONG.pack(record.metadata_hash)} if record.metadata_hash else {}
            return _INT.pack(record.epoch) + _tags(tags)
        case MemberMetadata():
            return _member_value(record.member)
        case AssignmentEpoch():
            tags = {0: _LONG.pack(record.made_ms)} if record.made_ms else {}
            return _INT.pack(record.epoch) + _tags(tags)
        case TargetAssignment():
            return _array(partitions_by_topic(record.partitions).items(), _topic_partitions) + _NO_TAGS
        case CurrentAssignment():
            return b"".join(
                (
                    _INT.pack(record.epoch), _INT.pack(record.previous_epoch), bytes((record.state,)),
                    _assigned(record.assigned), _assigned(record.revoking), _NO_TAGS,
                )
            )  # fmt: skip
        case RegularExpression():
            times = _LONG.pack(record.version) + _LONG.pack(record.matched_ms)
            return _array(sorted(record.topics), _text) + times + _NO_TAGS
        case Removed():
            return b""


def _member_value(member: ConsumerMember) -> bytes:
    parts = (
        _text(member.instance_id), _text(member.rack_id), _text(member.client_id), _text(member.client_host),
        _array(sorted(member.topics), _text), _text(member.regex), _INT.pack(member.rebalance_ms),
        _text(member.assignor), _NO_TAGS,
    )  # fmt: skip
    return b"".join(parts)


def _topic_partitions(topic: tuple[bytes, list[int]]) -> bytes:
    return topic[0] + _array(topic[1], _INT.pack) + _NO_TAGS


def _assigned(partitions: Assigned) -> bytes:
    def encode_topic(topic: tuple[bytes, list[int]]) -> bytes:
        epochs = [partitions[topic[0], index] for index in topic[1]]
        return topic[0] + _array(topic[1], _INT.pack) + _tags({0: _array(epochs, _INT.pack)})

    return _array(partitions_by_topic(partitions).items(), encode_topic)


def _array(items: Collection[T], encode_item: Callable[[T], bytes]) -> bytes:
    return _unsigned(len(items) + 1) + b"".join(map(encode_item, items))


def _tags(fields: Mapping[int, bytes]) -> bytes:
    if not fields:
        return _NO_TAGS
    parts = (_unsigned(tag) + _unsigned(len(data)) + data for tag, data in sorted(fields.items()))
    return _unsigned(len(fields)) + b"".join(parts)


def _text(value: str | None) -> bytes:
    if value is None:
        return b"\0"
    raw = value.encode("utf-8")
    return _unsigned(len(raw) + 1) + raw


def _key_text(value: str) -> bytes:
    raw = value.encode("utf-8")
    return _SHORT.pack(len(raw)) + raw


def _unsigned(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- decoding


def is_of_consumer_group(key: bytes) -> bool:
    """Return whether a key of the offsets topic belongs to a record of a consumer group of this protocol."""
    return len(key) >= _SHORT.size and _SHORT.unpack_from(key)[0] in RecordType.__members__.values()


def decode(key: bytes, value: bytes | None) -> Record | None:
    """Decode a record; None for one that only earlier releases of Kafka used. Raises InvalidRecord."""
    cursor = _Cursor(key)
    try:
        kind = RecordType(cursor.number(_SHORT))
    except ValueError as error:
        raise InvalidRecord("the key is not one of a consumer group") from error
    group_id = cursor.key_text()
    name = cursor.key_text() if kind in _NAMED else ""
    if value is None:
        return Removed(kind, group_id, name)
    body = _Cursor(value)
    version = body.number(_SHORT)
    if version:
        raise InvalidRecord(f"a record of type {kind.value} has version {version}; version 0 is supported")
    match kind:
        case RecordType.GROUP:
            return GroupEpoch(group_id, body.number(_INT), _tagged_long(body))
        case RecordType.MEMBER:
            return MemberMetadata(group_id, _read_member(name, body))
        case RecordType.TARGET:
            return AssignmentEpoch(group_id, body.number(_INT), _tagged_long(body))
        case RecordType.TARGET_OF_MEMBER:
            topics = body.array(_read_topic_partitions)
            return TargetAssignment(group_id, name, frozenset(partition for topic in topics for partition in topic))
        case RecordType.CURRENT_OF_MEMBER:
            epoch, previous = body.number(_INT), body.number(_INT)
            return CurrentAssignment(
                group_id, name, epoch, previous, body.state(), _read_assigned(body, epoch), _read_assigned(body, epoch)
            )
        case RecordType.REGULAR_EXPRESSION:
            matched = frozenset(body.array(_Cursor.text))
            return RegularExpression(group_id, name, matched, body.number(_LONG), body.number(_LONG))
        case RecordType.PARTITIONS:
            return None


def _tagged_long(body: _Cursor) -> int:
    tag = body.tags().get(0)
    return 0 if tag is None else _Cursor(tag).number(_LONG)


def _read_member(member_id: str, body: _Cursor) -> ConsumerMember:
    return ConsumerMember(
        member_id,
        instance_id=body.nullable_text(),
        rack_id=body.nullable_text(),
        client_id=body.text(),
        client_host=body.text(),
        topics=frozenset(body.array(_Cursor.text)),
        regex=body.nullable_text(),
        rebalance_ms=body.number(_INT),
        assignor=body.nullable_text(),
    )


def _read_topic_partitions(body: _Cursor) -> list[TopicPartition]:
    topic = body.take(_UUID_BYTES)
    indexes = body.array(_Cursor.int32)
    body.tags()
    return [(topic, index) for index in indexes]


def _read_assigned(body: _Cursor, epoch: int) -> dict[TopicPartition, int]:
    """Return the partitions with the epochs at which they were assigned: the member's epoch where there are none."""

    def read_topic(cursor: _Cursor) -> list[tuple[TopicPartition, int]]:
        topic = cursor.take(_UUID_BYTES)
        indexes = cursor.array(_Cursor.int32)
        tag = cursor.tags().get(0)
        epochs = [epoch] * len(indexes) if tag is None else _Cursor(tag).array(_Cursor.int32)
        if len(epochs) != len(indexes):
            raise InvalidRecord(f"{len(indexes)} partitions have {len(epochs)} assignment epochs")
        return [((topic, index), since) for index, since in zip(indexes, epochs, strict=True)]

    return dict(pair for topic in body.array(read_topic) for pair in topic)


class _Cursor:
    """Reads the fields of a record in order. Its methods raise InvalidRecord."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: struct.Struct) -> int:
        return int(form.unpack(self.take(form.size))[0])

    def int32(self) -> int:
        return self.number(_INT)

    def state(self) -> MemberState:
        try:
            return MemberState(self.take(1)[0])
        except ValueError as error:
            raise InvalidRecord("a member is in a state that only newer brokers know") from error

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if size < 0 or len(taken) != size:
            raise InvalidRecord(f"a field of {size} bytes does not fit in the {len(self._data) - self._at} left")
        self._at += size
        return taken

    def unsigned(self) -> int:
        value = shift = 0
        while shift <= 28:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise InvalidRecord("a length has more than 5 bytes")

    def key_text(self) -> str:
        return self._decoded(self.take(self.number(_SHORT)))

    def text(self) -> str:
        value = self.nullable_text()
        if value is None:
            raise InvalidRecord("a string is null that must not be")
        return value

    def nullable_text(self) -> str | None:
        size = self.unsigned()
        return self._decoded(self.take(size - 1)) if size else None

    @staticmethod
    def _decoded(raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRecord("a string is not UTF-8") from error

    def array(self, read: Callable[[_Cursor], T]) -> list[T]:
        count = self.unsigned() - 1
        if not 0 <= count <= len(self._data):
            raise InvalidRecord(f"an array of {count} elements does not fit in {len(self._data)} bytes")
        return [read(self) for _ in range(count)]

    def tags(self) -> dict[int, bytes]:
        return {self.unsigned(): self.take(self.unsigned()) for _ in range(self.unsigned())}
