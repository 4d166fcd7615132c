"""Requests that no well-behaved client sends, as one script for both brokers: their error codes have to be the same.

Wrong epochs and ids of producers, transactions in the wrong state, commits of members with stale epochs, heartbeats
that are refused. Each function gets a `Wire` and adds what was answered to its transcript.
"""

from __future__ import annotations

import time
from typing import Any, Final

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from pylogd.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from pylogd.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, OwnedTopicPartitions
from pylogd.wire.messages.delete_groups import DeleteGroupsRequest
from pylogd.wire.messages.describe_groups import DescribeGroupsRequest
from pylogd.wire.messages.describe_transactions import DescribeTransactionsRequest
from pylogd.wire.messages.end_txn import EndTxnRequest
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.list_groups import ListGroupsRequest
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from pylogd.wire.records import TRANSACTIONAL, encode_batch
from tests.rawclient import RawClient, create_topic

_AGAIN: Final = {
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}  # fmt: skip
_SECONDS: Final = 30.0
#: After how many seconds Apache Kafka's coordinators know of a topic that was made.
_LEARNS: Final = 1.0
_MEMBER: Final = "AAAAAAAAAAAAAAAAAAAAA{}"


def name_of(code: int) -> str:
    """Return the name of an error code."""
    return ErrorCode(code).name


