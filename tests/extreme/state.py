"""What extreme requests refer to: topics, a group, a producer id, and batches, as they exist on a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pylogd.wire.compression import CompressionType
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
PARTITIONS: Final = 4
STAMP: Final = 1_700_000_000_000
_PACKED_RECORDS: Final = 200_000
_METADATA: Final = 4_000  # bytes of a group member, which each description of the group repeats
_NOTE: Final = 4_000  # bytes with each committed offset
_AT_ONCE: Final = 100  # topics that one request deletes
#: Of the broker: groups are complete as soon as somebody has joined. Metadata creates few topics at a time, or most of
#: a run would be spent on deleting them.
SETTINGS: Final = {"group.initial.rebalance.delay.ms": "0", "max.partitions.per.request": "300"}

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

    batch: one that is valid. renamed: other names in place of those of what exists. fixed: values of fields by name.
    """

    topic_id: bytes = bytes(16)
    member_id: str = ""
    generation: int = 0
    producer_id: int = -1
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
        known = {"member_id": self.member_id, "generation_id": self.generation,
                 "generation_id_or_member_epoch": self.generation}  # fmt: skip
        return known.get(name)


def prepare(client: RawClient) -> Known:
    """Make what requests refer to: a topic whose last partition has a packed batch, a member, offsets, a producer."""
    create_topic(client, TOPIC, PARTITIONS)
    known = Known()
    produce(client, TOPIC, [known.batch] * (PARTITIONS - 1) + [packed()])
    wanted = MetadataRequest([MetadataRequestTopic(name=TOPIC)])
    known.topic_id = client.request(wanted, 12).topics[0].topic_id
    known.producer_id = client.request(InitProducerIdRequest(None, 60_000), 4).producer_id
    _join(client, known)
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
