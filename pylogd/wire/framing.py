"""Frames: a 4-byte big-endian length, then that many bytes (Kafka protocol guide, "Network").

Strategy: frames that lie whole in one received chunk are handed out as views of that chunk, uncopied. A frame that
spans chunks is gathered in one bytearray, which grows as bytes come and not by what the length promises, so a peer
pays for the memory it takes; a client, which trusts its broker that far, has it made in full up to `ahead` bytes, and
may receive into it (`room`) instead of feeding chunks. Nothing here is quadratic in the number of chunks.

Rules: a length below zero or over the cap raises before anything is kept, and the decoder is then dead.
"""

from __future__ import annotations

import struct

from pylogd.wire.exceptions import RemoteProtocolError

_LENGTH = struct.Struct(">i")
_LENGTH_SIZE = 4


class InvalidFrameLength(RemoteProtocolError):
    """A frame announced a negative length, or one over the cap."""


class FrameDecoder:
    """Cuts a stream of bytes into frames of at most `max_bytes` bytes each."""

    __slots__ = ("_ahead", "_at", "_chunk", "_filled", "_max_bytes", "_missing", "_partial", "_prefix")

    def __init__(self, max_bytes: int, ahead: int = 0) -> None:
        self._max_bytes = max_bytes
        self._ahead = ahead
        self._chunk = memoryview(b"")
        self._at = 0
        self._prefix = b""  # 1 to 3 bytes of a length that is still to come whole
        self._partial: bytearray | None = None  # the frame that spans chunks
        self._filled = 0
        self._missing = 0

    def room(self) -> memoryview | None:
        """Where the next bytes go if they are received in place; None if they are to be fed. Let go of it at once."""
        if self._partial is None or self._filled == len(self._partial) or self._at < len(self._chunk):
            return None
        return memoryview(self._partial)[self._filled :]

    def filled(self, size: int) -> None:
        """So many bytes were received into `room`."""
        self._filled += size
        self._missing -= size

    @property
    def pending(self) -> bool:
        """Whether bytes wait here for the rest of their frame."""
        return self._partial is not None or bool(self._prefix) or self._at < len(self._chunk)

    def feed(self, data: bytes) -> None:
        """Take a received chunk. Drain `next_frame` before feeding more."""
        if self._at < len(self._chunk):
            data = bytes(self._chunk[self._at :]) + data
        elif self._prefix:
            data = self._prefix + data
            self._prefix = b""
        self._chunk = memoryview(data)
        self._at = 0

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, or None until more is fed. Raises InvalidFrameLength."""
        chunk, at = self._chunk, self._at
        available = len(chunk) - at
        if self._partial is not None:
            return self._continue_partial(available)
        if available < _LENGTH_SIZE:
            if available:
                self._prefix = bytes(chunk[at:])
                self._at = len(chunk)
            return None
        (length,) = _LENGTH.unpack_from(chunk, at)
        at += _LENGTH_SIZE
        if not 0 <= length <= self._max_bytes:
            raise InvalidFrameLength(
                f"frame length {length} is outside 0..{self._max_bytes} (socket.request.max.bytes)"
            )
        end = at + length
        if end <= len(chunk):
            self._at = end
            return chunk[at:end]
        if length <= self._ahead:
            self._partial = bytearray(length)
            self._partial[: available - _LENGTH_SIZE] = chunk[at:]
        else:
            self._partial = bytearray(chunk[at:])
        self._filled = available - _LENGTH_SIZE
        self._missing = end - len(chunk)
        self._at = len(chunk)
        return None

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
            return None
        self._partial = None
        return memoryview(partial)
