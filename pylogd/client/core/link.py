"""One connection of a client, without the socket: its phases, and the requests on it.

Strategy: a face opens the transport and reports to the link what happens: `opened`, `received`, `lost`. The link
negotiates versions, and authenticates if the client has credentials; then it sends the requests that wait. The first
exchange on a connection is ApiVersions; each request then goes at the highest version that both sides know. Before the
broker ends an authenticated session, the link authenticates again: requests wait meanwhile (KIP-368).

Rules: no I/O, no clock, no threads: `now` is a parameter, in seconds of a monotonic clock. Replies come in the order of
requests, so a request that times out ends its connection. A broker may have closed an idle connection before the client
notices, and a request without a reply would be lost on it: before such a request, an idle connection has to answer
ApiVersions again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

from pylogd.base.errors import PylogdError
from pylogd.client.core.call import BrokerKey, Call
from pylogd.client.core.connections import ConnectionOptions, UnreachableAddresses
from pylogd.client.core.effects import Close, Open, Work, Write
from pylogd.client.core.errors import BrokerUnavailable, ClientError, InvalidReply, RequestTimedOut, TlsFailed
from pylogd.client.core.metrics import NetworkMeters
from pylogd.wire.authentication import Authentication
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.framing import FrameMemory, TlsReceived
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.negotiation import Negotiation
from pylogd.wire.session import ClientSession

#: a connection that was not used for this time is checked before a request without a reply
IDLE_CHECK_SECONDS = 1.0
#: the client authenticates again after a share of the session's lifetime, at random between these two
_SESSION_SHARES = 0.85, 0.95
_NEVER = float("inf")


class Connections(Protocol):
    """The part of a client's network that its links need."""

    options: ConnectionOptions
    meters: NetworkMeters
    unreachable: UnreachableAddresses
    effects: deque[Open[Link] | Write[Link] | Close[Link] | Work[Link]]
    written: list[Link]
    memory: FrameMemory | None
    tls: Any

    def link_ready(self, link: Link, now: float) -> None:
        """Send what waited for a connection that can now be used."""
        ...

    def link_failed(self, link: Link, error: PylogdError, now: float, *, close: bool = True) -> None:
        """Close a connection, and fail its calls."""
        ...

    def metadata_answered(self) -> None:
        """Record that a broker has answered a Metadata request."""
        ...

    def note_features(self, features: Mapping[str, int], epoch: int) -> None:
        """Record the features of the cluster that a broker has reported."""
        ...


class LinkState(Enum):
    """The phases of a connection."""

    CONNECTING = "connecting"
    NEGOTIATING = "asking for API versions"
    AUTHENTICATING = "authenticating"
    CHECKING = "asking for API versions after it was idle"
    REAUTHENTICATING = "authenticating again"
    READY = "ready"
    CLOSED = "closed"


#: Phases in which requests wait, on a connection that was ready before.
_SUSPENDED = frozenset({LinkState.CHECKING, LinkState.REAUTHENTICATING})


