"""Many connections that each have one request in flight, as clients that wait for every answer."""

from __future__ import annotations

import selectors
import socket
import time

_PATIENCE_SECONDS = 120.0


class Crowd:
    """Connections of this process that each have one request in flight."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        """Begin to connect all of them."""
        self._selector = selectors.DefaultSelector()
        self.sockets = []
        for _ in range(count):
            one = socket.socket()
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.connect_ex(address)
            self._selector.register(one, selectors.EVENT_WRITE)
            self.sockets.append(one)

    def connected(self, request: bytes) -> None:
        """Send the first request on each connection once it is made, and return when all are answered."""
        self._exchange(request, len(self.sockets), len(self.sockets))

    def ask(self, request: bytes, total: int) -> None:
        """Send so many requests, one at a time on each connection, and return when all are answered."""
        first = self.sockets[:total]
        for one in first:
            one.sendall(request)
        self._exchange(request, total, 0, total - len(first))

    def _exchange(self, request: bytes, replies: int, unsent: int, more: int = 0) -> None:
        """Receive replies; send on connections that are just made, and `more` times where a reply has come."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        missing: dict[int, int] = {}  # bytes of replies that have begun
        while replies:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{replies} requests were not answered within {_PATIENCE_SECONDS:.0f} s")
            for key, events in self._selector.select(1.0):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if events & selectors.EVENT_WRITE:
                    one.sendall(request)
                    self._selector.modify(one, selectors.EVENT_READ)
                    continue
                data = one.recv(1 << 16)
                if not data:
                    raise ConnectionError("the broker closed a connection")
                left = missing.pop(key.fd, None)
                left = int.from_bytes(data[:4], "big") + 4 - len(data) if left is None else left - len(data)
                if left:
                    missing[key.fd] = left
                    continue
                replies -= 1
                if more:
                    more -= 1
                    one.sendall(request)

    def close(self) -> None:
        """Close all connections."""
        self._selector.close()
        for one in self.sockets:
            one.close()
