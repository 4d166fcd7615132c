"""The stock TCP transport on one end of a socket pair, turned by hand: no reactor runs, no test sleeps."""

from __future__ import annotations

import select
import socket
from typing import Any, cast

from twisted.internet import tcp
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock


class ManualReactor(Clock):
    """Remembers which descriptors want to read and write; `turn` lets the writers write once."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: set[Any] = set()
        self.writers: set[Any] = set()

    def addReader(self, descriptor: Any) -> None:
        self.readers.add(descriptor)

    def addWriter(self, descriptor: Any) -> None:
        self.writers.add(descriptor)

    def removeReader(self, descriptor: Any) -> None:
        self.readers.discard(descriptor)

    def removeWriter(self, descriptor: Any) -> None:
        self.writers.discard(descriptor)

    def turn(self) -> bool:
        """Let each descriptor that wants to write do so once. False when none wanted to."""
        writers = list(self.writers)
        for descriptor in writers:
            descriptor.doWrite()
        return bool(writers)


class PairTransport(tcp.Connection):
    """One end of a socket pair; `peer` is the other, non-blocking."""

    def __init__(self, protocol: Any, reactor: ManualReactor, buffer_bytes: int = 1 << 16) -> None:
        ours, self.peer = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        self.peer.setblocking(False)
        super().__init__(ours, protocol, cast(Any, reactor))
        self.turns = reactor
        self.connected = 1
        self.startReading()

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", "192.0.2.1", 50000)

    def setTcpNoDelay(self, enabled: bool) -> None:
        """A socket pair has no such option."""

    def deliver(self, data: bytes) -> None:
        """Give the protocol bytes, as if the peer had sent them."""
        self.protocol.dataReceived(data)

    def arrive(self, data: bytes) -> None:
        """Have the peer send bytes, which fit into the socket, and read them as long as the transport wants to read."""
        if not self.connected:
            return
        self.peer.sendall(data)
        while self in self.turns.readers and select.select([self.socket], [], [], 0)[0]:
            self.doRead()

    def received(self) -> bytes:
        """What the peer can read now."""
        chunks = []
        while True:
            try:
                chunk = self.peer.recv(1 << 20)
            except BlockingIOError:
                break
            if not chunk:
                break
            chunks.append(chunk)
        return b"".join(chunks)

    def pump(self, turns: int = 10_000) -> bytes:
        """Turn until nothing is left to write, with a peer that reads all; what it read."""
        gathered = []
        for _ in range(turns):
            if not self.turns.turn():
                break
            gathered.append(self.received())
        gathered.append(self.received())
        return b"".join(gathered)
