"""Large frames that come by TLS are decrypted into their own memory, in bounded turns, whatever pieces they come in."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Any

import pytest
from OpenSSL import SSL
from OpenSSL._util import lib
from twisted.internet.protocol import Protocol

from pylogd.link.receiving import Receiver
from pylogd.link.tls import MOST_RECEIVED
from pylogd.wire.framing import FrameDecoder, FrameMemory
from tests.fakes.tls import TlsPair
from tests.unit.link.test_tls import lose


class Frames(Protocol):
    """Receives frames as a connection of a broker does. sizes: of the chunks that were delivered."""

    def __init__(self) -> None:
        self.decoder = FrameDecoder(1 << 24, memory=FrameMemory())
        self.receive_buffer = self.decoder.receive_buffer
        self.filled = self.decoder.filled
        self.frames: list[bytes] = []
        self.sizes: list[int] = []

    def connectionMade(self) -> None:
        self.receiver = Receiver(self.transport, self, 1 << 18)

    def dataReceived(self, data: bytes) -> None:
        self.sizes.append(len(data))
        self.decoder.feed(data)
        self._take()
        if self.receiver.more():
            self._take()

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = True

    def _take(self) -> None:
        while (frame := self.decoder.next_frame()) is not None:
            self.frames.append(bytes(frame))


def encrypted(pair: TlsPair, frames: list[bytes]) -> bytes:
    """What the client sends for these frames."""
    pair.client.write(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
    return pair._outgoing.read()


FRAMES = [bytes(range(256)) * 1500, b"small", b"", bytes(reversed(range(256))) * 4000, b"s" * 70_000, b"last"]


def test_memory_of_a_record_is_kept_only_while_a_large_frame_arrives() -> None:
    protocol = Frames()
    pair = TlsPair(protocol).handshake()
    data = encrypted(pair, [bytes(1 << 18), b"small"])
    assert releases_buffers(pair)
    pair.tcp.deliver(data[:100_000])
    assert not releases_buffers(pair)
    pair.tcp.deliver(data[100_000:])
    assert len(protocol.frames) == 2
    assert releases_buffers(pair)
    pair.close()


def releases_buffers(pair: TlsPair) -> bool:
    return bool(lib.SSL_set_mode(pair.tls._tlsConnection._ssl, 0) & SSL.MODE_RELEASE_BUFFERS)


@pytest.mark.parametrize("size", [999, 16_413, 1 << 16, 1 << 18, 1 << 24])
def test_large_frames_are_decrypted_in_place_however_the_bytes_come(size: int) -> None:
    protocol = Frames()
    pair = TlsPair(protocol).handshake()
    data = encrypted(pair, FRAMES)
    for at in range(0, len(data), size):
        pair.tcp.deliver(data[at : at + size])
    assert protocol.frames == FRAMES
    if size == 1 << 16:
        assert sum(protocol.sizes) < sum(map(len, FRAMES)) / 2, "most is not delivered in chunks"
    pair.close()


def test_a_turn_reads_a_bounded_part_of_a_large_frame_from_the_socket() -> None:
    protocol = Frames()
    pair = TlsPair(protocol, buffer_bytes=1 << 22).handshake()
    pair.peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    frame = bytes(range(256)) * 12_000
    data = memoryview(encrypted(pair, [frame, b"behind"]))
    turns = 0
    while len(protocol.frames) < 2:
        with contextlib.suppress(BlockingIOError):
            data = data[pair.peer.send(data) :]
        before = protocol.decoder.progress or (0, 0)
        pair.tcp.doRead()
        after = protocol.decoder.progress
        assert after is None or after[1] - before[1] <= MOST_RECEIVED + (1 << 19)
        turns += 1
    assert protocol.frames == [frame, b"behind"]
    assert turns > len(frame) // (MOST_RECEIVED + (1 << 19))
    pair.close()


class Granted:
    """Stands for a `MemoryShare` that grants so many bytes at a time, so often."""

    def __init__(self, size: int, times: int) -> None:
        self.size, self.times = size, times

    def extend(self, most: int) -> int:
        self.times -= 1
        return min(self.size, most) if self.times >= 0 else 0

    def chunk(self, most: int) -> int:
        return most


def test_what_is_read_beyond_the_memory_that_was_granted_is_little() -> None:
    protocol = Frames()
    pair = TlsPair(protocol, buffer_bytes=1 << 22).handshake()
    pair.peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    data = encrypted(pair, [bytes(1 << 20)])
    pair.tcp.deliver(data[:40_000])
    begun = protocol.decoder.progress
    assert begun is not None
    size, times = 20_000, 3
    protocol.receiver._share = Granted(size, times)  # type: ignore[assignment]
    pair.peer.send(data[40_000:])
    pair.tcp.doRead()
    after = protocol.decoder.progress
    assert after is not None
    assert after[1] - begun[1] <= pair.tls.bufferSize + times * size + 2 * (1 << 14)
    assert pair.tls.bufferSize == 1 << 16
    pair.close()


@pytest.mark.parametrize("how", ["garbage", "closing alert", "end"])
def test_a_connection_that_ends_in_the_middle_of_a_large_frame(how: str) -> None:
    protocol = Frames()
    pair = TlsPair(protocol).handshake()
    data = encrypted(pair, [bytes(1 << 20)])
    pair.tcp.deliver(data[: 1 << 19])
    assert pair.tls.in_place
    if how == "garbage":
        pair.tcp.deliver(bytes(100_000))
    elif how == "closing alert":
        with contextlib.suppress(ssl.SSLWantReadError):
            pair.client.unwrap()
        pair.tcp.deliver(data[1 << 19 :] + pair._outgoing.read())
        assert protocol.frames == [bytes(1 << 20)]
    else:
        lose(pair)
        assert protocol.lost
        pair.close()
        return
    pair.turns.turn()
    assert pair.tcp.disconnecting
    pair.close()
