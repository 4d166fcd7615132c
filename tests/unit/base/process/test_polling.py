"""The step of the process's reactor: sockets are handled as by Twisted's own, and errors are logged."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet import epollreactor, selectreactor
from twisted.internet.abstract import FileDescriptor
from twisted.internet.main import CONNECTION_DONE
from twisted.logger import globalLogPublisher

from pylogd.base.process.polling import poll_without_log_context


class _Reader(FileDescriptor):
    """One end of a socket pair, of which `on_read` is called when it can be read."""

    def __init__(self, reactor: Any) -> None:
        super().__init__(reactor)
        self.socket, self.peer = socket.socketpair()
        self.connected = 1
        self.reads: list[bytes] = []
        self.lost = 0
        self.on_read: Any = lambda: None
        self.on_lost: Any = lambda: None
        reactor.addReader(self)

    def fileno(self) -> int:
        return self.socket.fileno()

    def doRead(self) -> Any:
        self.reads.append(self.socket.recv(100))
        return self.on_read()

    def connectionLost(self, reason: Any) -> None:
        self.lost += 1
        self.on_lost()


@pytest.fixture
def reactor() -> Iterator[Any]:
    made: Any = epollreactor.EPollReactor()
    poll_without_log_context(made)
    yield made
    made.removeAll()
    made._poller.close()


def test_what_is_ready_is_handled(reactor: Any) -> None:
    readers = [_Reader(reactor) for _ in range(3)]
    readers[1].peer.send(b"one")
    readers[2].peer.send(b"two")
    reactor.doIteration(0)
    assert [reader.reads for reader in readers] == [[], [b"one"], [b"two"]]
    reactor.doIteration(0)
    assert [len(reader.reads) for reader in readers] == [0, 1, 1]


@pytest.mark.parametrize("in_end", [False, True])
def test_an_error_ends_its_own_connection_only(reactor: Any, in_end: bool) -> None:
    """An error while it is read, or when it is told that this has ended it: Twisted lets the second pass."""
    readers = [_Reader(reactor) for _ in range(2)]
    events: list[Any] = []
    observer: Any = events.append
    readers[0].on_read = lambda: 1 // 0
    readers[0].on_lost = (lambda: 1 // 0) if in_end else readers[0].on_lost
    for reader in readers:
        reader.peer.send(b"x")
    globalLogPublisher.addObserver(observer)
    try:
        reactor.doIteration(0)
    finally:
        globalLogPublisher.removeObserver(observer)
    assert [reader.lost for reader in readers] == [1, 0]
    assert readers[1].reads == [b"x"]
    logged = [event["log_format"] for event in events if event.get("log_namespace") == "pylogd.base.process.polling"]
    assert logged == [f"Unexpected error while {what} a socket" for what in ("reading from", "handling")[: 1 + in_end]]


@pytest.mark.parametrize("closes", [False, True])
def test_a_connection_that_its_peer_ends_is_lost(reactor: Any, closes: bool) -> None:
    """The end alone, or with bytes before it, which are read first."""
    reader, other = _Reader(reactor), _Reader(reactor)
    reader.on_read = lambda: CONNECTION_DONE if not reader.reads[-1] else None
    reader.peer.send(b"x")
    if closes:
        reader.peer.close()
    else:
        reader.peer.shutdown(socket.SHUT_WR)
    reactor.doIteration(0)
    assert (reader.reads, reader.lost) == ([b"x"], 0)
    reactor.doIteration(0)
    assert (reader.reads, reader.lost, other.lost) == ([b"x", b""], 1, 0)
    reactor.doIteration(0)
    assert reader.lost == 1


def test_a_socket_that_another_has_removed_is_skipped(reactor: Any) -> None:
    readers = [_Reader(reactor) for _ in range(2)]
    for at, reader in enumerate(readers):
        reader.on_read = lambda other=readers[1 - at]: reactor.removeReader(other)
        reader.peer.send(b"x")
    reactor.doIteration(0)
    assert sum(len(reader.reads) for reader in readers) == 1


def test_an_interrupted_wait_is_no_error(reactor: Any) -> None:
    class _Poller:
        def __init__(self, error: OSError) -> None:
            self.error = error

        def poll(self, timeout: float, most: int) -> None:
            raise self.error

    poller, reactor._poller = reactor._poller, _Poller(InterruptedError(errno.EINTR, "interrupted"))
    try:
        reactor.doIteration(None)
        reactor._poller = _Poller(OSError(9, "bad"))
        with pytest.raises(OSError, match="bad"):
            reactor.doIteration(None)
    finally:
        reactor._poller = poller


def test_other_reactors_keep_their_step() -> None:
    other = selectreactor.SelectReactor()
    poll_without_log_context(other)
    assert "doIteration" not in vars(other)


def test_a_reactor_without_the_parts_keeps_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    other: Any = epollreactor.EPollReactor()
    poller = other._poller
    del other._poller
    try:
        poll_without_log_context(other)
        assert "doIteration" not in vars(other)
    finally:
        other._poller = poller
        other.removeAll()
        poller.close()
