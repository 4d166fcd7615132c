"""Detect that a peer has closed a connection that is not being read from.

The reactor does not watch a paused transport. So if all requests of a connection wait, for example in long polls, its
end would be noticed only when one of them is answered.
Strategy: such sockets are put into an epoll set of their own, for EPOLLRDHUP only; the reactor reads from that set,
which is readable when a peer has closed its connection.
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
    """Watches the paused connections of one listener. If a peer closes a connection, it is aborted."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._epoll: select.epoll | None = None  # made when it is first needed
        self._transports: dict[int, Any] = {}
        self._fds: dict[Any, int] = {}  # needed because a closed transport no longer knows its descriptor
        self._reasons: dict[Any, int] = {}  # how many reasons, for connections with more than one

    def watch(self, transport: Any) -> None:
        """Watch a transport that has just been paused. If there are several reasons for the pause, each calls this."""
        if transport in self._fds:
            self._reasons[transport] = self._reasons.get(transport, 1) + 1
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            self._reactor.addReader(self)
        fd = transport.fileno()
        self._epoll.register(fd, select.EPOLLRDHUP)
        self._transports[fd] = transport
        self._fds[transport] = fd

    def watches(self, transport: Any) -> bool:
        """Return whether a transport is watched, and so is paused."""
        return transport in self._fds

    def unwatch(self, transport: Any) -> bool:
        """Stop watching a transport for one of the reasons. Do nothing if it is not watched.

        Return whether no reason is left, so that it can be read from.
        """
        reasons = self._reasons.pop(transport, 1)
        if reasons > 1:
            if reasons > 2:
                self._reasons[transport] = reasons - 1
            return False
        self.forget(transport)
        return True

    def forget(self, transport: Any) -> None:
        """Stop watching a transport that is closed. Do nothing if it is not watched."""
        self._reasons.pop(transport, None)
        fd = self._fds.pop(transport, None)
        if fd is not None and self._epoll is not None:
            del self._transports[fd]
            with contextlib.suppress(OSError):  # if it is closed, the kernel has removed it
                self._epoll.unregister(fd)

    def close(self) -> None:
        """Stop watching all transports."""
        epoll, self._epoll = self._epoll, None
        self._transports.clear()
        self._fds.clear()
        self._reasons.clear()
        if epoll is not None:
            self._reactor.removeReader(self)
            epoll.close()

    # The methods that the reactor calls on a descriptor

    def fileno(self) -> int:
        """Return the epoll set's descriptor; -1 once it is closed."""
        return -1 if self._epoll is None else self._epoll.fileno()

    def doRead(self) -> None:
        """Abort the connections that their peers have closed."""
        assert self._epoll is not None
        for fd, _ in self._epoll.poll(0):
            transport = self._transports[fd]
            self.forget(transport)
            transport.abortConnection()

    def connectionLost(self, reason: Failure) -> None:
        """Stop watching all transports, since the reactor no longer uses the descriptor."""
        self.close()

    def logPrefix(self) -> str:
        """Return a name for the reactor's log messages."""
        return "hangups"
