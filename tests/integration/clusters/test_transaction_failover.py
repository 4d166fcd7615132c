"""Exactly once while the coordinator of the transactions is killed: librdkafka copies a topic in transactions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition

from pylogd.broker.replica.internal_topic import partition_of
from pylogd.client import NewTopic, Producer
from tests.clusters import PATIENCE_SECONDS, BrokerCluster

RECORDS = 600
PARTITIONS = 2
KILLS = 3
ID = "copier"
STATES = "__transaction_state"


class Copier:
    """Copies the topic `source` to `target`: each batch with its offsets is one transaction.

    copied: how many records were in committed transactions. errors: what went wrong on the way, for the test's report.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.copied = 0
        self.errors: list[str] = []
        self.stop = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.stop:
            try:
                self._work()
            except KafkaException as error:  # begin anew, as an application that is restarted
                self.errors.append(str(error))

    def _work(self) -> None:
        servers = {"bootstrap.servers": self._bootstrap}
        consumer = confluent_kafka.Consumer(
            {
                **servers, "group.id": "copiers", "isolation.level": "read_committed", "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )  # fmt: skip
        producer = confluent_kafka.Producer({**servers, "transactional.id": ID, "transaction.timeout.ms": 30_000})
        try:
            producer.init_transactions(PATIENCE_SECONDS)
            partitions = consumer.committed([TopicPartition("source", index) for index in range(PARTITIONS)], 30)
            for one in partitions:
                one.offset = max(one.offset, 0)
            consumer.assign(partitions)
            while not self.stop:
                self._copy(consumer, producer)
        finally:
            consumer.close()

    def _copy(self, consumer: confluent_kafka.Consumer, producer: confluent_kafka.Producer) -> None:
        records = [record for record in consumer.consume(20, 1.0) if record.error() is None]
        if not records:
            return
        producer.begin_transaction()
        for record in records:
            producer.produce("target", record.value())
        ends: dict[int, int] = {}
        for record in records:
            index, offset = record.partition(), record.offset()
            assert index is not None
            assert offset is not None
            ends[index] = offset + 1
        offsets = [TopicPartition("source", index, offset) for index, offset in ends.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
        producer.commit_transaction(60)
        self.copied += len(records)


def _committed(bootstrap: str) -> list[int]:
    """Return the values of `target` up to its last stable offset."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed",
            "auto.offset.reset": "earliest", "enable.partition.eof": True,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition("target", index, 0) for index in range(PARTITIONS)])
    found: list[int] = []
    ended: set[Any] = set()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(ended) < PARTITIONS and time.monotonic() < deadline:
        record = consumer.poll(1.0)
        if record is None:
            continue
        if record.error() is not None:
            ended.add(record.partition())
        else:
            found.append(int(record.value() or b""))
    consumer.close()
    return sorted(found)


def test_a_copy_is_exact_though_coordinators_are_killed(start_cluster: Callable[..., BrokerCluster]) -> None:
    cluster = start_cluster(3, {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "3"})
    topics = [NewTopic(name, PARTITIONS, 3, {"min.insync.replicas": "2"}) for name in ("source", "target")]
    outcome = cluster.ask(lambda admin: admin.create_topics(topics))
    assert not any(outcome.values()), outcome
    cluster.wait_for_isr("source", 3)
    copier = Copier(cluster.bootstrap)
    try:
        for kill in range(KILLS):
            _fill(cluster, kill)
            wanted = (kill + 1) * RECORDS // (KILLS + 1) // 2
            cluster.until(lambda wanted=wanted: copier.copied >= wanted, "that some records are copied")  # type: ignore[misc]
            coordinator = cluster.partitions(STATES)[partition_of(ID, 3)].leader
            cluster.kill(coordinator)
            alive = [node for node in (1, 2, 3) if node != coordinator]
            cluster.wait_for_leaders(STATES, alive)
            cluster.start(coordinator)
            cluster.wait_for_isr(STATES, 3)
        _fill(cluster, KILLS)
        cluster.until(
            lambda: len(_committed(cluster.bootstrap)) >= RECORDS, f"that all is copied; errors: {copier.errors}"
        )
    finally:
        copier.stop = True
        copier.thread.join(PATIENCE_SECONDS)
    assert _committed(cluster.bootstrap) == list(range(RECORDS)), copier.errors


def _fill(cluster: BrokerCluster, part: int) -> None:
    """Append the next records of the source."""
    size = RECORDS // (KILLS + 1)
    with Producer(cluster.bootstrap, acks="all") as producer:
        sent = [
            producer.send("source", b"%d" % number, partition=number % PARTITIONS)
            for number in range(part * size, (part + 1) * size)
        ]
        for delivery in sent:
            delivery.result(PATIENCE_SECONDS)
