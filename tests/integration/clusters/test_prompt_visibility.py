"""A committed transaction is visible to who waits for it, whichever broker coordinates it and leads the partition."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from pylogd.broker.replica.internal_topic import partition_of
from pylogd.client import NewTopic
from tests.clusters import PATIENCE_SECONDS, BrokerCluster

NODES = 3
STATES = "__transaction_state"
#: Longer than anything here waits: if a fetch is not answered when it is due, the test fails.
_FETCH_WAIT_MS = round(PATIENCE_SECONDS * 3000)


def _ids(cluster: BrokerCluster) -> list[str]:
    """Return a transactional id for each broker, which coordinates it."""
    leaders = [one.leader for one in cluster.partitions(STATES)]
    found: dict[int, str] = {}
    for number in range(1000):
        name = f"id-{number}"
        found.setdefault(leaders[partition_of(name, len(leaders))], name)
    assert len(found) == NODES, f"some brokers lead nothing: {leaders}"
    return list(found.values())


def _producer(cluster: BrokerCluster, name: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "linger.ms": 0}
    )
    producer.init_transactions(PATIENCE_SECONDS)
    return producer


def test_a_transaction_is_visible_at_once_on_every_broker(start_cluster: Callable[..., BrokerCluster]) -> None:
    """Followers and the consumer would wait longer than the test: each commit has to wake them."""
    settings = {"transaction.state.log.num.partitions": "6", "replica.fetch.wait.max.ms": str(_FETCH_WAIT_MS)}
    settings |= {"replica.lag.time.max.ms": str(2 * _FETCH_WAIT_MS), "auto.leader.rebalance.enable": "false"}
    cluster = start_cluster(NODES, settings)
    outcome = cluster.ask(
        lambda admin: admin.create_topics([NewTopic("t", NODES, NODES, {"min.insync.replicas": "2"})])
    )
    assert not any(outcome.values()), outcome
    cluster.wait_for_isr("t", NODES)
    _producer(cluster, "first")  # which creates the topic of the coordinators
    cluster.wait_for_isr(STATES, NODES)
    producers = {name: _producer(cluster, name) for name in _ids(cluster)}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap, "group.id": "reader", "isolation.level": "read_committed",
            "fetch.wait.max.ms": 60_000, "socket.timeout.ms": 70_000, "enable.auto.commit": False,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition("t", index, OFFSET_BEGINNING) for index in range(NODES)])
    try:
        for name, producer in producers.items():
            for index in range(NODES):
                producer.begin_transaction()
                producer.produce("t", f"{name} {index}", partition=index)
                producer.commit_transaction(PATIENCE_SECONDS)
                record = consumer.poll(PATIENCE_SECONDS)
                assert record is not None, f"what {name} wrote to partition {index} is not visible"
                assert record.error() is None, record.error()
                assert record.value() == f"{name} {index}".encode()
    finally:
        consumer.close()
