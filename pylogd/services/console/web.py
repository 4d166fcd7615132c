"""Routes, logins, headers and errors of the console, on Twisted Web.

Strategy: a handler gets a `PageRequest` and returns an `Answer`. Before it runs, the user is determined from the
session or the credentials. A POST needs the token of its session, so that no other site can send it, and `allow_writes`
if it changes a cluster.

Rules: pages run only the packaged scripts (Content-Security-Policy). Without a login, only requests that name the
console's own host are answered, so that no other site's name can be pointed at it (DNS rebinding).

Source: OWASP's cheat sheets on cross-site request forgery and on HTTP headers.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from pylogd.base.errors import PylogdError
from pylogd.services.console.answers import Answer, PageRequest, Refused, redirect
from pylogd.services.console.login import Login
from pylogd.services.console.roles import Identity, Role
from pylogd.services.console.sessions import Session, Sessions
from pylogd.services.console.view import View

log = Logger()

_HEADERS: Final = (
    ("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
     "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
)  # fmt: skip
_MOST_FIELDS: Final = 2000
_OWN_SITE: Final = ("same-origin", "none")

Handler = Callable[[PageRequest], "Answer | Awaitable[Answer | None] | None"]


class Route(NamedTuple):
    """The handler of a path.

    pattern: the pattern of the whole path, with a name for each part.
    public: whether no login is needed.

    role: the lowest role that may send it. Routes that need more than a viewer change clusters.
    """

    method: str
    pattern: re.Pattern[str]
    handler: Handler
    public: bool = False
    role: Role = Role.VIEWER


def route(method: str, path: str, handler: Handler, *, public: bool = False, role: Role = Role.VIEWER) -> Route:
    """Return a route for a path with parts in braces, such as `/c/{cluster}/topics`."""
    pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
    return Route(method, re.compile(pattern), handler, public, role)


class ConsoleResource(Resource):
    """The root of the console."""

    isLeaf = True

    def __init__(
        self,
        view: View,
        sessions: Sessions,
        login: Login,
        *,
        allow_writes: bool,
        secure: bool,
        hosts: Collection[str] | None = None,
    ) -> None:
        """`secure` is whether browsers use TLS. `hosts` are the host names that requests may have; None for any."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._view = view
        self._routes: list[Route] = []
        self._sessions = sessions
        self._login = login
        self._allow_writes = allow_writes
        self._cookie = "__Host-pylogd" if secure else "pylogd"
        self._secure = secure
        self.hosts = hosts

    def add(self, routes: Iterable[Route]) -> None:
        """Add routes. If several routes match a path, the first one answers."""
        self._routes += routes

    def render(self, request: Request) -> int:
        """Begin to answer a request. Return NOT_DONE_YET: the answer is sent when the handler's coroutine ends."""
        work = Deferred.fromCoroutine(self._answer(request))
        gone: Deferred[Any] = request.notifyFinish()
        gone.addErrback(lambda _: work.cancel())  # the browser has closed the connection
        work.addCallbacks(lambda answer: self._send(request, answer), lambda why: self._refuse(request, why))
        work.addErrback(lambda why: log.failure("Unexpected error while an answer was sent", why))
        return NOT_DONE_YET

    async def _answer(self, request: Request) -> Answer | None:
        for name, value in _HEADERS:
            request.setHeader(name, value)
        if self._secure:
            request.setHeader("Strict-Transport-Security", "max-age=31536000")
        self._check_host(request)
        path = request.path.decode("ascii", "replace")
        method = "GET" if request.method == b"HEAD" else request.method.decode("ascii", "replace")
        found, parts = self._routed(method, path)
        asked = PageRequest(
            path, parts, _fields(request.uri.partition(b"?")[2].decode("ascii", "replace")), request=request
        )
        if method == "POST":
            asked.form = _fields(request.content.read().decode("utf-8", "replace") if request.content else "")
        await self._identify(request, asked)
        try:
            return await self._handle(request, asked, found)
        finally:
            self._keep(request, asked.session)

    async def _handle(self, request: Request, asked: PageRequest, found: Route) -> Answer | None:
        if found.role > Role.VIEWER and not self._allow_writes:
            raise Refused(403, "This console is read-only: start it with --allow-writes to change clusters.")
        if not found.public and self._login.needed and not asked.user:
            return self._to_login(request, asked)
        if not found.public:
            _check_role(asked, found.role)
        result = found.handler(asked)
        return await result if isinstance(result, Awaitable) else result

    def _to_login(self, request: Request, asked: PageRequest) -> Answer:
        if request.getHeader("hx-request") or request.getHeader("accept") == "text/event-stream":
            raise Refused(401, "The session has ended: reload the page to log in again.")
        if asked.session is not None and request.method == b"GET":
            asked.session.wanted = request.uri.decode("ascii", "replace")
        return redirect("/login")

    async def _identify(self, request: Request, asked: PageRequest) -> None:
        """Determine the user, and check that a POST comes from a page of the console. Raises Refused."""
        header = request.getHeader("authorization")
        if header is not None:
            identity = await self._login.by_header(header, _host(request))
            asked.user, asked.role = identity.user, self._login.role_of(identity)
            return  # no browser sends this by itself, so no other site can cause it
        session = self._sessions.find(self._session_id(request), self._login.role_of(None))
        if asked.request.method == b"POST":
            if request.getHeader("sec-fetch-site") not in (None, *_OWN_SITE):
                raise Refused(403, "This form was sent by another site.")
            if session is None or not session.is_mine(asked.form.get("csrf", "")):
                raise Refused(403, "The form is not valid any more: go back, reload the page and send it again.")
        certified = self._login.by_certificate(request)
        if session is None or (certified is not None and session.user != certified.user):
            session = self._new_session(certified)
        asked.user, asked.token, asked.role = session.user, session.token, session.role
        asked.session = session

    def _session_id(self, request: Request) -> str:
        found: bytes | None = request.getCookie(self._cookie.encode())
        return "" if found is None else found.decode("ascii", "replace")

    def _new_session(self, identity: Identity | None) -> Session:
        return self._sessions.open("" if identity is None else identity.user, self._login.role_of(identity))

    def log_in(self, asked: PageRequest, identity: Identity) -> Answer:
        """Open a session for a user. Return an answer that leads to the page that the user wanted."""
        wanted = asked.session.wanted if asked.session is not None else "/"
        asked.session = self._new_session(identity)
        role = asked.session.role
        channel = asked.request.channel
        if channel is not None:  # None if the browser has closed the connection
            channel.factory.places.logged_in(_host(asked.request))
        log.info(
            "{user} logged in from {host}, with the role {role}",
            user=identity.user, host=_host(asked.request), role=role.name.lower(),
        )  # fmt: skip
        return redirect(wanted if re.match(r"/(?![/\\])", wanted) else "/")

    def log_out(self, asked: PageRequest) -> Answer:
        """End the session. Return an answer that leads to the login, or to the start page if there is no login."""
        self._sessions.close(self._session_id(asked.request))
        asked.session = None
        return redirect("/login" if self._login.needed else "/")

    def _keep(self, request: Request, session: Session | None) -> None:
        """Send the browser its session's cookie, unless it has the same, or the answer has begun (a stream)."""
        value = "" if session is None else self._sessions.cookie(session)
        if not value or value == self._session_id(request) or request.startedWriting:
            return
        more = "; Secure" if self._secure else ""
        text = f"{self._cookie}={value}; Path=/; HttpOnly; SameSite=Lax{more}"
        request.responseHeaders.setRawHeaders("set-cookie", [text])

    def _check_host(self, request: Request) -> None:
        if self.hosts is None:
            return
        name = (request.getHeader("host") or "").rpartition(":")
        host = name[0] if name[0] and name[2].isdigit() else "".join(name)
        if host.strip("[]").lower() not in self.hosts:
            raise Refused(421, "This console is not known under this name: see --host.")

    def _routed(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        others = False
        for each in self._routes:
            match = each.pattern.fullmatch(path)
            if match is not None:
                if each.method == method:
                    return each, {name: unquote(value) for name, value in match.groupdict().items()}
                others = True
        if others:
            raise Refused(405, "This page can't be used this way.")
        raise Refused(404, "There is no such page.")

    def _refuse(self, request: Request, why: Failure) -> None:
        if why.check(CancelledError):
            return
        error = why.value
        status, text = 500, "Unexpected error: see the console's log."
        if isinstance(error, Refused):
            status, text = error.status, str(error)
        elif isinstance(error, PylogdError):
            status, text = 502, f"The cluster answered: {error}"
        else:
            log.failure("Unexpected error while answering {path}", why, path=request.path.decode("ascii", "replace"))
        self._send(request, self._view.error(status, text))

    def _send(self, request: Request, answer: Answer | None) -> None:
        if answer is None or getattr(request, "_disconnected", False):
            return  # the answer is a stream, or the browser has closed the connection
        request.setResponseCode(answer.status)
        request.setHeader("Content-Type", answer.kind)
        request.setHeader("Cache-Control", "no-store")
        for name, value in answer.headers:
            request.setHeader(name, value)
        request.setHeader("Content-Length", str(len(answer.body)))
        if request.method != b"HEAD":
            request.write(answer.body)
        request.finish()


def _check_role(asked: PageRequest, needed: Role) -> None:
    """Raise Refused if a user's role is lower than the required one."""
    if asked.role >= needed:
        return
    log.warn(
        "Refused {path} to {user}, who has the role {role}: it needs the role {needed}",
        path=asked.path, user=asked.user, role=asked.role.name.lower(), needed=needed.name.lower(),
    )  # fmt: skip
    if asked.role is Role.NONE:
        raise Refused(403, f"{asked.user} has no role in this console: see [roles] in its configuration.")
    raise Refused(403, f"This needs the role {needed.name.lower()}; {asked.user} has the role "
                       f"{asked.role.name.lower()}.")  # fmt: skip


def _fields(text: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise Refused(400, "The form has too many fields.") from None


def _host(request: Request) -> str:
    return str(getattr(request.getClientAddress(), "host", ""))
