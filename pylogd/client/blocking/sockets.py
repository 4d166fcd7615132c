"""Sockets of a client, in one thread: open them, write to them, and read from them.

Strategy: sockets never block. `wait` waits for all of them and for `wakeup`, and reports to the links what happened.
Host names are looked up in a thread of their own, since the system's resolver blocks; the addresses of a name are
tried one after the other. With TLS, OpenSSL may have decrypted more than was read, which no `poll` shows: such sockets
are read again without waiting.

Rules: one thread at a time; only `wakeup` and `from_thread` may be called from any thread. Nothing waits outside
`wait`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from pylogd.base.errors import PylogdError
from pylogd.client.blocking.clock import Clock
from pylogd.client.core.errors import BrokerUnavailable
from pylogd.client.core.link import Link, LinkState
from pylogd.client.evented.tls import context_of, tls_error

_RECEIVE_SIZE = 64 * 1024
_MAX_PARTS = 64  # the most parts of one gathered write; Linux allows 1024
_READS = 16  # the most reads from one socket in one turn, for fairness
_JOINED_BYTES = 64 * 1024  # parts are joined up to this size before they are encrypted
_LEAST_ADDRESS_SECONDS = 1.0  # the least time for each address of a name to answer

#: The exceptions of a socket that can't continue at once.
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

Address = tuple[socket.AddressFamily, Any]


class Transport:
    """The socket of one link, and the bytes that could not be written yet."""

    def __init__(self, sockets: Sockets, link: Link, connect_timeout: float) -> None:
        """Nothing is opened yet."""
        self.link = link
        self.socket: socket.socket | None = None
        self.pending: deque[memoryview] = deque()
        self.connected = False
        self._tls: ssl.SSLSocket | None = None
        self._sockets = sockets
        self._addresses: deque[Address] = deque()
        self._connect_timeout = connect_timeout
        self._share = 0.0
        self._error: OSError | None = None
        self.attempt_ends = float("inf")

    def connect(self, addresses: list[Address], error: OSError | None, now: float) -> None:
        """Try the addresses of the link's host in turn."""
        self._addresses, self._error = deque(addresses), error
        self._share = max(_LEAST_ADDRESS_SECONDS, self._connect_timeout / max(1, len(addresses)))
        self.try_next(now)

    def try_next(self, now: float) -> None:
        """Connect to the next address; if none is left, report the last error."""
        self.close()
        while self._addresses:
            family, address = self._addresses.popleft()
            try:
                self.socket = socket.socket(family, socket.SOCK_STREAM)
                self.socket.setblocking(False)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.watch(self, select.POLLOUT)
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

    def go_on(self, now: float) -> None:
        """Continue to connect, after an event of the socket."""
        if self._tls is None:
            self._finish_connecting(now)
        else:
            self._shake_hands(self._tls, now)

    def _finish_connecting(self, now: float) -> None:
        """Handle that the socket is writable for the first time: it is connected, or the attempt failed."""
        assert self.socket is not None
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._error = OSError(code, _os_text(code))
            self.try_next(now)
            return
        try:
            self.socket.getpeername()
        except OSError:
            return  # the event belonged to an earlier socket with this descriptor
        self.attempt_ends = float("inf")
        try:
            context = context_of(self.link)
        except PylogdError as error:
            self.fail(error, now)
            return
        if context is None:
            self._connected(now)
        else:
            self.socket = self._tls = context.wrap_socket(
                self.socket, server_hostname=self.link.host, do_handshake_on_connect=False
            )
            self._shake_hands(self._tls, now)

    def _shake_hands(self, tls: ssl.SSLSocket, now: float) -> None:
        """Continue the TLS handshake."""
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self._sockets.watch(self, select.POLLIN)
        except ssl.SSLWantWriteError:
            self._sockets.watch(self, select.POLLOUT)
        except OSError as error:
            self.fail(tls_error(self.link.address, error), now)
        else:
            self._connected(now)

    def _connected(self, now: float) -> None:
        self.connected = True
        self._sockets.watch(self, select.POLLIN)
        self.link.opened(now)

    def fail(self, error: PylogdError, now: float) -> None:
        """Report an error, and close the socket."""
        self.link.lost(error, now)
        self.close()

    @property
    def encrypted(self) -> bool:
        """Whether it uses TLS."""
        return self._tls is not None

    @property
    def has_decrypted(self) -> bool:
        """Whether TLS holds received bytes for which the socket is not reported as readable."""
        return self._tls is not None and self._tls.pending() > 0

    def send(self) -> int:
        """Send some of the pending bytes; return their number. Raises OSError."""
        pending = self.pending
        if self._tls is None:
            assert self.socket is not None
            return self.socket.sendmsg([pending[at] for at in range(min(_MAX_PARTS, len(pending)))])
        joined = [pending.popleft()]
        size = len(joined[0])
        while pending and size + len(pending[0]) <= _JOINED_BYTES:
            size += len(pending[0])
            joined.append(pending.popleft())
        pending.appendleft(joined[0] if len(joined) == 1 else memoryview(b"".join(joined)))
        return self._tls.send(pending[0])

    def write(self, parts: list[Any]) -> None:
        """Write all parts, in order. Write at once as much as the socket takes."""
        self._sockets.write(self, parts)

    def close(self) -> None:
        """Close the socket, if it is open."""
        if self.socket is not None:
            self._sockets.unwatch(self)
            self.socket.close()
            self.socket = self._tls = None
        self.pending.clear()


