"""Transactional producers that do what they should not: the error codes of Apache Kafka, and nothing that hangs.

Requests go to a real broker, with its coordinator, verification and markers. Whatever a producer does, or does not do,
readers of committed records get past it once its transaction has timed out.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.broker.transactions.values import LAST_EPOCH
from pylogd.client import Admin
from pylogd.local.broker import BrokerProcess, pylogd_command
from pylogd.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from pylogd.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from pylogd.wire.messages.end_txn import EndTxnRequest
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from pylogd.wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from pylogd.wire.records import TRANSACTIONAL, encode_batch
from tests.rawclient import ConnectionClosed, RawClient, create_topic, wait_until

NONE = ErrorCode.NONE
GROUP = "g"
UNCOMMITTED, COMMITTED = 0, 1
LONG_MS, SHORT_MS = 60_000, 300
SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
    "group.initial.rebalance.delay.ms": "0",
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("broker")
    running = BrokerProcess(folder / "data", folder / "log", SETTINGS)
    try:
        for kind, key in ((0, GROUP), (1, "x")):
            with RawClient(running.address) as client:
                assert client.request(FindCoordinatorRequest(key, kind), 3).error_code == NONE
        yield running
        assert running.stop() == 0
    finally:
        running.kill()
    assert "Traceback" not in (folder / "log").read_text()


class Producer:
    """A transactional producer with a topic of its own, which may lie about its id and epoch.

    Methods return the error code of the answer; those with `version` ask in that version of the API.
    """

    def __init__(self, address: str, timeout_ms: int = LONG_MS) -> None:
        self.client = RawClient(address)
        self.name = f"x-{next(_numbers)}"
        self.topic = f"t-{self.name}"
        create_topic(self.client, self.topic, 2)
        self.producer_id, self.epoch = -1, -1
        self.sequence = 0
        assert self.initialize(timeout_ms) is NONE

    def initialize(
        self, timeout_ms: int = LONG_MS, version: int = 5, expected: tuple[int, int] = (-1, -1), name: str | None = None
    ) -> ErrorCode:
        request = InitProducerIdRequest(self.name if name is None else name, timeout_ms, *expected)
        answer = self.client.request(request, version)
        if not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    def add(self, version: int = 3, topics: Sequence[AddPartitionsToTxnTopic] = ()) -> ErrorCode:
        """Return the error code of the last partition."""
        return self.add_all(version, topics)[-1]

    def add_all(self, version: int = 3, topics: Sequence[AddPartitionsToTxnTopic] = ()) -> list[ErrorCode]:
        wanted = list(topics) or [AddPartitionsToTxnTopic(self.topic, [0, 1])]
        answer = self.client.request(
            AddPartitionsToTxnRequest([], self.name, self.producer_id, self.epoch, wanted), version
        )
        return [
            ErrorCode(one.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        ]

    def produce(self, version: int = 12, count: int = 1, name: str | None = None, acks: int = -1) -> ErrorCode:
        answer = self.client.request(self.produce_request(count, name, acks), version)
        found = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if found is NONE:
            self.sequence += count
        return found

    def produce_request(self, count: int = 1, name: str | None = None, acks: int = -1) -> ProduceRequest:
        now_ms = int(time.time() * 1000)
        records = encode_batch(
            [(None, b"v", now_ms, ())] * count, producer_id=self.producer_id, producer_epoch=self.epoch,
            base_sequence=self.sequence, attributes=TRANSACTIONAL,
        )  # fmt: skip
        topic = TopicProduceData(self.topic, partition_data=[PartitionProduceData(0, records)])
        return ProduceRequest(self.name if name is None else name, acks, 30_000, [topic])

    def add_offsets(self, version: int = 3, group: str = GROUP) -> ErrorCode:
        request = AddOffsetsToTxnRequest(self.name, self.producer_id, self.epoch, group)
        return ErrorCode(self.client.request(request, version).error_code)

    def commit_offsets(self, version: int = 5) -> ErrorCode:
        topic = TxnOffsetCommitRequestTopic(self.topic, [TxnOffsetCommitRequestPartition(0, 7)])
        request = TxnOffsetCommitRequest(self.name, GROUP, self.producer_id, self.epoch, topics=[topic])
        return ErrorCode(self.client.request(request, version).topics[0].partitions[0].error_code)

    def end_request(self, commit: bool = True) -> EndTxnRequest:
        return EndTxnRequest(self.name, self.producer_id, self.epoch, commit)

    def end(self, commit: bool = True, version: int = 5) -> ErrorCode:
        """End the transaction; the next epoch is not taken over."""
        return ErrorCode(self.client.request(self.end_request(commit), version).error_code)

    def ended(self, commit: bool = True, version: int = 5) -> ErrorCode:
        """As `end`, but again while an end before is being completed."""
        found = ErrorCode.CONCURRENT_TRANSACTIONS

        def asked() -> bool:
            nonlocal found
            found = self.end(commit, version)
            return found is not ErrorCode.CONCURRENT_TRANSACTIONS

        wait_until(asked, "the transaction before is ended")
        return found

    def latest(self, isolation: int) -> int:
        """Return the end of partition 0 for readers."""
        wanted = ListOffsetsTopic(self.topic, [ListOffsetsPartition(0, -1, -1)])
        answer = self.client.request(ListOffsetsRequest(-1, isolation, [wanted]), 7)
        return int(answer.topics[0].partitions[0].offset)

    @property
    def hangs(self) -> bool:
        """Whether readers of committed records have to wait."""
        return self.latest(COMMITTED) < self.latest(UNCOMMITTED)


@pytest.fixture
def producer(broker: BrokerProcess) -> Iterator[Producer]:
    made = Producer(broker.address)
    yield made
    made.client.close()


#: What a producer asks for, and what it is told if its epoch is not the present one, by the version of the API.
FENCED: dict[str, tuple[Callable[[Producer], ErrorCode], ErrorCode]] = {
    "AddPartitionsToTxn 3": (lambda one: one.add(3), ErrorCode.PRODUCER_FENCED),
    "AddPartitionsToTxn 1": (lambda one: one.add(1), ErrorCode.INVALID_PRODUCER_EPOCH),
    "AddOffsetsToTxn 3": (lambda one: one.add_offsets(3), ErrorCode.PRODUCER_FENCED),
    "AddOffsetsToTxn 1": (lambda one: one.add_offsets(1), ErrorCode.INVALID_PRODUCER_EPOCH),
    "EndTxn 5": (lambda one: one.end(version=5), ErrorCode.PRODUCER_FENCED),
    "EndTxn 3": (lambda one: one.end(version=3), ErrorCode.PRODUCER_FENCED),
    "EndTxn 1": (lambda one: one.end(version=1), ErrorCode.INVALID_PRODUCER_EPOCH),
    "Produce 12": (lambda one: one.produce(12), ErrorCode.INVALID_PRODUCER_EPOCH),
    "Produce 11": (lambda one: one.produce(11), ErrorCode.INVALID_PRODUCER_EPOCH),
    "TxnOffsetCommit 5": (lambda one: one.commit_offsets(5), ErrorCode.INVALID_PRODUCER_EPOCH),
    "TxnOffsetCommit 3": (lambda one: one.commit_offsets(3), ErrorCode.INVALID_PRODUCER_EPOCH),
    "InitProducerId 5": (
        lambda one: one.initialize(expected=(one.producer_id, one.epoch)), ErrorCode.PRODUCER_FENCED,
    ),
    "InitProducerId 3": (
        lambda one: one.initialize(version=3, expected=(one.producer_id, one.epoch)), ErrorCode.INVALID_PRODUCER_EPOCH,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FENCED)
@pytest.mark.parametrize("by", [-2, 1], ids=["earlier", "later"])
def test_another_epoch_than_the_present_one(producer: Producer, name: str, by: int) -> None:
    """An earlier epoch is that of a producer which a successor has fenced; a later one nobody was given."""
    work, code = FENCED[name]
    for _ in range(3):
        assert producer.initialize() is NONE
    producer.epoch += by
    assert work(producer) is code
    producer.epoch -= by
    assert not producer.hangs
    assert producer.produce() is NONE, "the present producer is not hindered"
    assert producer.end() is NONE


@pytest.mark.parametrize("name", FENCED)
def test_a_producer_id_that_is_not_the_present_one(producer: Producer, name: str) -> None:
    work, _ = FENCED[name]
    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if name.startswith("InitProducerId"):
        code = FENCED[name][1]
    producer.producer_id += 1_000_000
    assert work(producer) is code
    producer.producer_id -= 1_000_000
    assert not producer.hangs
    assert producer.produce() is NONE
    assert producer.end() is NONE


@pytest.mark.parametrize("name", [name for name in FENCED if not name.startswith("InitProducerId")])
def test_a_transactional_id_that_nobody_has_initialized(producer: Producer, name: str) -> None:
    producer.name = "unheard-of"
    assert FENCED[name][0](producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert not producer.hangs


@pytest.mark.parametrize("version", [3, 5])
def test_an_end_that_is_repeated(producer: Producer, version: int) -> None:
    """The same outcome again is no error, the other one is; with version 5 by the epoch that the first one ended."""
    assert (producer.add() if version < 5 else producer.produce()) is NONE
    assert producer.end(version=version) is NONE
    assert producer.ended(version=version) is NONE
    assert producer.ended(commit=False, version=version) is ErrorCode.INVALID_TXN_STATE
    assert producer.initialize() is NONE
    producer.sequence = 0
    assert (producer.add() if version < 5 else producer.produce()) is NONE
    assert producer.end(commit=False, version=version) is NONE
    assert producer.ended(commit=False, version=version) is NONE
    assert producer.ended(version=version) is ErrorCode.INVALID_TXN_STATE
    wait_until(lambda: not producer.hangs, "the markers are written")


def test_an_end_without_a_transaction(producer: Producer) -> None:
    for version in (3, 5):
        assert producer.end(version=version) is ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=False, version=3) is ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=False, version=5) is NONE, "KIP-890: an abort raises the epoch"


@pytest.mark.parametrize(
    ("version", "code"),
    [(9, ErrorCode.INVALID_TXN_STATE), (10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_records_for_a_partition_that_was_not_added(producer: Producer, version: int, code: ErrorCode) -> None:
    assert producer.produce(version) is code
    assert producer.latest(UNCOMMITTED) == 0


def test_records_under_another_transactional_id(broker: BrokerProcess, producer: Producer) -> None:
    other = Producer(broker.address)
    assert producer.add() is NONE
    assert producer.produce(11, name=other.name) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert producer.produce(11, name="") is ErrorCode.INVALID_REQUEST
    assert producer.latest(UNCOMMITTED) == 0
    other.client.close()


def test_a_gap_in_the_sequence_is_refused_and_the_transaction_ends(producer: Producer) -> None:
    assert producer.produce() is NONE
    producer.sequence += 5
    assert producer.produce() is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.end(commit=False) is NONE
    wait_until(lambda: not producer.hangs, "the marker is written")


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001, (1 << 31) - 1])
def test_a_time_out_out_of_range(producer: Producer, timeout_ms: int) -> None:
    assert producer.initialize(timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.produce() is NONE, "nobody was fenced"
    assert producer.end() is NONE


def test_transactional_ids_that_are_empty_or_too_long(producer: Producer) -> None:
    for name in ("", "n" * 1025, "n" * 32_000):
        assert producer.initialize(name=name) is ErrorCode.INVALID_REQUEST
        producer.name = name
        assert producer.add() is ErrorCode.INVALID_REQUEST
        assert producer.end() is ErrorCode.INVALID_REQUEST
        # Kafka finds the coordinator of any id that it can store, also of the empty one, which no producer can have.
        found = producer.client.request(FindCoordinatorRequest(name, 1), 3).error_code
        assert found == (ErrorCode.INVALID_REQUEST if name else NONE)


def test_an_id_without_its_epoch(producer: Producer) -> None:
    for expected in ((producer.producer_id, -1), (-1, 0)):
        assert producer.initialize(expected=expected) is ErrorCode.INVALID_REQUEST


def test_partitions_that_there_are_not(producer: Producer) -> None:
    """If one is refused, none is added."""
    good = AddPartitionsToTxnTopic(producer.topic, [0])
    unknown, not_tried = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    missing = [AddPartitionsToTxnTopic("nowhere", [0]), AddPartitionsToTxnTopic(producer.topic, [-1, 2, 1 << 30])]
    assert producer.add_all(topics=[good, *missing]) == [not_tried, *[unknown] * 4]
    internal = AddPartitionsToTxnTopic("__consumer_offsets", [0])
    assert producer.add_all(topics=[good, internal]) == [not_tried, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert producer.end(version=3) is ErrorCode.INVALID_TXN_STATE, "no transaction has begun"


def test_groups_that_no_offsets_are_kept_for(producer: Producer) -> None:
    assert producer.add_offsets(group="n" * 5000) is ErrorCode.INVALID_GROUP_ID
    assert producer.add_offsets(group="") is NONE, "as with Kafka, the empty group is one"


# Huge transactions ----------------------------------------------------------------------------------------------------


def test_more_partitions_than_there_are(producer: Producer) -> None:
    found = producer.add_all(topics=[AddPartitionsToTxnTopic("nowhere", list(range(19_000)))])
    assert found == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 19_000
    assert producer.produce() is NONE
    assert producer.end() is NONE


def test_100_000_partitions_in_one_request(broker: BrokerProcess, producer: Producer) -> None:
    """A request with more elements than `request.max.elements` closes the connection; the transaction can be ended."""
    assert producer.produce() is NONE
    with pytest.raises(ConnectionClosed):
        producer.add(topics=[AddPartitionsToTxnTopic(producer.topic, list(range(100_000)))])
    producer.client = RawClient(broker.address)
    assert producer.end() is NONE
    wait_until(lambda: not producer.hangs, "the marker is written")


def test_a_transaction_of_a_million_records(producer: Producer) -> None:
    for _ in range(100):
        assert producer.produce(count=10_000) is NONE
    assert producer.latest(COMMITTED) == 0
    assert producer.end() is NONE
    wait_until(lambda: not producer.hangs, "the marker is written")
    assert producer.latest(COMMITTED) == 1_000_001


# Markers --------------------------------------------------------------------------------------------------------------


def marker(producer: Producer, *, epoch: int, coordinator_epoch: int = 0, version: int = 0) -> ErrorCode:
    """Send a marker that aborts, as a coordinator does; return the answer for partition 0."""
    topic = WritableTxnMarkerTopic(producer.topic, [0])
    one = WritableTxnMarker(producer.producer_id, epoch, False, [topic], coordinator_epoch, version)
    answer: Any = producer.client.request(WriteTxnMarkersRequest([one]), 2)
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)


def test_markers_of_a_coordinator_that_was_replaced(producer: Producer) -> None:
    """Whoever may alter the cluster may send markers; without an authorizer that is everyone, as with Kafka."""
    assert producer.produce() is NONE
    # A coordinator that is newer than all there are can't have sent it. It would fence the real one for good.
    assert marker(producer, epoch=producer.epoch, coordinator_epoch=2**31 - 1) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert producer.end() is NONE
    wait_until(lambda: not producer.hangs, "the marker is written")
    assert marker(producer, epoch=producer.epoch + 1, coordinator_epoch=-1) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert marker(producer, epoch=producer.epoch) is ErrorCode.INVALID_PRODUCER_EPOCH
    producer.topic = "nowhere"
    assert marker(producer, epoch=0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# Clients that die -----------------------------------------------------------------------------------------------------

#: What a producer has done when its connection ends. What is only sent has no answer yet.
LAST_STEPS: dict[str, Callable[[Producer], object]] = {
    "nothing": lambda one: None,
    "partitions added": lambda one: one.add(),
    "records written": lambda one: one.produce(),
    "records sent": lambda one: one.client.send_request(one.produce_request(), 12),
    "records written twice": lambda one: (one.produce(), one.produce()),
    "offsets added": lambda one: (one.produce(), one.add_offsets()),
    "offsets written": lambda one: (one.produce(), one.commit_offsets()),
    "a commit sent": lambda one: (one.produce(), one.client.send_request(one.end_request(), 5)),
    "an abort sent": lambda one: (one.produce(), one.client.send_request(one.end_request(False), 5)),
    "records sent behind an abort": lambda one: (
        one.produce(), one.client.send_request(one.end_request(False), 5),
        one.client.send_request(one.produce_request(), 12),
    ),
}  # fmt: skip


@pytest.mark.parametrize("step", LAST_STEPS)
def test_a_producer_that_dies_holds_nobody_up(broker: BrokerProcess, step: str) -> None:
    """Its transaction is aborted when its time is up, and its successor can begin one."""
    producer = Producer(broker.address, SHORT_MS)
    LAST_STEPS[step](producer)
    producer.client.close()
    producer.client = RawClient(broker.address)
    wait_until(lambda: not producer.hangs, "the transaction has ended")
    offsets = Producer(broker.address)  # its transaction has the group's offsets too
    assert offsets.produce() is NONE
    assert offsets.commit_offsets() is NONE
    assert offsets.end() is NONE
    wait_until(lambda: not offsets.hangs, "another transaction ends")
    wait_until(lambda: producer.initialize() is NONE, "the successor begins")
    producer.sequence = 0
    assert producer.produce() is NONE
    assert producer.end() is NONE
    wait_until(lambda: not producer.hangs, "the successor's transaction has ended")
    found = run("find-hanging", "--max-timeout", "0s", "--topic", producer.topic, address=broker.address)
    assert found.returncode == 0, found.stdout


def use_up_epochs(producer: Producer) -> None:
    """Have the producer fenced until it is told the last epoch of its id."""
    request = InitProducerIdRequest(producer.name, SHORT_MS)
    while producer.epoch < LAST_EPOCH:
        some = [producer.client.send_request(request, 5) for _ in range(min(LAST_EPOCH - producer.epoch, 200))]
        for number in some:
            answer = producer.client.response(request.API_KEY, 5, number)
            assert answer.error_code == NONE
        producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch


def test_the_last_epoch_of_a_producer_id_is_followed_by_another_id(broker: BrokerProcess) -> None:
    """After a transaction that took too long, and after one that the producer gives up to begin anew (KIP-360)."""
    producer = Producer(broker.address, SHORT_MS)
    use_up_epochs(producer)
    first = producer.producer_id
    assert producer.produce() is NONE
    wait_until(lambda: not producer.hangs, "the transaction was aborted")
    answer = producer.client.request(producer.end_request(False), 5)
    assert (answer.error_code, answer.producer_epoch) == (NONE, 0)
    assert answer.producer_id != first
    assert producer.initialize(expected=(first, LAST_EPOCH)) is NONE
    assert (producer.producer_id, producer.epoch) == (answer.producer_id, 0)
    producer.sequence = 0
    assert producer.produce() is NONE
    assert producer.end() is NONE
    wait_until(lambda: not producer.hangs, "the next transaction has ended")


# The command line -----------------------------------------------------------------------------------------------------


def run(*arguments: str, address: str) -> subprocess.CompletedProcess[str]:
    command = [*pylogd_command(), "transactions", *arguments, "--bootstrap-server", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_late_batch_hangs_is_found_and_ended_and_nothing_else(broker: BrokerProcess, producer: Producer) -> None:
    """Where leaders ask no coordinator, a batch that comes after the end of a transaction opens one without an end."""
    late = Producer(broker.address)
    assert late.add() is NONE
    assert late.produce(11) is NONE
    assert late.end(version=4) is NONE
    wait_until(lambda: not late.hangs, "the marker is written")
    with Admin(broker.address) as admin:
        verify = "transaction.partition.verification.enable"
        admin.alter_configs("broker", str(broker.node_id), {verify: "false"})
        wait_until(lambda: late.produce(11) is NONE, "the leader asks nobody")
        admin.alter_configs("broker", str(broker.node_id), {verify: None})
    assert producer.produce() is NONE
    wait_until(lambda: producer.hangs and late.hangs, "both are open")
    find = ("find-hanging", "--max-timeout", "0s", "--topic", late.topic, "--topic", producer.topic)
    found = run(*find, "--json", address=broker.address)
    assert found.returncode == 1, found.stderr
    (hanging,) = json.loads(found.stdout)
    assert (hanging["topic"], hanging["partition"], hanging["producer_id"]) == (late.topic, 0, late.producer_id)
    done = run("abort", late.topic, "0", "--producer-id", str(late.producer_id), "--yes", address=broker.address)
    assert done.returncode == 0, done.stderr
    assert not late.hangs and producer.hangs
    assert producer.end() is NONE
    wait_until(lambda: not producer.hangs, "the other transaction ends as usual")
    assert run(*find, address=broker.address).returncode == 0
    late.client.close()


def test_a_transaction_that_its_coordinator_knows_is_ended_by_it(broker: BrokerProcess, producer: Producer) -> None:
    """By the partition, or by the transactional id: in all partitions, and the producer is fenced."""
    by_partition = ("abort", producer.topic, "0", "--producer-id", str(producer.producer_id), "--yes")
    by_id = ("abort", "--transactional-id", producer.name, "--yes")
    for arguments in (by_partition, by_id):
        assert producer.produce() is NONE
        assert producer.hangs
        done = run(*arguments, address=broker.address)
        assert done.returncode == 0, done.stderr
        assert f"{producer.name}: aborted the transaction" in done.stderr
        assert not producer.hangs
        assert producer.end() is ErrorCode.PRODUCER_FENCED
        assert producer.initialize() is NONE
        producer.sequence = 0
    done = run(*by_id, address=broker.address)
    assert (done.returncode, "no transaction is open" in done.stderr) == (0, True)
    wrong = run("abort", "--transactional-id", "nobody", "--yes", address=broker.address)
    assert (wrong.returncode, "TRANSACTIONAL_ID_NOT_FOUND" in wrong.stderr) == (1, True)
