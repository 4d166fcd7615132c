"""The registered handlers: they match the schemas, and respond in every version that is advertised."""

from __future__ import annotations

from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred

import pylogd.broker.api
from pylogd.base.errors import ErrorCode
from pylogd.broker.api import REGISTRATIONS, served_versions, unsupported_api_versions
from pylogd.broker.api.registry import handles, overlapping_apis
from pylogd.config import Settings
from pylogd.wire import schema
from pylogd.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from pylogd.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from pylogd.wire.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from pylogd.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from pylogd.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from pylogd.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from pylogd.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from pylogd.wire.messages.api_versions import ApiVersion, ApiVersionsRequest
from pylogd.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pylogd.wire.messages.create_acls import AclCreation, CreateAclsRequest
from pylogd.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from pylogd.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from pylogd.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pylogd.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from pylogd.wire.messages.delete_groups import DeleteGroupsRequest
from pylogd.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from pylogd.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pylogd.wire.messages.describe_acls import DescribeAclsRequest
from pylogd.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from pylogd.wire.messages.describe_cluster import DescribeClusterRequest
from pylogd.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pylogd.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from pylogd.wire.messages.describe_groups import DescribeGroupsRequest
from pylogd.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from pylogd.wire.messages.describe_producers import DescribeProducersRequest
from pylogd.wire.messages.describe_producers import TopicRequest as ProducersOf
from pylogd.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from pylogd.wire.messages.describe_transactions import DescribeTransactionsRequest
from pylogd.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from pylogd.wire.messages.elect_leaders import ElectLeadersRequest
from pylogd.wire.messages.elect_leaders import TopicPartitions as ElectedPartitions
from pylogd.wire.messages.end_txn import EndTxnRequest
from pylogd.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.incremental_alter_configs import (
    AlterableConfig as IncrementalConfig,
)
from pylogd.wire.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from pylogd.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
)
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pylogd.wire.messages.list_config_resources import ListConfigResourcesRequest
from pylogd.wire.messages.list_groups import ListGroupsRequest
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from pylogd.wire.messages.list_transactions import ListTransactionsRequest
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pylogd.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from pylogd.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from pylogd.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.messages.push_telemetry import PushTelemetryRequest
from pylogd.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from pylogd.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from pylogd.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from pylogd.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch, decoded

