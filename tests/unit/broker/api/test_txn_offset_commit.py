"""TxnOffsetCommit, and what OffsetFetch and WriteTxnMarkers make of offsets in transactions."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.security.authorizer import AclOperation as Op
from pylogd.broker.security.authorizer import ResourceType as Kind
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pylogd.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from pylogd.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from pylogd.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts
from tests.unit.broker.api.test_authorization import Only
from tests.unit.broker.api.test_transactional_partitions import Coordinator, mark

NONE = ErrorCode.NONE
OFFSETS = "__consumer_offsets"
LATEST = 5


@pytest.fixture
def coordinator(parts: Parts) -> Coordinator:
    """Return the coordinator of a broker with a topic "t" of two partitions, and an offsets topic of one."""
    parts.create("t", partitions=2)
    parts.create(OFFSETS)
    parts.verifier = made = Coordinator()
    return made


def request(
    *indexes: int, offset: int = 7, metadata: str | None = "", topic: str = "t", **fields: Any
) -> TxnOffsetCommitRequest:
    wanted = {"transactional_id": "tx", "group_id": "g", "producer_id": 7, "producer_epoch": 0}
    partitions = [TxnOffsetCommitRequestPartition(index, offset, 3, metadata) for index in indexes or (0,)]
    return TxnOffsetCommitRequest(**{**wanted, **fields}, topics=[TxnOffsetCommitRequestTopic(topic, partitions)])


def codes(parts: Parts, asked: TxnOffsetCommitRequest, version: int = LATEST) -> list[ErrorCode]:
    return [ErrorCode(one.error_code) for topic in parts.call(asked, version).topics for one in topic.partitions]


def fetched(parts: Parts, *, stable: bool, topics: bool = True) -> list[tuple[int, int, ErrorCode]]:
    wanted = [OffsetFetchRequestTopics("t", partition_indexes=[0, 1])] if topics else None
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=wanted)], require_stable=stable)
    (group,) = parts.call(asked, 9).groups
    return [
        (one.partition_index, one.committed_offset, ErrorCode(one.error_code))
        for topic in group.topics
        for one in topic.partitions
    ]


def test_an_offsets_topic_whose_log_has_failed(parts: Parts, coordinator: Coordinator) -> None:
    assert codes(parts, request()) == [NONE]
    parts.hosting.went_offline([(OFFSETS, 0)])
    assert codes(parts, request()) == [ErrorCode.NOT_COORDINATOR]


def test_offsets_are_those_of_the_transaction_until_it_is_committed(parts: Parts, coordinator: Coordinator) -> None:
    assert codes(parts, request()) == [NONE]
    assert coordinator.asked == [("tx", 7, 0, [(OFFSETS, 0)], True)]
    assert fetched(parts, stable=False) == [(0, -1, NONE), (1, -1, NONE)]
    assert fetched(parts, stable=True) == [(0, -1, ErrorCode.UNSTABLE_OFFSET_COMMIT), (1, -1, NONE)]
    assert codes(parts, request(1, offset=9)) == [NONE]
    assert len(coordinator.asked) == 1  # it is open here
    assert mark(parts, committed=True, topic=OFFSETS) is NONE
    assert fetched(parts, stable=True) == [(0, 7, NONE), (1, 9, NONE)]
    assert fetched(parts, stable=True, topics=False) == [(0, 7, NONE), (1, 9, NONE)]
    assert codes(parts, request(offset=8)) == [NONE]
    assert fetched(parts, stable=True, topics=False) == [
        (0, -1, ErrorCode.UNSTABLE_OFFSET_COMMIT), (1, 9, NONE),
    ]  # fmt: skip
    assert mark(parts, committed=False, topic=OFFSETS) is NONE
    assert fetched(parts, stable=True) == [(0, 7, NONE), (1, 9, NONE)]


def test_the_stable_offset_of_the_offsets_topic(parts: Parts, coordinator: Coordinator) -> None:
    log = parts.partitions.by_name[OFFSETS, 0].log
    codes(parts, request())
    assert log.producers.in_transaction(7, 0)
    mark(parts, committed=True, topic=OFFSETS)
    assert not log.producers.in_transaction(7, 0)


@pytest.mark.parametrize(("version", "adds"), [(0, False), (4, False), (5, True)])
def test_who_adds_the_group_to_the_transaction(
    parts: Parts, coordinator: Coordinator, version: int, adds: bool
) -> None:
    assert codes(parts, request(), version) == [NONE]
    assert coordinator.asked[0][-1] is adds


@pytest.mark.parametrize(
    ("code", "version", "answered"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.NETWORK_EXCEPTION, 5, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NETWORK_EXCEPTION, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 5, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 4, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NOT_COORDINATOR, 5, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_a_refused_verification(
    parts: Parts, coordinator: Coordinator, code: ErrorCode, version: int, answered: ErrorCode
) -> None:
    coordinator.codes = [code]
    assert codes(parts, request(0, 1), version) == [answered, answered]
    assert fetched(parts, stable=True) == [(0, -1, NONE), (1, -1, NONE)]


@pytest.mark.parametrize(
    ("version", "again", "expected"),
    [(4, None, ErrorCode.INVALID_TXN_STATE), (5, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH)],
)
def test_a_marker_that_comes_while_offsets_are_verified(
    parts: Parts, coordinator: Coordinator, version: int, again: ErrorCode | None, expected: ErrorCode
) -> None:
    coordinator.held = []
    answer = parts.ask(request(), version)
    assert isinstance(answer, Deferred)
    mark(parts, committed=False, topic=OFFSETS)
    coordinator.held[0].callback({(OFFSETS, 0): NONE})
    assert len(coordinator.held) == (1 if again is None else 2)
    if again is not None:
        coordinator.held[1].callback({(OFFSETS, 0): again})
    assert result_of(answer).topics[0].partitions[0].error_code == expected
    assert fetched(parts, stable=True) == [(0, -1, NONE), (1, -1, NONE)]


def test_a_marker_of_the_transaction_before_that_comes_while_offsets_are_verified(
    parts: Parts, coordinator: Coordinator
) -> None:
    """The coordinator waits until the marker is written, and adds the group to the next transaction then."""
    assert codes(parts, request()) == [NONE]
    coordinator.held = []
    answer = parts.ask(request(offset=9, producer_epoch=1), LATEST)
    assert isinstance(answer, Deferred)
    mark(parts, committed=True, epoch=1, version=2, topic=OFFSETS)
    coordinator.held[0].callback({(OFFSETS, 0): NONE})
    assert not answer.called
    coordinator.held[1].callback({(OFFSETS, 0): NONE})
    assert result_of(answer).topics[0].partitions[0].error_code == NONE
    assert fetched(parts, stable=False) == [(0, 7, NONE), (1, -1, NONE)]
    mark(parts, committed=True, epoch=2, version=2, topic=OFFSETS)
    assert fetched(parts, stable=True) == [(0, 9, NONE), (1, -1, NONE)]


def test_an_epoch_that_is_over(parts: Parts, coordinator: Coordinator) -> None:
    codes(parts, request())
    mark(parts, committed=False, epoch=1, topic=OFFSETS)
    assert codes(parts, request()) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert fetched(parts, stable=True) == [(0, -1, NONE), (1, -1, NONE)]


def test_each_partition_is_checked(parts: Parts, coordinator: Coordinator) -> None:
    assert codes(parts, request(0, 2, 9)) == [
        NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]  # fmt: skip
    assert codes(parts, request(0, topic="none")) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes(parts, request(0, metadata="x" * 5000)) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert codes(parts, request(0, metadata=None)) == [NONE]


def test_who_may_not(parts: Parts, coordinator: Coordinator) -> None:
    needed = {
        (Op.WRITE, Kind.TRANSACTIONAL_ID): ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        (Op.READ, Kind.GROUP): ErrorCode.GROUP_AUTHORIZATION_FAILED,
        (Op.READ, Kind.TOPIC): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    for missing, code in needed.items():
        parts.authorizer = Only(needed.keys() - {missing})
        assert codes(parts, request(0, 1)) == [code, code]
    parts.authorizer = Only(needed.keys())
    assert codes(parts, request(0, 1)) == [NONE, NONE]


@pytest.mark.parametrize("group_id", ["", "x" * 40_000])
def test_bad_group_ids(parts: Parts, coordinator: Coordinator, group_id: str) -> None:
    if len(group_id) > 1 << 15:
        group_id = group_id[: (1 << 15) - 1]
    assert codes(parts, request(group_id=group_id)) == [ErrorCode.INVALID_GROUP_ID]


def test_generations_of_an_unknown_group(parts: Parts, coordinator: Coordinator) -> None:
    assert codes(parts, request(generation_id=1, member_id="m")) == [ErrorCode.ILLEGAL_GENERATION]


def test_an_epoch_of_a_member_of_the_newer_protocol(parts: Parts, coordinator: Coordinator) -> None:
    joined = ConsumerGroupHeartbeatRequest(
        "g", "m", 0, rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    epoch = parts.call(joined, 1).member_epoch
    assert codes(parts, request(generation_id=epoch + 3, member_id="m")) == [ErrorCode.ILLEGAL_GENERATION]
    assert codes(parts, request(generation_id=epoch, member_id="m")) == [NONE]


def test_no_offsets_topic(parts: Parts) -> None:
    parts.create("t", partitions=2)
    parts.verifier = Coordinator()
    assert codes(parts, request()) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


def test_deletions_under_an_open_transaction(parts: Parts, coordinator: Coordinator) -> None:
    codes(parts, request(0, 1))
    asked = OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])])
    assert parts.call(asked).topics[0].partitions[0].error_code == NONE
    assert fetched(parts, stable=True) == [(0, -1, NONE), (1, -1, ErrorCode.UNSTABLE_OFFSET_COMMIT)]
    mark(parts, committed=True, topic=OFFSETS)
    assert fetched(parts, stable=True) == [(0, -1, NONE), (1, 7, NONE)]
