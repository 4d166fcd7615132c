"""Consumer groups of the newer protocol (KIP-848) on a real broker, with librdkafka's consumers as members."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from pylogd.base.errors import ErrorCode
from pylogd.client import Admin, Cluster, KafkaError, Producer
from pylogd.client.core.model import GroupDescription
from pylogd.local.broker import BrokerProcess, pylogd_command

SECONDS = 60.0
PARTITIONS = 6
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.session.timeout.ms": "3000",
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
        yield Admin(cluster)


class Members:
    """Members of one group, polled in turn by one thread."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.members: list[Consumer] = []
        #: Topic, partition and offset of what was read. Nothing is committed, so a partition that moves is read again.
        self.read: set[tuple[str | None, int | None, int | None]] = set()

    def join(self, topics: Sequence[str], protocol: str = "consumer", **options: str) -> Consumer:
        config = {
            "bootstrap.servers": self.address, "group.id": "g", "group.protocol": protocol,
            "auto.offset.reset": "earliest", "enable.auto.commit": "false",
            **{name.replace("_", "."): value for name, value in options.items()},
        }  # fmt: skip
        member = Consumer(config)
        member.subscribe(list(topics))
        self.members.append(member)
        return member

    def until(self, condition: Callable[[], object]) -> None:
        """Poll all members until something is so."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, [len(member.assignment()) for member in self.members]
            for member in self.members:
                message = member.poll(0.02)
                if message is not None and message.error() is None:
                    self.read.add((message.topic(), message.partition(), message.offset()))

    def shares(self) -> list[int]:
        return sorted(len(member.assignment()) for member in self.members)

    def leave(self, member: Consumer) -> None:
        self.members.remove(member)
        member.close()

    def close(self) -> None:
        for member in list(self.members):
            self.leave(member)


@pytest.fixture
def members(broker: BrokerProcess) -> Iterator[Members]:
    made = Members(broker.address)
    yield made
    made.close()


def produce(broker: BrokerProcess, topic: str, count: int) -> None:
    with Producer(broker.address) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)


def described(admin: Admin) -> GroupDescription:
    return admin.describe_group("g")


def test_members_come_and_go(broker: BrokerProcess, admin: Admin, members: Members) -> None:
    admin.create_topic("t", PARTITIONS)
    produce(broker, "t", 600)
    first = members.join(["t"])
    members.until(lambda: members.shares() == [6] and len(members.read) == 600)
    members.join(["t"])
    members.join(["t"])
    members.until(lambda: members.shares() == [2, 2, 2])
    group = described(admin)
    assert (group.state, group.protocol, len(group.members)) == ("Stable", "uniform", 3)
    assert sorted(p.partition for member in group.members for p in member.assignment) == list(range(PARTITIONS))
    first.commit(offsets=[TopicPartition("t", p.partition, 100) for p in first.assignment()], asynchronous=False)
    members.leave(first)
    members.until(lambda: members.shares() == [3, 3])
    assert len(members.read) == 600
    shown = json.loads(
        subprocess.run(
            [*pylogd_command(), "groups", "describe", "g", "--json", "--bootstrap-server", broker.address],
            capture_output=True, check=True, timeout=SECONDS,
        ).stdout
    )  # fmt: skip
    assert (shown[0]["state"], shown[0]["kind"], len(shown[0]["members"])) == ("Stable", "consumer", 2)


def test_topics_by_a_regular_expression(broker: BrokerProcess, admin: Admin, members: Members) -> None:
    admin.create_topic("orders-1", 2)
    members.join(["^orders-.*"])
    members.until(lambda: members.shares() == [2])
    admin.create_topic("orders-2", 3)
    admin.create_topic("others", 3)
    members.until(lambda: members.shares() == [5])


def test_a_static_member_that_restarts_keeps_its_partitions(
    broker: BrokerProcess, admin: Admin, members: Members
) -> None:
    admin.create_topic("t", PARTITIONS)
    static = members.join(["t"], group_instance_id="one")
    members.join(["t"])
    members.until(lambda: members.shares() == [3, 3])
    had = {p.partition for p in static.assignment()}
    members.leave(static)
    back = members.join(["t"], group_instance_id="one")
    members.until(lambda: members.shares() == [3, 3])
    assert {p.partition for p in back.assignment()} == had


def test_the_group_survives_its_coordinator(
    tmp_path: Path, broker: BrokerProcess, admin: Admin, members: Members
) -> None:
    admin.create_topic("t", PARTITIONS)
    produce(broker, "t", 60)
    members.join(["t"])
    members.join(["t"])
    members.until(lambda: members.shares() == [3, 3] and len(members.read) == 60)
    before = {member.member_id: member.assignment for member in described(admin).members}
    broker.kill()
    port = int(broker.address.rpartition(":")[2])
    again = BrokerProcess(tmp_path / "data", tmp_path / "log", SETTINGS, port=port)
    try:
        assert {member.member_id: member.assignment for member in described(admin).members} == before
        produce(again, "t", 60)
        members.until(lambda: len(members.read) == 120)
        assert members.shares() == [3, 3]
        members.close()
    finally:
        assert again.stop() == 0


def test_a_group_changes_its_protocol_when_it_is_empty(broker: BrokerProcess, admin: Admin, members: Members) -> None:
    admin.create_topic("t", PARTITIONS)
    produce(broker, "t", 60)
    for protocol, kind in (("classic", "range"), ("consumer", "uniform"), ("classic", "range")):
        member = members.join(["t"], protocol)
        members.until(lambda: members.shares() == [6])
        assert described(admin).protocol == kind
        members.until(lambda: len(members.read) == 60)
        member.commit(offsets=[TopicPartition("t", n, 10) for n in range(PARTITIONS)], asynchronous=False)
        other = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
        assert all(p.offset == 10 for p in other.committed([TopicPartition("t", n) for n in range(PARTITIONS)]))
        other.close()
        members.leave(member)
    admin.delete_group("g")
    with pytest.raises(KafkaError) as missing:
        described(admin)
    assert missing.value.code is ErrorCode.GROUP_ID_NOT_FOUND
