"""A cluster whose brokers are started one after the other: groups work from the first broker on and survive it."""

from __future__ import annotations

from collections.abc import Callable

from pylogd.client import Consumer, Producer
from tests.clusters import PATIENCE_SECONDS, BrokerCluster

StartCluster = Callable[..., BrokerCluster]
OFFSETS = "__consumer_offsets"


def consume(cluster: BrokerCluster, topic: str, count: int) -> None:
    """Write `count` records, and have group g read and commit them."""
    with Producer(cluster.bootstrap, acks="all") as producer:
        for delivery in [producer.send(topic, b"%d" % n, partition=0) for n in range(count)]:
            delivery.result(PATIENCE_SECONDS)
    with Consumer(cluster.bootstrap, group_id="g", auto_commit="off") as consumer:
        consumer.subscribe([topic])
        seen: list[object] = []

        def have_all() -> bool:
            seen.extend(consumer.poll(0.5))
            return len(seen) >= count

        cluster.until(have_all, "all records")
        consumer.commit(timeout=PATIENCE_SECONDS)


def committed(cluster: BrokerCluster) -> dict[str, int]:
    """Return the committed offsets of group g by topic."""
    found = cluster.ask(lambda admin: admin.group_offsets("g"))
    return {partition.topic: at.offset for partition, at in found.items()}


def test_groups_survive_the_broker_on_which_they_began(start_cluster: StartCluster) -> None:
    settings = {"min.insync.replicas": "2", "default.replication.factor": "3", "offsets.topic.num.partitions": "6"}
    cluster = start_cluster(1, settings)
    cluster.ask(lambda admin: admin.create_topic("early", 1, 1))
    consume(cluster, "early", 7)
    assert committed(cluster) == {"early": 7}
    assert all(len(partition.replicas) == 1 for partition in cluster.partitions(OFFSETS))

    cluster.start(2)
    cluster.start(3)
    cluster.wait_for_brokers([1, 2, 3])
    cluster.wait_for_isr(OFFSETS, 3)
    cluster.ask(lambda admin: admin.create_topic("late", 1, 3))
    cluster.wait_for_isr("late", 3)

    cluster.kill(1)
    cluster.wait_for_leaders(OFFSETS, [2, 3])
    cluster.wait_for_leaders("late", [2, 3])
    assert committed(cluster) == {"early": 7}
    consume(cluster, "late", 5)
    assert committed(cluster) == {"early": 7, "late": 5}
