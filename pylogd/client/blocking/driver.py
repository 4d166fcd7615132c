"""Sockets for a `Network`, in one thread: open them, write to them, and read what comes.

Strategy: sockets never block. `turn` carries out the network's effects, waits for sockets, for `wakeup` or for the
next thing that is due, and reports what happened. Host names are looked up in a thread of their own, since the system's
resolver blocks; the addresses of a name are tried one after the other.

Rules: one thread at a time, but for `wakeup`, which may be set from any. Nothing waits outside `turn`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
from collections import deque
from typing import Any

from pylogd.client.blocking.clock import Clock
from pylogd.client.blocking.wakeup import Wakeup
from pylogd.client.core.errors import BrokerUnavailable
from pylogd.client.core.network import Close, Link, LinkState, Network, Open, Write

_RECEIVE_SIZE = 64 * 1024
_MAX_PARTS = 64  # of one gathered write; the system allows 1024
_READS = 16  # of one socket in one turn, so that none starves the others
_LEAST_ADDRESS_SECONDS = 1.0  # what each address of a name gets to answer

Address = tuple[socket.AddressFamily, Any]


class Transport:
    """The socket of one link, and what could not be written yet."""

    def __init__(self, driver: Driver, link: Link) -> None:
        """Nothing is opened yet."""
        self.link = link
        self.socket: socket.socket | None = None
        self.pending: deque[memoryview] = deque()
        self.connected = False
        self._driver = driver
        self._addresses: deque[Address] = deque()
        self._share = 0.0
        self._error: OSError | None = None
        self.attempt_ends = float("inf")

    def connect(self, addresses: list[Address], error: OSError | None, now: float) -> None:
        """Try these addresses of the link's host in turn."""
        self._addresses, self._error = deque(addresses), error
        timeout = self._driver.network.options.connect_timeout
        self._share = max(_LEAST_ADDRESS_SECONDS, timeout / max(1, len(addresses)))
        self.try_next(now)

    def try_next(self, now: float) -> None:
        """Connect to the next address; without one, report why none answered."""
        self.close()
        while self._addresses:
            family, address = self._addresses.popleft()
            try:
                self.socket = socket.socket(family, socket.SOCK_STREAM)
                self.socket.setblocking(False)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._driver.watch(self, select.POLLOUT)
                code = self.socket.connect_ex(address)
            except OSError as error:
                self._error = error
            else:
                if code in (0, errno.EINPROGRESS):
                    self.attempt_ends = now + self._share if self._addresses else float("inf")
                    return
                self._error = OSError(code, _os_text(code))
            self.close()
        reason = "it has no address" if self._error is None else _reason(self._error)
        self.link.lost(BrokerUnavailable(f"{self.link.address}: can't connect: {reason}"), now)

    def finish_connecting(self, now: float) -> None:
        """The socket is writable for the first time: it is connected, or the attempt failed."""
        assert self.socket is not None
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._error = OSError(code, _os_text(code))
            self.try_next(now)
            return
        try:
            self.socket.getpeername()
        except OSError:
            return  # the event was about an earlier socket of this number
        self.connected = True
        self.attempt_ends = float("inf")
        self._driver.watch(self, select.POLLIN)
        self.link.opened(now)

    def close(self) -> None:
        """Close the socket, if there is one."""
        if self.socket is not None:
            self._driver.unwatch(self)
            self.socket.close()
            self.socket = None
        self.pending.clear()


