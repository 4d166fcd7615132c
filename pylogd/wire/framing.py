"""Split a byte stream into frames: a big-endian int32 length, then that many bytes (Kafka protocol guide, "Network").

Strategy: a frame that lies completely in one received chunk is returned as a view of the chunk, without a copy. A frame
that spans chunks is collected in a bytearray. On a broker it grows with the received bytes, not with the announced
length, so a peer can't make the broker allocate memory by announcing large frames. A client trusts its broker and
allocates up to `ahead` bytes at once. A caller with a socket may receive directly into the bytearray
(`receive_buffer`) instead of feeding chunks. Decoders may share a `FrameMemory`, which reuses the memory of large
frames: allocating costs more than all other work on their bytes. The time is linear in the number of chunks. A
consumed chunk is released at once, since its peer may be silent for hours.

Rules: a negative length, or one over the limit, raises an error before anything is stored; the decoder can't be used
after that. The bytes of a frame never change while a view of them exists.
"""

from __future__ import annotations

import struct

from pylogd.wire.exceptions import RemoteProtocolError

_LENGTH = struct.Struct(">i")
_LENGTH_SIZE = 4
#: Frames from this size on, in bytes, are received in place, and their memory is reused.
LARGE = 1 << 16
_LEAST_AHEAD = 1 << 12
_MOST_AHEAD = 1 << 20
_NOTHING = memoryview(b"")
_TLS_RECORDS = (21, 22)  # the types of alert and handshake (RFC 8446, 5.1)
_TLS_VERSION = 3  # the first byte of the version in a record
_MOST_SPARE = 4
_UNIT = 1 << 20  # the unit of reusable memory, so that it fits later frames too


class InvalidFrameLength(RemoteProtocolError):
    """A frame announced a negative length, or one over the limit."""


class TlsReceived(InvalidFrameLength):
    """TLS was received instead of a frame: only the peer uses TLS."""


class FrameMemory:
    """Keeps the memory of the last large frames for reuse: at most `count` buffers, of `most` bytes together."""

    __slots__ = ("_count", "_kept", "_most", "_scarce")

    def __init__(self, count: int = 4, most: int = 1 << 24) -> None:
        self._count = count
        self._most = most
        self._kept: list[bytearray] = []
        self._scarce = False

    def be_scarce(self, scarce: bool) -> None:
        """Keep no buffers while memory is scarce."""
        self._scarce = scarce
        if scarce:
            self._kept.clear()

    def take(self, size: int) -> bytearray | None:
        """Return a buffer that no view refers to, or None. Its contents are undefined.

        The buffer has at least `size` bytes, and at most `_MOST_SPARE` times as many, because a peer that announces a
        short frame and does not send it keeps the buffer from other connections.
        """
        for at, memory in enumerate(self._kept):
            if size <= len(memory) <= size * _MOST_SPARE and _unseen(memory):
                del self._kept[at]
                return memory
        return None

    def keep(self, memory: bytearray) -> None:
        """Keep a frame's memory. Views of it may still exist; it is reused only after the last one is released."""
        if LARGE <= len(memory) <= self._most and not self._scarce:
            kept = self._kept
            kept.append(memory)
            while len(kept) > self._count or sum(map(len, kept)) > self._most:
                del kept[0]


def _refusal(length: int, most: int) -> InvalidFrameLength:
    """Return the error for the length of a frame that is not accepted."""
    kind, version, *_ = _LENGTH.pack(length)
    if kind in _TLS_RECORDS and version == _TLS_VERSION:
        return TlsReceived(
            "the other side uses TLS on this connection and this side does not; check the security protocol of the "
            "client, and of the listener behind the port"
        )
    return InvalidFrameLength(f"frame length {length} is outside 0..{most} (socket.request.max.bytes)")


def _unseen(memory: bytearray) -> bool:
    """Return whether no view of `memory` exists: only then can it be resized and used again."""
    try:
        memory.append(0)
    except BufferError:
        return False
    memory.pop()
    return True


