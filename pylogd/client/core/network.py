"""All connections of one client, without the sockets.

Strategy: `Network.send` takes a `Call`, picks or opens the connection that it needs and encodes the request once the
connection is ready. What a face has to do is in `effects`: open, write to and close transports. A face reports to the
`Link` of a connection what happens to it: `opened`, `received`, `lost`. `tick` fails what took too long; `next_time`
says when to call it. The first exchange on a connection is ApiVersions; each request then goes at the highest version
that both sides know.

A call to any broker uses a connection that is ready. Without one, known brokers and then the bootstrap addresses are
tried; the next is tried as soon as one fails or has not answered within `HEDGE_SECONDS`, so that an unreachable host
delays nothing (KIP-601, KIP-899). When no broker answers a Metadata request for `rebootstrap_trigger` seconds, or one
answers REBOOTSTRAP_REQUIRED, all connections are closed and only the bootstrap addresses are tried (KIP-1102).

Rules: no I/O, no clock, no threads: `now` is a parameter, in seconds of a monotonic clock. Every call ends exactly
once. Replies come in the order of requests, so a request that times out ends its connection. After a connection could
not be opened, calls to that broker fail at once until the reconnect backoff is over. A broker may have closed an idle
connection before the client notices, and a request without a reply would be lost on it: before such a request, an idle
connection has to answer ApiVersions again. One thread at a time.
"""

from __future__ import annotations

import logging
from collections import deque
from enum import Enum
from typing import Any

from pylogd.client.core.call import BrokerKey, Call, Endpoint
from pylogd.client.core.connections import ConnectionOptions, UnreachableAddresses
from pylogd.client.core.effects import Close, Open, Write
from pylogd.client.core.errors import (
    BrokerUnavailable,
    ClientError,
    Closed,
    InvalidReply,
    RequestTimedOut,
    is_retriable,
)
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.metrics import NetworkMeters
from pylogd.errors import PylogdError
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.negotiation import Negotiation
from pylogd.wire.session import ClientSession

_log = logging.getLogger("pylogd.client.network")

HEDGE_SECONDS = 0.5
#: a connection that was not used for so long is checked before a request without a reply
IDLE_CHECK_SECONDS = 1.0


class LinkState(Enum):
    """The phases of a connection."""

    CONNECTING = "connecting"
    NEGOTIATING = "asking for API versions"
    CHECKING = "asking for API versions after it was idle"
    READY = "ready"
    CLOSED = "closed"


