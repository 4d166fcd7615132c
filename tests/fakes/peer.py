"""A broker at the other end of a memory transport: it serves nothing by itself, a test answers for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import ITransport
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages import APIS
from pylogd.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from pylogd.wire.session import RequestReceived, ServerSession, UnsupportedRequest


def all_versions() -> dict[int, tuple[int, int]]:
    """What this checkout has schemas for."""
    return {key: (api.min_version, api.max_version) for key, api in APIS.items()}


@implementer(ITransport)
class PeerTransport:
    """What a client's protocol writes goes to the peer; the connection ends in the clock's next turn, as a real one."""

    disconnecting = False

    def __init__(self, clock: Clock, protocol: Any, peer: Peer) -> None:
        self.clock = clock
        self.protocol = protocol
        self.peer = peer
        self.connected = True
        self.aborted = False
        self.bufferSize = 0
        self.producer: Any = None

    def write(self, data: bytes) -> None:
        assert self.connected, "written to after the end"
        self.peer.received(bytes(data))

    def writeSequence(self, data: Any) -> None:
        self.write(b"".join(data))

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Nothing here is delayed."""

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Nothing here is kept alive."""

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert streaming
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", "192.0.2.1", 9092)

    getHost = getPeer

    def loseConnection(self) -> None:
        assert self.producer is None, "it would wait for its producer"
        self.disconnecting = True
        self.clock.callLater(0, self.end, ConnectionDone())

    def abortConnection(self) -> None:
        self.aborted = True
        self.clock.callLater(0, self.end, ConnectionLost())

    def end(self, reason: Exception) -> None:
        """The connection is gone."""
        if self.connected:
            self.connected = False
            self.protocol.connectionLost(Failure(reason))


class Peer:
    """The broker's side of one connection: `requests` that came and were not answered yet, in order."""

    def __init__(self, versions: dict[int, tuple[int, int]] | None = None) -> None:
        self.versions = all_versions() if versions is None else versions
        self.session = ServerSession(1 << 27, self.versions)
        self.requests: list[RequestReceived] = []
        self.transport: PeerTransport

    def attach(self, clock: Clock, protocol: Any) -> PeerTransport:
        """Connect a client's protocol to this peer."""
        self.transport = PeerTransport(clock, protocol, self)
        protocol.makeConnection(self.transport)
        return self.transport

    def received(self, data: bytes) -> None:
        self.session.receive_data(data)
        while (event := self.session.next_event()) is not None:
            served = self.versions.get(event.api_key, (0, -1))
            if isinstance(event, UnsupportedRequest) or not served[0] <= event.version <= served[1]:
                assert event.api_key == ApiVersionsRequest.API_KEY, event
                event = RequestReceived(event.api_key, 0, event.correlation_id, event.client_id, None)
            self.requests.append(event)

    def answer(self, response: Any, *, split: int | None = None) -> None:
        """Answer the oldest request, in one piece or in pieces of `split` bytes."""
        self.deliver(self.encode(self.requests.pop(0), response), split=split)

    def encode(self, event: RequestReceived, response: Any) -> bytes:
        """The bytes of an answer. That a version is not served is said in version 0 (KIP-511)."""
        if event.api_key == ApiVersionsRequest.API_KEY and response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            event = replace(event, version=0)
        return b"".join(bytes(part) for part in self.session.encode_reply(event, response))  # type: ignore[call-overload]

    def deliver(self, data: bytes, *, split: int | None = None) -> None:
        """Give the client bytes."""
        for at in range(0, len(data), split or len(data) or 1):
            self.transport.protocol.dataReceived(data[at : at + (split or len(data))])

    def answer_versions(self) -> None:
        """Answer ApiVersions, which must be the oldest request."""
        assert self.requests[0].api_key == ApiVersionsRequest.API_KEY
        self.answer(ApiVersionsResponse(api_keys=[ApiVersion(key, *span) for key, span in self.versions.items()]))

    def hang_up(self, reason: Exception | None = None) -> None:
        """Close the connection from this side."""
        self.transport.end(reason or ConnectionDone())
