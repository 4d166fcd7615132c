"""What strangers can learn or do: nothing. One test for each kind of stranger and each API, at all its versions.

Strangers are a client that has not authenticated, an anonymous one of a plain listener, one that has authenticated and
has no ACLs, and one of another tenant, who has topics and groups of its own.

Each request is sent twice, about what exists and about what does not: the answers must be the same, byte by byte, but
for the names, which the stranger has given itself. Requests for everything must not name anything. An answer has no
value that the stranger did not send, but error codes and what `TOLD` has for the API. Afterwards all must be as it was.

A new API fails here until `TOLD` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.base.ports import free_ports
from pylogd.broker.api.registry import REGISTRATIONS
from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from pylogd.wire.messages.create_acls import AclCreation, CreateAclsRequest
from pylogd.wire.messages.describe_acls import DescribeAclsRequest
from pylogd.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from pylogd.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pylogd.wire.messages.describe_groups import DescribeGroupsRequest
from pylogd.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from pylogd.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from pylogd.wire.messages.describe_transactions import DescribeTransactionsRequest
from pylogd.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.list_groups import ListGroupsRequest
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from pylogd.wire.messages.list_transactions import ListTransactionsRequest
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest
from pylogd.wire.schema import request_codec, response_codec, response_header_version
from pylogd.wire.values import Message
from tests.extreme.messages import Extreme, Sizes, extremes
from tests.extreme.state import CONSUMERS, GROUP, PARTITIONS, TOPIC, TRANSACTION, Known, prepare
from tests.extreme.state import SETTINGS as GROUPS
from tests.rawclient import ConnectionClosed, RawClient, create_topic, frame, header

USERS: Final = ("admin", "stranger", "tenant")
SETTINGS: Final = {
    "log.retention.ms": "-1",  # its records are old, and would be deleted five minutes after the start
    **GROUPS,
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    + " ".join(f'user_{name}="{name}-secret"' for name in USERS) + ";",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}  # fmt: skip

#: Of the same lengths as what exists, so that answers have the same sizes.
ABSENT: Final = {
    TOPIC: "absent_", GROUP: "absent_-group", CONSUMERS: "absent_-consumers", TRANSACTION: "absent_-transaction",
}  # fmt: skip
ABSENT_ID: Final = bytes(range(16))
#: What anybody may ask, and is answered whoever asks: how to talk to this broker, and where the brokers are.
BEFORE_AUTHENTICATION: Final = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
OPEN: Final = {
    *BEFORE_AUTHENTICATION, ApiKey.DESCRIBE_CLUSTER, ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY,
}  # fmt: skip
#: Whoever may write to any topic gets a producer id (KIP-679), and each time another one; not a transactional id.
ALLOWED: Final = {("tenant", ApiKey.INIT_PRODUCER_ID, "transactional_id null")}
_NOTHING: Final[frozenset[str]] = frozenset()
#: For each API the fields of an answer that may tell a stranger something, beside error codes and their texts: how to
#: talk to this broker, and where the brokers are, which whoever connects has to know.
TOLD: Final = {
    **dict.fromkeys(
        (
            ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH,
            ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP,
            ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.SASL_AUTHENTICATE, ApiKey.CREATE_TOPICS,
            ApiKey.DELETE_TOPICS, ApiKey.DELETE_RECORDS, ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FOR_LEADER_EPOCH,
            ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.DESCRIBE_CONFIGS,
            ApiKey.ALTER_CONFIGS, ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.CREATE_PARTITIONS,
            ApiKey.DESCRIBE_PRODUCERS, ApiKey.WRITE_TXN_MARKERS, ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN,
            ApiKey.DESCRIBE_DELEGATION_TOKEN, ApiKey.DELETE_GROUPS, ApiKey.ELECT_LEADERS,
            ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.OFFSET_DELETE, ApiKey.DESCRIBE_CLIENT_QUOTAS,
            ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN,
            ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS, ApiKey.UPDATE_FEATURES, ApiKey.TXN_OFFSET_COMMIT,
            ApiKey.LIST_CONFIG_RESOURCES, ApiKey.PUSH_TELEMETRY,
        ),
        _NOTHING,
    ),
    ApiKey.API_VERSIONS: frozenset(
        {
            "api_key", "min_version", "max_version", "name", "max_version_level", "min_version_level",
            "finalized_features_epoch",
        }
    ),
    ApiKey.SASL_HANDSHAKE: frozenset({"mechanisms"}),
    # Who the client itself is.
    ApiKey.CREATE_DELEGATION_TOKEN: frozenset(
        {
            "principal_type", "principal_name", "token_requester_principal_type", "token_requester_principal_name",
        }
    ),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: frozenset(
        {
            "client_instance_id", "subscription_id", "accepted_compression_types", "push_interval_ms",
            "telemetry_max_bytes", "delta_temporality",
        }
    ),
    ApiKey.METADATA: frozenset({"node_id", "host", "port", "rack", "cluster_id", "controller_id"}),
    ApiKey.DESCRIBE_CLUSTER: frozenset({"broker_id", "host", "port", "rack", "cluster_id", "controller_id"}),
}  # fmt: skip
#: What stands for "nothing" in a field.
EMPTY: Final = (0, -1, -(1 << 31), "", b"", bytes(16), None)
#: Lists of all topics have the tenant's own.
OWN: Final = {("tenant", ApiKey.METADATA), ("tenant", ApiKey.DESCRIBE_TOPIC_PARTITIONS)}
REFUSALS: Final = {code for code in ErrorCode if code.name.endswith("_AUTHORIZATION_FAILED")}
#: What else a request about things that a stranger may not know of is answered: they seem not to exist.
UNKNOWN: Final = {
    ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,  # for all, since this broker has no secret for tokens
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,  # for all who have not authenticated
}  # fmt: skip
#: Requests that name topics by ids of 122 random bits. As with Kafka, who knows such an id is told whether it exists.
BY_ID: Final = {(ApiKey.PRODUCE, 13), *((ApiKey.FETCH, version) for version in range(13, 19))}
#: Names of fields with error codes.
_CODES: Final = ("error_code", "partition_error_code")
_TENANTS: Final = "tenant-"
_ALL, _ALLOW, _PREFIXED = 2, 3, 4


class SecuredBroker(NamedTuple):
    """The broker, its two listeners, and what is on it."""

    broker: BrokerProcess
    plain: str
    sasl: str
    known: Known
    absent: Known


class SaslClient(RawClient):
    """A connection that has authenticated with PLAIN."""

    def __init__(self, address: str, user: str) -> None:
        super().__init__(address)
        assert self.request(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
        token = f"\0{user}\0{user}-secret".encode()
        answer = self.request(SaslAuthenticateRequest(token), 2)
        assert answer.error_code == 0, answer


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    folder = tmp_path_factory.mktemp("strangers")
    sasl = f"127.0.0.1:{free_ports(1)[0]}"
    broker = BrokerProcess(folder / "data", folder / "log", SETTINGS, ["--listen", f"CLIENTS://{sasl}"])
    with SaslClient(sasl, "admin") as admin:
        known = replace(prepare(admin), fixed={"session_epoch": -1})  # the id of a session is another each time
        create_topic(admin, f"{_TENANTS}topic")
        acls = [AclCreation(kind, _TENANTS, _PREFIXED, "User:tenant", "*", _ALL, _ALLOW) for kind in (2, 3)]
        assert not any(result.error_code for result in admin.request(CreateAclsRequest(acls), 3).results)
    yield SecuredBroker(broker, broker.address, sasl, known, replace(known, renamed=ABSENT, topic_id=ABSENT_ID))
    log = broker.log()
    broker.stop()
    assert "Traceback" not in log and "internal error" not in log, log[-4000:]


CONNECT: Final[dict[str, Callable[[SecuredBroker], RawClient]]] = {
    "anonymous": lambda secured: RawClient(secured.plain),
    "stranger": lambda secured: SaslClient(secured.sasl, "stranger"),
    "tenant": lambda secured: SaslClient(secured.sasl, "tenant"),
}


def everything(secured: SecuredBroker) -> list[str]:
    """What there is, as the administrator sees it."""
    offsets = [ListOffsetsPartition(number, timestamp=-1) for number in range(PARTITIONS)]
    asked: list[tuple[Any, int]] = [
        (MetadataRequest(None), 12),
        (ListOffsetsRequest(-1, topics=[ListOffsetsTopic(TOPIC, offsets)]), 7),
        (DescribeConfigsRequest([DescribeConfigsResource(2, TOPIC, None), DescribeConfigsResource(4, "1", None)]), 4),
        (ListGroupsRequest(), 4),
        (DescribeGroupsRequest([GROUP]), 5),
        (ConsumerGroupDescribeRequest([CONSUMERS]), 1),
        (ListTransactionsRequest(), 1),
        (DescribeTransactionsRequest([TRANSACTION]), 0),
        (DescribeProducersRequest([TopicRequest(TOPIC, [*range(PARTITIONS)])]), 0),
        (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(GROUP, topics=None)]), 8),
        (DescribeAclsRequest(1, None, 1, None, None, 1, 1), 3),
        (DescribeUserScramCredentialsRequest(None), 0),
        (DescribeClientQuotasRequest(), 1),
        (ListPartitionReassignmentsRequest(60_000, None), 0),
    ]
    with SaslClient(secured.sasl, "admin") as admin:
        found = [repr(admin.request(message, version)) for message, version in asked]
        usage = admin.request(DescribeLogDirsRequest(None), 4)
    sizes = [
        (t.name, p.partition_index, p.partition_size) for d in usage.results for t in d.topics for p in t.partitions
    ]
    return [*found, repr(sorted(sizes))]


def next_producer_id(secured: SecuredBroker) -> int:
    """Take a producer id: each is one more than the one before."""
    with SaslClient(secured.sasl, "admin") as admin:
        return int(admin.request(InitProducerIdRequest(None, 60_000), 4).producer_id)


def ask(client: RawClient, request: Extreme) -> bytes | None:
    """The frame that answers a request, or None if the connection is closed instead."""
    client.send(frame(header(request.api_key, request.version) + request.body))
    try:
        return client.read_frame()
    except ConnectionClosed:
        return None


def codes(request: Extreme, answer: bytes) -> set[int]:
    """All error codes in an answer."""
    skipped = 4 + (response_header_version(request.api_key, request.version) >= 1)
    return set(_codes(response_codec(request.api_key, request.version).decode(answer[skipped:])))


def _codes(message: Message) -> Iterator[int]:
    slots: Sequence[str] = type(message).__slots__
    for slot in slots:
        value = getattr(message, slot)
        if slot in _CODES:
            yield value
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Message):
                yield from _codes(one)


def told(request: Extreme, answer: bytes) -> set[str]:
    """The names of fields of an answer with a value that is neither empty nor in the request."""
    skipped = 4 + (response_header_version(request.api_key, request.version) >= 1)
    asked = set(_values(request_codec(request.api_key, request.version).decode(memoryview(request.body))))
    response = response_codec(request.api_key, request.version).decode(answer[skipped:])
    given = {value for _, value in asked}
    return {
        name
        for name, value in _values(response)
        if name not in (*_CODES, "error_message") and value not in EMPTY and value not in given
    }


def _values(message: Message) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of every field that is no list or struct, and of each element of a list."""
    slots: Sequence[str] = type(message).__slots__
    for slot in slots:
        value = getattr(message, slot)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Message):
                yield from _values(one)
            else:
                yield slot, bytes(one) if isinstance(one, memoryview) else one


