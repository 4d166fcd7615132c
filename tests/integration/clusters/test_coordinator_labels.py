"""Groups and transactional ids of a line of business are coordinated by its own brokers, also after they are killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from pylogd.base.errors import KafkaError
from pylogd.client import Admin, Consumer, NewTopic, Producer
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.clusters import PATIENCE_SECONDS, BrokerCluster
from tests.commands import run_command
from tests.rawclient import RawClient

StartCluster = Callable[..., BrokerCluster]
ONLINE, LOGS = {1, 2, 3}, {4, 5, 6}
NAMES = 12
SETTINGS = {
    "coordinator.labels": "online:0-3:pay-,logs:4-7:log-", "offsets.topic.num.partitions": "10",
    "transaction.state.log.num.partitions": "10", "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}  # fmt: skip


@pytest.fixture
def cluster(start_cluster: StartCluster) -> Iterator[BrokerCluster]:
    yield start_cluster(6, SETTINGS, labels=[*["online"] * 3, *["logs"] * 3])


def consume(cluster: BrokerCluster, topic: str, group: str, count: int) -> list[int]:
    """Return what a member of a group reads, up to `count` records, and commit that."""
    found: list[int] = []
    with Consumer(cluster.bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        while len(found) < count:
            found += [int(record.value or b"") for record in consumer.poll(1.0)]
        consumer.commit()
    return found


def coordinators(cluster: BrokerCluster, line: str, transactional: bool = False) -> set[int]:
    """Return which brokers coordinate ids of a line; all of them have one."""
    names = [f"{line}-{number}" for number in range(NAMES)]
    with RawClient(cluster.address(3)) as client:
        answer = client.request(FindCoordinatorRequest("", int(transactional), names), 4)
    assert not any(one.error_code for one in answer.coordinators), answer
    return {one.node_id for one in answer.coordinators}


def wait_for_coordinators(cluster: BrokerCluster, line: str, nodes: set[int]) -> None:
    """Wait until all groups and transactional ids of a line have coordinators, and check that these are in `nodes`."""
    for transactional in (False, True):
        found: set[int] = set()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not found:
            try:
                found = coordinators(cluster, line, transactional)
            except (AssertionError, OSError):
                assert time.monotonic() < deadline, f"no coordinators of {line}"
                time.sleep(0.1)
        assert found <= nodes, (line, transactional)


def write(cluster: BrokerCluster, topic: str, transactional_id: str, numbers: range) -> None:
    with Producer(cluster.bootstrap, transactional_id=transactional_id) as producer:
        producer.begin_transaction()
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=0)
        producer.commit_transaction()


def test_each_line_coordinates_its_own_groups(cluster: BrokerCluster) -> None:
    lines = {"pay": ONLINE, "log": LOGS}
    labels = {"pay": "online", "log": "logs"}
    new = [NewTopic(line, 1, 3, {"placement.label": label}) for line, label in labels.items()]
    assert not any(cluster.ask(lambda admin: admin.create_topics(new)).values())
    for line, own in lines.items():
        write(cluster, line, f"{line}-writer", range(10))
        assert consume(cluster, line, f"{line}-0", 10) == list(range(10))
        wait_for_coordinators(cluster, line, own)
    for topic in ("__consumer_offsets", "__transaction_state"):
        cluster.until(partial(replicas, cluster, topic, 3), f"three replicas of {topic}")
        cluster.wait_for_isr(topic, 3)
        of_pay, of_log = (cluster.partitions(topic)[first : first + 4] for first in (0, 4))
        assert {node for one in of_pay for node in one.replicas} == ONLINE
        assert {node for one in of_log for node in one.replicas} == LOGS

    for node in (1, 2):  # all but one of a line
        cluster.kill(node)
    cluster.wait_for_brokers([3, 4, 5, 6])
    for topic in ("__consumer_offsets", "__transaction_state"):
        cluster.until(lambda: all(one.leader == 3 for one in cluster.partitions(topic)[:4]), "leaders on broker 3")  # noqa: B023
    wait_for_coordinators(cluster, "pay", {3})
    wait_for_coordinators(cluster, "log", LOGS)
    for line in lines:
        write(cluster, line, f"{line}-writer", range(10, 15))
        assert consume(cluster, line, f"{line}-0", 5) == list(range(10, 15)), "the group continues where it was"

    with pytest.raises(KafkaError, match="can't be changed"):
        cluster.ask(lambda admin: admin.alter_configs("topic", "__consumer_offsets", {"coordinator.labels": ""}))
    for node in (1, 2):
        cluster.start(node)
    cluster.wait_for_isr("__consumer_offsets", 3)
    wait_for_coordinators(cluster, "pay", ONLINE)
    assert consume(cluster, "pay", "other", 15) == list(range(15)), "other groups are coordinated too"


def replicas(cluster: BrokerCluster, topic: str, factor: int) -> bool:
    def whole(admin: Admin) -> bool:
        return all(len(one.replicas) == factor for one in admin.describe_topic(topic).partitions)

    return cluster.ask(whole)


def test_all_groups_of_a_running_cluster_move_to_a_label(start_cluster: StartCluster) -> None:
    settings = {
        "offsets.topic.num.partitions": "4", "offsets.topic.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
    }  # fmt: skip
    cluster = start_cluster(2, settings, labels=["online", "logs"])
    assert not any(cluster.ask(lambda admin: admin.create_topics([NewTopic("t", 1, 2)])).values())
    with Producer(cluster.bootstrap) as producer:
        for number in range(10):
            producer.send("t", b"%d" % number)
    assert consume(cluster, "t", "g", 10) == list(range(10))
    done = run_command("topics", "relabel", "__consumer_offsets", "logs", "-b", cluster.bootstrap)
    assert done.returncode == 0, done.stderr
    assert {node for one in cluster.partitions("__consumer_offsets") for node in one.replicas} == {2}
    with Producer(cluster.bootstrap) as producer:
        producer.send("t", b"10")
    assert consume(cluster, "t", "g", 1) == [10], "the group continues where it was"