class Wire:
    """A connection, topics and groups of one scenario, and its transcript."""

    def __init__(self, address: str, name: str) -> None:
        self.client = RawClient(address, patience=_SECONDS)
        self.id = self.group = name
        self.topic = f"{name}-t"
        self.transcript: list[tuple[str, Any]] = []
        self.producer, self.epoch = -1, -1
        self.before: int | None = (
            None  # the group epoch before the first member: Apache Kafka begins with 1, pylogd with 0
        )
        create_topic(self.client, self.topic, 4)
        for kind in (0, 1):
            self._find(name, kind)
        time.sleep(_LEARNS)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def _find(self, key: str, kind: int) -> None:
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            found = self.client.request(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4)
            if found.coordinators[0].error_code == 0:
                return
            time.sleep(0.1)
        raise RuntimeError(f"{key} has no coordinator")

    def keep(self, what: str, answer: Any) -> None:
        """Keep an answer; a number is an error code."""
        self.transcript.append((what, name_of(answer) if isinstance(answer, int) else answer))

    def until_done(self, message: Any, version: int) -> Any:
        """Repeat a request while its coordinator is not ready."""
        deadline = time.monotonic() + _SECONDS
        while True:
            answer = self.client.request(message, version)
            if answer.error_code not in _AGAIN or time.monotonic() > deadline:
                return answer
            time.sleep(0.05)

    # -- transactions

    def begin(self, what: str, *, id: str | None = "", timeout: int = 30000, known: tuple[int, int] = (-1, -1)) -> None:
        """Ask for a producer id. Without an error it is the one that the next requests have."""
        message = InitProducerIdRequest(self.id if id == "" else id, timeout, *known)
        answer = self.until_done(message, 5)
        self.keep(what, name_of(answer.error_code))
        if answer.error_code == 0:
            self.producer, self.epoch = answer.producer_id, answer.producer_epoch

    def end(self, what: str, committed: bool, version: int = 5, *, by: int = 0, epoch: int = 0, id: str = "") -> None:
        """Ask for the end. by, epoch: added to the producer's. Follow the epoch that the answer has."""
        message = EndTxnRequest(id or self.id, self.producer + by, self.epoch + epoch, committed)
        answer = self.until_done(message, version)
        self.keep(f"{what}, EndTxn {version}", answer.error_code)
        if version >= 5 and answer.error_code == 0 and by == epoch == 0:
            self.producer, self.epoch = answer.producer_id, answer.producer_epoch

    def add(self, what: str, *, by: int = 0, epoch: int = 0, topic: str = "", indexes: tuple[int, ...] = (0,)) -> None:
        """Add partitions as producers before KIP-890 do."""
        topics = [AddPartitionsToTxnTopic(topic or self.topic, list(indexes))]
        message = AddPartitionsToTxnRequest([], self.id, self.producer + by, self.epoch + epoch, topics)
        answer = self.client.request(message, 3)
        codes = [one.partition_error_code for found in answer.results_by_topic_v3_and_below
                 for one in sorted(found.results_by_partition, key=lambda one: one.partition_index)]  # fmt: skip
        self.keep(what, [name_of(code) for code in codes])

    def send(
        self, what: str, sequence: int, version: int = 12, *, by: int = 0, epoch: int = 0, id: str | None = "",
        at: int = 0,
    ) -> None:  # fmt: skip
        """Send one record in the transaction to a partition."""
        rows = [(None, b"v", int(time.time() * 1000), ())]
        batch = encode_batch(
            rows, producer_id=self.producer + by, producer_epoch=self.epoch + epoch, base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )  # fmt: skip
        topics = [TopicProduceData(self.topic, partition_data=[PartitionProduceData(at, batch)])]
        answer = self.client.request(ProduceRequest(self.id if id == "" else id, -1, 10000, topics), version)
        found = answer.responses[0].partition_responses[0]
        self.keep(f"{what}, Produce {version}", [name_of(found.error_code), found.base_offset])

    def add_offsets(self, what: str, *, epoch: int = 0) -> None:
        """Add the group's partition to the transaction."""
        message = AddOffsetsToTxnRequest(self.id, self.producer, self.epoch + epoch, self.group)
        self.keep(what, self.until_done(message, 4).error_code)

    def send_offsets(
        self, what: str, version: int = 5, *, epoch: int = 0, generation: int = -1, member: str = "",
        instance: str | None = None, topic: str = "", group: str | None = None,
    ) -> None:  # fmt: skip
        """Commit an offset in the transaction."""
        message = TxnOffsetCommitRequest(
            self.id, self.group if group is None else group, self.producer, self.epoch + epoch,
            self._real(generation), member, instance,
            [TxnOffsetCommitRequestTopic(topic or self.topic, [TxnOffsetCommitRequestPartition(0, 5)])],
        )  # fmt: skip
        answer = self.client.request(message, version)
        self.keep(f"{what}, TxnOffsetCommit {version}", answer.topics[0].partitions[0].error_code)

    def described(self) -> None:
        """Keep the state of the transaction, once no marker is missing."""
        deadline = time.monotonic() + _SECONDS
        while True:
            answer = self.client.request(DescribeTransactionsRequest([self.id]), 0).transaction_states[0]
            if not answer.transaction_state.startswith("Prepare") or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        places = sorted((topic.topic.replace(self.id, ""), sorted(topic.partitions)) for topic in answer.topics)
        self.keep("state", [name_of(answer.error_code), answer.transaction_state, places])

    # -- groups

    def beat(
        self, what: str, epoch: int, *, member: str = "A", topics: list[str] | None = None, group: str | None = None,
        owned: tuple[int, ...] | None = None, **more: Any,
    ) -> Any:  # fmt: skip
        """Send a heartbeat of the newer protocol, and keep its error, its epoch, and its partitions."""
        message = ConsumerGroupHeartbeatRequest(
            self.group if group is None else group, _MEMBER.format(member) if member else "", self._real(epoch),
            rebalance_timeout_ms=more.pop("rebalance", 30000 if epoch == 0 else -1), subscribed_topic_names=topics,
            topic_partitions=None if owned is None else self._owned(owned), **more,
        )  # fmt: skip
        answer = self.until_done(message, 1)
        found = answer.assignment
        shares = None if found is None else sorted(one for topic in found.topic_partitions for one in topic.partitions)
        if epoch == 0 and answer.member_epoch > 0 and self.before is None:
            self.before = answer.member_epoch - 1
        self.keep(what, [name_of(answer.error_code), self._shown(answer.member_epoch), shares])
        return answer

    def _real(self, epoch: int) -> int:
        """Return the epoch to send for one of the script, where the first one of a group is 1."""
        return epoch + (self.before or 0) if epoch > 0 else epoch

    def _shown(self, epoch: int) -> int:
        """Return the epoch of the script for one that was answered."""
        return epoch - (self.before or 0) if epoch > 0 else epoch

    def _owned(self, indexes: tuple[int, ...]) -> list[OwnedTopicPartitions]:
        return [OwnedTopicPartitions(self.topic_id(), list(indexes))] if indexes else []

    def topic_id(self) -> bytes:
        """Return the id of the topic."""
        answer = self.client.request(MetadataRequest([MetadataRequestTopic(name=self.topic)]), 12)
        return bytes(answer.topics[0].topic_id)

    def commit(self, what: str, epoch: int, member: str = "A", version: int = 9, instance: str | None = None) -> None:
        """Commit an offset."""
        message = OffsetCommitRequest(
            self.group, self._real(epoch), _MEMBER.format(member) if member else "", instance, -1,
            [OffsetCommitRequestTopic(self.topic, partitions=[OffsetCommitRequestPartition(0, 5)])],
        )  # fmt: skip
        answer = self.client.request(message, version)
        self.keep(f"{what}, OffsetCommit {version}", answer.topics[0].partitions[0].error_code)

    def fetch(self, what: str, epoch: int, member: str | None = "A", version: int = 9) -> None:
        """Fetch an offset."""
        group = OffsetFetchRequestGroup(
            self.group, None if member is None else _MEMBER.format(member), self._real(epoch),
            [OffsetFetchRequestTopics(self.topic, partition_indexes=[0])],
        )  # fmt: skip
        answer = self.client.request(OffsetFetchRequest(groups=[group]), version).groups[0]
        offsets = [one.committed_offset for topic in answer.topics for one in topic.partitions]
        self.keep(f"{what}, OffsetFetch {version}", [name_of(answer.error_code), offsets])

    def about_group(self, what: str) -> None:
        """Keep what the requests about groups say of it."""
        newer = self.client.request(ConsumerGroupDescribeRequest([self.group]), 1).groups[0]
        epochs = [newer.group_epoch, newer.assignment_epoch, *sorted(one.member_epoch for one in newer.members)]
        shown = [name_of(newer.error_code), newer.group_state, newer.assignor_name]
        self.keep(f"{what}: ConsumerGroupDescribe", [*shown, *map(self._shown, epochs)])
        older = self.client.request(DescribeGroupsRequest([self.group]), 6).groups[0]
        self.keep(f"{what}: DescribeGroups", [name_of(older.error_code), older.group_state, older.protocol_type])
        listed = self.client.request(ListGroupsRequest(), 5).groups
        own = [[one.protocol_type, one.group_state, one.group_type] for one in listed if one.group_id == self.group]
        self.keep(f"{what}: ListGroups", own)

    def delete(self, what: str) -> None:
        """Delete the group."""
        self.keep(what, self.client.request(DeleteGroupsRequest([self.group]), 2).results[0].error_code)