class Link:
    """One connection: its state, its requests in flight, and the requests that wait until it is ready."""

    __slots__ = (
        "_authenticate_at", "_authentication", "_calls", "_congested", "_connect_deadline", "_negotiation", "_network",
        "_session", "_waiting", "_without_reply", "address", "connect_timeout", "error", "host", "key", "meters",
        "port", "purpose", "state", "transport", "used_at",
    )  # fmt: skip

    def __init__(self, network: Connections, key: BrokerKey, purpose: str, host: str, port: int, now: float) -> None:
        """The connection is about to be opened."""
        self.key, self.purpose, self.host, self.port = key, purpose, host, port
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.state = LinkState.CONNECTING
        self.error: PylogdError | None = None
        #: the face's transport
        self.transport: Any = None
        self.used_at = now
        self._network = network
        self._session = ClientSession(network.options.max_reply_bytes, network.options.client_id, network.memory)
        self._negotiation = Negotiation(self.address)
        self._authentication: Authentication | None = None
        self._authenticate_at = _NEVER  # when to authenticate again
        self._calls: deque[Call | None] = deque()  # calls with awaited replies; None: a request of the link
        self._waiting: deque[Call] = deque()
        self._without_reply: deque[Call] = deque()  # calls that are written, but may not be sent yet
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
    def suspended(self) -> bool:
        """Whether the link was ready, and will be again if the broker answers the link's own requests."""
        return self.state in _SUSPENDED

    @property
    def connections(self) -> Connections:
        """The connections of which the link is one."""
        return self._network

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
            self._ask(*self._negotiation.question())

    def worked(self, outcome: bytes | None, error: BaseException | None, now: float) -> None:
        """Report the result or the exception of the call of a `Work`."""
        if self.state is LinkState.CLOSED or self._authentication is None:
            return
        step = None
        try:
            step = self._authentication.follow(outcome, error)
        except PylogdError as failure:
            self._network.link_failed(self, failure, now)
            return
        if step is not None:
            self._ask(*step)
            return
        lifetime_ms, self._authentication = self._authentication.lifetime_ms, None
        share = random.uniform(*_SESSION_SHARES)
        self._authenticate_at = now + lifetime_ms / 1000 * share if lifetime_ms else _NEVER
        self._get_ready(now)

    def receive_buffer(self) -> memoryview | None:
        """Return the unfilled tail of a partial large reply, or None. Release it, then call `filled`."""
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
        """Report that the transport has sent most of its buffer."""
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
            error = BrokerUnavailable(f"{self.address}: the broker closed the connection{self._hint()}")
        self._network.link_failed(self, error, now, close=False)

    def _hint(self) -> str:
        """Return the likely cause if the broker closes the connection before it has answered anything."""
        if self.state is LinkState.NEGOTIATING and not self._network.options.security.uses_tls:
            return " before it answered; if the listener uses TLS, set the protocol SSL or SASL_SSL"
        return ""

    # What the network does

    def submit(self, call: Call, now: float) -> None:
        """Send a call now if the connection is ready, or else when it becomes ready."""
        if self.ready and now >= self._authenticate_at:
            self._suspend(LinkState.REAUTHENTICATING, now)
        elif not call.expect_reply and self.ready and not self._calls and now >= self.used_at + IDLE_CHECK_SECONDS:
            self._suspend(LinkState.CHECKING, now)
        if self.state is LinkState.READY:
            self._write(call, now)
        elif self.error is not None:  # there are no credentials
            call.failed(self.error, now)
        else:
            self._waiting.append(call)

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
        """Return an error if the connection or a request has timed out; the caller then has to close the connection."""
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
        """The next time at which `late`, `expire_waiting` or the idle limit applies."""
        if self.state is LinkState.READY:
            first = self._calls[0] if self._calls else None
            return self.used_at + idle if first is None else first.deadline
        return min([self._connect_deadline, *(call.deadline for call in self._waiting)])

    def shut(self, error: PylogdError) -> list[Call]:
        """Mark the link as closed, and return all of its calls."""
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
        """Return the calls that wait on a connection that was ready before. None of them was sent."""
        if not self.suspended:
            return []
        waiting, self._waiting = list(self._waiting), deque()
        return waiting

    def _suspend(self, state: LinkState, now: float) -> None:
        """Have the broker answer the link's own requests before anything else is sent."""
        self.state = state
        awaited = [call.deadline for call in self._calls if call is not None]
        self._connect_deadline = max([now, *awaited]) + self.connect_timeout
        if state is LinkState.REAUTHENTICATING:
            self._authenticate(now)
        else:
            self._negotiation = Negotiation(self.address)
            self._ask(*self._negotiation.question())

    def _ask(self, request: Any, version: int) -> None:
        """Send a request of the link's own."""
        self._calls.append(None)
        self._network.effects.append(Write(self, self._session.encode_request(request, version)))

    def _take_replies(self, now: float) -> None:
        try:
            while self.state is not LinkState.CLOSED and (event := self._session.next_event()) is not None:
                call = self._calls.popleft()
                if call is None:
                    self._take_own(event.response, now)
                else:
                    self.used_at = now
                    self.meters.in_flight -= 1
                    self.meters.answered(call.api, now - call.sent_at)
                    if call.api is MetadataRequest:
                        self._network.metadata_answered()
                    call.answered(event.response, now)
        except RemoteProtocolError as error:
            kind = TlsFailed if isinstance(error, TlsReceived) else InvalidReply
            failure = kind(f"{self.address}: {error}")
            failure.__cause__ = error
            self._network.link_failed(self, failure, now)

    def _take_own(self, response: Any, now: float) -> None:
        """Take the answer to a request of the link's own."""
        try:
            if self._authentication is not None:
                self._work(self._authentication.answer(response), now)
                return
            step = self._negotiation.answer(response)
        except PylogdError as error:
            self._network.link_failed(self, error, now)
            return
        if step is not None:
            self._ask(*step)
            return
        self._network.note_features(self._negotiation.features, self._negotiation.features_epoch)
        if self.state is LinkState.NEGOTIATING and self._network.options.security.uses_sasl:
            self.state = LinkState.AUTHENTICATING
            self._authenticate(now)
        else:
            self._get_ready(now)

    def _authenticate(self, now: float) -> None:
        try:
            conversation = self._network.options.security.conversation(self.host)
            self._authentication = Authentication(self.address, conversation, self._negotiation)
            self._ask(*self._authentication.question())
        except PylogdError as error:
            self._network.link_failed(self, error, now)

    def _work(self, call: Callable[[], bytes | None], now: float) -> None:
        """Start a step of the authentication, in a thread if it may take long."""
        if self._network.options.security.waits:
            self._network.effects.append(Work(self, call))
            return
        try:
            outcome = call()
        except PylogdError as error:
            self.worked(None, error, now)
        else:
            self.worked(outcome, None, now)

    def _get_ready(self, now: float) -> None:
        self.state = LinkState.READY
        self._network.link_ready(self, now)
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            self._write(call, now)
