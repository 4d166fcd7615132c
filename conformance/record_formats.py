"""The records of `__consumer_offsets` and `__transaction_state`, compared byte by byte with Kafka's generated classes.

Records with random contents are encoded by pylogd. Their fields, as JSON, go to `java/RecordFormats.java`, which has
Kafka's own classes encode them. Each kind of record is a check. No broker is needed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from random import Random
from typing import Any, Final

from conformance import checks, java_tools
from conformance.checks import FAILED, HERE, PASSED, Check
from pylogd.broker.groups.consumer.members import (
    Assigned,
    ClassicProtocol,
    ConsumerMember,
    MemberState,
    partitions_by_topic,
)
from pylogd.broker.groups.consumer.records import (
    AssignmentEpoch,
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    RecordType,
    RegularExpression,
    TargetAssignment,
    encode,
)
from pylogd.broker.groups.records import Committed, StoredGroup, StoredMember, group_key, group_value, offset_record
from pylogd.broker.transactions.records import transaction_key, transaction_value
from pylogd.broker.transactions.states import TransactionState
from pylogd.broker.transactions.values import TransactionValue

#: How many records of each kind are compared.
_COUNT: Final = 200
_SEED: Final = 16
_SECONDS: Final = 120.0
_OFFSETS: Final = "__consumer_offsets"
_TRANSACTIONS: Final = "__transaction_state"
_OFFSET_TYPE, _GROUP_TYPE, _TRANSACTION_TYPE = 1, 2, 0
_CHARACTERS: Final = "abcxyzÄß語🙂-. "

#: What `RecordFormats` is told of a record, and the record's key and value as pylogd writes them.
Case = tuple[dict[str, Any], tuple[bytes, bytes]]


class _Contents:
    """Random contents of records."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def text(self) -> str:
        return "".join(self.random.choices(_CHARACTERS, k=self.random.choice((0, 1, 3, 20, 130))))

    def maybe(self, make: Callable[[], Any]) -> Any:
        return make() if self.random.random() < 0.6 else None

    def int32(self, low: int = 0) -> int:
        return self.random.choice((low, 0, 1, 300, (1 << 31) - 1))

    def int64(self) -> int:
        return self.random.choice((0, 1, -1, 1_700_000_000_000, (1 << 63) - 1))

    def data(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 200)))

    def many(self, make: Callable[[], Any]) -> list[Any]:
        return [make() for _ in range(self.random.choice((0, 1, 2, 5)))]

    def partition(self) -> tuple[bytes, int]:
        return bytes([self.random.randrange(3)]) * 16, self.random.randrange(5)

    def assigned(self) -> Assigned:
        return {self.partition(): self.int32() for _ in range(self.random.randrange(6))}


# -- how Kafka's classes name the fields


