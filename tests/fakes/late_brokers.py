"""Three fake brokers, of which the last learns late of what the others did, and the changes of which it learns.

Strategy: a `Change` has the call that makes it, the answer of the broker that carries it out, and what brokers answer
before and after it to the question that shows it. `LateBrokers` gives the last broker's first answers as they were
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pylogd.base.errors import ErrorCode
from pylogd.client import Acl, AclFilter, NewTopic
from pylogd.client.core.admin.access_operations import QuotaEntity, UserCredential
from pylogd.wire.messages import (
    APIS,
    ApiKey,
    alter_client_quotas,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    api_versions,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_user_scram_credentials,
    elect_leaders,
    incremental_alter_configs,
    list_partition_reassignments,
    update_features,
)
from pylogd.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.fakes.broker import FakeBroker

#: How many of its answers the last broker gives as they were before a change.
LATE_ANSWERS: Final = 3
_OLD_ID, _NEW_ID = b"o" * 16, b"n" * 16


@dataclass(frozen=True)
class Change:
    """A change. api: of what makes it. shown_by: the API whose answers show it."""

    make: Callable[[Any], Any]
    api: ApiKey
    answer: Any
    shown_by: ApiKey
    before: Any
    after: Any


class LateBrokers:
    """The brokers by id. answers: what each has answered to the question that shows the change."""

    def __init__(self, brokers: Mapping[int, FakeBroker], change: Change, late_answers: int) -> None:
        self.brokers = brokers
        self.change = change
        self.answers: dict[int, list[Any]] = {node: [] for node in brokers}
        known = [MetadataResponseBroker(node, each.host, each.port) for node, each in brokers.items()]
        for node, each in brokers.items():
            late = late_answers if node == max(brokers) else 0
            self._serve(each, change.api, lambda _: change.answer)
            self._serve(each, change.shown_by, self._shows(node, late))
            metadata = self._shows(node, late) if change.shown_by is ApiKey.METADATA else lambda _: []
            self._serve(each, ApiKey.METADATA, self._metadata(known, metadata))

    @property
    def address(self) -> str:
        return self.brokers[1].address

    @property
    def all_show_it(self) -> bool:
        """Whether the last answer of each broker showed the change."""
        return all(answers and answers[-1] is self.change.after for answers in self.answers.values())

    @staticmethod
    def _serve(broker: FakeBroker, api: ApiKey, act: Callable[[Any], Any]) -> None:
        setattr(broker, "_" + APIS[api].module, act)

    def _shows(self, node: int, late: int) -> Callable[[Any], Any]:
        def answer(_: Any) -> Any:
            given = self.answers[node]
            given.append(self.change.before if len(given) < late else self.change.after)
            return given[-1]

        return answer

    @staticmethod
    def _metadata(brokers: list[MetadataResponseBroker], topics: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return what answers Metadata: `topics` if the request names any."""
        return lambda request: MetadataResponse(
            brokers=brokers, controller_id=1, topics=topics(request) if request.topics else []
        )


@contextmanager
def late_brokers(change: Change, late_answers: int = LATE_ANSWERS) -> Iterator[LateBrokers]:
    """Run brokers of which the last gives so many answers as they were before a change."""
    with ExitStack() as stack:
        yield LateBrokers({node: stack.enter_context(FakeBroker()) for node in (1, 2, 3)}, change, late_answers)


def topic(*leaders: int, topic_id: bytes = _NEW_ID) -> list[MetadataResponseTopic]:
    """Return what Metadata says of the topic `t`."""
    partitions = [MetadataResponsePartition(0, index, leader, 0, [1], [1]) for index, leader in enumerate(leaders)]
    return [MetadataResponseTopic(0, "t", topic_id, False, partitions)]


def _configs(kind: int, name: str, source: int, **values: str) -> describe_configs.DescribeConfigsResponse:
    found = [
        describe_configs.DescribeConfigsResourceResult(key.replace("_", "."), value, config_source=source)
        for key, value in values.items()
    ]
    return describe_configs.DescribeConfigsResponse(
        results=[describe_configs.DescribeConfigsResult(0, None, kind, name, found)]
    )


def _configured(make: Callable[[Any], Any], before: Any, after: Any) -> Change:
    done = incremental_alter_configs.IncrementalAlterConfigsResponse(
        responses=[incremental_alter_configs.AlterConfigsResourceResponse()]
    )
    return Change(make, ApiKey.INCREMENTAL_ALTER_CONFIGS, done, ApiKey.DESCRIBE_CONFIGS, before, after)


def _acls(*hosts: str) -> describe_acls.DescribeAclsResponse:
    listed = [describe_acls.AclDescription("User:bob", host, 3, 3) for host in hosts]
    return describe_acls.DescribeAclsResponse(resources=[describe_acls.DescribeAclsResource(2, "t", 3, listed)])