def producers_that_begin(wire: Wire) -> None:
    """InitProducerId with odd fields."""
    wire.begin("an empty id", id=None)
    wire.begin("a timeout of 0", timeout=0)
    wire.begin("a negative timeout", timeout=-1)
    wire.begin("a timeout over the maximum", timeout=900_001)
    wire.begin("the first time")
    first = (wire.producer, wire.epoch)
    wire.begin("as it was", known=first)
    wire.begin("with an epoch that is over", known=first)
    wire.begin("with a later epoch", known=(wire.producer, wire.epoch + 3))
    wire.begin("with another producer id", known=(wire.producer + 1000, wire.epoch))
    wire.begin("with an epoch, without an id", known=(-1, 3))
    wire.described()


def ends_without_a_transaction(wire: Wire) -> None:
    """EndTxn of who has nothing to end."""
    for version in (3, 4, 5):
        wire.end("an unknown id", True, version, id=f"{wire.id}-unknown")
    wire.begin("begin")
    for version in (3, 4, 5):
        for committed in (True, False):
            wire.end(f"nothing to {'commit' if committed else 'abort'}", committed, version)
    wire.end("a wrong producer id", True, by=1000)
    wire.end("an epoch that is over", True, epoch=-1)
    wire.end("a later epoch", True, epoch=5)
    wire.described()


