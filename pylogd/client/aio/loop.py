"""asyncio as a `Loop`."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from pylogd.base.clock import wall_ms
from pylogd.base.errors import PylogdError
from pylogd.client.core.errors import BrokerUnavailable
from pylogd.client.core.link import Link
from pylogd.client.evented.tls import make_context, tls_error

_CHUNK = 64 * 1024


class AioPromise:
    """A promise on an asyncio future."""

    __slots__ = ("_future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future: asyncio.Future[Any] = loop.create_future()

    @property
    def done(self) -> bool:
        """Whether the promise has a value or an error, or was cancelled."""
        return self._future.done()

    def succeed(self, value: Any) -> None:
        """Set the value, unless the promise is done."""
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Set an error, unless the promise is done."""
        if not self._future.done():
            self._future.set_exception(error)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._future.__await__()


class AioTransport(asyncio.BufferedProtocol):
    """A connection on asyncio. Large replies are received in place, small ones through a buffer."""

    def __init__(self, link: Link, happened: Callable[[], None], now: Callable[[], float]) -> None:
        """Not connected yet."""
        self._link = link
        self._happened = happened
        self._now = now
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._chunk = memoryview(bytearray(_CHUNK))  # a view, since asyncio's TLS slices it
        self._in_place: memoryview | None = None
        self._closed = False

    def connect(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        """Begin to connect."""
        self._task = loop.create_task(self._connect(loop, timeout))

    async def _connect(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        link = self._link
        try:
            async with asyncio.timeout(timeout):
                await loop.create_connection(
                    lambda: self, link.host, link.port, ssl=link.connections.tls, happy_eyeballs_delay=0.25
                )  # fmt: skip
        except ssl.SSLError as error:
            self._lost(tls_error(link.address, error))
        except (OSError, TimeoutError) as error:
            self._lost(BrokerUnavailable(f"{link.address}: can't connect: {_reason(error)}"))

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report that the connection is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._closed:
            transport.abort()
            return
        self._link.opened(self._now())
        self._happened()

    def get_buffer(self, sizehint: int) -> Any:
        """Return the buffer for the next bytes."""
        self._in_place = self._link.receive_buffer()
        return self._chunk if self._in_place is None else self._in_place

    def buffer_updated(self, size: int) -> None:
        """Report the bytes that were received."""
        if self._closed:
            return
        if self._in_place is None:
            self._link.received(bytes(self._chunk[:size]), self._now())
        else:
            self._in_place.release()
            self._link.filled(size, self._now())
        self._happened()

    def pause_writing(self) -> None:
        """Report that the transport holds too many unsent bytes."""
        self._link.pause_writing()

    def resume_writing(self) -> None:
        """Report that the transport has sent most of its buffer."""
        if not self._closed:
            self._link.resume_writing(self._now())
            self._happened()

    def eof_received(self) -> bool:
        """Close, since the broker has closed."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Report that the connection has ended."""
        link = self._link
        reason: PylogdError | None = None
        if isinstance(error, ssl.SSLError):
            reason = tls_error(link.address, error)
        elif error is not None:
            reason = BrokerUnavailable(f"{link.address}: the connection was lost: {error}")
        self._lost(reason)

    def _lost(self, error: PylogdError | None) -> None:
        if not self._closed:
            self._closed = True
            self._link.lost(error, self._now())
            self._happened()

    # What the driver calls

    def write(self, parts: list[Any]) -> None:
        """Write all parts, in order."""
        # asyncio of Python 3.13 continues watching a socket that it has closed if anything is written to it
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)

    def close(self) -> None:
        """Close the connection, and report nothing more."""
        self._closed = True
        if self._transport is not None:
            self._transport.close()
        elif self._task is not None:
            self._task.cancel()


class AioLoop:
    """The running asyncio loop."""

    def __init__(self) -> None:
        """Raises RuntimeError outside of a running loop."""
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time

    now_ms = staticmethod(wall_ms)

    def later(self, seconds: float, call: Callable[[], object]) -> asyncio.Handle:
        """Call a function after `seconds` seconds."""
        return self._loop.call_soon(call) if seconds <= 0 else self._loop.call_later(seconds, call)

    def from_thread(self, call: Callable[[], object]) -> None:
        """Call a function soon in the loop's thread. Any thread may ask for it. Do nothing if the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def promise(self) -> AioPromise:
        """Return a new promise."""
        return AioPromise(self._loop)

    def tls_reader(self, link: Link) -> Callable[[], Any] | None:
        """Return a function that reads certificates and makes the TLS context; None if no new context is needed."""
        connections = link.connections
        security = connections.options.security
        return partial(make_context, security) if security.uses_tls and connections.tls is None else None

    def open(self, link: Link, timeout: float, happened: Callable[[], None]) -> AioTransport:
        """Connect to a link's address."""
        transport = AioTransport(link, happened, self.now)
        transport.connect(self._loop, timeout)
        return transport


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