def _users(**iterations: int) -> describe_user_scram_credentials.DescribeUserScramCredentialsResponse:
    messages = describe_user_scram_credentials
    results = [
        messages.DescribeUserScramCredentialsResult(user, 0, None, [messages.CredentialInfo(1, count)])
        for user, count in iterations.items()
    ] or [messages.DescribeUserScramCredentialsResult("bob", ErrorCode.RESOURCE_NOT_FOUND, None, [])]
    return messages.DescribeUserScramCredentialsResponse(results=results)


def _quotas(**values: float) -> describe_client_quotas.DescribeClientQuotasResponse:
    messages = describe_client_quotas
    entry = messages.EntryData(
        [messages.EntityData("user", "bob")], [messages.ValueData(name, value) for name, value in values.items()]
    )
    return messages.DescribeClientQuotasResponse(entries=[entry] if values else [])


def _reassignments(*partitions: int) -> list_partition_reassignments.ListPartitionReassignmentsResponse:
    messages = list_partition_reassignments
    moving = [messages.OngoingPartitionReassignment(index, [1, 2], [2], [1]) for index in partitions]
    return messages.ListPartitionReassignmentsResponse(topics=[messages.OngoingTopicReassignment("t", moving)])


def _features(level: int) -> api_versions.ApiVersionsResponse:
    keys = [api_versions.ApiVersion(key, api.min_version, api.max_version) for key, api in APIS.items()]
    return api_versions.ApiVersionsResponse(
        api_keys=keys, finalized_features=[api_versions.FinalizedFeatureKey("f", level, level)]
    )


def _labels(*labels: str) -> describe_cluster.DescribeClusterResponse:
    return describe_cluster.DescribeClusterResponse(
        brokers=[describe_cluster.DescribeClusterBroker(1, "h", 1, labels=list(labels))]
    )


