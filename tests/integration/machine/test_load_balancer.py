"""Clients that come through a plain TCP load balancer (HAProxy), with and without the PROXY protocol."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from pylogd.base.ports import free_ports
from pylogd.wire.messages.metadata import MetadataRequest
from tests.integration.conftest import StartBroker
from tests.rawclient import PATIENCE, RawClient, wait_until
from tests.tools import haproxy

_CONFIG = """\
defaults
    mode tcp
    timeout connect 10s
    timeout client 10m
    timeout server 10m
listen kafka
    bind 127.0.0.1:{front}
    bind 127.0.0.2:{front}
    server broker 127.0.0.1:{back} {header}
"""


class Balanced:
    """A broker that clients reach by a load balancer at `address`; `direct` is its own plain listener."""

    def __init__(self, folder: Path, start: StartBroker, header: str, settings: dict[str, str]) -> None:
        front, back = free_ports(2)
        self.address = f"127.0.0.1:{front}"
        self.back = f"127.0.0.1:{back}"
        balanced = {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BALANCED:PLAINTEXT",
            "advertised.listeners": f"BALANCED://{self.address}",
            "listener.name.balanced.proxy.protocol": "true" if header else "false", **settings,
        }  # fmt: skip
        broker = start(settings=balanced, arguments=["--listen", f"BALANCED://{self.back}"])
        self.direct, self.log = broker.address, broker.log
        config = folder / "haproxy.cfg"
        config.write_text(_CONFIG.format(front=front, back=back, header=header))
        with (folder / "haproxy.log").open("wb") as output:
            self.process = subprocess.Popen([haproxy(), "-db", "-f", str(config)], stdout=output, stderr=output)
        wait_until(self._listens, "the load balancer")

    def _listens(self) -> bool:
        assert self.process.poll() is None, "the load balancer has ended"
        try:
            host, _, port = self.address.rpartition(":")
            socket.create_connection((host, int(port)), 5).close()
        except OSError:
            return False
        return True


@pytest.fixture(params=["", "send-proxy", "send-proxy-v2"], ids=["plain", "PROXY v1", "PROXY v2"])
def balanced(tmp_path: Path, start_broker: StartBroker, request: pytest.FixtureRequest) -> Iterator[Balanced]:
    made = Balanced(tmp_path, start_broker, request.param, {"max.connections.per.ip.overrides": "127.0.0.9:0"})
    yield made
    made.process.terminate()
    made.process.wait(PATIENCE)


def test_producers_and_consumers_bootstrap_through_it(balanced: Balanced, topic: str) -> None:
    producer = Producer({"bootstrap.servers": balanced.address})
    for number in range(1000):
        producer.produce(topic, str(number))
    assert producer.flush(PATIENCE) == 0
    consumer = Consumer({"bootstrap.servers": balanced.address, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    received: list[bytes | None] = []
    while len(received) < 1000:
        messages = consumer.consume(1000 - len(received), PATIENCE)
        received += [message.value() for message in messages if message.error() is None]
    consumer.close()
    assert received == [str(number).encode() for number in range(1000)]
    with RawClient(balanced.address) as client:
        (told,) = client.request(MetadataRequest([]), 12).brokers
    assert f"{told.host}:{told.port}" == balanced.address


def refused(balanced: Balanced) -> bool:
    """Whether the broker refuses the client at 127.0.0.9, to which it allows no connection."""
    host, _, port = balanced.address.rpartition(":")
    with RawClient(balanced.direct) as client:
        client.close()
        client.socket = socket.create_connection((host, int(port)), PATIENCE, source_address=("127.0.0.9", 0))
        client.send_request(MetadataRequest([]), 12)
        return client.is_closed_by_broker()


def test_the_client_s_address_counts_if_the_header_tells_it(balanced: Balanced, request: pytest.FixtureRequest) -> None:
    told = "plain" not in request.node.name
    assert refused(balanced) is told
    assert ("Refused a connection from 127.0.0.9" in balanced.log()) is told


def test_nobody_is_served_without_the_header(tmp_path: Path, start_broker: StartBroker) -> None:
    made = Balanced(tmp_path, start_broker, "send-proxy-v2", {})
    try:
        with RawClient(made.back) as client:
            client.send_request(MetadataRequest([]), 12)
            assert client.is_closed_by_broker()
        assert "proxy.protocol=true" in made.log()
    finally:
        made.process.terminate()
        made.process.wait(PATIENCE)
