"""A port that several processes listen on: the kernel spreads new connections over them (SO_REUSEPORT)."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IStreamServerEndpoint
from zope.interface import implementer


def bound_socket(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a socket that is bound to an address and does not listen. An empty host means every IPv4 interface.

    shared: whether other sockets of this user may be bound to the address as well. Raises OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
    except BaseException:
        made.close()
        raise
    return made


@implementer(IStreamServerEndpoint)
class SharedPortEndpoint:
    """Listens on an address on which other processes may listen too."""

    def __init__(self, reactor: Any, host: str, port: int, backlog: int) -> None:
        self._reactor = reactor
        self._host = host
        self._port = port
        self._backlog = backlog

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """See `IStreamServerEndpoint`."""
        try:
            with bound_socket(self._host, self._port, shared=True) as made:
                made.listen(self._backlog)
                made.setblocking(False)
                port = self._reactor.adoptStreamPort(made.fileno(), made.family, protocolFactory)
        except OSError as error:
            return fail(CannotListenError(self._host, self._port, error))
        return succeed(port)
