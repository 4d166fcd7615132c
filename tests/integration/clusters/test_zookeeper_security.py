"""Brokers, consumers and commands on a real ZooKeeper with TLS, certificates of clients, and ACLs."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from pylogd.client import Consumer, Producer
from pylogd.local.authority import Authority, write_secret
from pylogd.local.broker import pylogd_command
from pylogd.local.zookeeper import LocalZooKeeper
from tests.clusters import PATIENCE_SECONDS
from tests.faces import poll_until
from tests.integration.conftest import StartBroker

pytestmark = pytest.mark.timeout(300)


class Server(NamedTuple):
    """A server that wants certificates on one port. settings: those of a broker for it. open_port: for anybody."""

    settings: Mapping[str, str]
    open_port: str


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    authority = Authority()
    (tmp_path / "ca.pem").write_text(authority.certificate)
    for name in ("server", "broker"):
        write_secret(tmp_path / f"{name}.pem", authority.issue(name, ["127.0.0.1"]).pem)
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        options = {
            "secureClientPort": str(port), "secureClientPortAddress": "127.0.0.1", "ssl.clientAuth": "need",
            "ssl.keyStore.location": str(tmp_path / "server.pem"), "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(tmp_path / "ca.pem"), "ssl.trustStore.type": "PEM",
        }  # fmt: skip
        factory = "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"
        with LocalZooKeeper(tmp_path / "zookeeper", sync=False, options=options, java_options=[factory]) as running:
            settings = {
                "zookeeper.connect": f"127.0.0.1:{port}/secure", "zookeeper.session.timeout.ms": "30000",
                "zookeeper.ssl.client.enable": "true",
                "zookeeper.ssl.truststore.location": str(tmp_path / "ca.pem"),
                "zookeeper.ssl.keystore.location": str(tmp_path / "broker.pem"),
            }  # fmt: skip
            yield Server(settings, running.hosts)


def test_the_tree_belongs_to_the_certificates_of_the_brokers(
    server: Server, start_broker: StartBroker, tmp_path: Path
) -> None:
    settings = dict(server.settings)
    broker = start_broker("first", settings)
    with Producer(broker.address) as producer:
        producer.send("t", b"value").result()
    stranger = KazooClient(server.open_port, timeout=60)
    stranger.start(PATIENCE_SECONDS)
    stranger.get("/secure/config/topics")  # not protected yet
    toml = "".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in settings.items())
    (tmp_path / "broker.toml").write_text(toml)
    run = [*pylogd_command(), "zookeeper", "--config", str(tmp_path / "broker.toml")]
    subprocess.run([*run, "--protect"], check=True, timeout=PATIENCE_SECONDS)
    broker.stop()
    broker = start_broker("first", settings | {"zookeeper.set.acl": "true"})
    for path in ("/secure/config/topics", "/secure/config/topics/t"):
        with pytest.raises(NoAuthError):
            stranger.get(path)
    with pytest.raises(NoAuthError):
        stranger.set("/secure/brokers/topics/t", b"")
    stranger.get("/secure/brokers/topics/t")  # what consumers have to read
    with Producer(broker.address) as producer:
        producer.send("new", b"value").result()
    with pytest.raises(NoAuthError):
        stranger.get("/secure/config/topics/new")
    shown = subprocess.run([*run, "topics", "--json"], capture_output=True, check=True, timeout=PATIENCE_SECONDS)
    assert {topic["topic"] for topic in json.loads(shown.stdout)["topics"]} >= {"t", "new"}
    named = {name: value for name, value in settings.items() if ".ssl." in name}
    with Consumer(
        broker.address, group_id="g", coordinator="zookeeper", zookeeper=settings["zookeeper.connect"],
        zookeeper_settings=named | {"zookeeper.set.acl": "true"},
    ) as consumer:  # fmt: skip
        consumer.subscribe(["t"])
        assert [record.value for record in poll_until([consumer], bool)] == [b"value"]
        with pytest.raises(NoAuthError):
            stranger.set("/secure/consumers/g", b"")
    with pytest.raises(ValueError, match=r"no setting 'zookeeper\.ssl\.client\.enabled'"):
        Consumer(
            broker.address, group_id="g", coordinator="zookeeper", zookeeper="127.0.0.1:1",
            zookeeper_settings={"zookeeper.ssl.client.enabled": "true"},
        ).subscribe(["t"])  # fmt: skip
    stranger.stop()
    stranger.close()
