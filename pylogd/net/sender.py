"""Sends the parts of replies over one connection: bytes by the transport's own buffer, file slices by sendfile.

Strategy: the sender is the transport's pull producer for as long as the connection lives. The transport calls it back
each time that all bytes given to it have left, so a slice never overtakes the bytes before it, and the sender knows
when the peer has caught up. A slice goes out in calls of at most `sendfile.max.bytes`, one a reactor turn, so that one
connection can't hold the reactor. No record byte enters this process.

Before each call the kernel is asked whether the chunk is in the page cache. A cold one is read ahead in a thread
(`warm`) while the reactor serves others, and then sent without asking again: the file may be shorter than its slice,
or its file system may never say yes.

Rules: a file shorter than its slice aborts the connection, for the peer has been promised the bytes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPullProducer
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

log = Logger()

#: More queued parts than this, and no further request is taken from the connection.
MAX_QUEUED_PARTS = 64


class Slice(Protocol):
    """A run of bytes of an open file, as the log hands it out."""

    position: int
    length: int

    def __len__(self) -> int: ...
    def fileno(self) -> int: ...
    def is_warm(self, position: int, length: int) -> bool: ...


#: Reads a chunk of a slice into the page cache in a thread: (slice, position, length) -> Deferred.
Warm = Callable[[Slice, int, int], "Deferred[Any]"]


@implementer(IPullProducer)
class Sender:
    """The one writer of a connection's transport."""

    __slots__ = (
        "_at", "_connected", "_drained", "_end", "_max_chunk", "_max_unsent", "_parts", "_slice", "_transport",
        "_unsent", "_waiting", "_warm", "_warmed_to",
    )  # fmt: skip

    def __init__(
        self, transport: Any, warm: Warm, drained: Callable[[], None], *, max_chunk: int, max_unsent: int
    ) -> None:
        """`max_chunk`: bytes in one sendfile call. `max_unsent`: bytes written that make the peer too far behind."""
        self._transport = transport
        self._warm = warm
        self._drained = drained
        self._max_chunk = max_chunk
        self._max_unsent = max_unsent
        self._parts: deque[bytes | Slice] = deque()  # behind the slice that is going out
        self._slice: Slice | None = None
        self._at = self._end = 0
        self._warmed_to = 0  # the slice has been read ahead up to here
        self._unsent = 0  # bytes written since the transport last ran dry
        self._waiting = False  # for a cold chunk
        self._connected = True
        transport.registerProducer(self, False)

    @property
    def congested(self) -> bool:
        """Whether the peer is so far behind that no more requests should be taken from it."""
        return self._unsent > self._max_unsent or len(self._parts) > MAX_QUEUED_PARTS

    @property
    def idle(self) -> bool:
        """Whether all that was sent has left this process."""
        return not self._unsent and self._slice is None

    def send(self, parts: Sequence[Any]) -> None:
        """Send `parts`, each bytes or a Slice, behind all that was sent before."""
        if self._slice is not None:
            self._parts += parts
            return
        try:
            data = b"".join(parts)
        except TypeError:  # there is a slice among them
            self._parts += parts
            self._write_bytes()
        else:
            self._unsent += len(data)
            self._transport.write(data)

    def _write_bytes(self) -> None:
        """Write queued bytes up to the next slice, which then waits for the transport to run dry."""
        run: list[bytes] = []
        while self._parts:
            part = self._parts.popleft()
            if isinstance(part, bytes):
                run.append(part)
                self._unsent += len(part)
            elif part.length:
                self._slice, self._at, self._end = part, part.position, part.position + part.length
                self._warmed_to = 0
                break
        if run:
            self._transport.writeSequence(run)
        elif self._slice is not None:
            self._transport.startWriting()

    def resumeProducing(self) -> None:
        """The transport has run dry: go on with the slice, or tell that all is sent."""
        self._unsent = 0
        if self._slice is not None:
            if not self._waiting:
                self._send_chunk(self._slice)
        elif self._connected:
            self._drained()

    def stopProducing(self) -> None:
        """The connection is gone."""
        self._connected = False
        self._parts.clear()
        self._slice = None

    def close(self) -> None:
        """Close the connection once the bytes given to the transport have left; slices that wait are dropped."""
        self.stopProducing()
        self._transport.unregisterProducer()
        self._transport.loseConnection()

    def _send_chunk(self, source: Slice) -> None:
        count = min(self._end - self._at, self._max_chunk)
        if self._at >= self._warmed_to and not source.is_warm(self._at, count):
            self._waiting = True
            self._warmed_to = self._at + count
            self._warm(source, self._at, count).addCallbacks(self._warmed, self._failed)
            return
        try:
            sent = os.sendfile(self._transport.fileno(), source.fileno(), self._at, count)
        except BlockingIOError:
            self._transport.startWriting()
            return
        except OSError as error:
            self._abort(f"sendfile failed: {error}")
            return
        if not sent:
            self._abort(f"the file ends before {self._end}, at {self._at}")
            return
        self._at += sent
        if self._at < self._end:
            self._transport.startWriting()
        else:
            self._slice = None
            self._next()

    def _next(self) -> None:
        if self._parts:
            self._write_bytes()
        if self._slice is None and self._connected and not self._unsent:
            self._drained()

    def _warmed(self, _result: object) -> None:
        self._waiting = False
        if self._slice is not None:
            self._transport.startWriting()

    def _failed(self, failure: Failure) -> None:
        self._waiting = False
        self._abort(f"the file can't be read: {failure.getErrorMessage()}")

    def _abort(self, reason: str) -> None:
        if self._connected:
            log.error("aborting {peer}: {reason}", peer=self._transport.getPeer(), reason=reason)
            self._transport.abortConnection()
        self.stopProducing()
