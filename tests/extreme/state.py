"""What extreme requests refer to: topics, groups, a transaction, and batches, as they exist on a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pylogd.wire.compression import CompressionType
from pylogd.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pylogd.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pylogd.wire.messages.delete_topics import DeleteTopicsRequest
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from pylogd.wire.records import NewRecord, encode_batch
from tests.rawclient import RawClient, create_topic, produce, wait_until

TOPIC: Final = "extreme"
DOOMED: Final = "doomed"  # what is deleted is this
GROUP: Final = "extreme-group"
CONSUMERS: Final = "extreme-consumers"  # a group of the newer protocol
TRANSACTION: Final = "extreme-transaction"
PARTITIONS: Final = 4
STAMP: Final = 1_700_000_000_000
_PACKED_RECORDS: Final = 200_000
_METADATA: Final = 4_000  # bytes of a group member, which each description of the group repeats
_NOTE: Final = 4_000  # bytes with each committed offset
_AT_ONCE: Final = 100  # topics that one request deletes
_TRANSACTIONS: Final = 1  # the type of coordinator
_LASTS_MS: Final = 900_000  # the longest timeout of a transaction
#: Of the broker: groups are complete as soon as somebody has joined, and their members stay. Metadata creates few
#: topics at a time, or most of a run would be spent on deleting them.
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "max.partitions.per.request": "300",
    "group.consumer.session.timeout.ms": "3600000",
}

#: By API, struct and field, most particular first: what the base message of an API has there. "" stands for any.
_VALUES: Final[dict[tuple[str, str, str], Any]] = {
    ("AlterConfigs", "AlterableConfig", "name"): "retention.ms",
    ("AlterConfigs", "AlterableConfig", "value"): "86400000",
    ("IncrementalAlterConfigs", "AlterableConfig", "name"): "retention.ms",
    ("IncrementalAlterConfigs", "AlterableConfig", "value"): "86400000",
    ("CreateTopics", "CreatableTopic", "name"): DOOMED,
    ("CreateTopics", "CreatableTopic", "num_partitions"): 1,
    ("CreateTopics", "CreatableTopicConfig", "name"): "retention.ms",
    ("CreateTopics", "CreatableTopicConfig", "value"): "86400000",
    ("CreatePartitions", "CreatePartitionsTopic", "count"): PARTITIONS,
    ("DeleteTopics", "", "name"): DOOMED,
    ("DeleteTopics", "", "topic_names"): DOOMED,
    ("DeleteGroups", "", "groups_names"): DOOMED,
    ("JoinGroup", "", "group_id"): DOOMED,
    ("JoinGroup", "", "member_id"): "",
    ("JoinGroup", "JoinGroupRequestProtocol", "name"): "range",
    ("JoinGroup", "", "rebalance_timeout_ms"): 1,
    ("JoinGroup", "", "session_timeout_ms"): 6000,
    ("LeaveGroup", "", "member_id"): "nobody",
    ("ListOffsets", "", "timestamp"): STAMP + 1,
    ("ListOffsets", "", "partition_index"): PARTITIONS - 1,
    ("Fetch", "", "max_bytes"): 1 << 20,
    ("Fetch", "", "partition_max_bytes"): 1 << 20,
    ("ElectLeaders", "", "partitions"): 0,
    ("DescribeTopicPartitions", "", "response_partition_limit"): 2000,
    ("AddOffsetsToTxn", "", "transactional_id"): TRANSACTION,
    ("AddPartitionsToTxn", "", "transactional_id"): TRANSACTION,
    ("AddPartitionsToTxn", "", "v3_and_below_transactional_id"): TRANSACTION,
    ("EndTxn", "", "transactional_id"): TRANSACTION,
    ("InitProducerId", "", "transactional_id"): TRANSACTION,
    ("TxnOffsetCommit", "", "transactional_id"): TRANSACTION,
    ("ConsumerGroupDescribe", "", "group_ids"): CONSUMERS,
    ("ConsumerGroupHeartbeat", "", "group_id"): CONSUMERS,
    ("ConsumerGroupHeartbeat", "", "rebalance_timeout_ms"): 1000,
    ("ConsumerGroupHeartbeat", "", "subscribed_topic_names"): TOPIC,
    ("ListTransactions", "", "state_filters"): "Ongoing",
    ("ListTransactions", "", "duration_filter"): -1,
    ("ListTransactions", "", "transactional_id_pattern"): "ex.*",
    ("UpdateFeatures", "", "feature"): "group.version",
    ("UpdateFeatures", "", "max_version_level"): 1,
    ("UpdateFeatures", "", "upgrade_type"): 1,
    ("WriteTxnMarkers", "", "coordinator_epoch"): 0,
    ("InitProducerId", "", "producer_id"): -1,
    ("InitProducerId", "", "producer_epoch"): -1,
    ("InitProducerId", "", "transaction_timeout_ms"): 60_000,
    ("OffsetFetch", "", "member_epoch"): -1,
    ("CreateAcls", "", "principal"): "User:stranger",
    ("CreateAcls", "", "host"): "*",
    ("CreateAcls", "", "resource_pattern_type"): 3,
    ("CreateAcls", "", "operation"): 2,
    ("CreateAcls", "", "permission_type"): 3,
    ("", "", "resource_type_filter"): 1,
    ("", "", "pattern_type_filter"): 1,
    ("", "", "operation"): 1,
    ("", "", "permission_type"): 1,
    ("", "", "mechanism"): "PLAIN",
    ("AlterUserScramCredentials", "", "mechanism"): 1,
    ("AlterUserScramCredentials", "", "name"): "stranger",
    ("AlterUserScramCredentials", "", "iterations"): 4096,
    ("AlterUserScramCredentials", "", "salt"): bytes(16),
    ("AlterUserScramCredentials", "", "salted_password"): bytes(32),
    ("", "", "acks"): -1,
    ("", "", "broker_ids"): 1,
    ("", "", "replicas"): 1,
    ("", "", "replica_id"): -1,
    ("", "", "replication_factor"): 1,
    ("", "", "current_leader_epoch"): -1,
    ("", "", "committed_leader_epoch"): -1,
    ("", "", "last_fetched_epoch"): -1,
    ("", "", "log_start_offset"): -1,
    ("", "", "partition"): 0,
    ("", "", "path"): "/nowhere",
    ("", "", "protocol_type"): "consumer",
    ("", "", "resource_name"): TOPIC,
    ("", "", "resource_type"): 2,
    ("", "", "timeout_ms"): 5000,
    ("", "", "topic"): TOPIC,
    ("", "", "name"): TOPIC,
    ("", "", "transactional_ids"): TRANSACTION,
    ("", "", "groups"): GROUP,
    ("", "", "group_id"): GROUP,
    ("", "", "key"): GROUP,
    ("", "", "coordinator_keys"): GROUP,
    ("", "", "client_software_name"): "raw",
    ("", "", "client_software_version"): "1",
}


@dataclass
class Known:
    """What exists.

    member_id, generation: of the group. producer_id: of an idempotent producer. transaction: id and epoch of the
    transactional one, whose transaction is open. consumer_id, consumer_epoch: of the member of the newer group.
    batch: one that is valid. renamed: other names in place of those of what exists. fixed: values of fields by name.
    """

    topic_id: bytes = bytes(16)
    member_id: str = ""
    generation: int = 0
    producer_id: int = -1
    transaction: tuple[int, int] = (0, 0)
    consumer_id: str = ""
    consumer_epoch: int = 0
    renamed: Mapping[Any, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    batch: bytes = field(default_factory=lambda: encode_batch([NewRecord(b"key", b"value", STAMP)]))

    def value(self, api: str, struct: str, name: str) -> Any:
        """Return what a field of the base message has, or None for the default of its type."""
        if name in self.fixed:
            return self.fixed[name]
        if name == "topic_id" and api not in ("Metadata", "DeleteTopics"):  # they may not have a name beside it
            return self.topic_id
        for key in ((api, struct, name), (api, "", name), ("", "", name)):
            if key in _VALUES:
                return self.renamed.get(_VALUES[key], _VALUES[key])
        return self._numbers(api).get(name)

    def _numbers(self, api: str) -> dict[str, Any]:
        """Return the ids and epochs that fields of an API refer to."""
        if api == "ConsumerGroupHeartbeat":
            return {"member_id": self.consumer_id, "member_epoch": self.consumer_epoch}
        producer_id, epoch = self.transaction
        return {
            "member_id": self.member_id, "generation_id": self.generation,
            "generation_id_or_member_epoch": self.generation,
            "producer_id": producer_id, "producer_epoch": epoch, "producer_id_filters": producer_id,
            "v3_and_below_producer_id": producer_id, "v3_and_below_producer_epoch": epoch,
        }  # fmt: skip


def prepare(client: RawClient) -> Known:
    """Make what requests refer to: a topic whose last partition has a packed batch, members, offsets, a transaction."""
    create_topic(client, TOPIC, PARTITIONS)
    known = Known()
    produce(client, TOPIC, [known.batch] * (PARTITIONS - 1) + [packed()])
    wanted = MetadataRequest([MetadataRequestTopic(name=TOPIC)])
    known.topic_id = client.request(wanted, 12).topics[0].topic_id
    known.producer_id = client.request(InitProducerIdRequest(None, 60_000), 4).producer_id
    _join(client, known)
    _consume(client, known)
    begin_transaction(client, known)
    return known


def make_doomed(client: RawClient) -> None:
    """Make the topic that requests delete, if it is gone."""
    client.request(CreateTopicsRequest([CreatableTopic(DOOMED, 1, 1)], 30_000), 5)


def delete_others(client: RawClient) -> None:
    """Delete the topics that requests with many names have made, before they fill the broker's memory."""
    names = [topic.name or "" for topic in client.request(MetadataRequest(None), 9).topics]
    others = [name for name in names if name.startswith("other-")]
    for start in range(0, len(others), _AT_ONCE):
        client.request(DeleteTopicsRequest(topic_names=others[start : start + _AT_ONCE], timeout_ms=30_000), 5)