class Driver:
    """The sockets of one network."""

    def __init__(self, network: Network, clock: Clock) -> None:
        """Nothing is open but the wake-up."""
        self.network = network
        self.wakeup = Wakeup()
        self._clock = clock
        self._poll = select.poll()
        self._poll.register(self.wakeup, select.POLLIN)
        self._transports: dict[int, Transport] = {}
        self._resolved: deque[tuple[Transport, list[Address], OSError | None]] = deque()
        self._closed = False

    def close(self) -> None:
        """Close all sockets. `wakeup.set` does nothing from then on."""
        self.perform()
        self._closed = True
        for transport in list(self._transports.values()):
            transport.close()
        self.wakeup.close()

    # Waiting

    def turn(self, until: float) -> bool:
        """Do what is to be done; if that is nothing, wait for it, at most until the clock says `until`.

        Returns whether anything happened. `wakeup` ends the wait, and counts as something.
        """
        self.perform()
        now = self._clock.monotonic()
        self._tick(now)
        due = self.network.next_time()
        ends = [until, *(t.attempt_ends for t in self._transports.values()), *([] if due is None else [due])]
        seconds = max(0.0, min(ends) - now)
        events = self._poll.poll(0 if not seconds else min(int(seconds * 1000) + 1, 3_600_000))
        if not events:
            self._tick(self._clock.monotonic())
            self.perform()
            return False
        now = self._clock.monotonic()
        for descriptor, event in events:
            transport = self._transports.get(descriptor)
            if transport is None:
                self._woken(now)
            elif not transport.connected:
                transport.finish_connecting(now)
            else:
                if event & select.POLLOUT:
                    self._flush(transport, now)
                if event & ~select.POLLOUT:
                    self._read(transport, now)
        self.perform()
        return True

    def perform(self) -> None:
        """Carry out the effects that the network has asked for."""
        effects = self.network.effects
        while effects:
            effect = effects.popleft()
            link = effect.link
            if isinstance(effect, Write):
                self._write(link.transport, effect.parts)
            elif isinstance(effect, Open):
                self._open(link)
            elif isinstance(effect, Close) and link.transport is not None:
                link.transport.close()
        if self.network.written:
            self.network.count_written(self._clock.monotonic())

    def _tick(self, now: float) -> None:
        for transport in [t for t in self._transports.values() if t.attempt_ends <= now]:
            transport.try_next(now)
        self.network.tick(now)

    def _woken(self, now: float) -> None:
        self.wakeup.clear()
        while self._resolved:
            transport, addresses, error = self._resolved.popleft()
            if transport.link.state is LinkState.CONNECTING:
                transport.connect(addresses, error, now)

    # Sockets

    def watch(self, transport: Transport, events: int) -> None:
        """Wait for these events of a transport's socket."""
        assert transport.socket is not None
        self._transports[transport.socket.fileno()] = transport
        self._poll.register(transport.socket, events)

    def unwatch(self, transport: Transport) -> None:
        """Wait for nothing of it."""
        assert transport.socket is not None
        if self._transports.pop(transport.socket.fileno(), None) is not None:
            self._poll.unregister(transport.socket)

    def _open(self, link: Link) -> None:
        transport = link.transport = Transport(self, link)
        numeric = _numeric(link.host, link.port)
        if numeric:
            transport.connect(numeric, None, self._clock.monotonic())
        else:
            threading.Thread(target=self._resolve, args=(transport,), name="pylogd resolver", daemon=True).start()

    def _resolve(self, transport: Transport) -> None:
        """In a thread: look up the addresses of a host name."""
        link = transport.link
        addresses: list[Address] = []
        failure: OSError | None = None
        try:
            found = socket.getaddrinfo(link.host, link.port, type=socket.SOCK_STREAM)
            addresses = [(socket.AddressFamily(family), address) for family, _, _, _, address in found]
        except OSError as error:
            failure = error
        self._resolved.append((transport, addresses, failure))
        self.wakeup.set()

    def _write(self, transport: Transport | None, parts: list[Any]) -> None:
        if transport is None or transport.socket is None:
            return
        idle = not transport.pending
        transport.pending.extend(memoryview(part) for part in parts if len(part))
        if idle:
            self._flush(transport, self._clock.monotonic())

    def _flush(self, transport: Transport, now: float) -> None:
        """Write as much as the socket takes."""
        pending, sock = transport.pending, transport.socket
        assert sock is not None
        try:
            while pending:
                sent = sock.sendmsg([pending[at] for at in range(min(_MAX_PARTS, len(pending)))])
                while sent and sent >= len(pending[0]):
                    sent -= len(pending.popleft())
                if sent:
                    pending[0] = pending[0][sent:]
        except BlockingIOError:
            self._poll.modify(sock, select.POLLIN | select.POLLOUT)
            transport.link.pause_writing()
            return
        except OSError as error:  # what the broker said before it closed is worth reading first
            self._read(transport, now)
            self._lose(transport, error, now)
            return
        self._poll.modify(sock, select.POLLIN)
        transport.link.resume_writing(now)

    def _read(self, transport: Transport, now: float) -> None:
        """Read what has come, and report it."""
        link = transport.link
        for _ in range(_READS):
            sock = transport.socket
            if sock is None:
                return
            buffer = link.receive_buffer()
            try:
                if buffer is None:
                    data = sock.recv(_RECEIVE_SIZE)
                    size = len(data)
                else:
                    with buffer:
                        size = sock.recv_into(buffer)
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(transport, error, now)
                return
            if not size:
                link.lost(None, now)
                transport.close()
                return
            if buffer is None:
                link.received(data, now)
                if size < _RECEIVE_SIZE:
                    return
            else:
                link.filled(size, now)

    def _lose(self, transport: Transport, error: OSError, now: float) -> None:
        link = transport.link
        link.lost(BrokerUnavailable(f"{link.address}: the connection was lost: {_reason(error)}"), now)
        transport.close()


def _numeric(host: str, port: int) -> list[Address]:
    """Return the address if `host` is one already: no look-up is needed then."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return [(family, (host, port))]
    return []


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _os_text(code: int) -> str:
    return os.strerror(code)
