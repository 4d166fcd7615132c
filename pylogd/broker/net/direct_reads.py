"""Read a socket with fewer steps while the requests of its connection are expected to repeat.

Strategy: once a connection has sent a request that may be repeated, `read` replaces the method that reads in Twisted's
transport (`doRead`). It offers the bytes of one read to the pipeline as such a request, without the layers between
transport and pipeline. It makes small reads while few bytes come: Twisted's method allocates and shrinks 256 KiB of
memory for a request of a hundred bytes. While no repetition is expected, Twisted's method reads.

Rules: bytes that are no repeated request are received in the usual way, without a loss, as are those of later reads.
Only plain TCP sockets are read directly, and none whose reads are measured (`work_meter`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet import tcp
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST

#: The size of a read after one that brought fewer bytes: small enough for an object of Python's own allocator. After a
#: read that brought as many, the next one is as large as Twisted's.
_LITTLE = 448


class RepeatingPipeline(Protocol):
    """A pipeline that answers repeated requests.

    repeats: whether the next read may bring one.
    """

    @property
    def repeats(self) -> bool: ...

    def answer_repeated(self, data: bytes) -> bool:
        """Answer the request if `data` is exactly one, or leave it. Return whether it was answered."""


class ReadingConnection(Protocol):
    """A connection, as a Twisted protocol.

    last_active: when it last received bytes, in seconds.
    """

    last_active: float
    transport: Any

    def dataReceived(self, data: bytes) -> None:
        """Take bytes in the usual way."""


class DirectReads:
    """Reads the socket of one connection in place of its transport, until `end`."""

    __slots__ = ("_connection", "_little", "_pipeline", "_receive", "_seconds")

    def __init__(
        self, connection: ReadingConnection, pipeline: RepeatingPipeline, seconds: Callable[[], float]
    ) -> None:
        """Read for a connection whose transport `can_read_directly`.

        seconds: the clock for `last_active`.
        """
        transport = connection.transport
        self._connection = connection
        self._pipeline = pipeline
        self._receive = transport.getHandle().recv
        self._seconds = seconds
        self._little = True  # whether the last read brought few bytes
        transport.doRead = self.read

    def read(self) -> Any:
        """Read once. Return why the connection has ended; None if it has not ended. See `IReadDescriptor`."""
        pipeline, connection = self._pipeline, self._connection
        if not pipeline.repeats:
            transport = connection.transport
            return tcp.Connection.doRead(transport)
        try:
            data = self._receive(_LITTLE if self._little else connection.transport.bufferSize)
        except BlockingIOError:
            return None
        except OSError:
            return CONNECTION_LOST
        if not data:
            return CONNECTION_DONE
        self._little = len(data) < _LITTLE
        connection.last_active = self._seconds()
        if not pipeline.answer_repeated(data):
            connection.dataReceived(data)
        return None

    def end(self) -> None:
        """Let the transport read again."""
        del self._connection.transport.doRead


def can_read_directly(transport: Any) -> bool:
    """Return whether a transport reads a TCP socket, without TLS, by a method of Twisted's."""
    return (
        isinstance(transport, tcp.Connection)
        and type(transport).doRead is tcp.Connection.doRead
        and "doRead" not in vars(transport)
        and not transport.TLS
    )