def packed(records: int = _PACKED_RECORDS) -> bytes:
    """Return a batch of a few KB with very many records, none of which has a time behind `STAMP`."""
    return encode_batch([NewRecord(None, b"", STAMP)] * records, compression=CompressionType.ZSTD)


def begin_transaction(client: RawClient, known: Known) -> None:
    """Give the transactional producer an epoch, and begin its transaction."""
    wanted = FindCoordinatorRequest(key_type=_TRANSACTIONS, coordinator_keys=[TRANSACTION])
    wait_until(lambda: not client.request(wanted, 4).coordinators[0].error_code, "there is a coordinator")
    made: list[Any] = []

    def initialized() -> bool:
        made[:] = [client.request(InitProducerIdRequest(TRANSACTION, _LASTS_MS), 4)]
        return not made[0].error_code

    try:
        wait_until(initialized, "the producer has an epoch")
    except AssertionError as error:
        raise AssertionError(f"{error}; the last answer was {made}") from error
    known.transaction = made[0].producer_id, made[0].producer_epoch
    topics = [AddPartitionsToTxnTopic(TOPIC, [0])]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=TRANSACTION, v3_and_below_producer_id=known.transaction[0],
        v3_and_below_producer_epoch=known.transaction[1], v3_and_below_topics=topics,
    )  # fmt: skip
    answer = client.request(request, 3).results_by_topic_v3_and_below
    assert not answer[0].results_by_partition[0].partition_error_code, answer


