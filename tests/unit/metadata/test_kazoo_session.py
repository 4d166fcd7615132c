"""What kazoo's handler waits for: sockets that are ready, for a limited time."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from pylogd.metadata.kazoo_session import _Handler


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_only_sockets_that_are_ready_are_returned(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    handler = _Handler()
    assert handler.select([ours, theirs], [], [], 0.001) == ([], [], [])
    ours.send(b"x")
    assert handler.select([ours, theirs], [], [], None) == ([theirs], [], [])
    assert handler.select([], [ours], [], 5.0) == ([], [ours], [])


def test_the_end_of_a_connection_can_be_read(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    assert _Handler().select([ours], [], [], 5.0) == ([ours], [], [])


def test_a_closed_socket_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    """As with kazoo's own handler, which takes it for the end of the connection."""
    pair[0].close()
    with pytest.raises(ValueError, match="descriptor"):
        _Handler().select([pair[0]], [], [], 0)
