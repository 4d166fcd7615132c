"""Replication as clients see it, on real brokers: reads from the nearest replica, deleted records, in-sync sets."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pylogd.base.errors import ErrorCode
from pylogd.client import Consumer, Producer
from pylogd.config import SETTINGS
from pylogd.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.clusters import PATIENCE_SECONDS, BrokerCluster
from tests.fakes.parts import batch
from tests.rawclient import RawClient, produce

StartCluster = Callable[..., BrokerCluster]


def write(cluster: BrokerCluster, topic: str, count: int, first: int = 0) -> None:
    """Write numbers to partition 0 with acks=all."""
    with Producer(cluster.bootstrap, acks="all") as producer:
        for delivery in [producer.send(topic, b"%d" % n, partition=0) for n in range(first, first + count)]:
            delivery.result(PATIENCE_SECONDS)


def fetch(cluster: BrokerCluster, node: int, topic: str, offset: int, rack: str = "", version: int = 12) -> Any:
    """Fetch partition 0 from a broker as a consumer. Return the response's partition."""
    wanted = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=100, min_bytes=1, topics=[FetchTopic(topic, partitions=[wanted])])
    if version >= 11:
        request.rack_id = rack
    with RawClient(cluster.address(node)) as client:
        return client.request(request, version).responses[0].partitions[0]


def copies(cluster: BrokerCluster, topic: str) -> list[bytes]:
    """Return the bytes of partition 0 on each broker that has a replica."""

    def read(folder: Path) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

    return [read(folder) for folder in sorted(cluster.folder.glob(f"broker*/{topic}-0"))]


def test_consumers_are_sent_to_the_replica_in_their_rack(start_cluster: StartCluster) -> None:
    cluster = start_cluster(
        3, {"replica.selector.class": SETTINGS["replica.selector.class"].choices[0]}, racks=["a", "b", "c"]
    )
    cluster.ask(lambda admin: admin.create_topic("t", 1, 3))
    leader = cluster.wait_for_isr("t", 3)[0].leader
    write(cluster, "t", 50)
    near = next(node for node in cluster.ports if node != leader)
    rack = cluster.racks[near]
    assert fetch(cluster, leader, "t", 0, cluster.racks[leader]).preferred_read_replica == -1
    cluster.until(
        lambda: fetch(cluster, leader, "t", 0, rack).preferred_read_replica == near, "that the rack's broker is named"
    )
    # The replica learns the high watermark with its next fetch from the leader.
    found = cluster.until(
        lambda: next((answer for answer in [fetch(cluster, near, "t", 0, rack)] if len(answer.records or b"")), None),
        "that the nearest replica serves them",
    )
    assert found is not None
    assert (found.error_code, found.preferred_read_replica) == (0, -1)
    assert fetch(cluster, near, "t", 0, version=10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest", client_rack=rack) as consumer:
        consumer.assign([("t", 0)])
        seen: list[bytes] = []

        def have_all() -> bool:
            seen.extend(record.value or b"" for record in consumer.poll(1))
            return len(seen) >= 50

        cluster.until(have_all, "all records")
    assert seen == [b"%d" % n for n in range(50)]


def test_deleted_records_are_gone_from_every_replica_when_the_request_is_answered(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.ask(lambda admin: admin.create_topic("t", 1, 3))
    leader = cluster.wait_for_isr("t", 3)[0].leader
    write(cluster, "t", 20)
    wanted = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 15)])
    with RawClient(cluster.address(leader), patience=PATIENCE_SECONDS) as client:
        answer = client.request(DeleteRecordsRequest([wanted], 30_000), 2).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, 15)
    cluster.kill(leader)
    rest = [node for node in cluster.ports if node != leader]
    heir = cluster.wait_for_leaders("t", rest)[0].leader
    cluster.until(
        lambda: fetch(cluster, heir, "t", 14).error_code == ErrorCode.OFFSET_OUT_OF_RANGE, "that the next replica leads"
    )
    cluster.start(leader)
    cluster.wait_for_isr("t", 3)
    write(cluster, "t", 5, 20)
    cluster.until(lambda: len(set(copies(cluster, "t"))) == 1, "that all replicas have the same bytes")


def test_acks_all_fails_with_too_few_in_sync_replicas(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3, {"min.insync.replicas": "2", "replica.lag.time.max.ms": "2000"})
    cluster.ask(lambda admin: admin.create_topic("t", 1, 3))
    leader = cluster.wait_for_isr("t", 3)[0].leader
    others = [node for node in cluster.ports if node != leader]
    now_ms = int(time.time() * 1000)

    def answer(acks: int) -> int:
        with RawClient(cluster.address(leader), patience=PATIENCE_SECONDS) as client:
            return int(produce(client, "t", [batch(now_ms=now_ms)], acks=acks)[0].error_code)

    cluster.until(lambda: answer(-1) == 0, "that acks=all succeeds")
    cluster.pause(others[0])
    assert answer(-1) == 0  # after the follower has left the in-sync set
    cluster.until(lambda: set(cluster.partitions("t", leader)[0].isr) == {leader, others[1]}, "that it has left")
    cluster.kill(others[1])
    cluster.until(lambda: cluster.partitions("t", leader)[0].isr == (leader,), "that the leader is alone")
    cluster.until(lambda: answer(-1) == ErrorCode.NOT_ENOUGH_REPLICAS, "that acks=all fails")
    assert answer(1) == 0
    cluster.resume(others[0])
    cluster.start(others[1])
    cluster.wait_for_isr("t", 3)
    cluster.until(lambda: answer(-1) == 0, "that acks=all succeeds again")
    cluster.until(lambda: len(set(copies(cluster, "t"))) == 1, "that all replicas have the same bytes")
