"""Failover in clusters on a real ZooKeeper: leaders and controllers are killed, stopped, paused and restarted."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pylogd.client import Admin, Consumer, NewTopic, Producer
from pylogd.local.broker import BrokerFailed, BrokerProcess
from tests.clusters import PATIENCE_SECONDS, BrokerCluster

StartCluster = Callable[..., BrokerCluster]


def make(cluster: BrokerCluster, name: str, partitions: int = 3, factor: int = 3, **configs: str) -> None:
    """Create a topic, and wait until all replicas are in sync."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    outcome = cluster.ask(lambda admin: admin.create_topics([NewTopic(name, partitions, factor, named)]))
    assert outcome[name] is None, outcome[name]
    cluster.wait_for_isr(name, factor)


def send(cluster: BrokerCluster, name: str, values: range, partitions: int = 3) -> None:
    """Write each value with acks=all."""
    with Producer(cluster.bootstrap, acks="all") as producer:
        sent = [producer.send(name, b"%d" % value, partition=value % partitions) for value in values]
        for delivery in sent:
            delivery.result(PATIENCE_SECONDS)


def read(cluster: BrokerCluster, name: str, count: int, partitions: int = 3) -> list[int]:
    """Read `count` records of all partitions. Return their values, sorted."""
    found: list[int] = []
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, index) for index in range(partitions)])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count and time.monotonic() < deadline:
            found += [int(record.value or b"") for record in consumer.poll(1)]
    return sorted(found)


def controller(cluster: BrokerCluster, nodes: Sequence[int]) -> int:
    """Wait until these brokers agree on one of them as the controller. Return its node id."""

    def agreed() -> int:
        seen = {cluster.ask(lambda admin: admin.describe_cluster(), node).controller for node in nodes}
        return seen.pop() if len(seen) == 1 and seen <= set(nodes) else 0

    return cluster.until(agreed, f"that {list(nodes)} agree on a controller")


def names(cluster: BrokerCluster, node: int) -> set[str]:
    """Return the topics that a broker knows."""
    return {topic.name for topic in cluster.ask(lambda admin: admin.list_topics(), node)}


