"""What a socket takes at once, over a real pair of sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet import reactor, tcp
from twisted.internet.protocol import Protocol

from pylogd.link.sending import send_now

Pair = tuple[tcp.Connection, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A transport, and the other end of its connection, which reads nothing by itself."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    transport = tcp.Connection(ours, Protocol(), reactor)
    transport.connected = True
    yield transport, theirs
    reactor.removeWriter(transport)
    ours.close()
    theirs.close()


def received(theirs: socket.socket) -> bytes:
    theirs.setblocking(False)
    found = b""
    try:
        while data := theirs.recv(1 << 20):
            found += data
    except BlockingIOError:
        pass
    return found


def test_all_parts_leave_in_order(pair: Pair) -> None:
    transport, theirs = pair
    parts = [b"a" * 20_000, memoryview(b"b" * 5), bytearray(b"c")]
    assert send_now(transport, parts) == ()
    assert received(theirs) == b"a" * 20_000 + b"bbbbbc"


def test_what_the_socket_does_not_take_is_returned(pair: Pair) -> None:
    transport, theirs = pair
    parts = [bytes([at]) * 300_000 for at in range(9)]
    left = send_now(transport, parts)
    rest = b"".join(bytes(part) for part in left)
    sent = received(theirs)
    assert sent and rest and sent + rest == b"".join(parts)


def test_more_parts_than_one_call_takes(pair: Pair) -> None:
    transport, theirs = pair
    parts = [b"%8d" % at for at in range(5000)]
    left = send_now(transport, parts)
    assert received(theirs) + b"".join(bytes(part) for part in left) == b"".join(parts)


@pytest.mark.parametrize("what", ["earlier bytes", "little", "closing", "not connected", "another transport"])
def test_nothing_is_sent_where_the_transport_has_to_do_it(pair: Pair, what: str) -> None:
    transport: Any
    transport, theirs = pair
    parts = [b"x" * (100 if what == "little" else 100_000)]
    if what == "earlier bytes":
        transport._tempDataBuffer.append(b"earlier")
    elif what == "closing":
        transport.disconnecting = True
    elif what == "not connected":
        transport.connected = False
    assert send_now(object() if what == "another transport" else transport, parts) is parts
    assert received(theirs) == b""


def test_an_error_is_left_for_the_transport(pair: Pair) -> None:
    transport, theirs = pair
    theirs.close()
    parts = [b"x" * 100_000]
    assert send_now(transport, parts) is parts