class Link:
    """One connection: its state, the requests in flight on it, and those that wait until it is ready."""

    __slots__ = (
        "_calls", "_congested", "_connect_deadline", "_negotiation", "_network", "_session", "_waiting",
        "_without_reply", "address", "connect_timeout", "error", "host", "key", "meters", "port", "purpose", "state",
        "transport", "used_at",
    )  # fmt: skip

    def __init__(self, network: Network, key: BrokerKey, purpose: str, host: str, port: int, now: float) -> None:
        """A connection that is about to be opened."""
        self.key, self.purpose, self.host, self.port = key, purpose, host, port
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.state = LinkState.CONNECTING
        self.error: PylogdError | None = None
        #: for the face: whatever it opened
        self.transport: Any = None
        self.used_at = now
        self._network = network
        self._session = ClientSession(network.options.max_reply_bytes, network.options.client_id)
        self._negotiation = Negotiation(self.address)
        self._calls: deque[Call | None] = deque()  # awaited, in order; None for ApiVersions
        self._waiting: deque[Call] = deque()
        self._without_reply: deque[Call] = deque()  # written to a transport that may still hold them
        self._congested = False
        #: how long connecting may take, in seconds
        self.connect_timeout = network.unreachable.connect_timeout((host, port))
        self._connect_deadline = now + self.connect_timeout
        self.meters = network.meters.broker(key, self.address)

    def __repr__(self) -> str:
        return f"<Link {self.address} {self.purpose or 'main'} {self.state.value}>"

    @property
    def ready(self) -> bool:
        """Whether requests can be sent."""
        return self.state is LinkState.READY

    @property
    def in_flight(self) -> int:
        """The number of replies that are awaited."""
        return len(self._calls)

    @property
    def versions(self) -> Any:
        """The lowest and highest version that the broker serves, by API key."""
        return self._negotiation.versions

    def version_for(self, api: Any, highest: int | None = None) -> int:
        """Return the highest version that both sides know, at most `highest`. Raises UnsupportedByBroker."""
        return self._negotiation.version_for(api, highest)

    # What a face reports

    def opened(self, now: float) -> None:
        """Report that the transport is connected."""
        if self.state is LinkState.CONNECTING:
            self.state = LinkState.NEGOTIATING
            self.meters.connections += 1
            self._network.meters.created.record(1)
            self._ask_versions(*self._negotiation.question())

    def receive_buffer(self) -> memoryview | None:
        """Return the unfilled tail of a large reply that has begun, or None. Release it, then call `filled`."""
        return self._session.receive_buffer()

    def filled(self, size: int, now: float) -> None:
        """Record that `size` bytes were received into `receive_buffer()`."""
        self.meters.received.record(size)
        self._session.filled(size)
        self._take_replies(now)

    def received(self, data: bytes, now: float) -> None:
        """Report bytes that were received."""
        self.meters.received.record(len(data))
        self._session.receive_data(data)
        self._take_replies(now)

    def pause_writing(self) -> None:
        """Report that the transport holds too many unsent bytes: requests without a reply do not count as written."""
        self._congested = True

    def resume_writing(self, now: float) -> None:
        """Report that the transport has sent most of what it held."""
        self._congested = False
        self.count_written(now)

    def count_written(self, now: float) -> None:
        """Complete the requests without a reply, unless the transport holds too many unsent bytes."""
        while self._without_reply and not self._congested:
            self._without_reply.popleft().answered(None, now)

    def lost(self, error: PylogdError | None, now: float) -> None:
        """Report that the transport could not be opened, failed, or was closed by the broker (`error` is None)."""
        if self.state is LinkState.CLOSED:
            return
        if error is None:
            error = BrokerUnavailable(f"{self.address}: the broker closed the connection")
        self._network.link_failed(self, error, now, close=False)

    # What the network does

    def submit(self, call: Call, now: float) -> None:
        """Send a call now if the connection is ready, else as soon as it is."""
        if not call.expect_reply and self.ready and not self._calls and now >= self.used_at + IDLE_CHECK_SECONDS:
            self._check(now)
        if self.state is not LinkState.READY:
            self._waiting.append(call)
        else:
            self._write(call, now)

    def _write(self, call: Call, now: float) -> None:
        try:
            version = self._negotiation.version_for(call.api, call.highest)
            message = call.build(version)
            parts = self._session.encode_request(message, version, expect_reply=call.expect_reply)
        except PylogdError as error:
            call.failed(error, now)
            return
        call.sent = True
        call.sent_at = self.used_at = now
        self.meters.sent.record(sum(map(len, parts)))
        if call.expect_reply:
            self.meters.in_flight += 1
            self._calls.append(call)
        self._network.effects.append(Write(self, parts))
        if not call.expect_reply:
            self._without_reply.append(call)
            self._network.written.append(self)

    def late(self, now: float) -> ClientError | None:
        """Return the error if something took too long, after which the connection has to be closed."""
        if self.state is not LinkState.READY:
            if now >= self._connect_deadline:
                return BrokerUnavailable(f"{self.address}: can't connect: no answer in time")
        elif self._calls and (first := self._calls[0]) is not None and now >= first.deadline:
            return RequestTimedOut(f"{self.address}: no reply in time")
        return None

    def expire_waiting(self, now: float) -> None:
        """Fail the calls that have waited for the connection until their deadline."""
        for call in [call for call in self._waiting if now >= call.deadline]:
            self._waiting.remove(call)
            call.failed(RequestTimedOut(f"{self.address}: no connection in time"), now)

    def next_time(self, idle: float) -> float:
        """When `late`, `expire_waiting` or the idle limit has something to do."""
        if self.state is LinkState.READY:
            first = self._calls[0] if self._calls else None
            return self.used_at + idle if first is None else first.deadline
        return min([self._connect_deadline, *(call.deadline for call in self._waiting)])

    def shut(self, error: PylogdError) -> list[Call]:
        """Mark it closed and return every call that it had."""
        if self.state is not LinkState.CONNECTING:
            self.meters.connections -= 1
            self._network.meters.closed.record(1)
        self.meters.in_flight -= sum(call is not None for call in self._calls)
        self.state, self.error = LinkState.CLOSED, error
        calls = [call for call in (*self._calls, *self._without_reply, *self._waiting) if call is not None]
        self._calls.clear()
        self._without_reply.clear()
        self._waiting.clear()
        return calls

    def take_waiting(self) -> list[Call]:
        """Return the calls that wait for an idle connection to answer. Nothing of them was sent."""
        if self.state is not LinkState.CHECKING:
            return []
        waiting, self._waiting = list(self._waiting), deque()
        return waiting

    def _check(self, now: float) -> None:
        """Have the broker answer before anything else is sent."""
        self.state = LinkState.CHECKING
        self._connect_deadline = now + self.connect_timeout
        self._negotiation = Negotiation(self.address)
        self._ask_versions(*self._negotiation.question())

    def _ask_versions(self, request: Any, version: int) -> None:
        self._calls.append(None)
        self._network.effects.append(Write(self, self._session.encode_request(request, version)))

    def _take_replies(self, now: float) -> None:
        try:
            while self.state is not LinkState.CLOSED and (event := self._session.next_event()) is not None:
                call = self._calls.popleft()
                if call is None:
                    self._take_versions(event.response, now)
                else:
                    self.used_at = now
                    self.meters.in_flight -= 1
                    self.meters.answered(call.api, now - call.sent_at)
                    if call.api is MetadataRequest:
                        self._network.metadata_answered()
                    call.answered(event.response, now)
        except RemoteProtocolError as error:
            failure = InvalidReply(f"{self.address}: {error}")
            failure.__cause__ = error
            self._network.link_failed(self, failure, now)

    def _take_versions(self, response: Any, now: float) -> None:
        try:
            step = self._negotiation.answer(response)
        except PylogdError as error:
            self._network.link_failed(self, error, now)
            return
        if step is not None:
            self._ask_versions(*step)
            return
        self.state = LinkState.READY
        self._network.link_ready(self, now)
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            self._write(call, now)