def ends_twice(wire: Wire) -> None:
    """EndTxn again, in the same and in the other way."""
    for version in (4, 5):
        for committed in (True, False):
            wire.begin("begin")
            wire.add("a partition")
            wire.send("a record", 0, 11)
            before = (wire.producer, wire.epoch)
            wire.end("the first time", committed, version)
            wire.described()
            wire.producer, wire.epoch = before
            wire.end("the same again", committed, version)
            wire.producer, wire.epoch = before
            wire.end("the other way", not committed, version)
            wire.described()


def partitions_that_are_added(wire: Wire) -> None:
    """AddPartitionsToTxn with wrong ids, epochs and topics."""
    wire.add("before the id is known")
    wire.begin("begin")
    wire.add("a wrong producer id", by=1000)
    wire.add("an epoch that is over", epoch=-1)
    wire.add("a later epoch", epoch=1)
    wire.add("an unknown topic", topic="no-such-topic")
    wire.add("one that is not there, and one that is", indexes=(0, 9))
    wire.described()
    wire.add("two", indexes=(0, 1))
    wire.add("again", indexes=(1, 2))
    wire.described()
    wire.end("commit", True, 4)
    wire.described()


def records_out_of_order(wire: Wire) -> None:
    """Produce with wrong ids, epochs and sequence numbers."""
    wire.begin("begin")
    wire.send("not added", 0, 11)
    wire.send("a wrong producer id", 0, by=1000)
    wire.send("an epoch that is over", 0, epoch=-1)
    wire.send("a later epoch", 0, epoch=1)
    wire.send("no id", 0, id=None)
    wire.send("another id", 0, id=f"{wire.id}-other")
    wire.send("not from 0", 5)
    wire.send("the first", 0)
    wire.send("a gap", 3)
    wire.send("the first again", 0)
    wire.send("the second", 1)
    wire.send("to another partition", 0, at=1)
    wire.described()
    old = wire.epoch
    wire.end("commit", True)
    wire.described()  # before its marker is there, both brokers take a late record for one of the transaction
    wire.send("with the epoch before", 2, epoch=old - wire.epoch)
    wire.send("not from 0 with the new epoch", 2)
    wire.send("from 0 with the new epoch", 0)
    wire.end("abort", False)
    wire.described()


def offsets_in_a_transaction(wire: Wire) -> None:
    """TxnOffsetCommit with wrong epochs, generations and members."""
    wire.begin("begin")
    wire.send_offsets("not added", 4)
    wire.add_offsets("an epoch that is over", epoch=-1)
    wire.add_offsets("as it should be")
    for version in (4, 5):
        wire.send_offsets("not a member", version)
        wire.send_offsets("a generation without a member", version, generation=3)
        wire.send_offsets("an unknown member", version, generation=3, member="nobody")
        wire.send_offsets("an unknown static member", version, generation=3, member="nobody", instance="nobody")
        wire.send_offsets("a wrong epoch", version, epoch=-1)
        wire.send_offsets("an unknown topic", version, topic="no-such-topic")
    wire.send_offsets("no group", group="")
    wire.described()
    wire.end("commit", True)
    wire.described()
    wire.fetch("committed", -1, None)


def heartbeats_that_are_refused(wire: Wire) -> None:
    """ConsumerGroupHeartbeat with wrong fields."""
    topics = [wire.topic]
    wire.beat("no group id", 0, group="", topics=topics, owned=())
    wire.beat("no member id", 0, member="", topics=topics, owned=())
    wire.beat("no topics", 0, owned=())
    wire.beat("partitions at the start", 0, topics=topics, owned=(1,))
    wire.beat("no partitions at the start", 0, topics=topics)
    wire.beat("no rebalance timeout", 0, topics=topics, owned=(), rebalance=-1)
    wire.beat("an unknown assignor", 0, topics=topics, owned=(), server_assignor="sticky")
    wire.beat("a wrong expression", 0, owned=(), subscribed_topic_regex="(a")
    wire.beat("an empty instance id", 0, topics=topics, owned=(), instance_id="")
    wire.beat("an empty rack", 0, topics=topics, owned=(), rack_id="")
    wire.beat("epoch -3", -3, topics=topics, owned=())
    wire.beat("a member of an unknown group", 4, topics=topics, owned=())
    wire.beat("leave an unknown group", -1)
    wire.beat("leave for a while without an instance id", -2)
    wire.about_group("refused")