class Sockets:
    """The sockets of one client."""

    def __init__(self, clock: Clock) -> None:
        """Only the wake-up pipe is open."""
        self.wakeup = Wakeup()
        self._clock = clock
        self._poll = select.poll()
        self._poll.register(self.wakeup, select.POLLIN)
        self._transports: dict[int, Transport] = {}
        self._calls: deque[Callable[[], object]] = deque()  # calls from other threads
        self._decrypted: set[Transport] = set()  # TLS may hold more received bytes than the sockets show

    def close(self) -> None:
        """Close all sockets. `wakeup.set` does nothing from then on."""
        for transport in list(self._transports.values()):
            transport.close()
        self.wakeup.close()

    # Waiting

    def wait(self, until: float) -> bool:
        """Wait for events, at most until the clock says `until`, and report them to the links.

        Return whether there was an event. `wakeup` ends the wait, and counts as an event.
        """
        now = self._clock.monotonic()
        self._try_other_addresses(now)
        ends = min([until, *(transport.attempt_ends for transport in self._transports.values())])
        seconds = 0.0 if self._decrypted else max(0.0, ends - now)
        events = self._clock.poll(self._poll, seconds)
        now = self._clock.monotonic()
        again, self._decrypted = self._decrypted, set()
        for unread in again:
            self._read(unread, now)
        if not events and not again:
            self._try_other_addresses(now)
            return False
        for descriptor, event in events:
            transport = self._transports.get(descriptor)
            if transport is None:
                self._woken()
            elif not transport.connected:
                transport.go_on(now)
            else:
                if event & select.POLLOUT:
                    self._flush(transport, now)
                if event & ~select.POLLOUT:
                    self._read(transport, now)
        return True

    def _try_other_addresses(self, now: float) -> None:
        for transport in [t for t in self._transports.values() if t.attempt_ends <= now]:
            transport.try_next(now)

    def _woken(self) -> None:
        self.wakeup.clear()
        while self._calls:
            self._calls.popleft()()

    def from_thread(self, call: Callable[[], object]) -> None:
        """Have `wait` call a function. Any thread may ask for it."""
        self._calls.append(call)
        self.wakeup.set()

    # Sockets

    def open(self, link: Link, connect_timeout: float) -> Transport:
        """Begin to connect to a link's address; the outcome is reported to `link` in `wait`."""
        transport = Transport(self, link, connect_timeout)
        if numeric := _numeric(link.host, link.port):
            self._found(transport, numeric, None)
        else:
            threading.Thread(target=self._resolve, args=(transport,), name="pylogd resolver", daemon=True).start()
        return transport

    def watch(self, transport: Transport, events: int) -> None:
        """Wait for these events of a transport's socket."""
        assert transport.socket is not None
        self._transports[transport.socket.fileno()] = transport
        self._poll.register(transport.socket, events)

    def unwatch(self, transport: Transport) -> None:
        """Wait for no events of a transport's socket."""
        assert transport.socket is not None
        if self._transports.pop(transport.socket.fileno(), None) is not None:
            self._poll.unregister(transport.socket)

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
        self._found(transport, addresses, failure)

    def _found(self, transport: Transport, addresses: list[Address], error: OSError | None) -> None:
        """Have `wait` connect to the addresses of a host name. Any thread may ask for it."""

        def connect() -> None:
            if transport.link.state is LinkState.CONNECTING:
                transport.connect(addresses, error, self._clock.monotonic())

        self.from_thread(connect)

    def write(self, transport: Transport, parts: list[Any]) -> None:
        """Write all parts of a message. Write at once as much as the socket takes."""
        if transport.socket is None:
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
                sent = transport.send()
                while sent and sent >= len(pending[0]):
                    sent -= len(pending.popleft())
                if sent:
                    pending[0] = pending[0][sent:]
        except _NOT_NOW:
            self._poll.modify(sock, select.POLLIN | select.POLLOUT)
            transport.link.pause_writing()
            return
        except OSError as error:  # read first what the broker sent before it closed
            self._read(transport, now)
            self._lose(transport, error, now)
            return
        self._poll.modify(sock, select.POLLIN)
        transport.link.resume_writing(now)

    def _read(self, transport: Transport, now: float) -> None:
        """Read the received bytes, and report them."""
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
            except _NOT_NOW:
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
                rest = size == _RECEIVE_SIZE or link.receive_buffer() is not None
            else:
                link.filled(size, now)
                rest = False  # a short read: `wait` comes back for the rest
            if not rest and not transport.encrypted:
                return
        if transport.has_decrypted:
            self._decrypted.add(transport)

    def _lose(self, transport: Transport, error: OSError, now: float) -> None:
        address = transport.link.address
        if isinstance(error, ssl.SSLError):
            transport.fail(tls_error(address, error), now)
        else:
            transport.fail(BrokerUnavailable(f"{address}: the connection was lost: {_reason(error)}"), now)


def _numeric(host: str, port: int) -> list[Address]:
    """Return the address if `host` is an IP address, which needs no look-up."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return [(family, (host, port))]
    return []


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _os_text(code: int) -> str:
    return os.strerror(code)


class Wakeup:
    """A pipe whose reading end is polled with the sockets."""

    def __init__(self) -> None:
        """Open the pipe."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._closed = False
        self._lock = threading.Lock()  # the descriptor may belong to another file as soon as it is closed

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._read

    def set(self) -> None:
        """End the present wait, or else the next one. Any thread may call this."""
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes the reader too
            if not self._closed:
                os.write(self._write, b"\0")

    def clear(self) -> None:
        """Empty the pipe, so that the next wait does not end at once."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def close(self) -> None:
        """Close the pipe. Nobody may wait any more."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self._write)
