"""Encode and decode the records of consumer groups in the offsets topic, in Kafka's own formats.

A key begins with its type as int16, strings in it are preceded by their length as int16. A value begins with its
version (0) as int16. The rest is in the flexible format: a length is a varint of the length plus one, with 0 for null,
and each structure ends with its tagged fields. A null value deletes the key.

    type  key                       value
    3     group                     group epoch; hash of the topics' metadata
    4     group                     (written by Kafka before 4.1; ignored)
    5     group, member             what the member said of itself; tag 0: timeout and protocols of a classic member
    6     group                     assignment epoch
    7     group, member             partitions that it is to have
    8     group, member             member epochs, state, partitions that it has and gives up
    16    group, expression         topics that the regular expression matched

Rules: malformed records raise InvalidRecord. Tagged fields that are not known are skipped.
Source: the schemas of Kafka's group coordinator (ConsumerGroup*Key, ConsumerGroup*Value); KIP-848, KIP-1101, KIP-1251.
Must not know: groups in memory, logs.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias, TypeVar

from pylogd.broker.groups.consumer.members import (
    Assigned,
    ClassicProtocol,
    ConsumerMember,
    MemberState,
    TopicPartition,
    partitions_by_topic,
)
from pylogd.broker.replica.internal_records import (
    INT,
    LONG,
    NO_TAGS,
    SHORT,
    InvalidRecord,
    RecordCursor,
    compact_array_field,
    compact_bytes_field,
    compact_int_array_field,
    compact_text_field,
    tags_field,
    text_field,
    unsigned_field,
)

T = TypeVar("T")


class RecordType(IntEnum):
    """The type of a record of a consumer group."""

    GROUP = 3
    PARTITIONS = 4
    MEMBER = 5
    TARGET = 6
    TARGET_OF_MEMBER = 7
    CURRENT_OF_MEMBER = 8
    REGULAR_EXPRESSION = 16


class GroupEpoch(NamedTuple):
    """The group epoch, and a number that changes with the topics to which the group subscribes."""

    group_id: str
    epoch: int
    metadata_hash: int = 0


class MemberMetadata(NamedTuple):
    """The fields that a member reports about itself: all of ConsumerMember except epochs and partitions."""

    group_id: str
    member: ConsumerMember


class AssignmentEpoch(NamedTuple):
    """The group epoch for which the target assignment was made, and the time of that (milliseconds since 1970)."""

    group_id: str
    epoch: int
    made_ms: int = 0


class TargetAssignment(NamedTuple):
    """A member's target assignment."""

    group_id: str
    member_id: str
    partitions: frozenset[TopicPartition]


class CurrentAssignment(NamedTuple):
    """A member's progress: its epochs, its state, its partitions, and the partitions that it gives up."""

    group_id: str
    member_id: str
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Assigned
    revoking: Assigned


class RegularExpression(NamedTuple):
    """The topics that a regular expression matched, with the version of the metadata and the time in ms since 1970."""

    group_id: str
    expression: str
    topics: frozenset[str]
    version: int
    matched_ms: int


class Removed(NamedTuple):
    """A record was deleted.

    name: the member id or the regular expression, if the key has one.
    """

    kind: RecordType
    group_id: str
    name: str = ""


Record: TypeAlias = (
    "GroupEpoch | MemberMetadata | AssignmentEpoch | TargetAssignment | CurrentAssignment | RegularExpression | Removed"
)

_VERSION: Final = SHORT.pack(0)
_UUID_BYTES: Final = 16
#: Types whose values have known tagged fields.
_TAGGED: Final = frozenset({RecordType.GROUP, RecordType.MEMBER, RecordType.TARGET, RecordType.PARTITIONS})
#: Types whose keys have a second field.
_NAMED: Final = frozenset(
    {RecordType.MEMBER, RecordType.TARGET_OF_MEMBER, RecordType.CURRENT_OF_MEMBER, RecordType.REGULAR_EXPRESSION}
)


# -- encoding


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """Return the key and the value that store a record."""
    kind, name = _kind_and_name(record)
    key = SHORT.pack(kind) + text_field(record.group_id) + (text_field(name) if kind in _NAMED else b"")
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
            tags = {0: LONG.pack(record.metadata_hash)} if record.metadata_hash else {}
            return INT.pack(record.epoch) + tags_field(tags)
        case MemberMetadata():
            return _member_value(record.member)
        case AssignmentEpoch():
            tags = {0: LONG.pack(record.made_ms)} if record.made_ms else {}
            return INT.pack(record.epoch) + tags_field(tags)
        case TargetAssignment():
            return compact_array_field(partitions_by_topic(record.partitions).items(), _topic_partitions) + NO_TAGS
        case CurrentAssignment():
            return b"".join(
                (
                    INT.pack(record.epoch), INT.pack(record.previous_epoch), bytes((record.state,)),
                    _assigned(record.assigned), _assigned(record.revoking), NO_TAGS,
                )
            )  # fmt: skip
        case RegularExpression():
            times = LONG.pack(record.version) + LONG.pack(record.matched_ms)
            return compact_array_field(sorted(record.topics), compact_text_field) + times + NO_TAGS
        case Removed():
            return b""


def _member_value(member: ConsumerMember) -> bytes:
    texts = (member.instance_id, member.rack_id, member.client_id, member.client_host)
    return b"".join(
        (
            *map(compact_text_field, texts),
            compact_array_field(sorted(member.topics), compact_text_field),
            compact_text_field(member.regex),
            INT.pack(member.rebalance_ms),
            compact_text_field(member.assignor),
            tags_field({} if member.classic is None else {0: _classic_value(member.classic)}),
        )
    )