#: One typical request of each API; the topic "t" exists.
REQUESTS: list[Any] = [
    ProduceRequest(acks=1, topic_data=[TopicProduceData("t", partition_data=[PartitionProduceData(0, batch())])]),
    FetchRequest(topics=[FetchTopic("t", partitions=[FetchPartition(0, partition_max_bytes=100)])]),
    ListOffsetsRequest(-1, topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=-1)])]),
    MetadataRequest(topics=[MetadataRequestTopic(name="t"), MetadataRequestTopic(name="nope")]),
    FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"]),
    ApiVersionsRequest("test", "1"),
    CreateTopicsRequest([CreatableTopic("new", 1, 1), CreatableTopic("t", 1, 1)]),
    DeleteTopicsRequest([DeleteTopicState("t"), DeleteTopicState("nope")], ["t", "nope"]),
    DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(0, -1)])]),
    InitProducerIdRequest(transactional_id=None),
    AddPartitionsToTxnRequest(
        [AddPartitionsToTxnTransaction("x", 0, 0, False, [AddPartitionsToTxnTopic("t", [0, 7])])],
        "x",
        0,
        0,
        [AddPartitionsToTxnTopic("t", [0, 7])],
    ),
    AddOffsetsToTxnRequest("x", 0, 0, "g"),
    EndTxnRequest("x", 0, 0, True),
    TxnOffsetCommitRequest(
        "x", "g", 0, 0, topics=[TxnOffsetCommitRequestTopic("t", [TxnOffsetCommitRequestPartition(0, 1)])]
    ),
    DescribeTransactionsRequest(["x"]),
    ListTransactionsRequest(),
    ListConfigResourcesRequest(),
    GetTelemetrySubscriptionsRequest(),
    PushTelemetryRequest(bytes(range(16)), 0, False, 0, b""),
    UpdateFeaturesRequest(1000, [FeatureUpdateKey("transaction.version", 2)]),
    SaslHandshakeRequest("PLAIN"),
    CreateDelegationTokenRequest(None, None, [CreatableRenewers("User", "bob")], -1),
    RenewDelegationTokenRequest(b"secret", -1),
    ExpireDelegationTokenRequest(b"secret", -1),
    DescribeDelegationTokenRequest(None),
    DescribeUserScramCredentialsRequest(None),
    AlterUserScramCredentialsRequest([ScramCredentialDeletion("alice", 1)], [ScramCredentialUpsertion("bob", 1, 1)]),
    SaslAuthenticateRequest(b"\0alice\0secret"),
    OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0)])]),
    DescribeConfigsRequest([DescribeConfigsResource(2, "t", None), DescribeConfigsResource(4, "1", None)], True, True),
    AlterConfigsRequest([AlterConfigsResource(2, "t", [AlterableConfig("retention.ms", "5")])]),
    IncrementalAlterConfigsRequest([IncrementalResource(2, "t", [IncrementalConfig("retention.ms", 0, "5")])]),
    DescribeLogDirsRequest(None),
    AlterReplicaLogDirsRequest([AlterReplicaLogDir("/data", [AlterReplicaLogDirTopic("t", [0])])]),
    CreatePartitionsRequest([CreatePartitionsTopic("t", 2, None)]),
    DescribeClusterRequest(),
    DescribeTopicPartitionsRequest(),
    DescribeProducersRequest([ProducersOf("t", [0])]),
    WriteTxnMarkersRequest([WritableTxnMarker(7, 0, True, [WritableTxnMarkerTopic("t", [0])])]),
    OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 7)])]),
    OffsetFetchRequest(
        "g",
        [OffsetFetchRequestTopic("t", [0, 1])],
        [OffsetFetchRequestGroup("g", topics=[OffsetFetchRequestTopics("t", partition_indexes=[0])])],
    ),
    JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"")]),
    HeartbeatRequest("g", 1, "m"),
    LeaveGroupRequest("g", "m", [MemberIdentity("m")]),
    SyncGroupRequest("g", 1, "m", assignments=[SyncGroupRequestAssignment("m", b"")]),
    DescribeGroupsRequest(["g", "h"]),
    ConsumerGroupHeartbeatRequest("g", "m", 0, None, None, 1000, ["t"], None, None, []),
    ConsumerGroupDescribeRequest(["g", "h"]),
    ListGroupsRequest(),
    DeleteGroupsRequest(["g", "h"]),
    OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])]),
    ElectLeadersRequest(0, [ElectedPartitions("t", [0, 1])]),
    AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("t", [ReassignablePartition(0, [1])])]),
    DescribeAclsRequest(1, None, 1, None, None, 1, 1),
    CreateAclsRequest([AclCreation(2, "t", 3, "User:alice", "*", 3, 3)]),
    DeleteAclsRequest([DeleteAclsFilter(1, None, 1, None, None, 1, 1)]),
    ListPartitionReassignmentsRequest(topics=[ListPartitionReassignmentsTopics("t", [0])]),
    DescribeClientQuotasRequest([ComponentData("user", 2, None)]),
    AlterClientQuotasRequest([EntryData([EntityData("user", None)], [OpData("producer_byte_rate", 1024.0)])]),
]
BY_KEY = {request.API_KEY: request for request in REQUESTS}
FIRST_BY_ID = 6  # fields of DeleteTopics
FIRST_WITH_MANY = 4  # fields of FindCoordinator
FIRST_WITH_TRANSACTIONS = 4  # fields of AddPartitionsToTxn
FIRST_WITH_GROUPS = 8  # fields of OffsetFetch
FIRST_WITH_LEAVERS = 3  # fields of LeaveGroup
FIRST_COMMIT_BY_ID = 10  # fields of OffsetCommit and OffsetFetch
SERVED = [(key, version) for key, (first, last) in served_versions().items() for version in range(first, last + 1)]


def without_names(request: Any) -> Any:
    """Return the request with topic ids in place of names."""
    groups = [group.replaced(topics=[topic.replaced(name="") for topic in group.topics]) for group in request.groups]
    return request.replaced(groups=groups)


def request_at(api_key: int, version: int) -> Any:
    """Return the API's request without the fields that the version lacks."""
    request = BY_KEY[api_key]
    if api_key == DeleteTopicsRequest.API_KEY:
        return request.replaced(topic_names=[]) if version >= FIRST_BY_ID else request.replaced(topics=[])
    if api_key == FindCoordinatorRequest.API_KEY:
        return request.replaced(key="") if version >= FIRST_WITH_MANY else request.replaced(coordinator_keys=[])
    if api_key == OffsetFetchRequest.API_KEY:
        if version < FIRST_WITH_GROUPS:
            return request.replaced(groups=[])
        request = request.replaced(group_id="", topics=[])
        return without_names(request) if version >= FIRST_COMMIT_BY_ID else request
    if api_key == OffsetCommitRequest.API_KEY and version >= FIRST_COMMIT_BY_ID:
        return request.replaced(topics=[topic.replaced(name="") for topic in request.topics])
    if api_key == LeaveGroupRequest.API_KEY:
        return request.replaced(member_id="") if version >= FIRST_WITH_LEAVERS else request.replaced(members=[])
    if api_key == DescribeConfigsRequest.API_KEY:
        return request.replaced(include_synonyms=version > 0, include_documentation=version > 2)
    if api_key == AddPartitionsToTxnRequest.API_KEY:
        first = version < FIRST_WITH_TRANSACTIONS
        return request.replaced(transactions=[]) if first else AddPartitionsToTxnRequest(request.transactions)
    if api_key == ElectLeadersRequest.API_KEY and version == 0:
        return request.replaced(election_type=0)
    return request


