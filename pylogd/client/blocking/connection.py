"""One blocking connection to one broker: requests out, replies in, in order.

Strategy: the socket never blocks; waiting is done in `poll` with a deadline. `send` puts a request on its way and
returns a `Reply` that is filled in when its turn comes, so that several can be under way; while the socket takes no
more bytes, replies are read, so that two full buffers can't stop both sides for good. The first thing on a connection
is ApiVersions; after that each request goes at the highest version that both sides know.

Rules: one thread at a time. Whatever goes wrong with the connection closes it and fails every reply that is awaited.
No Twisted, no threads. It knows nothing of clusters, leaders, or retries.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any

from pylogd.client.blocking.clock import Clock, SystemClock
from pylogd.client.core.errors import BrokerUnavailable, ClientError, InvalidReply, RequestTimedOut
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.negotiation import Negotiation
from pylogd.wire.session import ClientSession

MAX_REPLY_BYTES = 128 * 1024 * 1024
_RECEIVE_SIZE = 64 * 1024
_MAX_PARTS = 64  # of one gathered write; the system allows 1024


class Reply:
    """A reply that is awaited: `response` once `done`, unless `error` says why there is none."""

    __slots__ = ("deadline", "done", "error", "response")

    def __init__(self, deadline: float) -> None:
        """`deadline` is a time of the connection's clock."""
        self.deadline = deadline
        self.done = False
        self.response: Any = None
        self.error: ClientError | None = None


