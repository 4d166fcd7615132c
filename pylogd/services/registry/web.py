"""The registry's HTTP API, compatible with Confluent's, on Twisted Web.

Strategy: `handlers` has a table of routes. The leader of the registries makes all changes: another registry forwards
the request to the leader (`forwarding`), and waits until it has read the change itself. Errors of
`services.registry.errors` are sent with their status and code.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any, Final
from urllib.parse import unquote

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from pylogd.services.registry.api_request import ApiRequest, without_context
from pylogd.services.registry.authentication import Authenticator
from pylogd.services.registry.election import LeaderElection
from pylogd.services.registry.errors import (
    InvalidRequest,
    LeaderUnreachable,
    NotFound,
    RegistryError,
    Unauthorized,
    UnknownLeader,
)
from pylogd.services.registry.forwarding import FORWARDED, Answer, Forwarder
from pylogd.services.registry.handlers import Handlers, Route, Text

log = Logger()

CONTENT_TYPE: Final = b"application/vnd.schemaregistry.v1+json"
#: The time for which a change waits for a reachable leader, such as during an election.
_LEADER_SECONDS: Final = 20.0
_FIRST_ERROR: Final = 400


class SchemaRegistryResource(Resource):
    """The root of the API."""

    isLeaf = True

    def __init__(
        self,
        handlers: Handlers,
        authenticator: Authenticator,
        election: LeaderElection | None = None,
        forwarder: Forwarder | None = None,
    ) -> None:
        """`election` elects the leader; without it this registry makes all changes itself."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._handlers = handlers
        self._authenticator = authenticator
        self._election = election
        self._forwarder = forwarder
        self._routes = handlers.routes()

    def render(self, request: Request) -> int:
        """Answer a request, at once or later."""
        path = request.path.decode("ascii", "replace")
        answer: Deferred[Any] = ensureDeferred(self._answer(request))
        answer.addCallbacks(lambda found: _send(request, *found), lambda why: self._refuse(request, why))
        answer.addErrback(
            lambda why: log.failure("Unexpected error while sending the answer to {path}", why, path=path)
        )
        return NOT_DONE_YET

    def _refuse(self, request: Request, why: Failure) -> None:
        error = why.value
        if isinstance(error, Unauthorized):
            request.responseHeaders.setRawHeaders("www-authenticate", self._authenticator.challenges)
        if isinstance(error, RegistryError):
            _send(request, error.status, error_document(error))
            return
        log.failure("Unexpected error while handling {path}", why, path=request.path.decode("ascii", "replace"))
        _send(request, 500, {"error_code": 50001, "message": "Error in the backend datastore; see the registry's log"})

    async def _answer(self, request: Request) -> Answer:
        """Return the status and the document to send. Raises RegistryError."""
        host = str(getattr(request.getClientAddress(), "host", ""))
        user = await self._authenticator.name(request.getHeader("authorization"), host)
        route, call = self._routed(request, user or host)
        if route.change and self._election is not None and self._forwarder is not None:
            known = None if route.settled is None else await route.settled(call)
            found = Answer(200, known) if known is not None else await self._forwarded(request, call.body)
            if found is not None:
                return found
        document = await _result(route.handler(call))
        return Answer(204 if document is None else 200, document)

    async def _forwarded(self, request: Request, body: bytes) -> Answer | None:
        """Return the leader's answer; None if this registry is the leader. Raises RegistryError."""
        assert self._election is not None and self._forwarder is not None
        reactor = self._forwarder.reactor
        end = reactor.seconds() + _LEADER_SECONDS
        while True:
            leader = await self._election.wait(max(end - reactor.seconds(), 0.0))
            if self._election.is_leader:
                return None
            if request.getHeader(FORWARDED) == "true":
                raise UnknownLeader("Leader not known.")
            try:
                found = await self._forwarder.send(leader, request, body)
            except LeaderUnreachable:
                if reactor.seconds() >= end:
                    raise
                await self._forwarder.pause()
                continue
            if found.status < _FIRST_ERROR:
                await self._handlers.catch_up()
            return found

    def _routed(self, request: Request, client: str) -> tuple[Route, ApiRequest]:
        """Return the route of a request. Raises NotFound or InvalidRequest."""
        whole = request.path.decode("ascii", "replace").rstrip("/") or "/"
        path, context = without_context(whole)
        method = request.method.decode("ascii", "replace")
        allowed = set()
        for route in self._routes:
            match = route.path.fullmatch(path)
            if match is not None:
                if route.method == method:
                    parts = tuple(unquote(part or "") for part in match.groups())
                    body = request.content.read() if request.content else b""
                    return route, ApiRequest(client, parts, request.args or {}, body, context)
                allowed.add(route.method)
        if allowed:
            refused = InvalidRequest(f"{path} accepts {', '.join(sorted(allowed))} only", code=405)
            refused.status = 405
            raise refused
        raise NotFound("HTTP 404 Not Found")


def error_document(error: RegistryError) -> dict[str, Any]:
    """Return the document that is sent for an error."""
    return {"error_code": error.code, "message": error.message}


async def _result(answer: Any) -> Any:
    return await answer if isinstance(answer, Deferred | Coroutine) else answer


def _send(request: Request, status: int, document: Any) -> None:
    if request._disconnected:
        return
    request.setResponseCode(status)
    request.setHeader(b"content-type", CONTENT_TYPE)
    if document is not None:
        text = document.text if isinstance(document, Text) else json.dumps(document, separators=(",", ":"))
        request.write(text.encode())
    request.finish()