_UNKNOWN: Final = [MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t")]
_BOB: Final = QuotaEntity(user="bob")
_ACL: Final = Acl("TOPIC", "t", "LITERAL", "User:bob", "*", "READ", "ALLOW")
_CREATED: Final = create_topics.CreateTopicsResponse(topics=[create_topics.CreatableTopicResult("t", _NEW_ID)])
_EXISTS: Final = create_topics.CreateTopicsResponse(
    topics=[create_topics.CreatableTopicResult("t", error_code=ErrorCode.TOPIC_ALREADY_EXISTS)]
)
_DELETED: Final = delete_topics.DeleteTopicsResponse(responses=[delete_topics.DeletableTopicResult("t", _OLD_ID)])
_GROWN: Final = create_partitions.CreatePartitionsResponse(results=[create_partitions.CreatePartitionsTopicResult("t")])
_ELECTED: Final = elect_leaders.ElectLeadersResponse(
    replica_election_results=[elect_leaders.ReplicaElectionResult("t", [elect_leaders.PartitionResult(0)])]
)
_MOVED: Final = alter_partition_reassignments.AlterPartitionReassignmentsResponse(
    responses=[
        alter_partition_reassignments.ReassignableTopicResponse(
            "t", [alter_partition_reassignments.ReassignablePartitionResponse(0)]
        )
    ]
)
_ACL_CREATED: Final = create_acls.CreateAclsResponse(results=[create_acls.AclCreationResult()])
_ACL_DELETED: Final = delete_acls.DeleteAclsResponse(
    filter_results=[
        delete_acls.DeleteAclsFilterResult(
            matching_acls=[delete_acls.DeleteAclsMatchingAcl(0, None, 2, "t", 3, "User:bob", "*", 3, 3)]
        )
    ]
)
_USER: Final = alter_user_scram_credentials.AlterUserScramCredentialsResponse(
    results=[alter_user_scram_credentials.AlterUserScramCredentialsResult("bob")]
)
_QUOTA: Final = alter_client_quotas.AlterClientQuotasResponse(entries=[alter_client_quotas.EntryResult()])

#: The changes that any broker shows, by name.
CHANGES: Final[Mapping[str, Change]] = {
    "a topic is created": Change(
        lambda admin: admin.create_topics([NewTopic("t")]), ApiKey.CREATE_TOPICS, _CREATED,
        ApiKey.METADATA, _UNKNOWN, topic(1),
    ),
    "a topic gets its leader": Change(
        lambda admin: admin.create_topic("t"), ApiKey.CREATE_TOPICS, _CREATED, ApiKey.METADATA, topic(-1), topic(1)
    ),
    "a topic was created by another client": Change(
        lambda admin: admin.create_topics([NewTopic("t")]), ApiKey.CREATE_TOPICS, _EXISTS,
        ApiKey.METADATA, _UNKNOWN, topic(1),
    ),
    "a topic is deleted": Change(
        lambda admin: admin.delete_topic("t"), ApiKey.DELETE_TOPICS, _DELETED,
        ApiKey.METADATA, topic(1, topic_id=_OLD_ID), _UNKNOWN,
    ),
    "a topic is deleted and created again": Change(
        lambda admin: admin.delete_topic("t"), ApiKey.DELETE_TOPICS, _DELETED,
        ApiKey.METADATA, topic(1, topic_id=_OLD_ID), topic(1),
    ),
    "partitions are added": Change(
        lambda admin: admin.create_partitions("t", 2), ApiKey.CREATE_PARTITIONS, _GROWN,
        ApiKey.METADATA, topic(1), topic(1, 2),
    ),
    "leaders are elected": Change(
        lambda admin: admin.elect_leaders([("t", 0)]), ApiKey.ELECT_LEADERS, _ELECTED,
        ApiKey.METADATA, topic(2), topic(1),
    ),
    "replicas move": Change(
        lambda admin: admin.reassign({("t", 0): [2]}), ApiKey.ALTER_PARTITION_REASSIGNMENTS, _MOVED,
        ApiKey.LIST_PARTITION_REASSIGNMENTS, _reassignments(), _reassignments(0),
    ),
    "a setting of a topic is set": _configured(
        lambda admin: admin.alter_configs("topic", "t", {"retention.ms": "2"}),
        _configs(2, "t", 1, retention_ms="1"), _configs(2, "t", 1, retention_ms="2"),
    ),
    "a setting of a topic is removed": _configured(
        lambda admin: admin.alter_configs("topic", "t", {"retention.ms": None}),
        _configs(2, "t", 1, retention_ms="1"), _configs(2, "t", 5, retention_ms="1"),
    ),
    "a list of a topic gets longer": _configured(
        lambda admin: admin.alter_configs("topic", "t", {}, append={"cleanup.policy": "compact"}),
        _configs(2, "t", 1, cleanup_policy="delete"), _configs(2, "t", 1, cleanup_policy="delete,compact"),
    ),
    "a setting of a group is set": _configured(
        lambda admin: admin.alter_configs("group", "g", {"x": "2"}), _configs(32, "g", 5, x="1"),
        _configs(32, "g", 8, x="2"),
    ),
    "a setting of all brokers is set": _configured(
        lambda admin: admin.alter_configs("broker", "", {"x": "2"}), _configs(4, "", 5, x="1"),
        _configs(4, "", 3, x="2"),
    ),
    "a broker's labels are set": Change(
        lambda admin: admin.alter_configs("broker", "1", {"broker.labels": "ssd"}), ApiKey.INCREMENTAL_ALTER_CONFIGS,
        incremental_alter_configs.IncrementalAlterConfigsResponse(), ApiKey.DESCRIBE_CLUSTER, _labels(), _labels("ssd"),
    ),
    "an ACL is created": Change(
        lambda admin: admin.create_acls([_ACL]), ApiKey.CREATE_ACLS, _ACL_CREATED,
        ApiKey.DESCRIBE_ACLS, _acls(), _acls("*"),
    ),
    "an ACL is created beside that of another host": Change(
        lambda admin: admin.create_acls([_ACL]), ApiKey.CREATE_ACLS, _ACL_CREATED,
        ApiKey.DESCRIBE_ACLS, _acls("192.0.2.1"), _acls("192.0.2.1", "*"),
    ),
    "an ACL is deleted": Change(
        lambda admin: admin.delete_acls([AclFilter(name="t")]), ApiKey.DELETE_ACLS, _ACL_DELETED,
        ApiKey.DESCRIBE_ACLS, _acls("*"), _acls(),
    ),
    "a user is created": Change(
        lambda admin: admin.set_password("bob", "secret", ["SCRAM-SHA-256"]), ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        _USER, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, _users(), _users(bob=4096),
    ),
    "a user is deleted": Change(
        lambda admin: admin.delete_credentials([UserCredential("bob", "SCRAM-SHA-256", 4096)]),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, _USER,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, _users(bob=4096), _users(),
    ),
    "a quota is set": Change(
        lambda admin: admin.alter_client_quotas(_BOB, {"producer_byte_rate": 2.0}), ApiKey.ALTER_CLIENT_QUOTAS, _QUOTA,
        ApiKey.DESCRIBE_CLIENT_QUOTAS, _quotas(producer_byte_rate=1.0), _quotas(producer_byte_rate=2.0),
    ),
    "a quota is removed": Change(
        lambda admin: admin.alter_client_quotas(_BOB, {"producer_byte_rate": None}), ApiKey.ALTER_CLIENT_QUOTAS, _QUOTA,
        ApiKey.DESCRIBE_CLIENT_QUOTAS, _quotas(producer_byte_rate=1.0), _quotas(),
    ),
    "a feature's level is changed": Change(
        lambda admin: admin.update_features({"f": 2}), ApiKey.UPDATE_FEATURES, update_features.UpdateFeaturesResponse(),
        ApiKey.API_VERSIONS, _features(1), _features(2),
    ),
}  # fmt: skip
