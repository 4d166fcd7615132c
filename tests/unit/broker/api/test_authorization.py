"""Every API against every operation: each asks for the operations of Kafka's documentation, and needs no others.

The requests are those of `test_versions`, which has one of every API that is served, so an API without a check fails
here. `DOCUMENTED` is Kafka's table; `ENOUGH` says which of its rows have to be allowed together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api import REGISTRATIONS, served_versions
from pylogd.broker.api.find_coordinator import TRANSACTION
from pylogd.broker.security.authorizer import AclOperation as Op
from pylogd.broker.security.authorizer import ResourceType as Kind
from pylogd.credentials.principal import Principal
from pylogd.wire import schema
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.values import ZERO_UUID, Message
from tests.fakes.kafka_operations import DOCUMENTED
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, decoded
from tests.unit.broker.api.test_versions import request_at

Pair = tuple[Op, Kind]

OPERATIONS = tuple(operation for operation in Op if operation not in (Op.ANY, Op.ALL))
PAIRS = [(operation, kind) for operation in OPERATIONS for kind in Kind if kind is not Kind.ANY]
REFUSALS = {code for code in ErrorCode if code.name.endswith("_AUTHORIZATION_FAILED")}

#: Sets of rows, each of which is enough for the request of `test_versions`. APIs without an entry need all their rows.
ENOUGH: dict[ApiKey, list[set[Pair]]] = {
    # A transactional id needs Write for it; IdempotentWrite is asked for where producers get their ids.
    ApiKey.PRODUCE: [{(Op.WRITE, Kind.TOPIC)}],
    ApiKey.FETCH: [{(Op.READ, Kind.TOPIC)}],  # ClusterAction for followers only
    ApiKey.METADATA: [  # the request creates a topic
        {(Op.DESCRIBE, Kind.TOPIC), (Op.CREATE, Kind.TOPIC)},
        {(Op.DESCRIBE, Kind.TOPIC), (Op.CREATE, Kind.CLUSTER)},
    ],
    ApiKey.FIND_COORDINATOR: [{(Op.DESCRIBE, Kind.GROUP)}],  # the request is about groups
    ApiKey.LIST_GROUPS: [{(Op.DESCRIBE, Kind.CLUSTER)}, {(Op.DESCRIBE, Kind.GROUP)}],
    ApiKey.CREATE_TOPICS: [{(Op.CREATE, Kind.CLUSTER)}, {(Op.CREATE, Kind.TOPIC)}],
    # Not documented: Write for any topic is enough (KIP-679). A transactional id needs Write for it.
    ApiKey.INIT_PRODUCER_ID: [{(Op.IDEMPOTENT_WRITE, Kind.CLUSTER)}, {(Op.WRITE, Kind.TOPIC)}],
    ApiKey.OFFSET_FOR_LEADER_EPOCH: [{(Op.CLUSTER_ACTION, Kind.CLUSTER)}, {(Op.DESCRIBE, Kind.TOPIC)}],
    ApiKey.ALTER_CONFIGS: [{(Op.ALTER_CONFIGS, Kind.TOPIC)}],  # the request is about a topic
    ApiKey.INCREMENTAL_ALTER_CONFIGS: [{(Op.ALTER_CONFIGS, Kind.TOPIC)}],
    # The documentation says ClusterAction, but Kafka's brokers ask for Alter.
    ApiKey.ELECT_LEADERS: [{(Op.ALTER, Kind.CLUSTER)}],
    # Kafka's brokers ask for Describe of topics too (KIP-848), and to describe a group for Describe.
    ApiKey.CONSUMER_GROUP_HEARTBEAT: [{(Op.READ, Kind.GROUP), (Op.DESCRIBE, Kind.TOPIC)}],
    ApiKey.CONSUMER_GROUP_DESCRIBE: [{(Op.DESCRIBE, Kind.GROUP)}],
    # The documentation has Alter only from Kafka 4.0 on.
    ApiKey.WRITE_TXN_MARKERS: [{(Op.CLUSTER_ACTION, Kind.CLUSTER)}, {(Op.ALTER, Kind.CLUSTER)}],
    # Kafka's brokers ask for Describe only if the request wants the authorized operations.
    ApiKey.DESCRIBE_CLUSTER: [set()],
}
#: APIs with rules of their own, which are tested with their handlers.
OWN_RULES = {
    "CREATE_DELEGATION_TOKEN", "RENEW_DELEGATION_TOKEN", "EXPIRE_DELEGATION_TOKEN", "DESCRIBE_DELEGATION_TOKEN",
    "ADD_PARTITIONS_TO_TXN",
}  # fmt: skip


class Only:
    """An authorizer that allows pairs of operation and resource type, whatever the name."""

    version = 0

    def __init__(self, allowed: Iterable[Pair]) -> None:
        self.allowed = set(allowed)

    def authorize(self, principal: Principal, host: str, operation: Op, resource: Kind, name: str) -> bool:
        return (operation, resource) in self.allowed

    def authorize_any(self, principal: Principal, host: str, operation: Op, resource: Kind) -> bool:
        return (operation, resource) in self.allowed


def enough(api_key: int) -> list[set[Pair]]:
    """Return sets of pairs, each of which is enough for the API."""
    _, rows = DOCUMENTED[api_key]
    return ENOUGH.get(ApiKey(api_key)) or [set(rows)]


def checked() -> list[tuple[int, int]]:
    """Return the lowest and the highest version of every API that has a row in the table."""
    return [
        (key, version)
        for key, versions in served_versions().items()
        if DOCUMENTED[key][0] not in OWN_RULES and enough(key) != [set()]
        for version in sorted(set(versions))
    ]


def names(cases: Iterable[tuple[int, int]]) -> list[str]:
    return [f"{REGISTRATIONS[key].name}-{version}" for key, version in cases]


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    made.create("t")
    made.call(FindCoordinatorRequest("g"), 3)
    joining = JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"")])
    joined = made.ask(joining, 0)
    made.time.advance(10)
    assert made.call(FindCoordinatorRequest("x", TRANSACTION), 3).error_code == ErrorCode.NONE
    assert made.call(InitProducerIdRequest("x", 1000), 5).error_code == ErrorCode.NONE
    assert result_of(joined).error_code == ErrorCode.NONE
    yield made
    made.authorizer = None
    made.close()


def ask(parts: Parts, api_key: int, version: int, topic: str = "t") -> Any:
    """Return the response, as a client decodes it."""
    request: Any = request_at(api_key, version)
    if isinstance(request, DescribeTopicPartitionsRequest):
        request = DescribeTopicPartitionsRequest([TopicRequest("t")])
    codec = schema.request_codec(api_key, version)
    request = codec.decode(b"".join(cast("list[bytes]", codec.encode(request))))
    found = parts.topics.get(topic)
    give_ids(request, found.topic_id if found is not None else ZERO_UUID)
    if topic != "t":
        rename(request, topic)
    response = parts.ask(request, version)
    if isinstance(response, Deferred):
        if not response.called:
            parts.time.advance(10)
        response = result_of(response)
    reply = schema.response_codec(api_key, version)
    response = decoded(response, api_key, version)
    return reply.decode(b"".join(cast("list[bytes]", reply.encode(response))))


def structs(message: Message) -> Iterator[Message]:
    """Yield a message and all messages in it."""
    yield message
    slots: tuple[str, ...] = message.__slots__
    for name in slots:
        value = getattr(message, name)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Message):
                yield from structs(one)


def give_ids(request: Message, topic_id: bytes) -> None:
    """Give topics their ids in place of names, as the newer versions do."""
    for struct in structs(request):
        by_name = getattr(struct, "name", None) or getattr(struct, "topic", None)
        if "topic_id" in struct.__slots__ and not by_name:
            struct.topic_id = topic_id  # type: ignore[attr-defined]


def rename(request: Message, topic: str) -> None:
    for struct in structs(request):
        if "topic_names" in struct.__slots__:
            struct.topic_names = [topic if name == "t" else name for name in struct.topic_names]  # type: ignore[attr-defined]
        for name in ("name", "topic", "resource_name"):
            if name in struct.__slots__ and getattr(struct, name) == "t":
                setattr(struct, name, topic)


def refused(api_key: int, response: Message) -> bool:
    if api_key == ApiKey.LIST_GROUPS:
        return not response.groups  # type: ignore[attr-defined]
    if api_key == ApiKey.DESCRIBE_LOG_DIRS:
        return not response.results  # type: ignore[attr-defined]
    if api_key == ApiKey.LIST_TRANSACTIONS:
        return not response.transaction_states  # type: ignore[attr-defined]
    return any(getattr(struct, "error_code", 0) in REFUSALS for struct in structs(response))


def test_kafka_documents_every_api_that_is_served() -> None:
    assert set(REGISTRATIONS) <= set(DOCUMENTED)
    for key, alternatives in ENOUGH.items():
        assert key in REGISTRATIONS
        rows = set(DOCUMENTED[key][1]) | {(Op.WRITE, Kind.TOPIC), (Op.ALTER, Kind.CLUSTER)}
        if key in (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE):
            rows |= {(Op.DESCRIBE, Kind.TOPIC), (Op.DESCRIBE, Kind.GROUP)}
        assert all(alternative <= rows for alternative in alternatives), key


@pytest.mark.parametrize(("api_key", "version"), checked(), ids=names(checked()))
def test_nothing_less_than_the_documented_operations_is_enough(parts: Parts, api_key: int, version: int) -> None:
    sufficient = enough(api_key)
    for pair in PAIRS:
        if {pair} not in sufficient:
            parts.authorizer = Only([pair])
            assert refused(api_key, ask(parts, api_key, version)), f"{pair} is enough"
    for alternative in sufficient:
        for missing in alternative:
            others = {pair for one in sufficient if missing not in one and len(one) == 1 for pair in one}
            parts.authorizer = Only(alternative - {missing} - others)
            assert refused(api_key, ask(parts, api_key, version)), f"{missing} is not needed"
    parts.authorizer = Only(set(PAIRS).difference(*sufficient))
    assert refused(api_key, ask(parts, api_key, version)), "something else is enough"


@pytest.mark.parametrize(("api_key", "version"), checked(), ids=names(checked()))
def test_the_documented_operations_are_enough(tmp_path: Path, parts: Parts, api_key: int, version: int) -> None:
    for alternative in enough(api_key):
        parts.authorizer = Only(alternative)
        assert not refused(api_key, ask(parts, api_key, version)), f"{alternative} is not enough"


@pytest.mark.parametrize(("api_key", "version"), checked(), ids=names(checked()))
def test_a_refusal_does_not_tell_whether_a_topic_exists(parts: Parts, api_key: int, version: int) -> None:
    parts.authorizer = Only([(Op.READ, Kind.GROUP), (Op.DESCRIBE, Kind.GROUP), (Op.DELETE, Kind.GROUP)])
    there, missing = ask(parts, api_key, version), ask(parts, api_key, version, topic="n")
    rename(there, "n")
    for response in (there, missing):
        if not any(getattr(struct, "name", None) or getattr(struct, "topic", None) for struct in structs(response)):
            return  # by id, which is no secret
        give_ids(response, ZERO_UUID)
    assert there == missing
