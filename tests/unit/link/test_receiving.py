"""Large frames are received into their own buffer, whatever chunks the reactor reads."""

from __future__ import annotations

import select
import socket
import struct
from typing import Any

import pytest
from twisted.internet.protocol import Protocol
from twisted.internet.testing import StringTransport

from pylogd.link.receiving import MOST_BYTES, WAITED_BYTES, Receiver
from pylogd.link.socket_options import unread_bytes
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


def waited_bytes(transport: Any) -> int:
    """How much a socket has to have until the kernel reports it as readable."""
    return int(transport.getHandle().getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))


def test_the_socket_of_a_large_frame_is_readable_when_it_has_much_or_all_that_is_missing() -> None:
    transport, session = socket_pair(), Frames()
    receiver = Receiver(transport, session, CHUNK)
    size = 16 * WAITED_BYTES
    session.decoder.feed(struct.pack(">i", size) + bytes(100))
    assert session.decoder.next_frame() is None
    assert waited_bytes(transport) == 1
    left = size - 100
    for missing, expected in (
        (size - 200, 1),  # at first memory is taken in small portions
        (11 * WAITED_BYTES, WAITED_BYTES),
        (6 * WAITED_BYTES, WAITED_BYTES),
        (20_000, 20_000),
        (10_000, 1),  # it is not worth a wait
        (0, 1),
    ):
        transport.peer.sendall(bytes(left - missing))
        assert receiver.more()
        left = missing
        assert waited_bytes(transport) == expected, missing
    assert len(session.decoder.next_frame() or b"") == size


class NoMemory:
    """A share of the memory for requests that has run out."""

    def extend(self, _: int) -> int:
        return 0

    def chunk(self, usual: int) -> int:
        return usual

    def settle(self) -> None:
        pass


def test_a_frame_whose_memory_has_to_be_waited_for_is_read_whenever_something_comes() -> None:
    transport, session = socket_pair(), Frames()
    receiver = Receiver(transport, session, CHUNK)
    session.decoder.feed(struct.pack(">i", 16 * WAITED_BYTES) + bytes(100))
    assert session.decoder.next_frame() is None
    transport.peer.sendall(bytes(5 * WAITED_BYTES))
    receiver.more()
    assert waited_bytes(transport) == WAITED_BYTES
    receiver._share = NoMemory()  # type: ignore[assignment]
    receiver.more()
    assert waited_bytes(transport) == 1


def test_what_the_kernel_keeps_back_is_counted() -> None:
    transport = socket_pair()
    assert unread_bytes(transport) == 0
    transport.peer.sendall(bytes(1000))
    assert unread_bytes(transport) == 1000
    transport.getHandle().close()
    assert unread_bytes(transport) == 0


@pytest.mark.parametrize("end", ["more", "close"])
def test_the_kernel_reports_a_socket_that_has_enough_or_has_ended(end: str) -> None:
    """With TCP, which epoll waits for; the frame's other tests use Unix sockets, which ignore the option."""
    with socket.create_server(("127.0.0.1", 0)) as port, socket.create_connection(port.getsockname()) as peer:
        accepted, _ = port.accept()
        with accepted:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, WAITED_BYTES)
            waiting = select.epoll()
            waiting.register(accepted, select.EPOLLIN)
            peer.sendall(bytes(1000))
            assert not waiting.poll(0)
            if end == "more":
                peer.sendall(bytes(WAITED_BYTES))
            else:
                peer.shutdown(socket.SHUT_WR)
            assert waiting.poll(60)
            waiting.close()
