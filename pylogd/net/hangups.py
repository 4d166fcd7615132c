"""Notices that a peer has gone while its connection is not being read.

A transport that is paused is watched by no reactor, so the end of a connection whose requests all wait, say in long
polls, would be seen only when one of them is answered. Strategy: such sockets are put into an epoll set of their own,
for their end alone (EPOLLRDHUP); the set is one more descriptor to the reactor, readable when a peer has gone.
"""

from __future__ import annotations

import contextlib
import select
from typing import Any

from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer


@implementer(IReadDescriptor)
class HangupWatch:
    """The paused connections of one listener. Aborts each whose peer closes it or goes away."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._epoll: select.epoll | None = None  # made when it is first needed
        self._transports: dict[int, Any] = {}
        self._fds: dict[Any, int] = {}  # a transport that is closed has lost its descriptor's number

    def watch(self, transport: Any) -> None:
        """From now on; `transport` has just been paused."""
        if self._epoll is None:
            self._epoll = select.epoll()
            self._reactor.addReader(self)
        fd = transport.fileno()
        self._epoll.register(fd, select.EPOLLRDHUP)
        self._transports[fd] = transport
        self._fds[transport] = fd

    def unwatch(self, transport: Any) -> None:
        """No longer: it is read again, or closed. Nothing happens if it is not watched."""
        fd = self._fds.pop(transport, None)
        if fd is not None and self._epoll is not None:
            del self._transports[fd]
            with contextlib.suppress(OSError):  # the kernel has forgotten it if it is closed
                self._epoll.unregister(fd)

    def close(self) -> None:
        """Watch nothing any more."""
        epoll, self._epoll = self._epoll, None
        self._transports.clear()
        self._fds.clear()
        if epoll is not None:
            self._reactor.removeReader(self)
            epoll.close()

    # What the reactor asks of a descriptor

    def fileno(self) -> int:
        """The epoll set's; -1 once it is closed."""
        return -1 if self._epoll is None else self._epoll.fileno()

    def doRead(self) -> None:
        """Some peers have gone."""
        assert self._epoll is not None
        for fd, _ in self._epoll.poll(0):
            transport = self._transports[fd]
            self.unwatch(transport)
            transport.abortConnection()

    def connectionLost(self, reason: Failure) -> None:
        """The reactor is done with the descriptor."""
        self.close()

    def logPrefix(self) -> str:
        """For the reactor's complaints."""
        return "hangups"