class Network:
    """The connections of one client. `effects` is what the face has to do next, in order."""

    def __init__(self, metadata: Metadata, options: ConnectionOptions) -> None:
        """Nothing is connected yet."""
        self.metadata = metadata
        self.options = options
        self.meters = NetworkMeters(options.client_id, options.metrics_sample_window)
        self.effects: deque[Open[Link] | Write[Link] | Close[Link]] = deque()
        self.written: list[Link] = []  # links with requests without a reply, for `count_written`
        self._links: dict[tuple[BrokerKey, str], Link] = {}
        self.unreachable = UnreachableAddresses(options)
        self._for_any_broker: deque[Call] = deque()  # calls for any broker, while none is ready
        self._candidates: deque[tuple[BrokerKey, str, int]] = deque()
        self._next_candidate_at = 0.0
        self._metadata_wanted_since: float | None = None  # no Metadata request was answered since
        self._closed = False

    @property
    def links(self) -> list[Link]:
        """The connections that are open or being opened."""
        return list(self._links.values())

    def send(self, call: Call, now: float) -> None:
        """Send a request now, or once its connection is open. The outcome may be reported before this returns."""
        call.deadline = now + call.timeout
        call.sent = False
        if self._closed:
            call.failed(Closed("the client is closed"), now)
            return
        if call.target is None:
            if call.api is MetadataRequest and self._metadata_wanted_since is None:
                self._metadata_wanted_since = now
            self._send_to_any_broker(call, now)
            return
        try:
            if isinstance(call.target, Endpoint):
                key, host, port = call.target.node_id, call.target.host, call.target.port
            else:
                key, host, port, _ = self.metadata.broker(call.target)
            link = self._link(key, call.purpose, host, port, now)
        except PylogdError as error:
            call.failed(error, now)
            return
        if call.exclusive and link.in_flight:  # a reply that nobody waits for any more would come first
            self.link_failed(link, BrokerUnavailable(f"{link.address}: the connection was closed"), now)
            link = self._link(key, call.purpose, host, port, now)
        link.submit(call, now)

    def is_ready(self, node: int, purpose: str = "") -> bool:
        """Whether the connection to a broker is open."""
        link = self._links.get((node, purpose))
        return link is not None and link.ready

    def close(self, error: PylogdError, now: float) -> None:
        """Close every connection; every call that has no outcome fails with `error`."""
        self._closed = True
        for link in self.links:
            self.link_failed(link, error, now)
        self._fail_for_any_broker(error, now)

    def abandon_link(self, link: Link, now: float) -> None:
        """Close one connection."""
        self.link_failed(link, BrokerUnavailable(f"{link.address}: the connection was closed"), now)

    def metadata_answered(self) -> None:
        """Record that a broker has answered a Metadata request."""
        self._metadata_wanted_since = None

    def count_written(self, now: float) -> None:
        """Complete requests without a reply whose bytes were sent. To be called after the effects were carried out."""
        written, self.written = self.written, []
        for link in written:
            link.count_written(now)

    # Time

    def tick(self, now: float) -> None:
        """Fail what took too long, try the next address, and close idle connections."""
        self.meters.window.tick(now)
        due = self._rebootstrap_due()
        if self.metadata.rebootstrap_required or (due is not None and now >= due):
            self._rebootstrap(now)
        for link in self.links:
            late = link.late(now)
            if late is not None:
                self.link_failed(link, late, now)
                continue
            link.expire_waiting(now)
            if link.ready and not link.in_flight and now >= link.used_at + self.options.connections_max_idle:
                self.abandon_link(link, now)
        for call in [call for call in self._for_any_broker if now >= call.deadline]:
            self._for_any_broker.remove(call)
            call.failed(RequestTimedOut("no broker could be reached in time"), now)
        if self._for_any_broker and now >= self._next_candidate_at:
            self._try_next(now)

    def next_time(self) -> float | None:
        """When `tick` has something to do, unless something happens before."""
        idle = self.options.connections_max_idle
        times = [link.next_time(idle) for link in self._links.values()]
        times += [call.deadline for call in self._for_any_broker]
        if self._for_any_broker and self._candidates:
            times.append(self._next_candidate_at)
        if (due := self._rebootstrap_due()) is not None:
            times.append(due)
        return min(times, default=None)

    def _rebootstrap_due(self) -> float | None:
        """When the known brokers have been without an answer about metadata for too long."""
        trigger, since = self.options.rebootstrap_trigger, self._metadata_wanted_since
        return None if trigger is None or since is None or not self.metadata.brokers else since + trigger

    def _rebootstrap(self, now: float) -> None:
        """Forget the known brokers, and close the connections to them."""
        self.metadata.rebootstrap()
        self._metadata_wanted_since = None
        self._candidates.clear()
        for link in self.links:
            self.abandon_link(link, now)

    # Links

    def _link(self, key: BrokerKey, purpose: str, host: str, port: int, now: float) -> Link:
        """Return the connection to a broker for a purpose, opened if there is none.

        Raises the error of the last attempt to open it, during the pause after it.
        """
        link = self._links.get((key, purpose))
        if link is not None and (link.host, link.port) == (host, port):
            return link
        if link is not None:  # the broker listens elsewhere now
            self.abandon_link(link, now)
        error = self.unreachable.error((host, port), now)
        if error is not None:
            raise error
        link = self._links[key, purpose] = Link(self, key, purpose, host, port, now)
        self.effects.append(Open(link))
        return link

    def link_ready(self, link: Link, now: float) -> None:
        """Send what waited for a connection that can now be used."""
        _log.debug("%s: connected", link.address)
        self.unreachable.reached((link.host, link.port))
        if not link.purpose:
            self._candidates.clear()
            waiting, self._for_any_broker = self._for_any_broker, deque()
            for call in waiting:
                link.submit(call, now)

    def link_failed(self, link: Link, error: PylogdError, now: float, *, close: bool = True) -> None:
        """Close a connection: its calls fail, and those for any broker are tried on another one."""
        if link.state is LinkState.CLOSED:
            return
        was_ready = link.state in (LinkState.READY, LinkState.CHECKING)
        unsent = link.take_waiting()
        if was_ready:
            _log.debug("%s: connection ended: %s", link.address, error)
        if self._links.get((link.key, link.purpose)) is link:
            del self._links[link.key, link.purpose]
        if close:
            self.effects.append(Close(link))
        if not was_ready and not self._closed:
            self.unreachable.failed((link.host, link.port), error, now)
        for call in link.shut(error):
            call.failed(error, now)
        for call in unsent:  # on another connection
            self.send(call, now)
        if self._for_any_broker and not self._closed:
            if not is_retriable(error):
                self._fail_for_any_broker(error, now)
            else:
                self._try_next(now)

    # Any broker

    def _send_to_any_broker(self, call: Call, now: float) -> None:
        for (_, purpose), link in self._links.items():
            if not purpose and link.ready:
                link.submit(call, now)
                return
        self._for_any_broker.append(call)
        if len(self._for_any_broker) == 1 or not self._connecting():
            self._candidates = deque(self.metadata.addresses())
            self._try_next(now)

    def _connecting(self) -> bool:
        return any(not purpose for _, purpose in self._links)

    def _try_next(self, now: float) -> None:
        """Try the next address for the calls that any broker may answer; fail them if none is left."""
        error: PylogdError | None = None
        self._next_candidate_at = now + HEDGE_SECONDS
        while self._candidates:
            key, host, port = self._candidates.popleft()
            if (key, "") in self._links:
                return  # being opened already
            try:
                self._link(key, "", host, port, now)
            except PylogdError as failure:
                error = failure
            else:
                return
        if not self._connecting():
            error = error or self.unreachable.last_error or BrokerUnavailable("no broker can be reached")
            self._fail_for_any_broker(error, now)

    def _fail_for_any_broker(self, error: PylogdError, now: float) -> None:
        waiting, self._for_any_broker = self._for_any_broker, deque()
        self._candidates.clear()
        for call in waiting:
            call.failed(error, now)
