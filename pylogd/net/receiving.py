"""Receives the rest of a large frame from its socket into the frame itself.

Strategy: the reactor reads a chunk and gives it to the protocol, as ever. Where that leaves a large frame half there,
the bytes behind it are taken from the socket at once, to where they belong, without a chunk that is made and copied
for each turn; the chunks are small then. The memory of such frames is used again (`MEMORY`).

Rules: at most `MOST_BYTES` in one turn of a connection. What ends the connection is left for the reactor to find.
"""

from __future__ import annotations

import socket
from typing import Any, Protocol

from twisted.internet import tcp

from pylogd.wire.framing import LARGE, FrameMemory

#: Shared by all connections of the reactor's thread.
MEMORY = FrameMemory()
MOST_BYTES = 1 << 20


class Receives(Protocol):
    """What is needed of a session."""

    def room(self) -> memoryview | None: ...
    def received(self, size: int) -> None: ...


class Receiver:
    """See the module. `chunk`: bytes that the reactor reads at a time while no large frame comes.

    `small`: whether it reads less, as a large frame comes or was the last thing to come.
    """

    __slots__ = ("_chunk", "_session", "_socket", "_transport", "small")

    def __init__(self, transport: Any, session: Receives, chunk: int) -> None:
        self._transport = transport
        self._session = session
        self._chunk = transport.bufferSize = chunk
        self.small = False
        # With TLS the bytes of the socket are not those that the protocol gets.
        plain = isinstance(transport, tcp.Connection) and not transport.TLS
        self._socket: socket.socket | None = transport.getHandle() if plain else None

    def more(self) -> bool:
        """Behind each chunk: take what the socket has of a large frame that is half there; whether anything came."""
        room = self._session.room()
        if room is None or self._socket is None:
            if self.small:
                self.small, self._transport.bufferSize = False, self._chunk
            return False
        self.small, self._transport.bufferSize = True, LARGE
        left = MOST_BYTES
        while left > 0 and room is not None:
            with room:
                try:
                    size = self._socket.recv_into(room, min(len(room), left))
                except OSError:
                    break
            if not size:
                break
            self._session.received(size)
            left -= size
            room = self._session.room()
        return left < MOST_BYTES
