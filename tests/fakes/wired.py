"""Connections in memory between a client's protocol and a server's, moved on by the test."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import UNIXAddress
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.test.iosim import FakeTransport, IOPump, connect
from zope.interface import implementer

_ADDRESS = UNIXAddress(None)


@implementer(IStreamClientEndpoint)
class Wired:
    """Connects to a server's factory as long as it is `up`. Each connection's pump is added to `wires`."""

    def __init__(self, server: Any, wires: list[IOPump]) -> None:
        self.up = True
        self._server = server
        self._wires = wires

    def connect(self, factory: IProtocolFactory) -> Deferred[IProtocol]:
        if not self.up:
            return fail(ConnectionRefusedError("the server is down"))
        ours, theirs = factory.buildProtocol(_ADDRESS), self._server.buildProtocol(_ADDRESS)
        assert ours is not None
        self._wires.append(connect(theirs, FakeTransport(theirs, True), ours, FakeTransport(ours, False)))
        return succeed(ours)