class FrameDecoder:
    """Splits a stream of bytes into frames of at most `max_bytes` bytes.

    ahead: the largest length, in bytes, for which a frame's memory is allocated at once.
    memory: shared memory of large frames.
    """

    __slots__ = ("_ahead", "_at", "_begun", "_chunk", "_filled", "_max_bytes", "_memory", "_missing", "_partial")

    def __init__(self, max_bytes: int, ahead: int = 0, memory: FrameMemory | None = None) -> None:
        self._max_bytes = max_bytes
        self._ahead = ahead
        self._memory = memory
        self._chunk = _NOTHING
        self._at = 0
        self._partial: bytearray | None = None  # the frame that spans chunks
        self._filled = 0
        self._missing = 0
        self._begun = 0  # the number of frames that have arrived in part

    def limit(self, max_bytes: int) -> None:
        """Accept frames of at most `max_bytes` bytes from now on."""
        self._max_bytes = max_bytes

    @property
    def partial_bytes(self) -> int:
        """The memory used by a partial frame; 0 if there is none."""
        return 0 if self._partial is None else len(self._partial)

    @property
    def announced_bytes(self) -> int:
        """The length of a partial frame; 0 if there is none."""
        return 0 if self._partial is None else self._filled + self._missing

    @property
    def progress(self) -> tuple[int, int] | None:
        """The progress of a partial frame: a number that differs for each frame, and its received bytes.

        None if there is none.
        """
        return None if self._partial is None else (self._begun, self._filled)

    def receive_buffer(self) -> memoryview | None:
        """Return the unfilled tail of a partial frame, or None if the next bytes have to be fed.

        Receive into it, release it at once (the frame can't grow while a view exists), then call `filled`.
        """
        partial, filled = self._partial, self._filled
        if partial is None or not self._missing or self._at < len(self._chunk):
            return None
        if filled == len(partial):
            if self._memory is None or filled + self._missing < LARGE:
                return None
            partial += bytes(min(max(filled, _LEAST_AHEAD), _MOST_AHEAD))  # the buffer doubles with the received bytes
        return memoryview(partial)[filled : filled + self._missing]

    def filled(self, size: int) -> None:
        """Record that `size` bytes were received into `receive_buffer()`."""
        self._filled += size
        self._missing -= size

    @property
    def pending(self) -> bool:
        """Whether a frame has been received in part."""
        return self._partial is not None or self._at < len(self._chunk)

    @property
    def complete(self) -> bool:
        """Whether `next_frame` has a frame to return, or an error to raise."""
        available = len(self._chunk) - self._at
        if self._partial is not None:
            return available >= self._missing
        if available < _LENGTH_SIZE:
            return False
        (length,) = _LENGTH.unpack_from(self._chunk, self._at)
        return not available - _LENGTH_SIZE < length <= self._max_bytes

    def feed(self, data: bytes) -> None:
        """Take a received chunk. Call `next_frame` until it returns None before feeding more."""
        if self._chunk:
            data = bytes(self._chunk[self._at :]) + data
        self._chunk = memoryview(data)
        self._at = 0

    def unread(self) -> tuple[memoryview, int, int]:
        """Return the chunk fed last, the position of the next frame in it, and the largest length of a frame.

        A caller that takes frames from the chunk itself must call `skip_to` with the position after these frames.
        """
        return self._chunk, self._at, self._max_bytes

    def skip_to(self, at: int) -> None:
        """Continue with the frame that begins at position `at` of the chunk fed last."""
        self._at = at

    def next_frame(self) -> memoryview | None:
        """Return the next complete frame without its length, or None if more bytes are needed.

        Raises InvalidFrameLength for a negative length or one over the limit.
        """
        chunk, at = self._chunk, self._at
        available = len(chunk) - at
        if self._partial is not None:
            return self._continue_partial(available)
        if available < _LENGTH_SIZE:
            self._chunk = memoryview(bytes(chunk[at:])) if available else _NOTHING
            self._at = 0
            return None
        (length,) = _LENGTH.unpack_from(chunk, at)
        at += _LENGTH_SIZE
        if not 0 <= length <= self._max_bytes:
            raise _refusal(length, self._max_bytes)
        end = at + length
        if end <= len(chunk):
            self._at = end
            return chunk[at:end]
        self._partial = self._begin(length, chunk[at:])
        self._filled = available - _LENGTH_SIZE
        self._missing = end - len(chunk)
        self._chunk, self._at = _NOTHING, 0
        return None

    def _begin(self, length: int, begun: memoryview) -> bytearray:
        """Return the memory for a partial frame: for its whole length, or only for the part received so far."""
        self._begun += 1
        shared = self._memory is not None and length >= LARGE
        partial = self._memory.take(length) if self._memory is not None and shared else None
        if partial is None:
            if length > self._ahead:
                return bytearray(begun)
            partial = bytearray(-(-length // _UNIT) * _UNIT if shared else length)
        partial[: len(begun)] = begun
        return partial

    def _continue_partial(self, available: int) -> memoryview | None:
        partial = self._partial
        assert partial is not None
        take = min(available, self._missing)
        end = self._filled + take
        partial[self._filled : end] = self._chunk[self._at : self._at + take]
        self._filled = end
        self._at += take
        self._missing -= take
        if self._missing:
            self._chunk, self._at = _NOTHING, 0
            return None
        self._partial = None
        if self._memory is not None:
            self._memory.keep(partial)
        return memoryview(partial)[:end]
