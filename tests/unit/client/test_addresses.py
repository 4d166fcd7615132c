"""Which addresses a client connects to: all of a name (client.dns.lookup), and the bootstrap servers again."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import IHostnameResolver, IHostResolution, IResolutionReceiver
from zope.interface import implementer

from pylogd.base.errors import ErrorCode
from pylogd.client import TopicPartition
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.metadata import MetadataResponse
from pylogd.wire.records import encode_batch
from tests.faces import FACES, own_reactor, poll_until
from tests.fakes.broker import FakeBroker

NAME = "brokers.test"
ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.1")  # nobody listens on the first two


@implementer(IHostResolution)
class Resolution:
    name = NAME

    def cancel(self) -> None:
        raise NotImplementedError


@implementer(IHostnameResolver)
class Resolver:
    """A resolver for Twisted, in place of the operating system's."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def resolveHostName(
        self, receiver: IResolutionReceiver, hostName: str, portNumber: int = 0,
        addressTypes: Sequence[type[Any]] | None = None, transportSemantics: str = "TCP",
    ) -> IHostResolution:  # fmt: skip
        self.asked.append(hostName)
        resolution = Resolution()
        receiver.resolutionBegan(resolution)
        for address in ADDRESSES if hostName == NAME else [hostName]:
            receiver.addressResolved(IPv4Address("TCP", address, portNumber))
        receiver.resolutionComplete()
        return resolution


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return a list to which the names that are looked up are added."""
    resolver = Resolver()
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != NAME:
            return real(host, port, *args, **options)
        resolver.asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port))) for address in ADDRESSES]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    before = own_reactor().installNameResolver(resolver)
    yield resolver.asked
    own_reactor().installNameResolver(before)


@pytest.mark.parametrize("kind", FACES)
def test_every_address_of_a_name_is_tried(resolved: list[str], kind: str) -> None:
    with FakeBroker() as server:
        server.append(0, encode_batch([(None, b"x", 0, ())]))
        face = FACES[kind](f"{NAME}:{server.port}")
        consumer = face.consumer()
        consumer.assign([TopicPartition("t", 0)])
        assert [record.value for record in poll_until([consumer], bool)] == [b"x"]
        face.close()
    assert NAME in resolved


@pytest.mark.parametrize("kind", FACES)
def test_a_broker_may_send_the_client_back_to_the_bootstrap_servers(kind: str) -> None:
    """KIP-1102 with sockets: the connections are closed, and the consumer reads on over new ones."""
    with FakeBroker() as server:
        server.append(0, encode_batch([(None, b"before", 0, ())]))
        face = FACES[kind](server.address)
        consumer = face.consumer(metadata_max_age=0.05, fetch_max_wait_ms=10)
        consumer.assign([TopicPartition("t", 0)])
        assert [record.value for record in poll_until([consumer], bool)] == [b"before"]
        connections = server.connections
        server.on(ApiKey.METADATA, lambda _: MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED))
        poll_until([consumer], lambda _: server.connections >= connections + 2)  # for metadata and for fetches
        server.append(0, encode_batch([(None, b"after", 0, ())]))
        assert [record.value for record in poll_until([consumer], bool)] == [b"after"]
        face.close()