class Connection:
    """A connection that is open from the start; raises `BrokerUnavailable` if it can't be. Timeouts are in seconds."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "pylogd",
        connect_timeout: float = 10.0,
        request_timeout: float = 30.0,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        clock: Clock | None = None,
    ) -> None:
        """Connect and ask what the broker serves."""
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.request_timeout = request_timeout
        self._negotiation = Negotiation(self.address)
        self._clock = clock or SystemClock()
        self._session = ClientSession(max_reply_bytes, client_id)
        self._awaited: deque[Reply] = deque()
        self._failure: ClientError | None = None
        try:
            self._socket = socket.create_connection((host, port), connect_timeout)
        except OSError as error:
            raise BrokerUnavailable(f"{self.address}: can't connect: {_reason(error)}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._poll = select.poll()
        try:
            self._ask_versions(connect_timeout)
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether it is of no more use."""
        return self._failure is not None

    @property
    def in_flight(self) -> int:
        """How many replies are awaited."""
        return len(self._awaited)

    def fileno(self) -> int:
        """The socket's, for `select`."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close it; replies that are awaited fail."""
        self._fail(BrokerUnavailable(f"{self.address}: the connection was closed"))

    # Requests

    def version_for(self, request: Any, highest: int | None = None) -> int:
        """The highest version of a request that both sides know, not over `highest`. Raises UnsupportedByBroker."""
        return self._negotiation.version_for(request, highest)

    def send(
        self, request: Any, *, version: int | None = None, timeout: float | None = None, expect_reply: bool = True
    ) -> Reply:
        """Put a request on its way. Without a reply to expect (produce with acks=0), it is done once it is written."""
        if self._failure is not None:
            raise self._failure
        if version is None:
            version = self.version_for(request)
        reply = Reply(self._clock.monotonic() + (self.request_timeout if timeout is None else timeout))
        parts = self._session.encode_request(request, version, expect_reply=expect_reply)
        if expect_reply:
            self._awaited.append(reply)
        else:
            reply.done = True
        self._write(parts, reply.deadline)
        return reply

    def wait(self, reply: Reply) -> Any:
        """The response, when it has come. Raises what went wrong with the connection, or RequestTimedOut."""
        while not reply.done:
            came = self._receive(reply.deadline)
            if not reply.done and (not came or self._clock.monotonic() >= reply.deadline):
                self._time_out(reply)
        if reply.error is not None:
            raise reply.error
        return reply.response

    def request(self, request: Any, *, version: int | None = None, timeout: float | None = None) -> Any:
        """Send a request and wait for its response."""
        return self.wait(self.send(request, version=version, timeout=timeout))

    def poll(self, timeout: float = 0.0) -> None:
        """Take in what replies have come, waiting up to `timeout` seconds for a first one.

        Never raises for the connection: the replies say what became of them. Requests over their time fail here too.
        """
        if self._failure is not None or not self._awaited:
            return
        oldest = self._awaited[0]
        now = self._clock.monotonic()
        self._receive(min(now + timeout, oldest.deadline), quiet=True)
        if not oldest.done and self._clock.monotonic() >= oldest.deadline:
            self._time_out(oldest)

    def _time_out(self, reply: Reply) -> None:
        """The replies behind a late one are no use either: they come in order. So the connection goes."""
        self._fail(RequestTimedOut(f"{self.address}: no reply in time"))
        assert reply.done

    # Bytes

    def _write(self, parts: list[Any], deadline: float) -> None:
        views = [memoryview(part) for part in parts if len(part)]
        at = 0
        while at < len(views):
            try:
                sent = self._socket.sendmsg(views[at : at + _MAX_PARTS])
            except BlockingIOError:
                self._wait_to_write(deadline)
                continue
            except OSError as error:
                self._lose(error)
            while sent and sent >= len(views[at]):
                sent -= len(views[at])
                at += 1
            if sent:
                views[at] = views[at][sent:]

    def _wait_to_write(self, deadline: float) -> None:
        self._poll.register(self._socket, select.POLLOUT | select.POLLIN)
        events = self._poll.poll(self._left_ms(deadline))
        if not events:
            self._fail(RequestTimedOut(f"{self.address}: the broker takes no more bytes"))
        elif events[0][1] & ~select.POLLOUT:
            self._take_in()
        if self._failure is not None:
            raise self._failure

    def _receive(self, deadline: float, *, quiet: bool = False) -> bool:
        """Wait for bytes and take them in; False if none came by the deadline."""
        if self._failure is None and not self._take_in():
            self._poll.register(self._socket, select.POLLIN)
            if not self._poll.poll(self._left_ms(deadline)):
                return False
            self._take_in()
        if self._failure is not None and not quiet:
            raise self._failure
        return True

    def _take_in(self) -> bool:
        """Read once and fill in the replies that are whole; False if there was nothing to read."""
        try:
            data = self._read()
        except BlockingIOError:
            return False
        except OSError as error:
            self._fail(BrokerUnavailable(f"{self.address}: the connection was lost: {_reason(error)}"))
            return True
        if data is not None and not data:
            self._fail(BrokerUnavailable(f"{self.address}: the broker closed the connection"))
            return True
        try:
            if data is not None:
                self._session.receive_data(data)
            while (event := self._session.next_event()) is not None:
                reply = self._awaited.popleft()
                reply.response, reply.done = event.response, True
        except RemoteProtocolError as error:
            failure = InvalidReply(f"{self.address}: {error}")
            failure.__cause__ = error
            self._fail(failure)
        return True

    def _read(self) -> bytes | None:
        """What came; None if it was received where it belongs, in the rest of a reply."""
        room = self._session.room()
        if room is None:
            return self._socket.recv(_RECEIVE_SIZE)
        with room:
            size = self._socket.recv_into(room)
        if not size:
            return b""
        self._session.received(size)
        return None

    def _left_ms(self, deadline: float) -> int:
        """What `poll` takes: whole milliseconds, rounded up so that a wait never spins."""
        return max(0, int((deadline - self._clock.monotonic()) * 1000) + 1)

    def _lose(self, error: OSError) -> None:
        """A failed write. What the broker said before it closed is worth reading first."""
        while self._failure is None and self._take_in():
            pass
        self._fail(BrokerUnavailable(f"{self.address}: the connection was lost: {_reason(error)}"))
        assert self._failure is not None
        raise self._failure

    def _fail(self, failure: ClientError) -> None:
        if self._failure is None:
            self._failure = failure
            self._socket.close()
        for reply in self._awaited:
            reply.error, reply.done = self._failure, True
        self._awaited.clear()

    # What the broker serves

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]:
        """The lowest and the highest version that it serves, by API key."""
        return self._negotiation.versions

    def _ask_versions(self, timeout: float) -> None:
        step: tuple[Any, int] | None = self._negotiation.question()
        while step is not None:
            request, version = step
            step = self._negotiation.answer(self.request(request, version=version, timeout=timeout))


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