def _classic_value(classic: ClassicProtocol) -> bytes:
    def encode_protocol(protocol: tuple[str, bytes]) -> bytes:
        return compact_text_field(protocol[0]) + compact_bytes_field(protocol[1]) + NO_TAGS

    present = unsigned_field(1)  # a structure that may be null begins with this
    return present + INT.pack(classic.session_ms) + compact_array_field(classic.protocols, encode_protocol) + NO_TAGS


def _topic_partitions(topic: tuple[bytes, list[int]]) -> bytes:
    return topic[0] + compact_int_array_field(topic[1]) + NO_TAGS


def _assigned(partitions: Assigned) -> bytes:
    def encode_topic(topic: tuple[bytes, list[int]]) -> bytes:
        epochs = [partitions[topic[0], index] for index in topic[1]]
        tags = {0: compact_int_array_field(epochs)}
        return topic[0] + compact_int_array_field(topic[1]) + tags_field(tags)

    return compact_array_field(partitions_by_topic(partitions).items(), encode_topic)


# -- decoding


def is_of_consumer_group(key: bytes) -> bool:
    """Return whether a key of the offsets topic belongs to a record of a consumer group of this protocol."""
    return len(key) >= SHORT.size and SHORT.unpack_from(key)[0] in RecordType.__members__.values()


def decode(key: bytes, value: bytes | None) -> Record | None:
    """Decode a record; None for one that only earlier releases of Kafka used. Raises InvalidRecord."""
    cursor = RecordCursor(key)
    try:
        kind = RecordType(cursor.number(SHORT))
    except ValueError as error:
        raise InvalidRecord("the key is not one of a consumer group") from error
    group_id = cursor.text()
    name = cursor.text() if kind in _NAMED else ""
    if value is None:
        return Removed(kind, group_id, name)
    body = RecordCursor(value)
    version = body.number(SHORT)
    if version:
        raise InvalidRecord(f"a record of type {kind.value} has version {version}; version 0 is supported")
    record = _read(kind, group_id, name, body)
    if kind not in _TAGGED:
        body.tags()
    return record


def _read(kind: RecordType, group_id: str, name: str, body: RecordCursor) -> Record | None:
    match kind:
        case RecordType.GROUP:
            return GroupEpoch(group_id, body.number(INT), _tagged_long(body))
        case RecordType.MEMBER:
            return MemberMetadata(group_id, _read_member(name, body))
        case RecordType.TARGET:
            return AssignmentEpoch(group_id, body.number(INT), _tagged_long(body))
        case RecordType.TARGET_OF_MEMBER:
            topics = body.compact_array(_read_topic_partitions)
            return TargetAssignment(group_id, name, frozenset(partition for topic in topics for partition in topic))
        case RecordType.CURRENT_OF_MEMBER:
            epoch, previous = body.number(INT), body.number(INT)
            state, assigned, revoking = _read_state(body), _read_assigned(body, epoch), _read_assigned(body, epoch)
            return CurrentAssignment(group_id, name, epoch, previous, state, assigned, revoking)
        case RecordType.REGULAR_EXPRESSION:
            matched = frozenset(body.compact_array(RecordCursor.compact_text))
            return RegularExpression(group_id, name, matched, body.number(LONG), body.number(LONG))
        case RecordType.PARTITIONS:
            return None


def _tagged_long(body: RecordCursor) -> int:
    tag = body.tags().get(0)
    return 0 if tag is None else RecordCursor(tag).number(LONG)


def _read_member(member_id: str, body: RecordCursor) -> ConsumerMember:
    return ConsumerMember(
        member_id,
        instance_id=body.compact_nullable_text(),
        rack_id=body.compact_nullable_text(),
        client_id=body.compact_text(),
        client_host=body.compact_text(),
        topics=frozenset(body.compact_array(RecordCursor.compact_text)),
        regex=body.compact_nullable_text(),
        rebalance_ms=body.number(INT),
        assignor=body.compact_nullable_text(),
        classic=_read_classic(body.tags().get(0)),
    )


def _read_classic(tag: bytes | None) -> ClassicProtocol | None:
    """Return the tagged field of a classic member; None if it is missing or null."""

    def read_protocol(cursor: RecordCursor) -> tuple[str, bytes]:
        protocol = cursor.compact_text(), cursor.compact_bytes()
        cursor.tags()
        return protocol

    body = RecordCursor(tag or b"\0")
    if not body.unsigned():
        return None
    return ClassicProtocol(body.number(INT), tuple(body.compact_array(read_protocol)))


def _read_topic_partitions(body: RecordCursor) -> list[TopicPartition]:
    topic = body.exactly(_UUID_BYTES)
    indexes = body.compact_array(_int32)
    body.tags()
    return [(topic, index) for index in indexes]


def _read_assigned(body: RecordCursor, epoch: int) -> dict[TopicPartition, int]:
    """Return the partitions with the epochs in which they were assigned. Without epochs use the member's epoch."""

    def read_topic(cursor: RecordCursor) -> list[tuple[TopicPartition, int]]:
        topic = cursor.exactly(_UUID_BYTES)
        indexes = cursor.compact_array(_int32)
        tag = cursor.tags().get(0)
        epochs = [epoch] * len(indexes) if tag is None else RecordCursor(tag).compact_array(_int32)
        if len(epochs) != len(indexes):
            raise InvalidRecord(f"{len(indexes)} partitions have {len(epochs)} assignment epochs")
        return [((topic, index), since) for index, since in zip(indexes, epochs, strict=True)]

    return dict(pair for topic in body.compact_array(read_topic) for pair in topic)


def _read_state(body: RecordCursor) -> MemberState:
    try:
        return MemberState(body.exactly(1)[0])
    except ValueError as error:
        raise InvalidRecord("a member has a state that this release does not know") from error


def _int32(body: RecordCursor) -> int:
    return body.number(INT)
