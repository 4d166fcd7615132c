"""Transactions in partitions: Produce with a transactional id, WriteTxnMarkers, and what readers are given."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from pylogd.base.errors import ErrorCode
from pylogd.broker.log.markers import read_marker
from pylogd.broker.transactions.verification import TopicPartition
from pylogd.store.paths import OFFSETS_TOPIC
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from pylogd.wire.records import TRANSACTIONAL, iter_batches
from tests.fakes.metadata import result_of
from tests.fakes.parts import NOW_MS, Parts, batch, decoded, records_in

COMMITTED, UNCOMMITTED = 1, 0
LAST = 13


class Coordinator:
    """Answers verifications at once with `codes`, the last one for ever, or later with `held`."""

    def __init__(self, *codes: ErrorCode) -> None:
        self.codes = list(codes) or [ErrorCode.NONE]
        self.asked: list[tuple[str, int, int, list[TopicPartition], bool]] = []
        self.held: list[Deferred[Mapping[TopicPartition, ErrorCode]]] | None = None

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[TopicPartition], add: bool
    ) -> Deferred[Mapping[TopicPartition, ErrorCode]]:
        self.asked.append((transactional_id, producer_id, epoch, list(partitions), add))
        if self.held is not None:
            self.held.append(Deferred())
            return self.held[-1]
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        return succeed(dict.fromkeys(partitions, code))


@pytest.fixture
def coordinator(parts: Parts) -> Coordinator:
    """Return the coordinator of a broker with a topic "t" of two partitions."""
    parts.create("t", partitions=2)
    parts.create("__transaction_state", partitions=2)
    parts.move_away("__transaction_state", 1, leader_epoch=9)
    parts.verifier = made = Coordinator()
    return made


def produce(
    *values: bytes, sequence: int = 0, producer: int = 7, epoch: int = 0, attributes: int = TRANSACTIONAL,
    indexes: tuple[int, ...] = (0,), transactional_id: str | None = "tx", acks: int = 1, topic_id: bytes = b"",
) -> ProduceRequest:  # fmt: skip
    data = batch(*values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, attributes=attributes)
    partitions = [PartitionProduceData(index, data) for index in indexes]
    topic = TopicProduceData("t", topic_id or bytes(16), partitions)
    return ProduceRequest(transactional_id, acks, 1000, [topic])


def code_of(answer: Any) -> ErrorCode:
    (partition,) = answer.responses[0].partition_responses
    return ErrorCode(partition.error_code)


def ask(parts: Parts, request: ProduceRequest, version: int = 12) -> ErrorCode:
    return code_of(parts.call(request, version))


def mark(
    parts: Parts, *, committed: bool, producer: int = 7, epoch: int = 0, coordinator_epoch: int = 0, version: int = 0,
    index: int = 0, topic: str = "t",
) -> ErrorCode:  # fmt: skip
    marker = WritableTxnMarker(
        producer, epoch, committed, [WritableTxnMarkerTopic(topic, [index])], coordinator_epoch, version
    )
    (result,) = parts.call(WriteTxnMarkersRequest([marker])).markers
    assert (result.producer_id, result.topics[0].name) == (producer, topic)
    return ErrorCode(result.topics[0].partitions[0].error_code)


def fetch(parts: Parts, offset: int = 0, isolation: int = COMMITTED, **fields: Any) -> Any:
    topic_id = parts.partitions.by_name["t", 0].topic_id
    wanted = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=fields.pop("max_wait_ms", 0), min_bytes=1, isolation_level=isolation,
        topics=[FetchTopic("t", topic_id, [wanted])], session_epoch=fields.pop("session_epoch", -1), **fields,
    )  # fmt: skip
    answer = parts.ask(request, 17)
    return answer if isinstance(answer, Deferred) else answer.responses[0].partitions[0]


def values(data: Any) -> list[bytes | None]:
    """Return the values of the records in a response, markers left out."""
    if not data.records:
        return []
    raw = data.records.read()
    controls = {header.base_offset for header, _ in iter_batches(raw) if header.is_control}
    return [record.value for record in records_in(raw) if record.offset not in controls]


def test_a_transaction_is_read_when_it_is_committed(parts: Parts, coordinator: Coordinator) -> None:
    parts.append("t", b"before")
    assert ask(parts, produce(b"a")) is ErrorCode.NONE
    assert ask(parts, produce(b"b", sequence=1)) is ErrorCode.NONE
    parts.append("t", b"after")
    assert coordinator.asked == [("tx", 7, 0, [("t", 0)], True)]
    data = fetch(parts)
    assert (values(data), data.high_watermark, data.last_stable_offset) == ([b"before"], 4, 1)
    assert data.aborted_transactions == []
    data = fetch(parts, isolation=UNCOMMITTED)
    assert (values(data), data.last_stable_offset) == ([b"before", b"a", b"b", b"after"], 1)
    assert data.aborted_transactions is None
    assert mark(parts, committed=True) is ErrorCode.NONE
    data = fetch(parts)
    assert (values(data), data.high_watermark, data.last_stable_offset) == ([b"before", b"a", b"b", b"after"], 5, 5)
    assert data.aborted_transactions == []


def test_an_aborted_transaction_is_named(parts: Parts, coordinator: Coordinator) -> None:
    ask(parts, produce(b"a"))
    ask(parts, produce(b"x", producer=8))
    assert mark(parts, committed=False, producer=8) is ErrorCode.NONE
    assert fetch(parts).last_stable_offset == 0
    assert mark(parts, committed=False) is ErrorCode.NONE
    data = fetch(parts)
    found = [(one.producer_id, one.first_offset) for one in data.aborted_transactions]
    assert found == [(8, 1), (7, 0)]  # in the order of their markers
    assert data.last_stable_offset == 4
    data = fetch(parts, 3)
    assert [(one.producer_id, one.first_offset) for one in data.aborted_transactions] == [(7, 0)]


def test_the_marker_has_kafkas_bytes(parts: Parts, coordinator: Coordinator) -> None:
    ask(parts, produce(b"a"))
    mark(parts, committed=True, coordinator_epoch=5)
    found = parts.partitions.by_name["t", 0].log.read(1, 1 << 20)
    assert found is not None
    ((header, data),) = list(iter_batches(found.read()))
    assert (header.is_control, header.is_transactional, header.base_sequence, header.record_count) == (
        True,
        True,
        -1,
        1,
    )
    marker = read_marker(header, data)
    assert marker is not None and (marker.committed, marker.coordinator_epoch) == (True, 5)
    (record,) = records_in(bytes(data))
    assert (record.key, record.value, record.timestamp) == (b"\0\0\0\1", b"\0\0\0\0\0\5", NOW_MS)


def test_a_read_committed_fetch_wakes_when_the_transaction_ends(parts: Parts, coordinator: Coordinator) -> None:
    ask(parts, produce(b"a"))
    waiting = [fetch(parts, max_wait_ms=500), fetch(parts, max_wait_ms=500, session_epoch=0)]
    assert all(isinstance(one, Deferred) and not one.called for one in waiting)
    parts.append("t", b"plain")  # moves the high watermark, not the last stable offset
    assert not any(one.called for one in waiting)
    mark(parts, committed=True)
    for one in waiting:
        assert values(result_of(one).responses[0].partitions[0]) == [b"a", b"plain"]


def test_list_offsets(parts: Parts, coordinator: Coordinator) -> None:
    parts.append("t", b"before")
    ask(parts, produce(b"a"))

    def latest(isolation: int, timestamp: int = -1) -> int:
        wanted = [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, timestamp)])]
        answer = parts.call(ListOffsetsRequest(-1, isolation, wanted))
        return int(answer.topics[0].partitions[0].offset)

    assert (latest(UNCOMMITTED), latest(COMMITTED)) == (2, 1)
    assert (latest(UNCOMMITTED, -3), latest(COMMITTED, -3)) == (0, 0)
    assert (latest(UNCOMMITTED, NOW_MS), latest(COMMITTED, NOW_MS)) == (0, 0)
    mark(parts, committed=True)
    assert (latest(UNCOMMITTED), latest(COMMITTED)) == (3, 3)


def test_nothing_is_asked_where_a_transaction_is_open_or_verification_is_off(
    parts: Parts, coordinator: Coordinator
) -> None:
    ask(parts, produce(b"a"))
    coordinator.codes = [ErrorCode.INVALID_TXN_STATE]
    assert ask(parts, produce(b"b", sequence=1)) is ErrorCode.NONE
    assert ask(parts, produce(b"c", producer=8)) is ErrorCode.INVALID_TXN_STATE


def test_batches_outside_of_transactions(parts: Parts, coordinator: Coordinator) -> None:
    nameless = produce(b"a", transactional_id=None)
    assert ask(parts, nameless) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    ask(parts, produce(b"a"))
    assert ask(parts, produce(b"b", sequence=1, transactional_id=None)) is (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )
    assert ask(parts, produce(b"b", sequence=1, attributes=0)) is ErrorCode.INVALID_TXN_STATE
    assert ask(parts, produce(b"b", sequence=1, attributes=0, transactional_id=None)) is ErrorCode.INVALID_TXN_STATE
    mark(parts, committed=True)
    assert ask(parts, produce(b"b", sequence=1, attributes=0)) is ErrorCode.NONE
    parts.verifier = None
    assert ask(parts, produce(b"c", producer=9)) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("code", "version", "expected"),
    [
        (ErrorCode.INVALID_TXN_STATE, 12, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 12, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.NOT_COORDINATOR, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NETWORK_EXCEPTION, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.INVALID_PRODUCER_EPOCH, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)  # fmt: skip
def test_what_a_refused_verification_is_answered(
    parts: Parts, coordinator: Coordinator, code: ErrorCode, version: int, expected: ErrorCode
) -> None:
    coordinator.codes = [code]
    assert ask(parts, produce(b"a"), version) is expected
    assert coordinator.asked == [("tx", 7, 0, [("t", 0)], version >= 12)]
    assert parts.partitions.by_name["t", 0].log.log_end_offset == 0
    assert not len(parts.replicas.verifications)


def test_a_concurrent_transaction_is_asked_about_again(parts: Parts, coordinator: Coordinator) -> None:
    coordinator.codes = [ErrorCode.CONCURRENT_TRANSACTIONS] * 3 + [ErrorCode.NONE]
    answer = parts.ask(produce(b"a"), 12)
    for _ in range(3):
        assert not answer.called
        parts.time.advance(0.02)
    assert code_of(result_of(answer)) is ErrorCode.NONE
    coordinator.codes = [ErrorCode.CONCURRENT_TRANSACTIONS]
    answer = parts.ask(produce(b"a", producer=8), 12)
    for _ in range(5):
        parts.time.advance(0.02)
    assert code_of(result_of(answer)) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_later_batches_of_the_producer_wait_behind_a_verification(parts: Parts, coordinator: Coordinator) -> None:
    coordinator.held = []
    first = parts.ask(produce(b"a"), 12)
    second = parts.ask(produce(b"b", sequence=1), 12)
    third = parts.ask(produce(b"c", sequence=2), 12)
    other = parts.ask(produce(b"x", producer=8), 12)
    assert len(coordinator.held) == 2  # of the first one, and of the other producer
    coordinator.held[1].callback({("t", 0): ErrorCode.NONE})
    assert code_of(result_of(other)) is ErrorCode.NONE
    assert not first.called and not second.called
    coordinator.held[0].callback({("t", 0): ErrorCode.NONE})
    assert [code_of(result_of(one)) for one in (first, second, third)] == [ErrorCode.NONE] * 3
    assert values(fetch(parts, isolation=UNCOMMITTED)) == [b"x", b"a", b"b", b"c"]
    assert not len(parts.replicas.verifications)


@pytest.mark.parametrize(
    ("version", "again", "expected"),
    [
        (11, None, ErrorCode.INVALID_TXN_STATE),
        (12, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_marker_that_comes_while_a_batch_is_verified(
    parts: Parts, coordinator: Coordinator, version: int, again: ErrorCode | None, expected: ErrorCode
) -> None:
    """The transaction has ended: appending would open one that nobody ends."""
    coordinator.held = []
    answer = parts.ask(produce(b"a"), version)
    assert mark(parts, committed=False) is ErrorCode.NONE
    coordinator.held[0].callback({("t", 0): ErrorCode.NONE})
    assert len(coordinator.held) == (1 if again is None else 2)
    if again is not None:
        coordinator.held[1].callback({("t", 0): again})
    assert code_of(result_of(answer)) is expected
    data = fetch(parts)
    assert (data.high_watermark, data.last_stable_offset) == (1, 1)


def test_markers_are_checked(parts: Parts, coordinator: Coordinator) -> None:
    ask(parts, produce(b"a", epoch=3))
    assert mark(parts, committed=True, epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert mark(parts, committed=True, epoch=3, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert mark(parts, committed=True, epoch=4, version=2, coordinator_epoch=9) is ErrorCode.NONE
    assert mark(parts, committed=True, epoch=4, version=2, coordinator_epoch=9) is ErrorCode.NONE  # sent again
    assert mark(parts, committed=True, epoch=4, coordinator_epoch=8) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert mark(parts, committed=True, epoch=4, coordinator_epoch=10) is ErrorCode.UNKNOWN_LEADER_EPOCH
    parts.move_away("__transaction_state", 1, leader_epoch=2)  # as if the topic was made anew
    assert mark(parts, committed=True, epoch=4, coordinator_epoch=9) is ErrorCode.NONE  # which fences nobody
    assert mark(parts, committed=True, epoch=4, coordinator_epoch=9, producer=8) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert ask(parts, produce(b"b", epoch=3, sequence=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert ask(parts, produce(b"b", epoch=4, sequence=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert ask(parts, produce(b"b", epoch=4)) is ErrorCode.NONE
    assert mark(parts, committed=True, index=5) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert mark(parts, committed=True, topic="nope") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_several_producers_in_one_request(parts: Parts, coordinator: Coordinator) -> None:
    request = produce(b"a")
    request.topic_data[0].partition_data.append(
        PartitionProduceData(1, batch(producer_id=8, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL))
    )
    answer = parts.call(request, 12)
    assert [one.error_code for one in answer.responses[0].partition_responses] == (
        [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    )


@pytest.mark.parametrize("version", [11, 12])
def test_several_batches_are_refused_and_do_not_add_their_partition(
    parts: Parts, coordinator: Coordinator, version: int
) -> None:
    request = produce(b"a", indexes=(0, 1))
    both, first = produce(b"b", sequence=1), request.topic_data[0].partition_data[0]
    first.records = bytes(first.records or b"") + bytes(both.topic_data[0].partition_data[0].records or b"")
    answer = parts.call(request, version)
    assert [one.error_code for one in answer.responses[0].partition_responses] == [ErrorCode.INVALID_RECORD, 0]
    assert [partitions for _, _, _, partitions, _ in coordinator.asked] == [[("t", 1)]]
    assert parts.partitions.by_name["t", 0].log.log_end_offset == 0


def test_a_batch_of_the_next_transaction_is_not_taken_for_one_of_the_transaction_before(
    parts: Parts, coordinator: Coordinator
) -> None:
    """The transaction has ended with another epoch, and its marker is still on its way (KIP-890)."""
    assert ask(parts, produce(b"a")) is ErrorCode.NONE
    coordinator.codes = [ErrorCode.TRANSACTION_ABORTABLE]
    assert ask(parts, produce(b"b", epoch=1)) is ErrorCode.TRANSACTION_ABORTABLE
    assert [asked[2] for asked in coordinator.asked] == [0, 1]
    assert mark(parts, committed=True, epoch=1, version=2) is ErrorCode.NONE
    coordinator.codes = [ErrorCode.NONE]
    assert ask(parts, produce(b"b", epoch=1)) is ErrorCode.NONE
    assert values(fetch(parts)) == [b"a"]


def test_a_marker_of_the_transaction_before_that_comes_between_two_questions(
    parts: Parts, coordinator: Coordinator
) -> None:
    assert ask(parts, produce(b"a")) is ErrorCode.NONE
    coordinator.codes = [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE]
    answer = parts.ask(produce(b"b", epoch=1), 12)
    assert isinstance(answer, Deferred)
    assert mark(parts, committed=True, epoch=1, version=2) is ErrorCode.NONE
    parts.time.advance(1)
    assert code_of(result_of(answer)) is ErrorCode.NONE


def test_a_marker_of_the_transaction_before_that_comes_during_a_question(
    parts: Parts, coordinator: Coordinator
) -> None:
    """The coordinator waits until the marker is written, and adds the partition to the next transaction then."""
    assert ask(parts, produce(b"a")) is ErrorCode.NONE
    coordinator.held = []
    answer = parts.ask(produce(b"b", epoch=1), 12)
    assert mark(parts, committed=True, epoch=1, version=2) is ErrorCode.NONE
    coordinator.held[0].callback({("t", 0): ErrorCode.NONE})
    assert not answer.called
    assert coordinator.asked[1:] == [("tx", 7, 1, [("t", 0)], True)] * 2
    coordinator.held[1].callback({("t", 0): ErrorCode.NONE})
    assert code_of(result_of(answer)) is ErrorCode.NONE
    assert values(fetch(parts)) == [b"a"]
    assert mark(parts, committed=True, epoch=2, version=2) is ErrorCode.NONE
    assert values(fetch(parts)) == [b"a", b"b"]


def test_only_the_partition_with_a_marker_is_asked_about_again(parts: Parts, coordinator: Coordinator) -> None:
    assert ask(parts, produce(b"a")) is ErrorCode.NONE
    coordinator.held = []
    answer = parts.ask(produce(b"b", epoch=1, indexes=(0, 1)), 12)
    assert mark(parts, committed=True, epoch=1, version=2) is ErrorCode.NONE
    coordinator.held[0].callback({("t", 0): ErrorCode.NONE, ("t", 1): ErrorCode.NONE})
    assert [asked[3] for asked in coordinator.asked[1:]] == [[("t", 0), ("t", 1)], [("t", 0)]]
    coordinator.held[1].callback({("t", 0): ErrorCode.NONE})
    partitions = result_of(answer).responses[0].partition_responses
    assert [(one.index, one.error_code) for one in partitions] == [(0, 0), (1, 0)]


def test_groups_hear_of_committed_markers(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[int, int, int, bool]] = []
    monkeypatch.setattr(type(parts.groups), "transaction_ended", lambda _, *what: heard.append(what))
    parts.create("t")
    parts.call(FindCoordinatorRequest("g"), 3)  # creates the topic of offsets
    assert mark(parts, committed=True, topic=OFFSETS_TOPIC) is ErrorCode.NONE
    assert mark(parts, committed=False, producer=8, topic=OFFSETS_TOPIC) is ErrorCode.NONE
    assert mark(parts, committed=True) is ErrorCode.NONE
    assert mark(parts, committed=True, topic=OFFSETS_TOPIC, index=999) is not ErrorCode.NONE
    assert heard == [(0, 7, 0, True), (0, 8, 1, False)]


@pytest.mark.parametrize("version", [11, 12])
def test_a_log_that_fails_while_the_coordinator_is_asked(parts: Parts, coordinator: Coordinator, version: int) -> None:
    coordinator.held = []
    waiting = parts.ask(produce(b"a"), version)
    parts.hosting.went_offline([("t", 0)])
    coordinator.held[0].callback({("t", 0): ErrorCode.NONE})
    assert code_of(decoded(result_of(waiting), 0, version)) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_log_that_fails_before_the_coordinator_is_asked_again(parts: Parts, coordinator: Coordinator) -> None:
    coordinator.held = []
    waiting = parts.ask(produce(b"a", indexes=(0, 1)), 12)
    coordinator.held[0].callback({("t", index): ErrorCode.CONCURRENT_TRANSACTIONS for index in range(2)})
    parts.hosting.went_offline([("t", 0)])
    parts.time.pump([0.1])
    assert coordinator.asked[-1][3] == [("t", 1)]
    coordinator.held[1].callback({("t", 1): ErrorCode.NONE})
    answered = decoded(result_of(waiting), 0, 12).responses[0].partition_responses
    assert [one.error_code for one in answered] == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