@pytest.mark.parametrize(
    ("api_key", "version"), SERVED, ids=[f"{REGISTRATIONS[key].name}-{version}" for key, version in SERVED]
)
def test_a_request_off_the_wire_gets_a_reply_for_the_wire(parts: Parts, api_key: int, version: int) -> None:
    topic = parts.create("t")
    parts.call(FindCoordinatorRequest("g"), 3)
    codec = schema.request_codec(api_key, version)
    frame = b"".join(cast("list[bytes]", codec.encode(request_at(api_key, version))))
    request = codec.decode(frame)
    for entry in [*getattr(request, "topic_data", []), *(getattr(request, "topics", None) or [])]:
        if api_key in (0, 1):
            entry.topic_id = topic.topic_id
    response = parts.ask(request, version)
    if isinstance(response, Deferred):
        parts.time.advance(10)  # a new group waits for more members
        response = result_of(response)
    response = decoded(response, api_key, version)
    raw = b"".join(cast("list[bytes]", schema.response_codec(api_key, version).encode(response)))
    schema.response_codec(api_key, version).decode(raw)


def test_every_registration_lies_within_its_schema_and_reaches_the_newest_version() -> None:
    for registration in REGISTRATIONS.values():
        first, last = schema.schema_versions(registration.api_key)
        assert first <= registration.first <= registration.last == last
        assert registration.advertise_from <= registration.first


def test_every_handler_module_is_imported() -> None:
    modules = {registration.handler.__module__ for registration in REGISTRATIONS.values()}
    assert modules == {
        f"pylogd.broker.api.{name}"
        for name in pylogd.broker.api.__all__
        if name.islower() and name in vars(pylogd.broker.api)
    } - {
        "pylogd.broker.api.served_versions",
        "pylogd.broker.api.unsupported_api_versions",
    }


def test_only_requests_without_visible_effect_overlap() -> None:
    """An append is done when its handler returns, and a fetch changes nothing. All others take effect in order."""
    assert overlapping_apis() == {ProduceRequest.API_KEY, FetchRequest.API_KEY}


def test_an_api_has_one_handler() -> None:
    with pytest.raises(ValueError, match="Produce has a handler already"):
        handles(ProduceRequest, 3, 13)(lambda context, request: None)


class TestApiVersions:
    def test_served_versions_are_advertised(self, parts: Parts) -> None:
        told = {one.api_key: (one.min_version, one.max_version) for one in parts.call(BY_KEY[18]).api_keys}
        served = served_versions()
        # librdkafka compresses only for brokers with Produce version 0.
        assert told.pop(0) == (0, served.pop(0)[1])
        # It takes the absence of SaslHandshake version 0 for a broker without SASL.
        assert told[17] == (0, 1)
        # Clients need not ask a broker that serves no metrics what to push.
        assert not {71, 72} & set(told)
        assert told == {key: versions for key, versions in served.items() if key not in (71, 72)}
        parts.settings = Settings({"metrics.listener": "127.0.0.1:0"})
        told = {one.api_key: (one.min_version, one.max_version) for one in parts.call(BY_KEY[18]).api_keys}
        assert told | {0: (3, 13)} == served | {0: (3, 13)}

    def test_an_unknown_version_is_answered_with_those_of_this_api(self) -> None:
        answer = unsupported_api_versions()
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert answer.api_keys == [ApiVersion(18, *served_versions()[18])]
        schema.response_codec(18, 0).encode(answer)

    @pytest.mark.parametrize(
        ("name", "version"), [("", "1"), ("a b", "1"), ("-x", "1"), ("x-", "1"), ("x", ""), ("x", "1\n"), ("é", "1")]
    )
    def test_an_invalid_client_software_name(self, parts: Parts, name: str, version: str) -> None:
        for api_version, code in ((2, 0), (3, ErrorCode.INVALID_REQUEST)):
            assert parts.call(ApiVersionsRequest(name, version), api_version).error_code == code

    @pytest.mark.parametrize("name", ["a", "apache-kafka-java", "librdkafka", "x.y-1"])
    def test_a_valid_client_software_name(self, parts: Parts, name: str) -> None:
        assert parts.call(ApiVersionsRequest(name, "4.0.0"), 4).error_code == 0
