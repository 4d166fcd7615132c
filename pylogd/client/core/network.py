"""All connections of one client, without the sockets.

Strategy: `Network.send` takes a `Call`, picks or opens the connection that it needs (`link`), and has it send the
request once it is ready. What a face has to do is in `effects`: open, write to and close transports, and work for the
authentication that may take long. A face reports the events of a connection to its `Link`. `tick` fails late calls;
`next_time` returns when to call `tick`.

A call to any broker uses a connection that is ready. Without one, known brokers and then the bootstrap addresses are
tried; the next is tried as soon as one fails or has not answered within `HEDGE_SECONDS`, so that an unreachable host
delays nothing (KIP-601, KIP-899). When no broker answers a Metadata request for `rebootstrap_trigger` seconds, or one
answers REBOOTSTRAP_REQUIRED, all connections are closed and only the bootstrap addresses are tried (KIP-1102).

Rules: no I/O, no clock, no threads: `now` is a parameter, in seconds of a monotonic clock. Every call ends exactly
once. After a connection could not be opened, calls to that broker fail at once until the reconnect backoff is over. One
thread at a time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from pylogd.base.errors import PylogdError
from pylogd.client.core.call import BrokerKey, Call, Endpoint
from pylogd.client.core.connections import ConnectionOptions, UnreachableAddresses
from pylogd.client.core.effects import Close, Open, Work, Write
from pylogd.client.core.errors import BrokerUnavailable, Closed, RequestTimedOut, is_retriable
from pylogd.client.core.link import Link, LinkState
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.metrics import NetworkMeters
from pylogd.wire.framing import FrameMemory
from pylogd.wire.messages.metadata import MetadataRequest

_log = logging.getLogger("pylogd.client.network")

HEDGE_SECONDS = 0.5


class Network:
    """The connections of one client. `effects` lists the face's next actions, in order."""

    def __init__(self, metadata: Metadata, options: ConnectionOptions) -> None:
        """Nothing is connected yet."""
        self.metadata = metadata
        self.options = options
        self.meters = NetworkMeters(options.client_id, options.metrics_sample_window)
        self.effects: deque[Open[Link] | Write[Link] | Close[Link] | Work[Link]] = deque()
        self.written: list[Link] = []  # links that have written requests without a reply, for `count_written`
        #: buffers for large replies, which new connections reuse; None to allocate them
        self.memory: FrameMemory | None = None
        #: the face's TLS context
        self.tls: Any = None
        self._links: dict[tuple[BrokerKey, str], Link] = {}
        self.unreachable = UnreachableAddresses(options)
        #: the features that the cluster uses, by name, with their levels (KIP-584)
        self.features: Mapping[str, int] = {}
        self._features_epoch = -1
        self._for_any_broker: deque[Call] = deque()  # calls for any broker, while no connection is ready
        self._candidates: deque[tuple[BrokerKey, str, int]] = deque()
        self._next_candidate_at = 0.0
        self._metadata_wanted_since: float | None = None  # the time since which no Metadata request was answered
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
                key, host, port = self.metadata.broker(call.target)[:3]
            link = self._link(key, call.purpose, host, port, now)
        except PylogdError as error:
            call.failed(error, now)
            return
        if call.exclusive and link.in_flight:  # the reply to an abandoned request would come first
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

    def note_features(self, features: Mapping[str, int], epoch: int) -> None:
        """Record the features of the cluster that a broker has reported, unless newer ones are known."""
        if epoch >= self._features_epoch:
            self.features, self._features_epoch = features, epoch

    def count_written(self, now: float) -> None:
        """Complete requests without a reply whose bytes were sent. Call this after the effects were carried out."""
        written, self.written = self.written, []
        for link in written:
            link.count_written(now)

    # Time

    def tick(self, now: float) -> None:
        """Fail late calls, try the next address, and close idle connections."""
        self.meters.window.tick(now)
        due = self._rebootstrap_due()
        if self.metadata.rebootstrap_required or (due is not None and now >= due):
            self._rebootstrap(now)
        idle = self.options.connections_max_idle
        for link in [link for link in self._links.values() if now >= link.next_time(idle)]:
            self._link_due(link, now)
        for call in [call for call in self._for_any_broker if now >= call.deadline]:
            self._for_any_broker.remove(call)
            call.failed(RequestTimedOut("no broker could be reached in time"), now)
        if self._for_any_broker and now >= self._next_candidate_at:
            self._try_next(now)

    def _link_due(self, link: Link, now: float) -> None:
        """Close a connection that is late or idle; fail calls that waited too long."""
        late = link.late(now)
        if late is not None:
            self.link_failed(link, late, now)
            return
        link.expire_waiting(now)
        if link.ready and not link.in_flight and now >= link.used_at + self.options.connections_max_idle:
            self.abandon_link(link, now)

    def next_time(self) -> float | None:
        """Return when to call `tick`, unless an event comes first."""
        idle = self.options.connections_max_idle
        times = [link.next_time(idle) for link in self._links.values()]
        times += [call.deadline for call in self._for_any_broker]
        if self._for_any_broker and self._candidates:
            times.append(self._next_candidate_at)
        if (due := self._rebootstrap_due()) is not None:
            times.append(due)
        return min(times, default=None)

    def _rebootstrap_due(self) -> float | None:
        """Return when the known brokers will have failed to answer about metadata for too long."""
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
        """Return the connection to a broker for a purpose; open it if there is none.

        Raises the error of the last attempt to open it, during the pause after that attempt.
        """
        link = self._links.get((key, purpose))
        if link is not None and (link.host, link.port) == (host, port):
            return link
        if link is not None:  # the broker has another address now
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
        """Close a connection. Its calls fail; calls for any broker are retried on another connection."""
        if link.state is LinkState.CLOSED:
            return
        was_ready = link.ready or link.suspended
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
        for call in unsent:  # they are retried on another connection
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
                return  # a connection is being opened already
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
