"""Receive the rest of a large frame from its socket directly into the frame's memory.

Strategy: the reactor reads a chunk and passes it to the protocol, as usual. If a large frame is then incomplete, its
next bytes are read from the socket at once, directly into the frame's memory. This saves allocating and copying a chunk
in each turn. Meanwhile the reactor reads small chunks only. The memory of such frames is recycled (`MEMORY`).

With TLS the transport decrypts into the frame's memory (`pylogd.link.tls.TlsTransport.receive_into`), and reads the
socket for it.

A client that is slower than the broker, such as one that encrypts, would otherwise wake the broker for every few KB. So
the kernel reports the socket as readable only when it has `WAITED_BYTES` or all missing bytes of the frame
(SO_RCVLOWAT), or when the connection has ended.

Memory: before each further read of a large frame, the connection's `MemoryShare`, if it has one, says how many bytes
may be read. If none may be read, it pauses the connection.

Rules: read at most `MOST_BYTES` in one turn of a connection. Errors and the end of the connection are left for the
reactor to detect.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet import tcp

from pylogd.link.request_memory import LEAST_BYTES, MemoryShare
from pylogd.link.socket_options import wait_for_bytes
from pylogd.wire.framing import LARGE, FrameMemory

#: The recycled memory, which all connections of the reactor's thread share.
MEMORY = FrameMemory()
MOST_BYTES = 1 << 20
#: The most bytes that one read takes from a socket. Large batches need few reads; many small requests need one.
RECEIVE_BYTES = 1 << 18
#: How many bytes of a large frame a socket should have before the reactor is told, and the least that is worth a wait.
WAITED_BYTES = 1 << 17
_LEAST_WAITED_BYTES = 1 << 14
#: How many bytes of a frame OpenSSL may already hold: an incomplete TLS record.
_HELD_BY_TLS = (1 << 14) + 512


def read_little(transport: Any, little: bool) -> None:
    """Set whether to read little at a time, or the usual amount. This has no effect while a large frame is received."""
    sizes = RECEIVE_BYTES, LEAST_BYTES
    if transport.bufferSize == sizes[not little]:
        transport.bufferSize = sizes[little]


class ReceivingSession(Protocol):
    """A session that can receive bytes into its partial frames; see `FrameDecoder`."""

    def receive_buffer(self) -> memoryview | None: ...
    def filled(self, size: int) -> None: ...


class Receiver:
    """Receives large frames of one connection in place.

    chunk: how many bytes the reactor reads at a time while no large frame is incomplete.
    small: whether the reactor reads smaller chunks, since a large frame is incomplete or was the last to arrive.
    """

    __slots__ = ("_chunk", "_lowest", "_read", "_session", "_share", "_tls", "_transport", "small")

    def __init__(self, transport: Any, session: ReceivingSession, chunk: int, share: MemoryShare | None = None) -> None:
        self._transport = transport
        self._session = session
        self._share = share
        self._chunk = transport.bufferSize = chunk
        self.small = False
        self._lowest = 1  # the socket's SO_RCVLOWAT
        #: Reads at most the given number of bytes into memory, and returns how many; none if there are no more now.
        self._read: Callable[[memoryview, int], int] | None = getattr(transport, "receive_into", None)
        self._tls = self._read is not None
        if isinstance(transport, tcp.Connection) and not transport.TLS:
            self._read = _socket_reader(transport.getHandle())

    def more(self) -> bool:
        """Read more of a partial frame; call this after each chunk. Return whether bytes arrived."""
        tail = self._session.receive_buffer()
        if tail is None:
            self._wait_for(0)
            if self.small:
                self._receive_small(False)
            return False
        if not self.small:
            self._receive_small(True)
        most = MOST_BYTES if self._share is None else self._share.extend(MOST_BYTES)
        read = self._read
        if not most or read is None:
            self._wait_for(0)  # bytes in OpenSSL may be decrypted before the socket is read again
            return False
        left, missing = most, len(tail)
        while left > 0 and tail is not None:
            with tail:
                size = read(tail, left)
            if not size:
                break
            self._session.filled(size)
            left -= size
            tail = self._session.receive_buffer()
            missing = 0 if tail is None else len(tail)
        self._wait_for(missing)
        return left < most

    def _wait_for(self, missing: int) -> None:
        """Have the socket become readable only when a worthwhile part of the `missing` bytes has arrived."""
        missing -= _HELD_BY_TLS if self._tls else 0
        lowest = min(missing, WAITED_BYTES) if missing >= _LEAST_WAITED_BYTES else 1
        if lowest != self._lowest:
            self._lowest = lowest
            wait_for_bytes(self._transport, lowest)

    def _receive_small(self, small: bool) -> None:
        """Have the reactor read small chunks, and TLS deliver small ones, while a large frame arrives."""
        self.small = small
        if self._read is not None:
            usual = self._chunk if self._share is None else self._share.chunk(self._chunk)
            self._transport.bufferSize = LARGE if small else usual
        if self._tls:
            self._transport.in_place = small

    def settle(self) -> None:
        """Give back the memory of a frame that has been answered. Call this when no request waits."""
        tail = self._session.receive_buffer()
        self._wait_for(0 if tail is None else len(tail))
        if self._share is not None:
            self._share.settle()

    def close(self) -> None:
        """Give back all memory, since the connection has ended, or no large frame arrives."""
        if self._share is not None:
            self._share.release()


def _socket_reader(source: socket.socket) -> Callable[[memoryview, int], int]:
    """Return a function that reads from a socket without blocking."""

    def read(buffer: memoryview, most: int) -> int:
        try:
            return source.recv_into(buffer, min(len(buffer), most))
        except OSError:  # there are no bytes, or the connection is broken; the reactor finds out which
            return 0

    return read


class ReceivingConnection(Protocol):
    """A connection whose large frames are received in place.

    request_memory: see `MemoryShare`; None without a bound.
    """

    transport: Any

    @property
    def request_memory(self) -> MemoryShare | None: ...


def receiver_of(connection: ReceivingConnection, session: ReceivingSession) -> Receiver:
    """Return a receiver for a connection that has none."""
    return Receiver(connection.transport, session, RECEIVE_BYTES, connection.request_memory)
