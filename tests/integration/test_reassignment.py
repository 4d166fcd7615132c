"""Replicas moved and leaders elected by admin clients that others wrote, on three real brokers."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as LibrdkafkaPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import NewTopic as KafkaNewTopic

from pylogd.client import Admin, Consumer, Producer
from tests.clusters import PATIENCE_SECONDS, BrokerCluster

StartCluster = Callable[..., BrokerCluster]


def fill(cluster: BrokerCluster, name: str, count: int = 300) -> None:
    """Write numbers to partition 0, committed by all in sync."""
    with Producer(cluster.bootstrap, acks="all") as producer:
        for delivery in [producer.send(name, b"%d" % value, partition=0) for value in range(count)]:
            delivery.result(PATIENCE_SECONDS)


def check(cluster: BrokerCluster, name: str, count: int = 300) -> None:
    """The same numbers come back."""
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0)])
        found: list[int] = []

        def have_all() -> bool:
            found.extend(int(record.value or b"") for record in consumer.poll(1))
            return len(found) >= count

        cluster.until(have_all, "all records")
    assert found == list(range(count))


def test_kafka_python_drives_a_cluster(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        moved = KafkaNewTopic("moved", -1, -1, replica_assignments={0: [1, 2]})
        admin.create_topics([KafkaNewTopic("spread", 6, 3), moved])
        leaders = [one.leader for one in cluster.wait_for_isr("spread", 3)]
        assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
        fill(cluster, "moved")
        partition = TopicPartition("moved", 0)
        assert list(admin.alter_partition_reassignments({partition: [3, 2]}).values()) == [None]
        cluster.until(lambda: admin.list_partition_reassignments() == {}, "that nothing is moved any more")
        after = cluster.until(
            lambda: next((one for one in cluster.partitions("moved") if one.replicas == (3, 2)), None),
            "that the replicas are moved",
        )
        assert after is not None and set(after.isr) == {2, 3}
        assert after.leader in (2, 3)
        check(cluster, "moved")
        admin.elect_leaders(0, {"moved": [0]})  # the preferred one, if another leads
        cluster.until(lambda: cluster.partitions("moved")[0].leader == 3, "that the preferred replica leads")
        # The old replica's log goes.
        gone = cluster.folder / "broker1" / "moved-0"
        cluster.until(lambda: not gone.exists(), "that broker 1 has nothing of it")
    finally:
        admin.close()


def test_a_move_that_cannot_end_is_stopped(start_cluster: StartCluster) -> None:
    # The paused broker stays a member for as long as the test takes.
    cluster = start_cluster(settings={"zookeeper.session.timeout.ms": "60000"})
    admin = KafkaAdminClient(bootstrap_servers=cluster.address(1))
    try:
        admin.create_topics([KafkaNewTopic("moved", -1, -1, replica_assignments={0: [1, 2]})])
        fill(cluster, "moved")
        partition = TopicPartition("moved", 0)
        cluster.pause(3)
        assert list(admin.alter_partition_reassignments({partition: [1, 3]}).values()) == [None]
        found = cluster.until(
            lambda: admin.list_partition_reassignments([partition]).get(partition), "that it is moved"
        )
        assert (found["replicas"], found["adding_replicas"], found["removing_replicas"]) == ([1, 3, 2], [3], [2])
        assert list(admin.alter_partition_reassignments({partition: None}).values()) == [None]
        cluster.until(lambda: set(cluster.partitions("moved", 1)[0].replicas) == {1, 2}, "that the move is stopped")
        cluster.resume(3)
        check(cluster, "moved")
    finally:
        admin.close()


def test_confluent_kafka_drives_a_cluster(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.create_topics([NewTopic("t", 3, 3), NewTopic("u", 1, replica_assignment=[[1, 2, 3]])]).values():
        future.result(PATIENCE_SECONDS)
    admin.create_partitions([NewPartitions("t", 6)])["t"].result(PATIENCE_SECONDS)
    cluster.until(lambda: len(cluster.partitions("t")) == 6, "that there are more partitions")
    cluster.wait_for_isr("t", 3)
    cluster.wait_for_isr("u", 3)
    described = admin.describe_cluster().result(PATIENCE_SECONDS)
    assert described.controller.id in (1, 2, 3)
    assert sorted(node.id for node in described.nodes) == [1, 2, 3]
    # The preferred leader dies, comes back, and leads again when it is asked to.
    cluster.kill(1)
    assert cluster.wait_for_leaders("u", [2, 3])[0].leader == 2
    cluster.start(1)
    cluster.wait_for_isr("u", 3)
    outcome = admin.elect_leaders(ElectionType.PREFERRED, [LibrdkafkaPartition("u", 0)]).result(PATIENCE_SECONDS)
    assert not any(outcome.values()), outcome
    cluster.until(lambda: cluster.partitions("u")[0].leader == 1, "that broker 1 leads again")


def test_an_unclean_election_is_asked_for(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic("t", 1, replica_assignment=[[1, 2]])
    admin.create_topics([new])["t"].result(PATIENCE_SECONDS)
    del admin  # its threads ask for dead brokers without a pause
    cluster.wait_for_isr("t", 2)
    cluster.kill(2)
    cluster.until(lambda: cluster.partitions("t")[0].isr == (1,), "that broker 1 is alone in sync")
    cluster.kill(1)
    cluster.start(2)
    cluster.wait_for_brokers([2, 3])
    cluster.until(lambda: cluster.partitions("t", 3)[0].leader == -1, "that nobody leads")
    # librdkafka would wait for the controller that it knew, which may be dead.
    admin = AdminClient({"bootstrap.servers": cluster.address(3)})
    outcome = admin.elect_leaders(ElectionType.UNCLEAN, [LibrdkafkaPartition("t", 0)]).result(PATIENCE_SECONDS)
    assert not any(outcome.values()), outcome
    assert cluster.wait_for_leaders("t", [2, 3])[0].leader == 2


def test_a_new_replica_from_the_latest_offset_joins_when_the_groups_have_passed_it(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    with Admin(cluster.bootstrap) as admin:
        other = AdminClient({"bootstrap.servers": cluster.bootstrap})
        other.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2]])])["t"].result(PATIENCE_SECONDS)
        fill(cluster, "t")
        admin.alter_group_offsets("g", {("t", 0): 100})
        assert not any(admin.reassign({("t", 0): [1, 3]}, latest_wait=3600).values())
        data = cluster.folder / "broker3" / "t-0"
        # Only then more comes: it begins where the leader ends when it asks.
        cluster.until((data / f"{300:020d}.log").exists, "that the new replica begins at 300")
        fill(cluster, "t", 10)
        assert cluster.partitions("t")[0].isr in ((1, 2), (2, 1))
        admin.alter_group_offsets("g", {("t", 0): 310})
        cluster.until(lambda: cluster.partitions("t")[0].replicas == (1, 3), "that the replicas are moved")
        assert set(cluster.partitions("t")[0].isr) == {1, 3}