def _consume(client: RawClient, known: Known) -> None:
    """Be the member of the newer group."""
    join = ConsumerGroupHeartbeatRequest(
        CONSUMERS, "extreme-consumer", 0, rebalance_timeout_ms=1000, subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    )  # fmt: skip
    joined: list[Any] = []

    def has_joined() -> bool:
        joined[:] = [client.request(join, 1)]
        return not joined[0].error_code

    wait_until(has_joined, "the newer group has a member")
    known.consumer_id, known.consumer_epoch = joined[0].member_id, joined[0].member_epoch


def _ask_for_id(client: RawClient, join: JoinGroupRequest) -> str:
    join.member_id = client.request(join, 6).member_id
    return join.member_id


def _join(client: RawClient, known: Known) -> None:
    join = JoinGroupRequest(
        GROUP, 300_000, 1000, protocol_type="consumer", protocols=[JoinGroupRequestProtocol("range", bytes(_METADATA))]
    )
    wanted = FindCoordinatorRequest(coordinator_keys=[GROUP])
    wait_until(lambda: not client.request(wanted, 4).coordinators[0].error_code, "there is a coordinator")
    wait_until(lambda: _ask_for_id(client, join), "the coordinator gives out a member id")
    joined = client.request(join, 6)
    assert joined.error_code == 0, joined
    known.member_id, known.generation = joined.member_id, joined.generation_id
    shares = [SyncGroupRequestAssignment(known.member_id, b"all")]
    sync = SyncGroupRequest(GROUP, known.generation, known.member_id, assignments=shares)
    assert client.request(sync, 3).error_code == 0
    offsets = [OffsetCommitRequestPartition(number, 1, committed_metadata="m" * _NOTE) for number in range(PARTITIONS)]
    commit = OffsetCommitRequest(
        GROUP, known.generation, known.member_id, topics=[OffsetCommitRequestTopic(TOPIC, partitions=offsets)]
    )
    answer = client.request(commit, 7)
    assert not any(partition.error_code for partition in answer.topics[0].partitions), answer
