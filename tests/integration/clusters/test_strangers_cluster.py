"""Strangers on a cluster of three secured brokers: they can't pass for a broker, and can't make an acknowledgement lie.

Strangers are an anonymous client of a plain listener, one that has authenticated and has no ACLs, one of another tenant
with a certificate, on the very listener that the brokers use between each other, and one who may read the topic. Each
tries the APIs of brokers, forged fetches with the id of every broker, and what only administrators may do, on every
broker.

The last test forges the fetches of followers that stand still, while a producer writes with acks=all; then the leader
dies. Whatever was acknowledged has to be there.
"""

from __future__ import annotations

import itertools
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from pylogd.base.errors import ErrorCode, RequestTimedOut
from pylogd.base.ports import free_ports
from pylogd.broker.security.peers import SOFTWARE_NAME
from pylogd.client import Admin, Cluster, Consumer, Producer
from pylogd.client.properties import parse_properties, security_from
from pylogd.local.broker import HOST
from pylogd.local.secure import ADMIN, SecureCluster
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from pylogd.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.extreme.access import Access, password_of
from tests.rawclient import ConnectionClosed, RawClient, frame, header, wait_until

NODES: Final = (1, 2, 3)
TOPIC: Final = "bob-attacked"
SECONDS: Final = 60.0
#: APIs by which Kafka's brokers, controllers and transaction coordinators speak to each other, by their names there.
OF_BROKERS: Final = {
    "LeaderAndIsr": 4, "StopReplica": 5, "UpdateMetadata": 6, "ControlledShutdown": 7,
    "Vote": 52, "BeginQuorumEpoch": 53, "EndQuorumEpoch": 54, "DescribeQuorum": 55, "AlterPartition": 56,
    "Envelope": 58, "FetchSnapshot": 59, "BrokerRegistration": 62, "BrokerHeartbeat": 63,
    "UnregisterBroker": 64,
    "AllocateProducerIds": 67, "ControllerRegistration": 70, "AssignReplicasToDirs": 73,
}  # fmt: skip
#: Who has no ACL, and who may read the topic, both with the mechanism PLAIN; bob owns it.
PLAIN_USERS: Final = ("mallory", "carol", "bob")
STRANGERS: Final = ("anonymous", "mallory", "alice", "carol")
REFUSED: Final = {ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
SETTINGS: Final = {
    "zookeeper.session.timeout.ms": "6000", "min.insync.replicas": "2", "offsets.topic.num.partitions": "1",
    "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": "x.PlainLoginModule required "
    + " ".join(f'user_{user}="{password_of(user)}"' for user in PLAIN_USERS) + ";",
}  # fmt: skip


class OpenedCluster(SecureCluster):
    """A secured cluster that has a plain listener too, as while it is being secured."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, len(NODES), settings=SETTINGS)
        self.plain_ports = dict(zip(NODES, free_ports(len(NODES)), strict=True))

    def listen(self, node: int) -> list[str]:
        return [*super().listen(node), "--listen", f"PLAINTEXT://{HOST}:{self.plain_ports[node]}"]

    def stranger(self, name: str, node: int) -> RawClient:
        """Connect to a broker as one of `STRANGERS`."""
        if name == "anonymous":
            return RawClient(f"{HOST}:{self.plain_ports[node]}")
        if name == "alice":
            context = ssl.create_default_context(cafile=str(self.authority))
            context.load_cert_chain(str(self.tls / "alice.pem"))
            return RawClient(self.address(node), tls=context)
        return Access(f"{HOST}:{self.sasl_ports[node]}", str(self.authority), name).connect(SECONDS)

    def bob(self) -> Any:
        """Return how the owner of the topic connects with the library."""
        return security_from(parse_properties(self.properties("bob").read_text()))

    def states(self) -> list[tuple[Any, ...]]:
        """Return the leader, epoch, replicas and in-sync set of each partition."""
        with Cluster(self.bootstrap, security=self.security(ADMIN)) as connection, Admin(connection) as admin:
            found = admin.describe_topic(TOPIC).partitions
        return [(one.leader, one.leader_epoch, one.replicas, set(one.isr)) for one in found]

    def topic_id(self) -> bytes:
        with Cluster(self.bootstrap, security=self.security(ADMIN)) as connection, Admin(connection) as admin:
            return admin.describe_topic(TOPIC).topic_id


class Attacked(NamedTuple):
    """The cluster, the id of the topic, and the epoch of its leader, until the last test kills that."""

    cluster: OpenedCluster
    topic_id: bytes
    leader_epoch: int


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    cluster = OpenedCluster(tmp_path_factory.mktemp("attacked"))
    with cluster:
        with Cluster(cluster.sasl_bootstrap, security=cluster.bob()) as connection, Admin(connection) as admin:
            admin.create_topic(TOPIC, 1, 3)
        with Producer(cluster.sasl_bootstrap, security=cluster.bob(), acks="all") as producer:
            producer.send(TOPIC, b"secret", partition=0).result(SECONDS)
        wait_until(lambda: cluster.states()[0][3] == set(NODES), "all replicas are in sync")
        yield Attacked(cluster, cluster.topic_id(), cluster.states()[0][1])
        assert not cluster.close()


def everywhere(cluster: OpenedCluster) -> Iterator[tuple[str, int]]:
    """Yield each stranger with each broker."""
    yield from itertools.product(STRANGERS, NODES)


def claims(node: int) -> list[ApiVersionsRequest | None]:
    """Return what a client may say it is before it fetches as a broker: nothing, or that broker with any secret."""
    return [None, ApiVersionsRequest(SOFTWARE_NAME, f"0.1-{node}-{'0' * 32}")]


def forged_fetches(attacked: Attacked, replica: int, offset: int) -> Iterator[tuple[FetchRequest, int]]:
    """Yield fetches as if from a broker, of each form that the protocol had, with their versions.

    They name the leader's epoch, as a follower has to; Metadata tells it.
    """
    partition = FetchPartition(
        0,
        current_leader_epoch=attacked.leader_epoch,
        fetch_offset=offset,
        partition_max_bytes=1 << 20,
        last_fetched_epoch=-1,
    )
    named, by_id = (
        FetchTopic(TOPIC, partitions=[partition]),
        FetchTopic(topic_id=attacked.topic_id, partitions=[partition]),
    )
    for version, topic in ((4, named), (11, named), (12, named), (14, by_id)):
        yield FetchRequest(replica_id=replica, max_wait_ms=0, max_bytes=1 << 20, topics=[topic]), version
    for version in (15, 17):
        state = ReplicaState(replica, 1)
        yield FetchRequest(replica_state=state, max_wait_ms=0, max_bytes=1 << 20, topics=[by_id]), version


def check_refused(answer: Any, version: int) -> None:
    """The answer to a forged fetch is an error, and has no records. Early versions have no error: it is empty."""
    found = [answer.error_code, *(one.error_code for topic in answer.responses for one in topic.partitions)]
    assert (version < 7 or any(found)) and set(found) <= {ErrorCode.NONE, *REFUSED}, found
    assert not any(one.records for topic in answer.responses for one in topic.partitions)
    assert all(one.high_watermark == -1 for topic in answer.responses for one in topic.partitions)


def test_apis_of_brokers_are_not_served(attacked: Attacked) -> None:
    """A request of such an API ends the connection, whoever sends it, and ApiVersions does not name it."""
    cluster = attacked.cluster
    before = cluster.states()
    for stranger, node in everywhere(cluster):
        with cluster.stranger(stranger, node) as client:
            listed = {one.api_key for one in client.request(ApiVersionsRequest("raw", "1"), 3).api_keys}
            assert not listed & set(OF_BROKERS.values())
        for name, key in OF_BROKERS.items():
            with cluster.stranger(stranger, node) as client:
                client.send(frame(header(ApiKey.PRODUCE, 0).replace(b"\0\0\0\0", key.to_bytes(2, "big") + b"\0\0", 1)))
                with pytest.raises(ConnectionClosed):
                    pytest.fail(f"{name} as {stranger}: {client.read_frame()!r}")
    assert cluster.states() == before


def test_forged_fetches_are_refused(attacked: Attacked) -> None:
    cluster = attacked.cluster
    before = cluster.states()
    for stranger, node in everywhere(cluster):
        for replica in NODES:
            for claim in claims(replica):
                with cluster.stranger(stranger, node) as client:
                    if claim is not None:
                        client.request(claim, 3)
                    for request, version in forged_fetches(attacked, replica, 0):
                        check_refused(client.request(request, version), version)
    assert cluster.states() == before


def test_a_client_without_a_certificate_does_not_reach_the_listener_between_brokers(attacked: Attacked) -> None:
    cluster = attacked.cluster
    for node in NODES:
        context = ssl.create_default_context(cafile=str(cluster.authority))
        with pytest.raises((ConnectionClosed, ssl.SSLError, ConnectionError)):  # noqa: SIM117
            with RawClient(cluster.address(node), tls=context) as client:
                client.request(ApiVersionsRequest("raw", "1"), 3)


def test_only_administrators_move_elect_and_change(attacked: Attacked) -> None:
    cluster = attacked.cluster
    before = cluster.states()
    move = [ReassignableTopic(TOPIC, [ReassignablePartition(0, [1])])]
    requests: list[tuple[Any, int, Callable[[Any], list[int]]]] = [
        (AlterPartitionReassignmentsRequest(5000, topics=move), 1, lambda answer: [answer.error_code]),
        (ElectLeadersRequest(1, [TopicPartitions(TOPIC, [0])], 5000), 2, lambda answer: [answer.error_code]),
        (
            IncrementalAlterConfigsRequest(
                [
                    AlterConfigsResource(4, "", [AlterableConfig("unclean.leader.election.enable", 0, "true")]),
                    AlterConfigsResource(2, TOPIC, [AlterableConfig("min.insync.replicas", 0, "1")]),
                ]
            ),
            1,
            lambda answer: [one.error_code for one in answer.responses],
        ),
    ]  # fmt: skip
    for stranger, node in everywhere(cluster):
        with cluster.stranger(stranger, node) as client:
            for request, version, codes in requests:
                found = codes(client.request(request, version))
                assert found and set(found) <= REFUSED, (stranger, request, found)
    assert cluster.states() == before


def test_what_is_acknowledged_beside_forged_fetches_survives_the_leader(attacked: Attacked) -> None:
    """The followers stand still, so nothing may be acknowledged, however often somebody fetches in their names."""
    cluster = attacked.cluster
    leader = cluster.states()[0][0]
    followers = [node for node in NODES if node != leader]
    acknowledged = [b"secret"]
    with Producer(cluster.sasl_bootstrap, security=cluster.bob(), acks="all", linger_ms=0) as producer:
        for number in range(100):
            value = b"before-%d" % number
            producer.send(TOPIC, value, partition=0).result(SECONDS)
            acknowledged.append(value)
        for node in followers:
            cluster.pause(node)
        waiting = [
            (b"during-%d" % number, producer.send(TOPIC, b"during-%d" % number, partition=0)) for number in range(9)
        ]
        for stranger, replica in itertools.product(STRANGERS, followers):
            with cluster.stranger(stranger, leader) as client:
                client.request(claims(replica)[1], 3)
                for offset in (101, 110, 1 << 40):
                    for request, version in forged_fetches(attacked, replica, offset):
                        check_refused(client.request(request, version), version)
        for _, delivery in waiting:
            with pytest.raises(RequestTimedOut):
                delivery.result(0.01)
        cluster.kill(leader)
        for node in followers:
            cluster.resume(node)
        for value, delivery in waiting:  # sent again, to the new leader
            delivery.result(SECONDS)
            acknowledged.append(value)
        producer.send(TOPIC, b"after", partition=0).result(SECONDS)
        acknowledged.append(b"after")
    assert cluster.states()[0][0] in followers
    with Consumer(cluster.sasl_bootstrap, security=cluster.bob()) as consumer:
        consumer.assign({(TOPIC, 0): 0})
        found: list[bytes | None] = []
        while b"after" not in found:
            records = consumer.poll(SECONDS)
            assert records, f"no more than {len(found)} records can be read"
            found += [record.value for record in records]
    assert found == acknowledged, "each record once, in order"
    cluster.start(leader)