def test_leaders_move_when_their_broker_is_killed(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    make(cluster, "t")
    send(cluster, "t", range(300))
    assert {one.leader for one in cluster.partitions("t")} == {1, 2, 3}
    cluster.kill(2)
    cluster.wait_for_leaders("t", [1, 3])
    cluster.until(lambda: all(2 not in one.isr for one in cluster.partitions("t")), "that broker 2 is in sync no more")
    send(cluster, "t", range(300, 600))
    cluster.start(2)
    cluster.wait_for_isr("t", 3)
    # It has copied what it missed, so it can lead alone.
    cluster.kill(1)
    cluster.kill(3)
    cluster.wait_for_leaders("t", [2])
    assert read(cluster, "t", 600) == list(range(600))


def test_a_killed_controller_is_replaced(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    make(cluster, "t")
    first = controller(cluster, [1, 2, 3])
    cluster.kill(first)
    left = [node for node in (1, 2, 3) if node != first]
    assert controller(cluster, left) != first
    cluster.wait_for_leaders("t", left)
    second = controller(cluster, left)
    cluster.kill(second)
    (last,) = (node for node in left if node != second)
    assert controller(cluster, [last]) == last
    cluster.wait_for_leaders("t", [last])
    send(cluster, "t", range(30))
    assert read(cluster, "t", 30) == list(range(30))


def test_a_stopping_broker_hands_over_its_leaderships_first(start_cluster: StartCluster) -> None:
    """Leaders move without a session having to expire, whichever broker is the controller."""
    cluster = start_cluster(settings={"zookeeper.session.timeout.ms": "30000"})
    make(cluster, "t")
    send(cluster, "t", range(30))
    first = controller(cluster, [1, 2, 3])
    for node in [first, *(node for node in (1, 2, 3) if node != first)][:2]:
        assert cluster.stop(node) == 0
        left = sorted(cluster.brokers)
        cluster.wait_for_leaders("t", left)
        controller(cluster, left)
        assert "before others lead" not in cluster.log(node)
    assert read(cluster, "t", 30) == list(range(30))
    # The last broker has nobody to hand over to, and leads everything after its restart.
    (last,) = cluster.brokers
    cluster.restart(last)
    cluster.wait_for_leaders("t", [last])


def test_no_record_is_lost_when_all_brokers_are_killed_and_restarted(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    make(cluster, "t")
    send(cluster, "t", range(300))
    before = {one.index: one.leader_epoch for one in cluster.partitions("t")}
    cluster.kill_all()
    for node in (1, 2, 3):
        cluster.start(node)

    def led_anew() -> bool:  # restarted leaders lead in a new epoch
        return all(one.leader_epoch > before[one.index] for one in cluster.wait_for_isr("t", 3))

    cluster.until(led_anew, "that all is led in a new epoch")
    assert read(cluster, "t", 300) == list(range(300))


def test_a_returning_broker_deletes_topics_that_were_deleted_meanwhile(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    make(cluster, "gone")
    make(cluster, "anew")
    send(cluster, "gone", range(30))
    send(cluster, "anew", range(30))
    cluster.kill(3)
    assert not any(cluster.ask(lambda admin: admin.delete_topics(["gone", "anew"])).values())
    cluster.wait_for_brokers([1, 2])
    cluster.until(lambda: not any("anew" in names(cluster, node) for node in (1, 2)), "that both know of no old one")
    make(cluster, "anew", factor=2)
    data = cluster.folder / "broker3"
    assert list(data.glob("gone-*"))
    cluster.start(3)
    cluster.until(lambda: not [*data.glob("gone-?"), *data.glob("anew-?")], "that broker 3 has nothing of the topics")
    send(cluster, "anew", range(1000, 1005))
    assert read(cluster, "anew", 5) == list(range(1000, 1005))


def test_a_node_id_in_use_is_refused(start_cluster: StartCluster, tmp_path: Path) -> None:
    cluster = start_cluster(size=1)
    settings = {**cluster.settings, "node.id": "1"}
    with pytest.raises(BrokerFailed, match=r"another broker with node\.id 1 is alive"):
        BrokerProcess(tmp_path / "other", tmp_path / "other.log", settings)
    assert cluster.ask(lambda admin: admin.describe_cluster()).controller == 1


def test_a_paused_broker_stops_when_another_has_taken_its_node_id(start_cluster: StartCluster, tmp_path: Path) -> None:
    cluster = start_cluster(size=1, settings={"zookeeper.session.timeout.ms": "2000"})
    make(cluster, "t", partitions=1, factor=1)
    cluster.pause(1)
    ousted = cluster.brokers.pop(1)
    settings = {**cluster.settings, "node.id": "1", "zookeeper.session.timeout.ms": "60000"}
    other = BrokerProcess(tmp_path / "other", tmp_path / "other.log", settings)  # waits for the session to expire
    try:
        ousted.process.send_signal(signal.SIGCONT)
        assert ousted.process.wait(PATIENCE_SECONDS) == 1
        why = f"pylogd: another broker with node.id 1 is alive in this cluster, at {other.address}: give one of the two"
        assert [line for line in ousted.log().splitlines() if line.startswith(why)], ousted.log()
        with Admin(other.address) as admin:
            (alive,) = admin.describe_cluster().brokers
            assert (alive.node_id, alive.port) == (1, other.port)
            assert not any(admin.create_topics([NewTopic("u", 1, 1)]).values())
            cluster.until(lambda: admin.describe_topic("u").partitions[0].leader == 1, "that the other one leads")
    finally:
        ousted.kill()
        assert other.stop() == 0


def test_a_broker_of_another_cluster_is_refused(start_cluster: StartCluster, tmp_path: Path) -> None:
    alone = BrokerProcess(tmp_path / "other", tmp_path / "other.log", {"node.id": "2"})
    alone.stop()
    cluster = start_cluster(size=1)
    with pytest.raises(BrokerFailed, match="belongs to cluster"):
        BrokerProcess(tmp_path / "other", tmp_path / "other.log", {**cluster.settings, "node.id": "2"})
    assert [broker.node_id for broker in cluster.ask(lambda admin: admin.describe_cluster()).brokers] == [1]