def epochs_that_are_wrong(wire: Wire) -> None:
    """Heartbeats, commits and fetches with other epochs than the member's."""
    topics = [wire.topic]
    wire.beat("join", 0, topics=topics, owned=())
    wire.beat("has them", 1, owned=(0, 1, 2, 3))
    wire.beat("an unknown member", 1, member="X")
    wire.beat("a later epoch", 7)
    wire.beat("a second member", 0, member="B", topics=topics, owned=())
    wire.beat("is to give up two", 1)
    wire.beat("gave up two", 1, owned=(0, 1))
    wire.beat("takes them", 2, member="B")
    wire.beat("an epoch that is over", 1, owned=(0, 1))
    wire.beat("an epoch that is over, with more than it has", 1, owned=(0, 1, 2, 3))
    for version in (8, 9):
        wire.commit("its own epoch", 2, version=version)
        wire.commit("an epoch that is over", 1, version=version)
        wire.commit("a later epoch", 9, version=version)
    wire.commit("an unknown member", 2, "X")
    wire.commit("not a member", -1, "")
    wire.fetch("its own epoch", 2)
    wire.fetch("an epoch that is over", 1)
    wire.fetch("a later epoch", 9)
    wire.fetch("an unknown member", 2, "X")
    wire.fetch("not a member", -1, None)
    wire.about_group("two members")
    wire.delete("not empty")
    wire.beat("leave", -1)
    wire.beat("leave", -1, member="B")
    wire.commit("after it left", 2)
    wire.commit("not a member", -1, "")
    wire.about_group("empty")
    wire.delete("empty")
    wire.about_group("deleted")


def static_members(wire: Wire) -> None:
    """Instance ids that are taken, left for a while, and taken over."""
    topics = [wire.topic]
    wire.beat("join", 0, topics=topics, owned=(), instance_id="one")
    wire.beat("has them", 1, owned=(0, 1, 2, 3), instance_id="one")
    wire.beat("another member, the same instance", 0, member="B", topics=topics, owned=(), instance_id="one")
    wire.beat("another member goes on with it", 1, member="B", instance_id="one")
    wire.beat("unknown instance", 1, instance_id="two")
    wire.beat("leaves for a while", -2, instance_id="one")
    wire.about_group("away")
    wire.beat("comes back as another member", 0, member="B", topics=topics, owned=(), instance_id="one")
    wire.beat("has them", 1, member="B", owned=(0, 1, 2, 3), instance_id="one")
    wire.beat("the one before", 1, instance_id="one")
    wire.commit("the one before", 1, instance="one")
    wire.commit("who took over", 1, "B", instance="one")
    wire.beat("leaves for good", -1, member="B", instance_id="one")
    wire.about_group("left")


def stale_offsets_in_a_transaction(wire: Wire) -> None:
    """TxnOffsetCommit with the epochs of members of the newer protocol."""
    wire.beat("join", 0, topics=[wire.topic], owned=())
    wire.beat("has them", 1, owned=(0, 1, 2, 3))
    wire.begin("begin")
    wire.add_offsets("the group")
    for version in (4, 5):
        member = _MEMBER.format("A")
        wire.send_offsets("its own epoch", version, generation=1, member=member)
        wire.send_offsets("a later epoch", version, generation=4, member=member)
        wire.send_offsets("an epoch that is over", version, generation=0, member=member)
        wire.send_offsets("an unknown member", version, generation=1, member=_MEMBER.format("X"))
        wire.send_offsets("not a member", version)
    wire.end("commit", True)
    wire.described()
    wire.fetch("committed", 1)


SCENARIOS: Final = (
    producers_that_begin, ends_without_a_transaction, ends_twice, partitions_that_are_added, records_out_of_order,
    offsets_in_a_transaction, heartbeats_that_are_refused, epochs_that_are_wrong, static_members,
    stale_offsets_in_a_transaction,
)  # fmt: skip
