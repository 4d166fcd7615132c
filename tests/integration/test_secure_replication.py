"""Brokers that replicate over TLS with mutual authentication, while clients use another listener."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from pylogd.client import Admin, Consumer, Producer
from pylogd.client import Cluster as Connection
from pylogd.local.authority import Authority, write_secret
from pylogd.local.broker import BrokerFailed, BrokerProcess
from pylogd.security.sasl.scram import SCRAM_SHA_512, encode_credential, make_credential
from tests.clusters import PATIENCE_SECONDS, BrokerCluster
from tests.integration.conftest import StartBroker
from tests.rawclient import wait_until
from tests.zookeeper import ZooKeeper


def start_secure(
    zookeeper: ZooKeeper, start: StartBroker, folder: Path, node: int, authority: Authority
) -> BrokerProcess:
    """Start a broker whose listener for brokers wants certificates of the authority."""
    pem = folder / f"{node}.pem"
    write_secret(pem, authority.issue(f"broker{node}", ["127.0.0.1"]).pem)
    settings = {
        "node.id": str(node), "zookeeper.connect": zookeeper.connect, "replica.lag.time.max.ms": "3000",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BETWEEN:SSL", "inter.broker.listener.name": "between",
        "listener.name.between.ssl.keystore.location": str(pem),
        "listener.name.between.ssl.truststore.certificates": authority.certificate,
        "listener.name.between.ssl.client.auth": "required",
    }  # fmt: skip
    return start(f"broker{node}", settings, ["--listen", "BETWEEN://127.0.0.1:0"])


def replicate(broker: BrokerProcess) -> None:
    """Write to topics on brokers 1 and 2, which replicate them, and on brokers 1 and 3, of which the latter can't."""
    with Connection(broker.address) as connection, Admin(connection) as admin:
        wait_until(lambda: len(admin.describe_cluster().brokers) == 3, "all brokers")
        create = AdminClient({"bootstrap.servers": broker.address}).create_topics
        topics = [
            NewTopic("t", 2, replica_assignment=[[1, 2], [2, 1]]),
            NewTopic("refused", 1, replica_assignment=[[1, 3]]),
        ]
        for done in create(topics).values():
            done.result(PATIENCE_SECONDS)
        with Producer(broker.address, acks="all") as producer:
            for number in range(1000):
                producer.send("t", str(number).encode(), partition=number % 2)
            producer.send("refused", b"value")

        def in_sync(name: str) -> list[set[int]]:
            (topic,) = [topic for topic in admin.list_topics() if topic.name == name]
            return [set(partition.isr) for partition in topic.partitions]

        wait_until(lambda: in_sync("t") == [{1, 2}, {1, 2}], "both replicas")
        wait_until(lambda: in_sync("refused") == [{1}], "the stranger is not in sync")


def test_followers_fetch_by_the_listener_between_brokers(
    zookeeper: ZooKeeper, start_broker: StartBroker, tmp_path: Path
) -> None:
    authority = Authority()
    brokers = [start_secure(zookeeper, start_broker, tmp_path, node, authority) for node in (1, 2)]
    stranger = start_secure(zookeeper, start_broker, tmp_path, 3, Authority("somebody else"))
    replicate(brokers[0])
    wait_until(lambda: "TLS handshake with 127.0.0.1 failed" in brokers[0].log(), "a refused handshake in the log")
    assert "certificate verify failed" in stranger.log()

    client = KazooClient(zookeeper.connect, timeout=60)
    client.start(PATIENCE_SECONDS)
    registered = json.loads(client.get("/brokers/ids/1")[0])
    client.stop()
    client.close()
    assert registered["listener_security_protocol_map"] == {"PLAINTEXT": "PLAINTEXT", "BETWEEN": "SSL"}
    assert [text.partition("://")[0] for text in registered["endpoints"]] == ["PLAINTEXT", "BETWEEN"]


