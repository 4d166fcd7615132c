"""ACLs in the metadata store, run on each kind of store: in Kafka's nodes, and in force on every broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.security.acl_store import AclStore
from pylogd.broker.security.acls import (
    AclBinding,
    AclEntry,
    AclFilter,
    PatternType,
    Permission,
    ResourcePattern,
    make_binding,
)
from pylogd.broker.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from pylogd.broker.security.rules import AclAuthorizer, AclIndex, select
from pylogd.credentials.principal import Principal
from tests.contract.test_metadata_store import BENCHES, Bench, StoreClient
from tests.zookeeper import ZooKeeperBench

ALICE, BOB, ROOT = (Principal("User", name) for name in ("alice", "bob", "root"))
HOST = "10.0.0.1"
READ_T = make_binding(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:alice", "*", AclOperation.READ, 3)
WRITE_T = make_binding(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:alice", "10.0.0.0/8", AclOperation.WRITE, 3)
DENY_WEB = make_binding(ResourceType.TOPIC, "web-", PatternType.PREFIXED, "User:*", "*", AclOperation.ALL, 2)
SLASH = make_binding(ResourceType.GROUP, "a/b%41", PatternType.LITERAL, "User:bob", "*", AclOperation.READ, 3)
DOTS = make_binding(ResourceType.GROUP, "..", PatternType.PREFIXED, "User:bob", "*", AclOperation.READ, 3)
ALTER = make_binding(
    ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, "User:alice", "*", AclOperation.ALTER_CONFIGS, 3
)


class Broker:
    """The ACLs of one broker."""

    def __init__(self, bench: Bench, store: Any) -> None:
        self._bench = bench
        self.authorizer = AclAuthorizer(AclIndex(), [ROOT])
        self.feed = ChangeFeed(store)
        self.acls = AclStore(store, self.feed, self.authorizer)
        bench.wait(self.feed.start())

    def create(self, *bindings: AclBinding) -> dict[AclBinding, KafkaError | None]:
        found: dict[AclBinding, KafkaError | None] = self._bench.wait(self.acls.create(bindings))
        return found

    def delete(self, *filters: AclFilter) -> list[list[AclBinding]]:
        found: list[list[AclBinding]] = self._bench.wait(self.acls.delete(filters))
        return found

    def all(self) -> list[AclBinding]:
        return select(self.acls.items(), AclFilter())

    def may(self, who: Principal, operation: AclOperation, name: str = "t", host: str = HOST) -> bool:
        return self.authorizer.authorize(who, host, operation, ResourceType.TOPIC, name)

    def catch_up(self) -> None:
        self._bench.wait(Deferred.fromCoroutine(self.feed.catch_up()))


@pytest.fixture(params=list(BENCHES.values()), ids=list(BENCHES))
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made: Bench = request.param(request)
    yield made
    if isinstance(made, ZooKeeperBench):
        made.close()


@pytest.fixture
def tree(bench: Bench) -> Iterator[StoreClient]:
    asked = StoreClient(bench)
    yield asked
    asked.close()


@pytest.fixture
def broker(bench: Bench, tree: StoreClient) -> Iterator[Broker]:
    made = Broker(bench, tree.store)
    yield made
    made.feed.stop()


@pytest.fixture
def other(bench: Bench, tree: StoreClient) -> Iterator[Broker]:
    made = Broker(bench, tree.store)
    yield made
    made.feed.stop()


def test_what_is_created_is_in_force_on_every_broker(broker: Broker, other: Broker) -> None:
    assert not other.may(ALICE, AclOperation.READ)
    assert broker.create(READ_T, WRITE_T, DENY_WEB) == {READ_T: None, WRITE_T: None, DENY_WEB: None}
    assert broker.may(ALICE, AclOperation.READ)
    other.catch_up()
    assert other.may(ALICE, AclOperation.READ) and other.may(ALICE, AclOperation.DESCRIBE)
    assert other.may(ALICE, AclOperation.WRITE) and not other.may(ALICE, AclOperation.WRITE, host="11.0.0.1")
    assert not other.may(BOB, AclOperation.READ) and other.may(ROOT, AclOperation.DELETE, "web-1")
    assert other.all() == sorted([READ_T, WRITE_T, DENY_WEB])


def test_nodes_are_those_of_kafka(broker: Broker, tree: StoreClient) -> None:
    broker.create(READ_T, WRITE_T, DENY_WEB, ALTER)
    assert json.loads(tree.get("/kafka-acl/Topic/t").data) == {
        "version": 1,
        "acls": [
            {"principal": "User:alice", "permissionType": "Allow", "operation": "Read", "host": "*"},
            {"principal": "User:alice", "permissionType": "Allow", "operation": "Write", "host": "10.0.0.0/8"},
        ],
    }
    (denied,) = json.loads(tree.get("/kafka-acl-extended/prefixed/Topic/web-").data)["acls"]
    assert denied == {"principal": "User:*", "permissionType": "Deny", "operation": "All", "host": "*"}
    (altered,) = json.loads(tree.get("/kafka-acl/Cluster/kafka-cluster").data)["acls"]
    assert altered["operation"] == "AlterConfigs"


def test_what_kafka_wrote_is_read(bench: Bench, tree: StoreClient) -> None:
    tree.ensure("/kafka-acl/TransactionalId")
    written = {
        "version": 1,
        "acls": [
            {"principal": "User:CN=app,O=x", "permissionType": "Allow", "operation": "IdempotentWrite", "host": "*"},
            {"principal": "User:bob", "permissionType": "Deny", "operation": "FromTheFuture", "host": "*"},
        ],
    }
    tree.create("/kafka-acl/TransactionalId/app", json.dumps(written).encode())
    made = Broker(bench, tree.store)
    pattern = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "app", PatternType.LITERAL)
    entry = AclEntry(Principal("User", "CN=app,O=x"), "*", AclOperation.IDEMPOTENT_WRITE, Permission.ALLOW)
    assert made.all() == [AclBinding(pattern, entry)]
    made.feed.stop()


def test_acls_are_there_after_a_restart(bench: Bench, broker: Broker, tree: StoreClient) -> None:
    broker.create(READ_T, DENY_WEB, SLASH, DOTS)
    again = Broker(bench, tree.store)
    assert again.all() == sorted([READ_T, DENY_WEB, SLASH, DOTS])
    again.feed.stop()


def test_creating_twice_changes_nothing(broker: Broker, tree: StoreClient) -> None:
    broker.create(READ_T)
    version = tree.get("/kafka-acl/Topic/t").stat.version
    assert broker.create(READ_T, READ_T) == {READ_T: None}
    assert tree.get("/kafka-acl/Topic/t").stat.version == version


def test_deleting_answers_each_filter(broker: Broker, other: Broker, tree: StoreClient) -> None:
    other.create(READ_T, WRITE_T, DENY_WEB, SLASH)  # `broker` has not heard of some of it yet
    deleted = broker.delete(
        AclFilter(ResourceType.TOPIC, "t", PatternType.LITERAL, operation=AclOperation.READ),
        AclFilter(ResourceType.TOPIC, "t", PatternType.MATCH),
        AclFilter(name="nothing"),
    )
    assert deleted == [[READ_T], [WRITE_T], []]
    assert tree.exists("/kafka-acl/Topic/t") is None, "a node without entries is left"
    other.catch_up()
    assert other.all() == broker.all() == sorted([DENY_WEB, SLASH])
    assert not other.may(ALICE, AclOperation.READ)
    assert broker.delete(AclFilter()) == [sorted([DENY_WEB, SLASH])]
    assert broker.all() == [] and tree.children("/kafka-acl/Group") == []


def test_many_patterns_are_written_together(broker: Broker, tree: StoreClient) -> None:
    before = tree.get("/changes").stat.version
    made = [
        make_binding(ResourceType.TOPIC, f"t{n}", PatternType.LITERAL, "User:alice", "*", AclOperation.READ, 3)
        for n in range(250)
    ]
    assert set(broker.create(*made).values()) == {None}
    assert broker.all() == sorted(made)
    assert tree.get("/changes").stat.version - before == 3


def test_brokers_that_change_one_pattern_at_once_lose_nothing(broker: Broker, other: Broker, bench: Bench) -> None:
    made = [
        make_binding(ResourceType.TOPIC, "t", PatternType.LITERAL, f"User:u{n}", "*", AclOperation.READ, 3)
        for n in range(6)
    ]
    waiting = [who.acls.create([one]) for one, who in zip(made, [broker, other] * 3, strict=True)]
    for one, deferred in zip(made, waiting, strict=True):
        assert bench.wait(deferred) == {one: None}
    other.catch_up()
    broker.catch_up()
    assert broker.all() == other.all() == sorted(made)


def test_a_node_that_cannot_be_read_denies(broker: Broker, other: Broker, tree: StoreClient) -> None:
    broker.create(READ_T, WRITE_T)
    tree.set("/kafka-acl/Topic/t", b"not json")
    other.create(make_binding(ResourceType.TOPIC, "*", PatternType.LITERAL, "User:bob", "*", AclOperation.ALL, 3))
    again = Broker(broker._bench, tree.store)
    assert again.may(BOB, AclOperation.READ, "u") and not again.may(BOB, AclOperation.READ, "t")
    assert again.may(ROOT, AclOperation.READ, "t")
    failed = again.create(READ_T)[READ_T]
    assert failed is not None and failed.code is ErrorCode.UNKNOWN_SERVER_ERROR
    tree.delete("/kafka-acl/Topic/t")
    assert again.create(READ_T) == {READ_T: None} and again.may(ALICE, AclOperation.READ, "t")
    again.feed.stop()


def test_a_pattern_has_room_for_so_many(broker: Broker) -> None:
    def binding(name: str, number: int) -> AclBinding:
        who = f"User:{'x' * 500}{number}"
        return make_binding(ResourceType.TOPIC, name, PatternType.LITERAL, who, "*", AclOperation.READ, 3)

    many = [binding("full", number) for number in range(2000)]
    outcome = broker.create(READ_T, *many)
    assert outcome.pop(READ_T) is None
    (failed,) = set(outcome.values())
    assert failed is not None and failed.code is ErrorCode.INVALID_REQUEST
    assert broker.all() == [READ_T]
