"""Authorization by ACLs on real brokers: other projects' administrators, the command line, and clients refused.

Who connects in plain text is User:ANONYMOUS. It is no super user here, but may do what no ACL is about, and may change
the ACLs until one says otherwise.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from pylogd.client import Admin, Consumer, DeliveryFailed, ErrorCode, KafkaError, Producer, TopicPartition
from pylogd.local.broker import BrokerProcess
from tests.commands import ok, refused, run
from tests.integration.conftest import StartBroker
from tests.integration.test_clients_confluent import make_admin, make_consumer, make_producer
from tests.zookeeper import ZooKeeper

SECONDS = 60.0
AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:admin",
}


def audited(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread or broker does."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def authorized(start_broker: StartBroker, audit: Path) -> Iterator[BrokerProcess]:
    yield start_broker(settings=AUTHORIZED | {"audit.log.path": str(audit)})


def test_librdkafka_changes_acls_and_is_refused_by_them(authorized: BrokerProcess, audit: Path) -> None:
    admin = make_admin(authorized.address)
    pattern = (ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL)
    reads = AclBinding(*pattern, "User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)
    denies = AclBinding(
        ResourceType.GROUP, "g-", ResourcePatternType.PREFIXED, "User:*", "127.0.0.1", AclOperation.ALL,
        AclPermissionType.DENY,
    )  # fmt: skip
    producer = make_producer(authorized.address)
    producer.produce("orders", b"1")
    assert producer.flush(SECONDS) == 0
    for future in admin.create_acls([reads, denies]).values():
        future.result(SECONDS)
    everything = cast(Any, AclBindingFilter)(  # its stubs don't know that None is whatever it is
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    found = admin.describe_acls(everything).result(SECONDS)
    assert sorted(map(str, found)) == sorted(map(str, [reads, denies]))

    errors: list[object] = []
    producer.produce("orders", b"2", on_delivery=lambda error, _: errors.append(error))
    producer.flush(SECONDS)
    assert [error.name() for error in errors] == ["TOPIC_AUTHORIZATION_FAILED"]  # type: ignore[attr-defined]
    consumer = make_consumer(authorized.address, group_id="g-1")
    consumer.subscribe(["others"])
    failed = consumer.poll(SECONDS)
    error = None if failed is None else failed.error()
    assert error is not None and error.name() == "GROUP_AUTHORIZATION_FAILED"
    consumer.close()

    (deleted,) = admin.delete_acls([everything]).values()
    assert len(deleted.result(SECONDS)) == 2
    again = make_producer(authorized.address)  # librdkafka keeps the refusal until it refreshes its metadata
    again.produce("orders", b"3")
    assert again.flush(SECONDS) == 0
    until(lambda: any(line["event"] == "administrative" and line["api"] == "DeleteAcls" for line in audited(audit)))
    lines = audited(audit)
    (created,) = [line for line in lines if line.get("api") == "CreateAcls"]
    assert created["principal"] == "User:ANONYMOUS" and created["host"] == "127.0.0.1"
    denied = [(line["api"], line["operation"], line["name"]) for line in lines if line["event"] == "denied"]
    assert ("Produce", "WRITE", "orders") in denied or ("Metadata", "DESCRIBE", "orders") in denied
    assert any(name == "g-1" for _, _, name in denied)


def test_the_audit_log_is_reopened_on_sighup(authorized: BrokerProcess, audit: Path) -> None:
    rotated = audit.with_suffix(".1")
    with Admin(authorized.address) as admin:
        admin.create_topic("first")
        until(lambda: audited(audit))
        audit.rename(rotated)
        authorized.process.send_signal(signal.SIGHUP)
        until(audit.exists)
        admin.create_topic("second")
        until(lambda: audited(audit))
    assert [line["results"][0]["name"] for line in audited(rotated)] == ["first"]
    assert [line["results"][0]["name"] for line in audited(audit)] == ["second"]


def test_our_client_is_refused_on_open_connections(authorized: BrokerProcess) -> None:
    with Producer(authorized.address) as producer, Admin(authorized.address) as admin:
        producer.send("t", b"1").result(SECONDS)
        ok(authorized, "acls", "add", "--allow-principal", "User:alice", "--operation", "All", "--topic", "t")
        refusals: tuple[Callable[[], object], ...] = (
            lambda: producer.send("t", b"2").result(SECONDS),
            lambda: admin.describe_topic("t"),
        )
        for refusal in refusals:
            with pytest.raises(KafkaError) as failed:
                refusal()
            assert failed.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(DeliveryFailed):
            producer.flush()
        assert [topic.name for topic in admin.list_topics()] == []
        with pytest.raises(KafkaError), Consumer(authorized.address) as consumer:
            consumer.assign({TopicPartition("t", 0): 0})
            consumer.poll(SECONDS)
        ok(authorized, "acls", "remove", "--yes", "--topic", "t")
        producer.send("t", b"3").result(SECONDS)


def test_the_command_line(authorized: BrokerProcess) -> None:
    mine = ["--allow-principal", "User:ANONYMOUS", "--operation", "All", "--cluster"]
    ok(authorized, "acls", "add", *mine)  # without it nobody may change ACLs once one is about the cluster
    ok(authorized, "acls", "add", "--allow-principal", "User:a", "--producer", "--idempotent", "--topic", "x")
    ok(authorized, "acls", "add", "--allow-principal", "User:b", "--consumer", "--topic", "x", "--group", "g")
    ok(authorized, "acls", "add", "--deny-principal", "User:c", "--deny-host", "10.0.0.0/8", "--operation", "read",
       "--topic", "x-", "--resource-pattern-type", "prefixed")  # fmt: skip
    rows = [line.split("\t") for line in ok(authorized, "acls", "list").splitlines()]
    assert rows == [
        ["CLUSTER", "LITERAL", "kafka-cluster", "ALLOW", "ALL", "User:ANONYMOUS", "*"],
        ["CLUSTER", "LITERAL", "kafka-cluster", "ALLOW", "IDEMPOTENT_WRITE", "User:a", "*"],
        ["GROUP", "LITERAL", "g", "ALLOW", "READ", "User:b", "*"],
        ["TOPIC", "LITERAL", "x", "ALLOW", "CREATE", "User:a", "*"],
        ["TOPIC", "LITERAL", "x", "ALLOW", "DESCRIBE", "User:a", "*"],
        ["TOPIC", "LITERAL", "x", "ALLOW", "WRITE", "User:a", "*"],
        ["TOPIC", "LITERAL", "x", "ALLOW", "DESCRIBE", "User:b", "*"],
        ["TOPIC", "LITERAL", "x", "ALLOW", "READ", "User:b", "*"],
        ["TOPIC", "PREFIXED", "x-", "DENY", "READ", "User:c", "10.0.0.0/8"],
    ]
    matching = ["acls", "list", "--topic", "x-1", "--resource-pattern-type", "match", "--json"]
    (found,) = json.loads(ok(authorized, *matching))
    assert (found["name"], found["principal"], found["permission"]) == ("x-", "User:c", "DENY")
    assert len(ok(authorized, "acls", "list", "--principal", "User:b").splitlines()) == 3
    removed = ok(authorized, "acls", "remove", "--topic", "x", "--allow-principal", "User:b", "--operation", "Read")
    assert len(removed.splitlines()) == 1
    assert len(ok(authorized, "acls", "remove", "--topic", "x").splitlines()) == 4
    assert run(authorized, "acls", "remove", "--topic", "x").stderr == "There are no such ACLs.\n"
    assert "neither an address" in refused(authorized, "acls", "add", "--topic", "x", "--allow-principal", "User:a",
                                           "--allow-host", "example.com")  # fmt: skip
    for words in (["add", "--topic", "x"], ["add", "--allow-principal", "User:a"], ["remove"],
                  ["add", "--consumer", "--topic", "x", "--allow-principal", "User:a"]):  # fmt: skip
        assert run(authorized, "acls", *words).returncode == 2


def test_without_an_authorizer_there_are_no_acls(broker: BrokerProcess) -> None:
    assert "authorizer.class.name" in refused(broker, "acls", "list")


def test_a_class_that_cannot_be_used_stops_the_start(start_broker: StartBroker, tmp_path: Path) -> None:
    from pylogd.local.broker import pylogd_command  # noqa: PLC0415

    command = [*pylogd_command(), "broker", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    for setting in ("authorizer.class.name=json.nothing", "principal.builder.class=collections.OrderedDict",
                    "super.users=alice"):  # fmt: skip
        done = subprocess.run([*command, "--set", setting], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0 and setting.partition("=")[0] in done.stderr, done.stderr


def test_every_broker_sees_a_change_within_a_second(
    start_broker: StartBroker, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    settings = AUTHORIZED | zookeeper.settings
    brokers = [start_broker(f"b{node}", settings | {"node.id": str(node)}) for node in (1, 2, 3)]
    first, second, third = (Admin(broker.address) for broker in brokers)
    with first, second, third:
        first.create_topic("t", 1, 1)
        until(lambda: [topic.name for topic in second.list_topics()] == ["t"])
        until(lambda: [topic.name for topic in third.list_topics()] == ["t"])
        ok(brokers[0], "acls", "add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "t")
        begin = time.monotonic()
        until(lambda: second.list_topics() == [] and third.list_topics() == [])
        print(f"seen after {time.monotonic() - begin:.3f} s")
    assert "CLUSTER_ACTION" not in brokers[0].log(), "everybody may follow where no ACL is about the cluster"