def start_sasl(zookeeper: ZooKeeper, start: StartBroker, node: int, password: str) -> BrokerProcess:
    """Start a broker that authenticates at the others as `broker`, whose password is "hush"."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "node.id": str(node), "zookeeper.connect": zookeeper.connect, "replica.lag.time.max.ms": "3000",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BETWEEN:SASL_PLAINTEXT",
        "inter.broker.listener.name": "between", "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.between.plain.sasl.jaas.config": f'{module} required username="broker" '
        f'password="{password}" user_broker="hush";',
    }  # fmt: skip
    return start(f"broker{node}", settings, ["--listen", "BETWEEN://127.0.0.1:0"])


def test_followers_authenticate_at_leaders(zookeeper: ZooKeeper, start_broker: StartBroker) -> None:
    brokers = [start_sasl(zookeeper, start_broker, node, "hush") for node in (1, 2)]
    stranger = start_sasl(zookeeper, start_broker, 3, "lost")
    replicate(brokers[0])
    wait_until(lambda: "check the credentials" in stranger.log(), "what the stranger has to do")
    assert 'lost"' not in stranger.log()


class ScramCluster(BrokerCluster):
    """Three brokers that authenticate at each other by SCRAM, with TLS, as `broker`, whose password is "hush"."""

    def __init__(self, folder: Path, connect: str) -> None:
        """The brokers authenticate again every other second."""
        pem = folder / "broker.pem"
        authority = Authority()
        write_secret(pem, authority.issue("broker", ["127.0.0.1"]).pem)
        between = "listener.name.between"
        settings = {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BETWEEN:SASL_SSL",
            "inter.broker.listener.name": "between", "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            f"{between}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            f"{between}.scram-sha-512.sasl.jaas.config":
                'org.apache.kafka.common.security.scram.ScramLoginModule required username="broker" password="hush";',
            f"{between}.connections.max.reauth.ms": "2000",
            f"{between}.ssl.keystore.location": str(pem),
            f"{between}.ssl.truststore.certificates": authority.certificate,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:broker;User:ANONYMOUS", "min.insync.replicas": "2", "replica.lag.time.max.ms": "3000",
        }  # fmt: skip
        super().__init__(folder, connect, 3, settings)

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        """Run a broker's process with a listener for brokers, without waiting."""
        return BrokerProcess(
            self.folder / f"broker{node}", self.folder / f"broker{node}.log", settings,
            ["--listen", "BETWEEN://127.0.0.1:0"], self.ports[node], wait=False,
        )  # fmt: skip


@pytest.fixture
def scram_cluster(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[ScramCluster]:
    """A cluster whose first user was made before any broker ran."""
    credential = encode_credential(make_credential(SCRAM_SHA_512, "hush"))
    client = KazooClient(zookeeper.connect, timeout=60)
    client.start(PATIENCE_SECONDS)
    value = json.dumps({"version": 1, "config": {"SCRAM-SHA-512": credential}}).encode()
    client.create("/config/users/broker", value, makepath=True)
    client.stop()
    client.close()
    cluster = ScramCluster(tmp_path, zookeeper.connect)
    try:
        yield cluster
        assert not cluster.close()
    finally:
        cluster.kill_all()


def test_brokers_replicate_with_scram_and_tls(scram_cluster: ScramCluster) -> None:
    cluster = scram_cluster

    def write(first: int) -> None:
        with Producer(cluster.bootstrap, acks="all") as producer:
            for sent in [producer.send("t", b"%d" % n, partition=0) for n in range(first, first + 100)]:
                sent.result(PATIENCE_SECONDS)

    cluster.ask(lambda admin: admin.create_topic("t", 1, 3))
    leader = cluster.wait_for_isr("t", 3)[0].leader
    write(0)
    cluster.kill(leader)
    cluster.wait_for_isr("t", 2)
    write(100)
    cluster.start(leader)
    cluster.wait_for_isr("t", 3)
    write(200)
    seen: list[bytes] = []
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])

        def have_all() -> bool:
            seen.extend(record.value or b"" for record in consumer.poll(1))
            return len(seen) >= 300

        cluster.until(have_all, "all records")
    assert seen == [b"%d" % n for n in range(300)]
    for node in cluster.ports:
        assert "hush" not in cluster.log(node)
        assert "CLUSTER_ACTION" not in cluster.log(node)  # the brokers' user may follow


def test_a_listener_between_brokers_needs_credentials(zookeeper: ZooKeeper, start_broker: StartBroker) -> None:
    settings = {
        "zookeeper.connect": zookeeper.connect, "listener.security.protocol.map": "BETWEEN:SASL_PLAINTEXT",
        "listeners": "BETWEEN://127.0.0.1:0", "inter.broker.listener.name": "BETWEEN",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    }  # fmt: skip
    with pytest.raises(BrokerFailed, match=r"set sasl\.mechanism\.inter\.broker\.protocol"):
        start_broker("broker", settings, ["--listen", "BETWEEN://127.0.0.1:0"])
