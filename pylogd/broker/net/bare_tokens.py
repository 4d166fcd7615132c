"""SASL messages in frames without request headers: a length of four bytes, and the message (KIP-43).

A client that has begun with SaslHandshake of version 0 sends such frames until it is authenticated, and requests from
then on. A refused client is told nothing: as in Kafka, the connection is closed.

Must not know: mechanisms.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import CloseConnection

log = Logger()

_LENGTH: Final = struct.Struct(">i")


class Answer(Protocol):
    """The answer of a mechanism to a message.

    error: an error code, not 0 if the mechanism refuses the client.
    """

    @property
    def error(self) -> int: ...
    @property
    def message(self) -> bytes: ...


class TokenPipeline(Protocol):
    """Interface of the objects that send to a client."""

    def send(self, data: bytes) -> None:
        """Send bytes that are not a reply to a request."""


class TokenConnection(Protocol):
    """A connection, as a Twisted protocol.

    authenticated: whether its client has authenticated.
    tokens: the receiver of its SASL messages.
    """

    authenticated: bool
    tokens: BareTokens | None

    @property
    def pipeline(self) -> TokenPipeline: ...

    def finish(self) -> None:
        """Close the connection when everything that was written has been sent."""

    def give_up(self, reason: str) -> None:
        """Close the connection at once."""


class BareTokens:
    """Receives the SASL messages of one connection, and answers them one after the other.

    It receives all bytes of the client from its creation until the client is authenticated.

    step: gives a message to the mechanism.
    most: the most bytes of a message.
    """

    def __init__(
        self, connection: TokenConnection, step: Callable[[bytes], Answer | Deferred[Answer]], most: int
    ) -> None:
        self._connection = connection
        self._step = step
        self._most = most
        self._data = bytearray()
        self._answering: Deferred[None] | None = None
        self._ended = False
        connection.tokens = self
        self._protocol = cast(Any, connection)
        self._protocol.dataReceived = self.receive  # this replaces the method that takes requests

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        self._data += data
        if self._answering is None:
            self._next()
        elif len(self._data) > _LENGTH.size + self._most:
            self._connection.give_up("it sends SASL messages without waiting for answers")

    def lost(self) -> None:
        """Stop, since the connection has ended."""
        self._ended = True
        if self._answering is not None:
            self._answering.cancel()
        self._release()

    def _release(self) -> None:
        self._connection.tokens = None
        del self._protocol.dataReceived

    def _next(self) -> None:
        data, head = self._data, _LENGTH.size
        if len(data) < head:
            return
        (size,) = _LENGTH.unpack_from(data)
        if not 0 <= size <= self._most:
            self._connection.give_up(f"a SASL message of {size} bytes is larger than sasl.server.max.receive.size")
        elif len(data) >= head + size:
            message = bytes(data[head : head + size])
            del data[: head + size]
            self._answering = answering = Deferred.fromCoroutine(self._answer(message))
            answering.addErrback(self._failed)
            answering.addCallback(lambda _: self._answered())

    async def _answer(self, message: bytes) -> None:
        stepped = self._step(message)
        answer: Answer = await stepped if isinstance(stepped, Deferred) else stepped
        if answer.error:
            self._ended = True
            self._connection.finish()
        else:
            self._connection.pipeline.send(_LENGTH.pack(len(answer.message)) + answer.message)

    def _answered(self) -> None:
        self._answering = None
        if not self._ended and self._connection.authenticated:
            self._release()
            if self._data:
                self._protocol.dataReceived(bytes(self._data))
        elif not self._ended:
            self._next()

    def _failed(self, failure: Failure) -> None:
        self._ended = True
        if failure.check(CancelledError):
            return
        if failure.check(CloseConnection):
            self._connection.give_up(failure.getErrorMessage())
        else:
            log.failure("Unexpected error while answering a SASL message", failure)
            self._connection.give_up("internal error, see the traceback above")