def test_every_api_is_classified() -> None:
    assert set(TOLD) == set(REGISTRATIONS)


def requests(api_key: int, version: int, known: Known) -> list[Extreme]:
    """A request about one thing of each kind, and those for all that there is."""
    variants = [known]
    if api_key == ApiKey.FIND_COORDINATOR and version > 0:  # which groups have, or transactions
        name = known.renamed.get(TRANSACTION, TRANSACTION)
        variants.append(replace(known, fixed={**known.fixed, "key_type": 1, "key": name, "coordinator_keys": name}))
    return [
        request
        for variant in variants
        for request in extremes(api_key, version, variant, Sizes(1, 1))
        if request.about == "as it should be" or request.about.endswith((" null", " none"))
    ]


@pytest.mark.parametrize("api_key", sorted(REGISTRATIONS), ids=lambda key: REGISTRATIONS[key].name)
@pytest.mark.parametrize("who", CONNECT)
def test_nothing_is_learnt_or_done(secured: SecuredBroker, who: str, api_key: int) -> None:
    before, number = everything(secured), next_producer_id(secured)
    for version in range(REGISTRATIONS[api_key].first, REGISTRATIONS[api_key].last + 1):
        about_known = requests(api_key, version, secured.known)
        about_absent = requests(api_key, version, secured.absent)
        for request, same in zip(about_known, about_absent, strict=True):
            with CONNECT[who](secured) as client:
                answer = ask(client, request)
            with CONNECT[who](secured) as client:
                other = ask(client, same)
            if (who, api_key, request.about) in ALLOWED:
                number += 2
                continue
            if (api_key, version) in BY_ID:
                assert answer is not None and codes(request, answer) <= REFUSALS | UNKNOWN | {0}, request
                assert not told(request, answer), request
                continue
            if api_key not in RANDOM:
                assert _as_known(other, secured) == answer, f"{request}: it differs from that about what does not exist"
            if answer is not None and not ((who, api_key) in OWN and request.about != "as it should be"):
                assert told(request, answer) <= TOLD[ApiKey(api_key)], request
            for secret in (TOPIC, GROUP, secured.known.member_id):
                assert answer is None or secret.encode() not in answer or secret.encode() in request.body, request
            if request.about == "as it should be" and answer is not None and api_key not in OPEN:
                found = codes(request, answer)
                assert found <= REFUSALS | UNKNOWN | {0}, request
                assert found - {0} or api_key in LISTS, f"{request}: nothing was refused"
    assert everything(secured) == before
    assert next_producer_id(secured) == number + 1


