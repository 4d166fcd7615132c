"""What kazoo's handler waits for, for a limited time; and that its thread shows no life which the reactor lacks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.logger import capturedLogs, formatEvent

from pylogd.config.zookeeper import ZooKeeperSecurity
from pylogd.store.kazoo_session import KazooSession, _Handler
from tests.fakes.metadata import ThreadsOnly


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


class Connection:
    """kazoo's connection: what it has sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def _connect(self) -> tuple[float, float]:
        self.sent.append("connect")
        return 4000.0, 6000.0

    def _send_ping(self, _timeout: float) -> None:
        self.sent.append("ping")


class Guarded:
    """A session whose reactor does not run; `in_thread` calls a function as kazoo's thread does."""

    def __init__(self) -> None:
        self.reactor = ThreadsOnly()
        self.session = KazooSession("h:1", cast(Any, self.reactor), 9.0, ZooKeeperSecurity(), lambda _: None)
        self.connection: Any = Connection()
        self.client = SimpleNamespace(_connection=self.connection, _stopped=threading.Event())
        self.session._guard(cast(Any, self.client))

    def in_thread(self, function: Callable[..., Any], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=function, args=args, daemon=True)
        thread.start()
        return thread


@pytest.mark.parametrize(("name", "arguments"), [("_send_ping", (1.0,)), ("_connect", ())])
def test_nothing_that_keeps_a_session_is_sent_before_the_reactor_has_made_progress(
    name: str, arguments: tuple[Any, ...]
) -> None:
    guarded = Guarded()
    thread = guarded.in_thread(getattr(guarded.connection, name), *arguments)
    proof = guarded.reactor._queue.get(timeout=60)  # the thread has asked
    assert guarded.connection.sent == []
    proof()
    thread.join(60)
    assert guarded.connection.sent == [name.removeprefix("_send").strip("_")]
    assert guarded.session.granted_timeout == (6.0 if name == "_connect" else 9.0)


def test_nothing_is_sent_while_the_broker_does_no_work() -> None:
    guarded = Guarded()
    alive = [False, True]
    guarded.session.vital = lambda: alive.pop(0)
    thread = guarded.in_thread(guarded.connection._send_ping, 1.0)
    for _ in range(2):
        assert guarded.connection.sent == []
        guarded.reactor.run_one()
    thread.join(60)
    assert (guarded.connection.sent, alive) == (["ping"], [])


def test_a_session_that_is_closed_does_not_wait_for_the_reactor() -> None:
    guarded = Guarded()
    guarded.client._stopped.set()
    thread = guarded.in_thread(guarded.connection._send_ping, 1.0)
    thread.join(60)
    assert guarded.connection.sent == ["ping"]


def test_a_reactor_that_stood_still_for_long_is_logged_with_what_to_do() -> None:
    guarded = Guarded()
    guarded.session._proof = cast(Any, SimpleNamespace(wait=lambda _wanted: 3.0))
    with capturedLogs() as events:
        guarded.connection._send_ping(1.0)
        guarded.reactor.run_one()
    (event,) = events
    assert "stood still, or could do no work, for 3.0 s" in str(formatEvent(event))
