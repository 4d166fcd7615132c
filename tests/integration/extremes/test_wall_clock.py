"""Steps of the brokers' wall clock do not affect timeouts, expirations and measurements."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pylogd.client import Consumer, Producer
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.clusters import PATIENCE_SECONDS, BrokerCluster
from tests.fakes.parts import batch
from tests.preload import Preload, why_not
from tests.rawclient import RawClient

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

StartCluster = Callable[..., BrokerCluster]

#: Longer than the test pauses a broker, so that its session does not expire.
SESSION = {"zookeeper.session.timeout.ms": "40000"}
#: Longer than the interval at which a leader looks for lagging followers (1 s).
LOOK_MS = 3000


def wait_by_the_broker(client: RawClient, topic: str) -> None:
    """Wait until a broker has answered an empty fetch. By then all earlier timers of the broker have fired."""
    wanted = FetchPartition(0, fetch_offset=1, partition_max_bytes=1 << 20)
    fetch = FetchRequest(max_wait_ms=LOOK_MS, min_bytes=1, topics=[FetchTopic(topic, partitions=[wanted])])
    assert client.request(fetch, 12).responses[0].partitions[0].error_code == 0


def members(cluster: BrokerCluster, group: str) -> set[str]:
    """Return the ids of a group's members, or an empty set if the group does not exist."""
    if not any(found.group_id == group for found in cluster.ask(lambda admin: admin.list_groups())):
        return set()
    return {member.member_id for member in cluster.ask(lambda admin: admin.describe_group(group)).members}


def test_a_step_forward_expires_no_member_and_no_follower(start_cluster: StartCluster, tmp_path: Path) -> None:
    clock = Preload(tmp_path, "clock")
    cluster = start_cluster(3, {**SESSION, "min.insync.replicas": "2"}, prefix=clock.prefix)
    cluster.ask(lambda admin: admin.create_topic("t", 1, 3))
    leader = cluster.wait_for_isr("t", 3)[0].leader
    follower = next(node for node in cluster.ports if node != leader)
    with (
        Consumer(cluster.bootstrap, group_id="g") as consumer,
        RawClient(cluster.address(leader)) as writer,
        RawClient(cluster.address(leader)) as reader,
    ):
        consumer.subscribe(["t"])
        cluster.until(lambda: consumer.poll(0.1) or consumer.assignment, "that the member has its partitions")
        before = members(cluster, "g")
        cluster.pause(follower)
        # This request waits for the paused follower, with a timeout longer than the test.
        data = TopicProduceData("t", partition_data=[PartitionProduceData(0, batch(b"one"))])
        waiting = writer.send_request(ProduceRequest(None, -1, 600_000, [data]), 9)
        clock.step(70)
        wait_by_the_broker(reader, "t")
        cluster.resume(follower)
        answer = writer.response(ProduceRequest.API_KEY, 9, waiting).responses[0].partition_responses[0]
        assert answer.error_code == 0
        assert members(cluster, "g") == before
        cluster.until(lambda: consumer.poll(0.1), "the record")
        assert [partition.partition for partition in consumer.assignment] == [0]
    assert sorted(cluster.partitions("t")[0].isr) == [1, 2, 3]
    assert not [node for node in cluster.ports if "leave their in-sync sets" in cluster.log(node)]


_MEMBER = """
import sys
from pylogd.client import Consumer

consumer = Consumer(sys.argv[1], group_id=sys.argv[2], session_timeout=6.0)
consumer.subscribe(["t"])
while True:
    consumer.poll(1.0)
"""


@contextmanager
def consuming(cluster: BrokerCluster, group: str) -> Iterator[subprocess.Popen[bytes]]:
    """A member of a group in a process of its own."""
    command = [sys.executable, "-c", _MEMBER, cluster.bootstrap, group]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_step_back_does_not_delay_expirations(start_cluster: StartCluster, tmp_path: Path) -> None:
    clock = Preload(tmp_path, "clock")
    settings = {**SESSION, "min.insync.replicas": "2", "replica.lag.time.max.ms": "4000"}
    cluster = start_cluster(3, settings, prefix=clock.prefix)
    cluster.ask(lambda admin: admin.create_topic("t", 1, 3))
    leader = cluster.wait_for_isr("t", 3)[0].leader
    follower = next(node for node in cluster.ports if node != leader)
    with consuming(cluster, "g") as member:
        cluster.until(lambda: members(cluster, "g"), "that the group has its member")
        with Producer(cluster.address(leader), acks="all", linger_ms=0) as producer:
            producer.send("t", b"before", partition=0).result(PATIENCE_SECONDS)
            clock.step(-600)
            member.send_signal(signal.SIGKILL)
            cluster.pause(follower)
            producer.send("t", b"after", partition=0).result(PATIENCE_SECONDS)
            alive = cluster.ask(lambda admin: admin.describe_cluster(), leader).brokers
            assert len(alive) == 3, "the follower was removed by its session's end, not by its lag"
        cluster.resume(follower)
        cluster.wait_for_isr("t", 3)
        cluster.until(lambda: not members(cluster, "g"), "that the killed member is removed")