#: Each answer has an id that was made for it.
RANDOM: Final = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS}
#: What lists things lists none, and refuses nothing.
LISTS: Final = {
    ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.METADATA, ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}  # fmt: skip


def _as_known(answer: bytes | None, secured: SecuredBroker) -> bytes | None:
    if answer is None:
        return None
    for name, absent in sorted(ABSENT.items(), reverse=True):
        answer = answer.replace(absent.encode(), name.encode())
    return answer.replace(ABSENT_ID, secured.known.topic_id)


@pytest.mark.parametrize("api_key", sorted(REGISTRATIONS), ids=lambda key: REGISTRATIONS[key].name)
def test_who_has_not_authenticated_is_cut_off(secured: SecuredBroker, api_key: int) -> None:
    before = everything(secured)
    for version in range(REGISTRATIONS[api_key].first, REGISTRATIONS[api_key].last + 1):
        for request in requests(api_key, version, secured.known):
            with RawClient(secured.sasl) as client:
                answer = ask(client, request)
            if api_key not in BEFORE_AUTHENTICATION:
                assert answer is None or codes(request, answer) == {ErrorCode.ILLEGAL_SASL_STATE}, request
            elif api_key == ApiKey.SASL_AUTHENTICATE and answer is not None:
                assert codes(request, answer) & {ErrorCode.ILLEGAL_SASL_STATE, ErrorCode.SASL_AUTHENTICATION_FAILED}
    assert everything(secured) == before


@pytest.mark.parametrize("user", ["stranger", "tenant"])
def test_a_wrong_password_is_worth_as_much_as_no_user(secured: SecuredBroker, user: str) -> None:
    answers = []
    for name in (user, "nobody-" + user):
        with RawClient(secured.sasl) as client:
            assert client.request(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
            answer = client.request(SaslAuthenticateRequest(f"\0{name}\0wrong".encode()), 2)
            answers.append((answer.error_code, (answer.error_message or "").replace(name, "")))
    assert answers[0] == answers[1]
    assert answers[0][0] == ErrorCode.SASL_AUTHENTICATION_FAILED
