"""Send the parts of replies over one connection: bytes by the transport's own buffer, file slices by sendfile.

Strategy: as much as the socket takes is sent immediately, which saves the reactor a turn for most replies. The rest is
left to the transport. The sender is its pull producer as long as the connection lives. The transport calls back each
time that all bytes given to it are sent, so a slice never overtakes the bytes before it, and the sender knows when the
peer has caught up. At most `sendfile.max.bytes` of files are sent in one reactor turn, so that one connection can't
hold the reactor. The bytes of a slice do not enter this process, except for small slices. Those are copied, since one
call and one packet with the bytes around them cost less than a sendfile. Zero bytes after a slice are sent with it if
its file continues with zero bytes, which saves a call and a packet for the end of a Fetch response. The usual reply, of
bytes, one slice and zeros, is sent by one compiled call (`send_records`).

Before a sendfile the kernel is asked whether the chunk is in the page cache. A cold chunk is read ahead in a thread
(`warm`, which is `pylogd.broker.net.page_cache.read_ahead`) while the reactor serves others. Then as much of it as the
socket takes is sent without asking again, since the file may be shorter than its slice, or its file system may always
answer no.

Slices of a log with a block cache (`in_blocks`) are not sent by sendfile. Bytes in the cache are sent from its blocks,
in one call. A thread (`warm`) reads the rest into the slice, a small chunk at a time.

Encrypted connections: `CopyingSender` reads slices into the process, a chunk at a time, and writes them to the
transport, which encrypts them. Everything else is the same.

Rules: a file shorter than its slice aborts the connection, since the peer has been told the length.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPullProducer
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

log = Logger()

#: If more parts are queued, no further request is taken from the connection.
MAX_QUEUED_PARTS = 64
#: At most this many bytes of small slices are copied into one write, if they are in the page cache.
COPIED_BYTES = 1 << 15
#: At most this many bytes of a file are encrypted in one turn of the reactor, which takes about 0.2 ms.
ENCRYPTED_BYTES = 1 << 18
#: The buffer into which they are read. Used by the reactor's thread only, and empty between calls.
_READ = bytearray(ENCRYPTED_BYTES)


class Slice(Protocol):
    """A range of bytes of an open file, which the log returns."""

    position: int
    length: int
    zeros: int  # how many zero bytes are known to follow in the file
    in_blocks: bool

    def __len__(self) -> int: ...
    def fileno(self) -> int: ...
    def is_warm(self, position: int, length: int) -> bool: ...
    def missing(self, position: int, length: int) -> int:
        """Return how many of `length` bytes at `position` of the file have to be read from the disk."""

    def copy(self) -> bytes | bytearray | None:
        """Return a copy of all bytes, or None if that would wait for the disk."""

    def send_resident(self, socket: int, head: bytes, length: int) -> int:
        """Send `head` and the first `length` bytes, `zeros` included, if they are in memory; else return -1."""


class BlockSlice(Slice, Protocol):
    """A slice that a block cache may hold: `in_blocks` is true."""

    def views(self, position: int, length: int) -> list[memoryview]:
        """Return the bytes in memory from `position` on, if any. The caller must use them before it returns."""

    def sent(self, position: int, length: int) -> None:
        """Count this many bytes of the last result of `views` as sent."""

    def load(self, position: int, length: int) -> None:
        """Read bytes from `position` on for the next `views`; none only at the end of the file. Waits for the disk."""


#: Reads a chunk of a slice into the page cache in a thread: (slice, position, length) -> Deferred. If the slice is
#: `in_blocks`, the slice loads some of the bytes instead.
Warm = Callable[[Slice, int, int], "Deferred[Any]"]


class Feeder(Protocol):
    """The part that gives a sender its bytes."""

    def drained(self) -> None:
        """Continue, since everything has been sent."""


@implementer(IPullProducer)
class Sender:
    """The only writer of a connection's transport.

    socket, direct_above, max_chunk: see `DirectOutput`. Others may send only while the sender is `idle`.
    unsent: bytes given to the transport since it last had sent all.
    queued: parts after the current slice; None if there is neither a slice nor a part.
    """

    direct_above = COPIED_BYTES

    __slots__ = (
        "_at", "_connected", "_end", "_feeder", "_max_unsent", "_slice", "_transport", "_waiting", "_warm", "_warm_to",
        "max_chunk", "queued", "socket", "unsent",
    )  # fmt: skip

    def __init__(self, transport: Any, warm: Warm, feeder: Feeder, *, max_chunk: int, max_unsent: int) -> None:
        """Arguments:

        max_chunk: the most bytes of one sendfile call.
        max_unsent: more unsent bytes are congestion.
        """
        self._transport = transport
        self.socket: socket.socket = transport.getHandle()
        self._warm = warm
        self._feeder = feeder
        self.max_chunk = max_chunk
        self._max_unsent = max_unsent
        self.queued: deque[bytes | Slice] | None = None  # an empty deque takes 760 bytes
        self._slice: Slice | None = None
        self._at = self._end = 0
        self._warm_to = 0  # the slice is known to be in the page cache up to here
        self.unsent = 0
        self._waiting = False  # whether a cold chunk is being read
        self._connected = True
        transport.registerProducer(self, False)

    @property
    def congested(self) -> bool:
        """Whether the peer is so far behind that no more requests should be taken from it."""
        parts = self.queued
        return self.unsent > self._max_unsent or (parts is not None and len(parts) > MAX_QUEUED_PARTS)

    @property
    def idle(self) -> bool:
        """Whether everything that was written has left this process."""
        return not self.unsent and self.queued is None

    def send(self, parts: Sequence[Any]) -> None:
        """Send `parts`, each bytes or a Slice, after everything that was written before."""
        waiting = self.queued
        if waiting is not None:
            waiting += parts
            return
        try:
            data = b"".join(parts)
        except TypeError:  # one of them is a slice
            self.queued = deque(parts)
            self._pump()
        else:
            self.write(data)

    def send_records(self, head: bytes, records: Slice, tail: bytes, sent: int = -1) -> None:
        """Send a reply that has records, like `send`.

        tail: zero bytes.
        sent: how many bytes of the reply were already sent, see `DirectOutput`; -1 if nobody has tried.
        """
        length = records.length + len(tail)
        if sent < 0:
            if length <= COPIED_BYTES and self.queued is None and (data := records.copy()) is not None:
                self.write(b"".join((head, data, tail)))  # few bytes need one call, and no queue
                return
            if (
                self.queued is not None
                or self.unsent
                or not self.direct_above < length <= self.max_chunk
                or len(tail) > records.zeros
                or records.in_blocks
            ):
                self.send([head, records, tail])
                return
            sent = max(records.send_resident(self.socket.fileno(), head, length), 0)
        left = len(head) + length - sent
        if not left:
            return
        if sent < len(head):  # the socket is full, or the records are cold
            self.send([head[sent:], records, tail])
            return
        self.queued = deque()
        self._slice = records
        self._end = records.position + length
        self._at = self._warm_to = self._end - left
        self._transport.startWriting()

    def resumeProducing(self) -> None:
        """Send more, since the transport has nothing left to send. If all is sent, report that."""
        self.unsent = 0
        if self._waiting:
            return
        self._pump()
        if self._connected and self.idle:
            self._feeder.drained()

    def stopProducing(self) -> None:
        """Drop queued parts, since the connection is closed."""
        self._connected = False
        self.queued = self._slice = None

    def close(self) -> None:
        """Close the connection once the bytes given to the transport are sent. Waiting slices are dropped."""
        self.stopProducing()
        self._transport.unregisterProducer()
        self._transport.loseConnection()

    def write(self, data: bytes, flags: int = 0) -> None:
        """Send as much as the socket takes, if nothing waits before it. Leave the rest to the transport."""
        if not self.unsent:
            try:
                sent = self.socket.send(data, flags)
            except OSError:
                sent = 0  # it is full, or broken; the transport finds out which
            if sent == len(data):
                return
            data = data[sent:]
        self.unsent += len(data)
        self._transport.write(data)

    def _pump(self) -> None:
        """Send queued parts until all are sent, the socket is full, a chunk is cold or the turn's share is used up."""
        parts = self.queued
        if parts is None:
            return
        share = self.max_chunk
        while self._slice is not None or parts:
            if self.unsent:
                return  # resumeProducing is called next
            if share <= 0:
                self._transport.startWriting()
                return
            if self._slice is None:
                share -= self._write_to_next_slice(parts, min(COPIED_BYTES, share))
            else:
                sent = self._send_chunk(self._slice, share)
                if not sent:
                    return
                share -= sent
        self.queued = None

    def _write_to_next_slice(self, parts: deque[bytes | Slice], most: int) -> int:
        """Write the parts before the next slice that is not copied. Return how many bytes were copied."""
        written: list[bytes | bytearray] = []
        copied = 0
        while parts:
            part = parts.popleft()
            if isinstance(part, bytes):
                written.append(part)
            elif copied + part.length <= most and (data := part.copy()) is not None:
                written.append(data)
                copied += part.length
            else:
                self._slice = part
                self._at = self._warm_to = part.position
                self._end = part.position + part.length
                if parts and part.zeros and _are_zeros(parts[0], part.zeros):
                    self._end += len(parts.popleft())
                break
        if written:
            self.write(b"".join(written), socket.MSG_MORE if self._slice is not None else 0)
        return copied

    def _send_chunk(self, source: Slice, most: int) -> int:
        """Send a chunk of the slice. Return how many bytes left; 0 if it failed, or has to wait for another call."""
        if source.in_blocks:
            return self._send_from_memory(cast(BlockSlice, source), most)
        if self._at == self._warm_to:
            count = min(self._end - self._at, self.max_chunk)
            self._warm_to += count
            if not source.is_warm(self._at, count):
                self._waiting = True
                self._warm(source, self._at, count).addCallbacks(self._warmed, self._failed)
                return 0
        count = min(self._warm_to - self._at, most)
        try:
            sent = os.sendfile(self.socket.fileno(), source.fileno(), self._at, count)
        except BlockingIOError:
            self._warm_to = self._at
            self._transport.startWriting()
            return 0
        except OSError as error:
            self._abort(f"sendfile failed: {error}")
            return 0
        if not sent:
            self._abort(f"a segment file ends at byte {self._at}, before byte {self._end}")
            return 0
        self._at += sent
        if self._at == self._end:
            self._slice = None
        elif sent < count:  # the socket is full, and the kernel may evict the chunk before it is sent
            self._warm_to = self._at
            self._transport.startWriting()
            return 0
        return sent

    def _send_from_memory(self, source: BlockSlice, most: int) -> int:
        """Send bytes of the slice that are in blocks, or were read by a thread. Return the result of `_send_chunk`."""
        views = source.views(self._at, min(self._end - self._at, most))
        if not views:
            if self._warm_to > self._at:
                self._abort(f"a segment file ends at byte {self._at}, before byte {self._end}")
                return 0
            self._warm_to = self._end
            self._waiting = True
            self._warm(source, self._at, self._end - self._at).addCallbacks(self._warmed, self._failed)
            return 0
        sent = self._write_views(views)
        if not sent:
            return 0
        source.sent(self._at, sent)
        self._at += sent
        self._warm_to = self._at
        if self._at == self._end:
            self._slice = None
        return sent

    def _write_views(self, views: list[memoryview]) -> int:
        """Send from memory what the socket takes. Return how many bytes; 0 if it takes nothing or is broken."""
        try:
            return self.socket.sendmsg(views)
        except BlockingIOError:
            self._transport.startWriting()
        except OSError as error:
            self._abort(f"sending failed: {error}")
        return 0

    def _warmed(self, _result: object) -> None:
        self._waiting = False
        if self._slice is not None:
            self._transport.startWriting()

    def _failed(self, failure: Failure) -> None:
        self._waiting = False
        self._abort(f"a segment file can't be read: {failure.getErrorMessage()}")

    def _abort(self, reason: str) -> None:
        if self._connected:
            log.error("Aborting the connection from {peer}: {reason}", peer=self._transport.getPeer(), reason=reason)
            self._transport.abortConnection()
        self.stopProducing()


