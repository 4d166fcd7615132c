"""Large frames are received into their own buffer, whatever chunks the reactor reads."""

from __future__ import annotations

import struct

from twisted.internet.protocol import Protocol
from twisted.internet.testing import StringTransport

from pylogd.net.receiving import MOST_BYTES, Receiver
from pylogd.wire.framing import LARGE, FrameDecoder, FrameMemory
from tests.fakes.transport import ManualReactor, PairTransport

CHUNK = 1 << 18


class Frames:
    """A session whose events are its frames."""

    def __init__(self) -> None:
        self.decoder = FrameDecoder(1 << 24, memory=FrameMemory())
        self.receive_buffer = self.decoder.receive_buffer
        self.filled = self.decoder.filled


def socket_pair(buffer_bytes: int = 4 * MOST_BYTES) -> PairTransport:
    transport = PairTransport(Protocol(), ManualReactor(), buffer_bytes)
    transport.getHandle().setblocking(False)
    transport.peer.setsockopt(1, 7, buffer_bytes)  # SOL_SOCKET, SO_SNDBUF
    return transport


def test_the_rest_of_a_frame_is_received_into_its_buffer() -> None:
    transport, session = socket_pair(), Frames()
    receiver = Receiver(transport, session, CHUNK)
    assert transport.bufferSize == CHUNK
    body = bytes(range(256)) * 2048
    session.decoder.feed(struct.pack(">i", len(body)) + body[:100])
    assert session.decoder.next_frame() is None
    at = 100
    while at < len(body):
        at += transport.peer.send(body[at : at + LARGE])
        assert receiver.more()
        assert transport.bufferSize == LARGE  # from now on little is copied out of chunks
    assert not receiver.more()
    assert bytes(session.decoder.next_frame() or b"") == body
    assert not receiver.more()
    assert transport.bufferSize == CHUNK


def test_bytes_after_the_frame_stay_in_the_socket() -> None:
    transport, session = socket_pair(), Frames()
    receiver = Receiver(transport, session, CHUNK)
    session.decoder.feed(struct.pack(">i", LARGE + 1000) + bytes(500))
    assert session.decoder.next_frame() is None
    transport.peer.sendall(bytes(LARGE + 500) + b"next")
    assert receiver.more()
    assert bytes(session.decoder.next_frame() or b"") == bytes(LARGE + 1000)
    assert transport.getHandle().recv(100) == b"next"


def test_a_socket_without_data_and_one_that_ended() -> None:
    transport, session = socket_pair(), Frames()
    receiver = Receiver(transport, session, CHUNK)
    session.decoder.feed(struct.pack(">i", 4 * LARGE) + bytes(10))
    assert session.decoder.next_frame() is None
    assert not receiver.more()
    transport.peer.close()
    assert not receiver.more()
    transport.getHandle().close()
    assert not receiver.more()


def test_a_transport_that_is_no_plain_socket_is_left_alone() -> None:
    transport, session = StringTransport(), Frames()
    receiver = Receiver(transport, session, CHUNK)
    session.decoder.feed(struct.pack(">i", 4 * LARGE) + bytes(10))
    assert session.decoder.next_frame() is None
    assert session.receive_buffer() is not None
    assert not receiver.more()