def _id(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def _bytes(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _topics(partitions: Iterable[tuple[bytes, int]]) -> list[dict[str, Any]]:
    found = partitions_by_topic(partitions).items()
    return [{"topicId": _id(topic), "partitions": indexes} for topic, indexes in found]


def _with_epochs(partitions: Assigned) -> list[dict[str, Any]]:
    found = partitions_by_topic(partitions).items()
    return [
        {
            "topicId": _id(topic),
            "partitions": indexes,
            "assignmentEpochs": [partitions[topic, index] for index in indexes],
        }
        for topic, indexes in found
    ]


def _record(record: Any, key: dict[str, Any], value: dict[str, Any], kind: RecordType) -> Case:
    written, data = encode(record)
    assert data is not None
    told = {"topic": _OFFSETS, "type": kind.value, "version": 0, "key": key, "value": value}
    return told, (written, data)


# -- the kinds of records


def _member(make: _Contents, classic: ClassicProtocol | None) -> Case:
    member = ConsumerMember(
        make.text(), make.maybe(make.text), make.maybe(make.text), make.text(), make.text(),
        frozenset(make.many(make.text)), make.maybe(make.text), make.maybe(make.text), make.int32(-1), classic=classic,
    )  # fmt: skip
    value: dict[str, Any] = {
        "instanceId": member.instance_id, "rackId": member.rack_id, "clientId": member.client_id,
        "clientHost": member.client_host, "subscribedTopicNames": sorted(member.topics),
        "subscribedTopicRegex": member.regex, "rebalanceTimeoutMs": member.rebalance_ms,
        "serverAssignor": member.assignor,
    }  # fmt: skip
    if classic is not None:
        protocols = [{"name": name, "metadata": _bytes(data)} for name, data in classic.protocols]
        value["classicMemberMetadata"] = {"sessionTimeoutMs": classic.session_ms, "supportedProtocols": protocols}
    key = {"groupId": "g", "memberId": member.member_id}
    return _record(MemberMetadata("g", member), key, value, RecordType.MEMBER)


def _new_member(make: _Contents) -> Case:
    return _member(make, None)


def _classic_member(make: _Contents) -> Case:
    # Members without protocols are refused. Kafka's classes leave out a structure without any, and a timeout of 0.
    protocols = [(make.text(), make.data()), *make.many(lambda: (make.text(), make.data()))]
    return _member(make, ClassicProtocol(make.int32(), tuple(protocols)))


def _group(make: _Contents) -> Case:
    record = GroupEpoch(make.text(), make.int32(), make.int64())
    value = {"epoch": record.epoch, "metadataHash": record.metadata_hash}
    return _record(record, {"groupId": record.group_id}, value, RecordType.GROUP)


def _assignment_epoch(make: _Contents) -> Case:
    record = AssignmentEpoch(make.text(), make.int32(), make.int64())
    value = {"assignmentEpoch": record.epoch, "assignmentTimestamp": record.made_ms}
    return _record(record, {"groupId": record.group_id}, value, RecordType.TARGET)


def _target(make: _Contents) -> Case:
    record = TargetAssignment(make.text(), make.text(), frozenset(make.many(make.partition)))
    key = {"groupId": record.group_id, "memberId": record.member_id}
    return _record(record, key, {"topicPartitions": _topics(record.partitions)}, RecordType.TARGET_OF_MEMBER)


def _current(make: _Contents) -> Case:
    state = make.random.choice(list(MemberState))
    record = CurrentAssignment(
        make.text(), make.text(), make.int32(-2), make.int32(-2), state, make.assigned(), make.assigned()
    )
    value = {
        "memberEpoch": record.epoch, "previousMemberEpoch": record.previous_epoch, "state": state.value,
        "assignedPartitions": _with_epochs(record.assigned),
        "partitionsPendingRevocation": _with_epochs(record.revoking),
    }  # fmt: skip
    key = {"groupId": record.group_id, "memberId": record.member_id}
    return _record(record, key, value, RecordType.CURRENT_OF_MEMBER)


def _expression(make: _Contents) -> Case:
    record = RegularExpression(make.text(), make.text(), frozenset(make.many(make.text)), make.int64(), make.int64())
    value = {"topics": sorted(record.topics), "version": record.version, "timestamp": record.matched_ms}
    key = {"groupId": record.group_id, "regularExpression": record.expression}
    return _record(record, key, value, RecordType.REGULAR_EXPRESSION)


def _offset(make: _Contents) -> Case:
    expires = make.random.choice((-1, 1_800_000_000_000))
    epoch = make.int32(-1) if expires < 0 else -1  # the version with an expiry time has no epoch
    committed = Committed(make.int64(), epoch, make.text(), make.int64(), expires)
    group, topic, index = make.text(), make.text(), make.int32()
    value = {"offset": committed.offset, "metadata": committed.metadata, "commitTimestamp": committed.committed_ms}
    value |= {"leaderEpoch": epoch} if expires < 0 else {"expireTimestamp": expires}
    key = {"group": group, "topic": topic, "partition": index}
    told = {"topic": _OFFSETS, "type": _OFFSET_TYPE, "version": 3 if expires < 0 else 1, "key": key, "value": value}
    return told, offset_record(group, (topic, index), committed)


def _classic_group(make: _Contents) -> Case:
    def member() -> StoredMember:
        texts = make.text(), make.maybe(make.text), make.text(), make.text()
        return StoredMember(*texts, make.int32(), make.int32(), make.data(), make.data())

    members = tuple(make.many(member))
    group = StoredGroup(
        make.text(), make.int32(), make.maybe(make.text), make.maybe(make.text), make.int64(), members
    )  # fmt: skip
    value = {
        "protocolType": group.protocol_type, "generation": group.generation, "protocol": group.protocol,
        "leader": group.leader, "currentStateTimestamp": group.state_since_ms,
        "members": [
            {
                "memberId": one.member_id, "groupInstanceId": one.instance_id, "clientId": one.client_id,
                "clientHost": one.client_host, "rebalanceTimeout": one.rebalance_ms, "sessionTimeout": one.session_ms,
                "subscription": _bytes(one.metadata), "assignment": _bytes(one.assignment),
            }
            for one in members
        ],
    }  # fmt: skip
    name = make.text()
    told = {"topic": _OFFSETS, "type": _GROUP_TYPE, "version": 3, "key": {"group": name}, "value": value}
    return told, (group_key(name), group_value(group))


def _transaction(make: _Contents) -> Case:
    flexible = make.random.random() < 0.7
    state = make.random.choice([one for one in TransactionState if one is not TransactionState.PREPARE_EPOCH_FENCE])
    partitions = frozenset() if state is TransactionState.EMPTY else frozenset(
        (name, make.int32()) for name in make.many(make.text)
    )  # fmt: skip
    ids = (make.int64(), make.int64(), make.random.choice((0, 2))) if flexible else (-1, -1, 0)
    value = TransactionValue(
        make.int64(), make.random.choice((0, 1, 32_767)), make.int32(), make.int64(), state, partitions, make.int64(),
        ids[0], ids[1], version=ids[2],
    )  # fmt: skip
    topics = [
        {"topic": topic, "partitionIds": [index for _, index in found]}
        for topic, found in groupby(sorted(partitions), lambda one: one[0])
    ]
    fields: dict[str, Any] = {
        "producerId": value.producer_id, "producerEpoch": value.epoch, "transactionTimeoutMs": value.timeout_ms,
        "transactionStatus": state.code, "transactionLastUpdateTimestampMs": value.updated_ms,
        "transactionPartitions": None if state is TransactionState.EMPTY else topics,
        "transactionStartTimestampMs": value.started_ms,
    }  # fmt: skip
    if flexible:
        fields |= {
            "previousProducerId": value.previous_id, "nextProducerId": value.next_id,
            "clientTransactionVersion": value.version,
        }  # fmt: skip
    name = make.text()
    key = {"transactionalId": name}
    told = {"topic": _TRANSACTIONS, "type": _TRANSACTION_TYPE, "version": int(flexible), "key": key, "value": fields}
    return told, (transaction_key(name), transaction_value(value, flexible=flexible))


KINDS: Final[dict[str, Callable[[_Contents], Case]]] = {
    "OffsetCommit": _offset,
    "GroupMetadata": _classic_group,
    "ConsumerGroupMetadata": _group,
    "ConsumerGroupMemberMetadata": _new_member,
    "ConsumerGroupMemberMetadata with ClassicMemberMetadata": _classic_member,
    "ConsumerGroupTargetAssignmentMetadata": _assignment_epoch,
    "ConsumerGroupTargetAssignmentMember": _target,
    "ConsumerGroupCurrentMemberAssignment": _current,
    "ConsumerGroupRegularExpression": _expression,
    "TransactionLog": _transaction,
}


def suite() -> list[Check]:
    """Compare records of all kinds. Raises Missing if Java or its jars are not there."""
    command = java_tools.compiled(HERE / "java" / "RecordFormats.java")
    make = _Contents(Random(_SEED))
    cases = {kind: [case(make) for _ in range(_COUNT)] for kind, case in KINDS.items()}
    lines = [json.dumps(told) for found in cases.values() for told, _ in found]
    done = checks.run(command, seconds=_SECONDS, stdin="\n".join([*lines, ""]))
    answers = iter(done.stdout.splitlines())
    return [_compared(kind, found, [next(answers, checks.last_line(done.stderr)) for _ in found])
            for kind, found in cases.items()]  # fmt: skip


def _compared(kind: str, cases: Sequence[Case], answers: Sequence[str]) -> Check:
    """Return the check of one kind: what Kafka's classes wrote has to be what pylogd writes."""
    for (told, (key, value)), answer in zip(cases, answers, strict=True):
        if answer != f"{key.hex()} {value.hex()}":
            return Check(kind, FAILED, f"{json.dumps(told)}: pylogd {key.hex()} {value.hex()}, Kafka {answer}"[:2000])
    return Check(kind, PASSED)
