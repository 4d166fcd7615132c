"""Reassignments and elections on three real brokers, requested by kafka-python and confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as LibrdkafkaPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import NewTopic as KafkaNewTopic

from pylogd.client import Admin, Consumer, Producer
from pylogd.client.core import model
from tests.clusters import PATIENCE_SECONDS, BrokerCluster

StartCluster = Callable[..., BrokerCluster]


def fill(cluster: BrokerCluster, name: str, count: int = 300, idempotence: bool = True) -> None:
    """Write numbers to partition 0 with acks=all."""
    with Producer(cluster.bootstrap, acks="all", idempotence=idempotence) as producer:
        for delivery in [producer.send(name, b"%d" % value, partition=0) for value in range(count)]:
            delivery.result(PATIENCE_SECONDS)


def check(cluster: BrokerCluster, name: str, count: int = 300) -> None:
    """Check that partition 0 has exactly these numbers."""
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0)])
        found: list[int] = []

        def have_all() -> bool:
            found.extend(int(record.value or b"") for record in consumer.poll(1))
            return len(found) >= count

        cluster.until(have_all, "all records")
    assert found == list(range(count))


def test_kafka_python_moves_replicas_and_elects_leaders(start_cluster: StartCluster) -> None:
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
        cluster.until(lambda: admin.list_partition_reassignments() == {}, "that no reassignment is left")
        after = cluster.until(
            lambda: next((one for one in cluster.partitions("moved") if one.replicas == (3, 2)), None),
            "that the replicas are moved",
        )
        assert after is not None and set(after.isr) == {2, 3}
        assert after.leader in (2, 3)
        check(cluster, "moved")
        admin.elect_leaders(0, {"moved": [0]})  # elects the preferred leader, if another replica leads
        cluster.until(lambda: cluster.partitions("moved")[0].leader == 3, "that the preferred replica leads")
        # The old replica's log is deleted.
        gone = cluster.folder / "broker1" / "moved-0"
        cluster.until(lambda: not gone.exists(), "that broker 1 has deleted its replica")
    finally:
        admin.close()


def test_a_reassignment_that_can_not_complete_is_cancelled(start_cluster: StartCluster) -> None:
    # The paused broker's session outlasts the test.
    cluster = start_cluster(settings={"zookeeper.session.timeout.ms": "60000"})
    admin = KafkaAdminClient(bootstrap_servers=cluster.address(1))
    try:
        admin.create_topics([KafkaNewTopic("moved", -1, -1, replica_assignments={0: [1, 2]})])
        fill(cluster, "moved")
        partition = TopicPartition("moved", 0)
        cluster.pause(3)
        assert list(admin.alter_partition_reassignments({partition: [1, 3]}).values()) == [None]
        found = cluster.until(
            lambda: admin.list_partition_reassignments([partition]).get(partition), "that the reassignment is under way"
        )
        assert (found["replicas"], found["adding_replicas"], found["removing_replicas"]) == ([1, 3, 2], [3], [2])
        assert list(admin.alter_partition_reassignments({partition: None}).values()) == [None]
        cluster.until(lambda: set(cluster.partitions("moved", 1)[0].replicas) == {1, 2}, "that it is cancelled")
        cluster.resume(3)
        check(cluster, "moved")
    finally:
        admin.close()


def test_a_log_that_starts_inside_a_batch_is_copied(start_cluster: StartCluster) -> None:
    """DeleteRecords may name any offset; a new replica has to take the batch around it whole."""
    cluster, moved = start_cluster(), model.TopicPartition("moved", 0)
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, linger_ms=1000) as producer:
        admin.create_topics([model.NewTopic("moved", assignments={0: [1]})])
        for delivery in [producer.send("moved", b"%d" % value, partition=0) for value in range(20)]:
            delivery.result(PATIENCE_SECONDS)
        assert admin.delete_records({moved: 13}) == {moved: 13}
        assert set(admin.reassign({moved: [2, 3]}).values()) == {None}
        cluster.until(
            lambda: not admin.reassignments() and set(cluster.partitions("moved")[0].isr) == {2, 3},
            "that the replicas are moved",
        )
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([("moved", 0)])
        found: list[tuple[int, bytes | None]] = []

        def have_all() -> bool:
            found.extend((record.offset, record.value) for record in consumer.poll(1))
            return len(found) >= 7

        cluster.until(have_all, "all records")
    assert found == [(value, b"%d" % value) for value in range(13, 20)]


def test_confluent_kafka_adds_partitions_and_elects_leaders(start_cluster: StartCluster) -> None:
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
    # The preferred leader is killed, restarted, and elected again on request.
    cluster.kill(1)
    assert cluster.wait_for_leaders("u", [2, 3])[0].leader == 2
    cluster.start(1)
    cluster.wait_for_isr("u", 3)
    outcome = admin.elect_leaders(ElectionType.PREFERRED, [LibrdkafkaPartition("u", 0)]).result(PATIENCE_SECONDS)
    assert not any(outcome.values()), outcome
    cluster.until(lambda: cluster.partitions("u")[0].leader == 1, "that broker 1 leads again")


def test_an_unclean_election_on_request(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic("t", 1, replica_assignment=[[1, 2]])
    admin.create_topics([new])["t"].result(PATIENCE_SECONDS)
    del admin  # its threads would retry dead brokers without a pause
    cluster.wait_for_isr("t", 2)
    cluster.kill(2)
    cluster.until(lambda: cluster.partitions("t")[0].isr == (1,), "that broker 1 is alone in sync")
    cluster.kill(1)
    cluster.start(2)
    cluster.wait_for_brokers([2, 3])
    cluster.until(lambda: cluster.partitions("t", 3)[0].leader == -1, "that nobody leads")
    # A new client: librdkafka would wait for the controller it knew, which may be dead.
    admin = AdminClient({"bootstrap.servers": cluster.address(3)})
    outcome = admin.elect_leaders(ElectionType.UNCLEAN, [LibrdkafkaPartition("t", 0)]).result(PATIENCE_SECONDS)
    assert not any(outcome.values()), outcome
    assert cluster.wait_for_leaders("t", [2, 3])[0].leader == 2


def test_a_smooth_expansion_completes_when_groups_have_passed_its_start(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    with Admin(cluster.bootstrap) as admin:
        other = AdminClient({"bootstrap.servers": cluster.bootstrap})
        other.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2]])])["t"].result(PATIENCE_SECONDS)
        fill(
            cluster, "t", idempotence=False
        )  # an idempotent one that writes no more would be waited for, for two minutes
        admin.alter_group_offsets("g", {("t", 0): 100})
        assert not any(admin.reassign({("t", 0): [1, 3]}, latest_wait=3600).values())
        data = cluster.folder / "broker3" / "t-0"
        # Later records are copied: the replica begins at the leader's end when it first asks.
        cluster.until((data / f"{300:020d}.log").exists, "that the new replica begins at 300")
        fill(cluster, "t", 10)
        assert cluster.partitions("t")[0].isr in ((1, 2), (2, 1))
        admin.alter_group_offsets("g", {("t", 0): 310})
        cluster.until(lambda: cluster.partitions("t")[0].replicas == (1, 3), "that the replicas are moved")
        assert set(cluster.partitions("t")[0].isr) == {1, 3}
