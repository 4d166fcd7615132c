"""Receive the rest of a large frame from its socket directly into the frame's memory.

Strategy: the reactor reads a chunk and passes it to the protocol, as usual. If a large frame is then incomplete, its
next bytes are read from the socket at once, directly into the frame's memory. This saves allocating and copying a chunk
in each turn. Meanwhile the reactor reads small chunks only. The memory of such frames is recycled (`MEMORY`).

With TLS the socket's bytes are not the frame's: there the reactor's chunks are all that is received.

Memory: before each further read of a large frame, the connection's `MemoryShare`, if it has one, says how much may be
read; it pauses the connection if that is nothing.

Rules: read at most `MOST_BYTES` in one turn of a connection. Errors and the end of the connection are left for the
reactor to detect.
"""

from __future__ import annotations

import socket
from typing import Any, Protocol

from twisted.internet import tcp

from pylogd.net.request_memory import LEAST_BYTES, MemoryShare
from pylogd.wire.framing import LARGE, FrameMemory

#: Shared by all connections of the reactor's thread.
MEMORY = FrameMemory()
MOST_BYTES = 1 << 20
#: The most that one read takes from a socket. Large batches come in few reads; many small requests come in one.
RECEIVE_BYTES = 1 << 18


def read_little(transport: Any, little: bool) -> None:
    """Read little at a time, or as much as usual; as it is while a large frame arrives, see `Receiver`."""
    sizes = RECEIVE_BYTES, LEAST_BYTES
    if transport.bufferSize == sizes[not little]:
        transport.bufferSize = sizes[little]


class ReceivingSession(Protocol):
    """A session that can receive bytes into its partial frames; see `FrameDecoder`."""

    def receive_buffer(self) -> memoryview | None: ...
    def filled(self, size: int) -> None: ...


class Receiver:
    """Read large frames of one connection in place.

    chunk: how many bytes the reactor reads at a time while no large frame is incomplete.
    small: whether the reactor reads smaller chunks, since a large frame is incomplete or was the last to arrive.
    """

    __slots__ = ("_chunk", "_session", "_share", "_socket", "_transport", "small")

    def __init__(self, transport: Any, session: ReceivingSession, chunk: int, share: MemoryShare | None = None) -> None:
        self._transport = transport
        self._session = session
        self._share = share
        self._chunk = transport.bufferSize = chunk
        self.small = False
        # With TLS the bytes of the socket are not those that the protocol gets.
        plain = isinstance(transport, tcp.Connection) and not transport.TLS
        self._socket: socket.socket | None = transport.getHandle() if plain else None

    def more(self) -> bool:
        """Read more of a partial frame; call this after each chunk. Return whether bytes arrived."""
        tail = self._session.receive_buffer()
        if tail is None:
            if self.small:
                self.small = False
                self._transport.bufferSize = self._chunk if self._share is None else self._share.chunk(self._chunk)
            return False
        self.small, self._transport.bufferSize = True, LARGE if self._socket is not None else self._chunk
        most = MOST_BYTES if self._share is None else self._share.extend(MOST_BYTES)
        if not most or self._socket is None:
            return False
        left = most
        while left > 0 and tail is not None:
            with tail:
                try:
                    size = self._socket.recv_into(tail, min(len(tail), left))
                except OSError:
                    break
            if not size:
                break
            self._session.filled(size)
            left -= size
            tail = self._session.receive_buffer()
        return left < most

    def settle(self) -> None:
        """Give back the memory of a frame that has been answered; call this when no request waits."""
        if self._share is not None:
            self._share.settle()

    def close(self) -> None:
        """Give back all memory: the connection has ended, or no large frame arrives."""
        if self._share is not None:
            self._share.release()