def _are_zeros(part: bytes | Slice, most: int) -> bool:
    """Return whether a part is zero bytes, at most this many."""
    return isinstance(part, bytes) and len(part) <= most and not any(part)


class CopyingSender(Sender):
    """The writer of a connection whose bytes must pass through the process, such as one with TLS.

    Its transport has `send_now`, see `pylogd.link.tls`.
    """

    direct_above = sys.maxsize  # no bytes may be sent past this sender

    __slots__ = ()

    def __init__(self, transport: Any, warm: Warm, feeder: Feeder, *, max_chunk: int, max_unsent: int) -> None:
        super().__init__(transport, warm, feeder, max_chunk=min(max_chunk, ENCRYPTED_BYTES), max_unsent=max_unsent)

    def write(self, data: bytes | memoryview, flags: int = 0) -> None:
        if not self._transport.send_now(data):
            self.unsent += len(data)

    def _write_views(self, views: list[memoryview]) -> int:
        data = b"".join(views)
        self.write(data)
        return len(data)

    def _send_chunk(self, source: Slice, most: int) -> int:
        """Write a chunk of the slice. Return its size; 0 if it failed, or has to wait for another call."""
        if source.in_blocks:
            return self._send_from_memory(cast(BlockSlice, source), most)
        if self._at == self._warm_to:
            count = min(self._end - self._at, self.max_chunk)
            self._warm_to += count
            if not source.is_warm(self._at, count):
                self._waiting = True
                self._warm(source, self._at, count).addCallbacks(self._warmed, self._failed)
                return 0
        with memoryview(_READ)[: min(self._warm_to - self._at, most)] as memory:
            try:
                count = os.preadv(source.fileno(), [memory], self._at)
            except OSError as error:
                self._abort(f"a segment file can't be read: {error}")
                return 0
            if not count:
                self._abort(f"a segment file ends at byte {self._at}, before byte {self._end}")
                return 0
            self._at += count
            if self._at == self._end:
                self._slice = None
            with memory[:count] as data:
                self.write(data)
        return count
