"""Groups whose members change from the classic protocol to the newer one and back, with librdkafka's consumers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from pylogd.client import Admin, Cluster, Producer
from pylogd.local.broker import BrokerProcess
from tests.commands import refused, run_command

SECONDS = 90.0
PARTITIONS = 6
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.session.timeout.ms": "6000",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", tmp_path / "log", SETTINGS)
    yield process
    if process.exit_code is None:
        assert process.stop() == 0
    assert "Traceback" not in process.log()


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Cluster(broker.address) as cluster:
        made = Admin(cluster)
        made.create_topic("t", PARTITIONS)
        yield made


class Members:
    """Members that commit what they read, polled in turn by one thread, which writes to the topic meanwhile.

    Each says which partitions it has; it is an error if another one has them.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.members: dict[Consumer, set[int]] = {}
        self.producer = Producer(address)
        self.sent = 0
        self.read: set[int] = set()

    def join(self, protocol: str, **options: Any) -> Consumer:
        config = {
            "bootstrap.servers": self.address, "group.id": "g", "group.protocol": protocol,
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
            **{name.replace("_", "."): value for name, value in options.items()},
        }  # fmt: skip
        if protocol == "classic":
            config |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
        member = Consumer(config)
        has = self.members[member] = set()

        def assigned(_: Consumer, partitions: list[Any]) -> None:
            found = {one.partition for one in partitions}
            for other, others in self.members.items():
                assert other is member or not found & others, f"{found & others} have two owners"
            has.update(found)

        def revoked(_: Consumer, partitions: list[Any]) -> None:
            has.difference_update(one.partition for one in partitions)

        member.subscribe(["t"], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        return member

    def poll(self) -> None:
        self.producer.send("t", b"%d" % self.sent, partition=self.sent % PARTITIONS)
        self.sent += 1
        for member in list(self.members):
            message = member.poll(0.01)
            if message is not None and message.error() is None:
                self.read.add(int(message.value() or b""))
                member.commit(message=message, asynchronous=True)

    def until(self, condition: Callable[[], object]) -> None:
        """Go on until something is so."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, (self.shares(), self.sent, len(self.read))
            self.poll()

    def shares(self) -> list[int]:
        return sorted(len(has) for has in self.members.values())

    def settled(self) -> bool:
        shares = self.shares()
        return sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1

    def leave(self, member: Consumer) -> None:
        member.close()
        del self.members[member]

    def replace(self, protocol: str, **options: Any) -> None:
        """Replace each member by one of a protocol, one after the other."""
        for member in list(self.members):
            self.leave(member)
            self.join(protocol, **options)
            self.until(self.settled)

    def finish(self) -> None:
        """Read until everything that was written is read."""
        self.producer.flush()
        sent = self.sent
        self.until(lambda: self.read >= set(range(sent)))


@pytest.fixture
def group(broker: BrokerProcess) -> Iterator[Members]:
    made = Members(broker.address)
    yield made
    for member in list(made.members):
        made.leave(member)
    made.producer.close()


def described(broker: BrokerProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(broker, "groups", "describe", "g", "--json"))[0]
    return found


def run(broker: BrokerProcess, *words: str) -> str:
    done = run_command(*words, "--bootstrap-server", broker.address)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_settings_of_a_group_by_the_command_line(broker: BrokerProcess, admin: Admin, group: Members) -> None:
    member = group.join("consumer")
    group.until(group.settled)
    run(broker, "groups", "alter", "g", "--config", "consumer.session.timeout.ms=50000")
    assert "g\tconsumer.session.timeout.ms\t50000\tgroup" in run(broker, "groups", "settings", "g")
    run(broker, "groups", "alter", "g", "--delete-config", "consumer.session.timeout.ms")
    assert "50000" not in run(broker, "groups", "settings", "g")
    group.leave(member)


def test_features_by_the_command_line(broker: BrokerProcess) -> None:
    def listed() -> list[tuple[str, int]]:
        return [(one["name"], one["level"]) for one in json.loads(run(broker, "features", "list", "--json"))]

    assert listed() == [("group.version", 1), ("transaction.version", 2)]
    run(broker, "features", "downgrade", "--yes", "group.version=0", "transaction.version=1")
    assert listed() == [("group.version", 0), ("transaction.version", 1)]
    run(broker, "features", "upgrade", "--dry-run")
    assert listed() == [("group.version", 0), ("transaction.version", 1)]
    run(broker, "features", "upgrade")
    assert listed() == [("group.version", 1), ("transaction.version", 2)]
    assert "levels 0 to 1, not 2" in refused(broker, "features", "upgrade", "group.version=2")


@pytest.mark.parametrize("strategy", ["range,roundrobin", "cooperative-sticky"])
def test_clients_change_one_by_one_to_the_newer_protocol_and_back(
    broker: BrokerProcess, admin: Admin, group: Members, strategy: str
) -> None:
    classic = {"partition_assignment_strategy": strategy}
    for _ in range(3):
        group.join("classic", **classic)
    group.until(group.settled)
    assert described(broker)["protocol"] in strategy
    group.replace("consumer")
    assert (described(broker)["protocol"], len(described(broker)["members"])) == ("uniform", 3)
    group.finish()
    group.replace("classic", **classic)
    assert described(broker)["protocol"] in strategy
    assert len(described(broker)["members"]) == 3
    group.finish()


def test_a_mixed_group_survives_its_coordinator(tmp_path: Path, broker: BrokerProcess, admin: Admin) -> None:
    group = Members(broker.address)
    group.join("classic", partition_assignment_strategy="cooperative-sticky")
    group.join("classic", partition_assignment_strategy="cooperative-sticky")
    group.until(group.settled)
    newer = group.join("consumer")
    group.until(group.settled)
    group.finish()
    before = described(broker)
    broker.kill()
    again = BrokerProcess(tmp_path / "data", tmp_path / "log", SETTINGS, port=int(broker.address.rpartition(":")[2]))
    try:
        group.until(lambda: group.settled() and len(group.read) > group.sent - 50)
        after = described(again)
        assert after["protocol"] == "uniform"
        assert {one["member"] for one in after["members"]} == {one["member"] for one in before["members"]}
        group.finish()
        group.leave(newer)
        group.until(lambda: group.settled() and described(again)["protocol"] == "cooperative-sticky")
        group.finish()
        for member in list(group.members):
            group.leave(member)
        group.producer.close()
    finally:
        assert again.stop() == 0
