"""Brokers that replicate over TLS with mutual authentication, while clients use another listener."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from joserfc import jwk, jwt
from kazoo.client import KazooClient

from pylogd.client import Admin, Consumer, Producer
from pylogd.client import Cluster as Connection
from pylogd.credentials.scram import SCRAM_SHA_512, encode_credential, make_credential
from pylogd.local.authority import Authority, write_secret
from pylogd.local.broker import BrokerFailed, BrokerProcess
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


class MechanismCluster(BrokerCluster):
    """Three brokers that authenticate at each other, with TLS, as one user, again every other second."""

    def __init__(
        self, folder: Path, connect: str, mechanism: str, settings: Mapping[str, str], host: str, user: str
    ) -> None:
        """settings: those of the mechanism on the listener between brokers."""
        self._host = host
        pem = folder / "broker.pem"
        authority = Authority()
        write_secret(pem, authority.issue("broker", [host]).pem)
        own = {
            "sasl.enabled.mechanisms": mechanism, "connections.max.reauth.ms": "2000",
            "ssl.keystore.location": str(pem), "ssl.truststore.certificates": authority.certificate, **settings,
        }  # fmt: skip
        super().__init__(folder, connect, 3, {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BETWEEN:SASL_SSL",
            "inter.broker.listener.name": "between", "sasl.mechanism.inter.broker.protocol": mechanism,
            **{f"listener.name.between.{name}": value for name, value in own.items()},
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{user};User:ANONYMOUS", "min.insync.replicas": "2", "replica.lag.time.max.ms": "3000",
        })  # fmt: skip

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        """Run a broker's process with a listener for brokers, without waiting."""
        return BrokerProcess(
            self.folder / f"broker{node}", self.folder / f"broker{node}.log", settings,
            ["--listen", f"BETWEEN://{self._host}:0"], self.ports[node], wait=False,
        )  # fmt: skip


def add_scram_user(connect: str) -> None:
    """Make the user `broker`, whose password is "hush", before any broker runs."""
    credential = encode_credential(make_credential(SCRAM_SHA_512, "hush"))
    client = KazooClient(connect, timeout=60)
    client.start(PATIENCE_SECONDS)
    value = json.dumps({"version": 1, "config": {"SCRAM-SHA-512": credential}}).encode()
    client.create("/config/users/broker", value, makepath=True)
    client.stop()
    client.close()


class TokenEndpoint(HTTPServer):
    """An OAuth 2 server, whose tokens are valid for seconds. asked: who asked for one, by its Authorization."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.key = jwk.ECKey.generate_key("P-256", {"kid": "k"})
        super().__init__(("127.0.0.1", 0), _TokenRequest)

    def token(self) -> str:
        """Return a token that is valid longer than it is used."""
        claims = {"sub": "broker", "aud": "brokers", "exp": time.time() + 5}
        return jwt.encode({"alg": "ES256", "kid": "k"}, claims, self.key)


class _TokenRequest(BaseHTTPRequestHandler):
    server: TokenEndpoint

    def do_POST(self) -> None:
        self.server.asked.append(self.headers["Authorization"])
        body = json.dumps({"access_token": self.server.token(), "expires_in": 1}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_brokers_replicate_with_scram_and_tls(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    add_scram_user(zookeeper.connect)
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = f'{module} required username="broker" password="hush";'
    replicates(zookeeper.connect, tmp_path, "SCRAM-SHA-512", {"scram-sha-512.sasl.jaas.config": jaas})


def test_brokers_replicate_with_tokens(zookeeper: ZooKeeper, tmp_path: Path, endpoint: TokenEndpoint) -> None:
    """Sessions last two seconds. Each broker fetches new tokens, and its connections stay."""
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [endpoint.key.as_dict(private=False)]}))
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    replicates(
        zookeeper.connect, tmp_path, "OAUTHBEARER", {
            "oauthbearer.sasl.jaas.config": f'{module} required clientId="broker" clientSecret="hush";',
            "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{endpoint.server_port}/token",
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.audience": "brokers", "sasl.oauthbearer.clock.skew.seconds": "0",
        },
        lambda: len(endpoint.asked) >= 15,
    )  # fmt: skip
    assert set(endpoint.asked) == {"Basic YnJva2VyOmh1c2g="}


def connections_between(cluster: BrokerCluster) -> set[tuple[str, str]]:
    """Return the connections that brokers have to each other, by their addresses as /proc/net/tcp has them."""
    found: list[set[tuple[str, str]]] = []
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    for broker in cluster.brokers.values():
        links = Path(f"/proc/{broker.pid}/fd").iterdir()
        sockets = {os.readlink(link) for link in links if link.is_symlink()}
        found.append({(line[1], line[2]) for line in lines if line[3] == "01" and f"socket:[{line[9]}]" in sockets})
    every = set().union(*found)
    return {(local, remote) for local, remote in every if (remote, local) in every}


def replicates(
    connect: str,
    folder: Path,
    mechanism: str,
    settings: Mapping[str, str],
    enough: Callable[[], bool] = lambda: True,
    *,
    host: str = "127.0.0.1",
    user: str = "broker",
) -> None:
    """Check that brokers replicate over several sessions, also after one was killed.

    enough: whether there were enough sessions. host: where the brokers listen for each other. user: who they are.
    """
    cluster = MechanismCluster(folder, connect, mechanism, settings, host, user)
    try:
        _replicates(cluster, enough)
        assert not cluster.close()
    finally:
        cluster.kill_all()


def _replicates(cluster: MechanismCluster, enough: Callable[[], bool]) -> None:
    def write(first: int) -> None:
        with Producer(cluster.bootstrap, acks="all") as producer:
            for sent in [producer.send("t", b"%d" % n, partition=0) for n in range(first, first + 100)]:
                sent.result(PATIENCE_SECONDS)

    cluster.ask(lambda admin: admin.create_topic("t", 1, 3))
    leader = cluster.wait_for_isr("t", 3)[0].leader
    write(0)
    before = connections_between(cluster)
    cluster.until(enough, "several sessions")
    assert before and before <= connections_between(cluster), "a connection was made anew"
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
