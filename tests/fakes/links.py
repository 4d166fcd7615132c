"""A network of the client's core without sockets, and the brokers' ends of its connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.client.core.call import Call
from pylogd.client.core.connections import ConnectionOptions
from pylogd.client.core.effects import Close, Open, Work, Write
from pylogd.client.core.errors import BrokerUnavailable
from pylogd.client.core.link import Link
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.network import Network
from pylogd.credentials.conversation import SaslError, ServerConversation, ServerMechanism, Success
from pylogd.wire.messages import APIS
from pylogd.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from pylogd.wire.messages.metadata import MetadataRequest, MetadataResponse
from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from pylogd.wire.session import RequestReceived, ServerSession, UnsupportedRequest

Mechanisms = Mapping[str, ServerMechanism]
VERSIONS = {key: (api.min_version, api.max_version) for key, api in APIS.items()}


class Peer:
    """The broker's end of a link: it answers ApiVersions and authenticates, and keeps the other requests until a test
    answers them.
    """

    def __init__(
        self, link: Link, versions: dict[int, tuple[int, int]] | None = None, mechanisms: Mechanisms | None = None
    ) -> None:
        self.link = link
        self.mechanisms = mechanisms or {}
        self.lifetime_ms = 0
        self.principals: list[str] = []  # who has authenticated, in order
        self._conversation: ServerConversation | None = None
        self.versions = VERSIONS if versions is None else versions
        self.session = ServerSession(1 << 20, self.versions)
        self.requests: list[RequestReceived] = []
        self.closed = False
        self.gone = False  # what is written to it is lost

    def written(self, parts: list[Any], now: float) -> None:
        if self.gone:
            return
        self.session.receive_data(b"".join(parts))
        while (event := self.session.next_event()) is not None:
            if isinstance(event, UnsupportedRequest):  # ApiVersions, of a version that it does not know
                refused = RequestReceived(event.api_key, 0, event.correlation_id, event.client_id, None)
                self._send(refused, self._api_versions(ErrorCode.UNSUPPORTED_VERSION), now)
            elif isinstance(event.request, ApiVersionsRequest):
                self._send(event, self._api_versions(ErrorCode.NONE), now)
            else:
                self.requests.append(event)
                if len(self.requests) == 1:
                    self._answer_sasl(now)

    def _answer_sasl(self, now: float) -> None:
        """Answer the oldest requests if they are of SASL."""
        while self.requests:
            request = self.requests[0].request
            if isinstance(request, SaslHandshakeRequest):
                response: Any = self._choose(request.mechanism)
            elif isinstance(request, SaslAuthenticateRequest):
                response = self._authenticate(request.auth_bytes)
            else:
                break
            self._send(self.requests.pop(0), response, now)

    def _choose(self, mechanism: str) -> SaslHandshakeResponse:
        if not self.mechanisms:
            return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
        if mechanism not in self.mechanisms:
            return SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, list(self.mechanisms))
        self._conversation = self.mechanisms[mechanism].start()
        return SaslHandshakeResponse(0, list(self.mechanisms))

    def _authenticate(self, message: bytes) -> SaslAuthenticateResponse:
        assert self._conversation is not None
        try:
            step = self._conversation.step(message)
        except SaslError:
            return SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed")
        if isinstance(step, Success):
            self.principals.append(step.principal.name)
        return SaslAuthenticateResponse(0, None, step.message, self.lifetime_ms)

    def _api_versions(self, code: ErrorCode) -> ApiVersionsResponse:
        keys = [ApiVersion(key, low, high) for key, (low, high) in self.versions.items()]
        return ApiVersionsResponse(error_code=code, api_keys=keys)

    def answer(self, now: float, cluster: str = "c") -> None:
        """Answer the oldest request."""
        event = self.requests.pop(0)
        self._send(event, MetadataResponse(cluster_id=cluster), now)
        self._answer_sasl(now)

    def _send(self, event: RequestReceived, response: Any, now: float) -> None:
        parts: list[Any] = self.session.encode_reply(event, response)
        self.link.received(b"".join(parts), now)


class World:
    """A network whose effects are carried out at once, with peers that listen where a test says so."""

    def __init__(self, *bootstrap: tuple[str, int], **options: Any) -> None:
        self.now = 0.0
        self.metadata = Metadata(list(bootstrap) or [("a", 1)])
        self.network = Network(self.metadata, ConnectionOptions(**options))
        self.listening: dict[str, dict[int, tuple[int, int]] | None] = {"a": None}
        self.silent: set[str] = set()
        self.peers: dict[Link, Peer] = {}
        self.opened: list[str] = []
        self.outcomes: list[Any] = []
        self.mechanisms: Mechanisms = {}
        self.lifetime_ms = 0
        self.working = True  # whether work is done at once
        self.work: list[Work[Link]] = []

    def perform(self) -> None:
        while self.network.effects:
            effect = self.network.effects.popleft()
            link = effect.link
            if isinstance(effect, Open):
                self.opened.append(link.host)
                if link.host in self.silent:
                    continue
                if link.host not in self.listening:
                    link.lost(BrokerUnavailable(f"{link.address}: can't connect: refused"), self.now)
                    continue
                self.peers[link] = Peer(link, self.listening[link.host], self.mechanisms)
                self.peers[link].lifetime_ms = self.lifetime_ms
                link.opened(self.now)
            elif isinstance(effect, Write):
                self.peers[link].written(effect.parts, self.now)
            elif isinstance(effect, Work):
                self.work.append(effect)
                if self.working:
                    self.do_work()
            elif isinstance(effect, Close) and link in self.peers:
                self.peers[link].closed = True
        self.network.count_written(self.now)

    def do_work(self) -> None:
        """Carry out the oldest `Work`."""
        effect = self.work.pop(0)
        outcome, failure = None, None
        try:
            outcome = effect.call()
        except PylogdError as error:
            failure = error
        effect.link.worked(outcome, failure, self.now)

    def send(self, target: Any = None, *, timeout: float = 30.0, **more: Any) -> Call:
        def answered(response: Any, _now: float) -> None:
            self.outcomes.append(response if response is None else response.cluster_id)

        def failed(error: PylogdError, _now: float) -> None:
            self.outcomes.append(error)

        call = Call(MetadataRequest, lambda _: MetadataRequest(), answered, failed, timeout, target, **more)
        self.network.send(call, self.now)
        self.perform()
        return call

    def run(self, until: float) -> None:
        """Let time pass, from one thing that is due to the next."""
        for _ in range(100):
            due = self.network.next_time()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.network.tick(self.now)
            self.perform()
        self.now = until

    def peer(self, host: str = "a") -> Peer:
        return next(peer for link, peer in reversed(self.peers.items()) if link.host == host)
