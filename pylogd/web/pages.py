"""Serve a few read-only pages over HTTP: metrics, health, reports.

Anyone who can connect may read them: listen on localhost, or put a proxy in front. Requests with a body are refused,
and the number of connections is limited, with a share for each address. So a flood of requests takes limited memory,
and idle connections do not prevent health checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from pylogd.web.channel import HttpPlaces, ListeningSite, SharingChannel

log = Logger()

TEXT: Final = "text/plain; charset=utf-8"
#: The media type of Prometheus's text format.
PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_METHODS: Final = (b"GET", b"HEAD")
_TIMEOUT: Final = 60  # seconds until an idle connection is closed
_MOST_CONNECTIONS: Final = 100
_REFUSED: Final = b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Reply(NamedTuple):
    """An answer to a request.

    kind: the media type.
    status: the HTTP status code.
    """

    body: bytes
    kind: str = TEXT
    status: int = 200


#: Returns the answer for an `Accept` header, which is empty if the request had none.
Answer = Callable[[str], "Reply | Deferred[Reply]"]


class _Root(Resource):
    """The root of the pages. Other paths get an error."""

    def getChild(self, path: bytes, request: Request) -> Resource:
        """Return the resource for an unknown path."""
        return Page(lambda _: Reply(b"not found\n", status=404))


class Page(Resource):
    """A page whose content a function returns."""

    isLeaf = True

    def __init__(self, answer: Answer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._answer = answer

    def render(self, request: Request) -> int:
        """Answer with the function's result, at once or when its Deferred fires."""
        if request.method not in _METHODS:
            _send(Reply(b"read-only\n", status=405), request)
            return NOT_DONE_YET
        answer = maybeDeferred(self._answer, request.getHeader("accept") or "")
        gone = request.notifyFinish()
        gone.addErrback(lambda _: answer.cancel())  # the client has closed the connection
        answer.addCallbacks(_send, _fail, callbackArgs=(request,), errbackArgs=(request,))
        return NOT_DONE_YET


def _send(reply: Reply, request: Request) -> None:
    request.setResponseCode(reply.status)
    request.setHeader(b"Content-Type", reply.kind.encode())
    request.setHeader(b"Cache-Control", b"no-store")
    request.setHeader(b"Content-Length", b"%d" % len(reply.body))
    if request.method != b"HEAD":
        request.write(reply.body)
    request.finish()


def _fail(failure: Failure, request: Request) -> None:
    if getattr(request, "_disconnected", False):
        return
    log.failure("Unexpected error while answering {path}", failure, path=request.path.decode("ascii", "replace"))
    _send(Reply(b"internal error: see the log\n", status=500), request)


class _BodylessRequest(Request):
    """A request that is refused if it has a body."""

    _refused = False

    def gotLength(self, length: int | None) -> None:
        """Refuse a body that the headers announce; `length` is None for a body in chunks."""
        super().gotLength(0)  # type: ignore[no-untyped-call]
        if length != 0:
            self._refused = True
            channel: Any = self.channel
            channel.transport.write(_REFUSED)
            channel.loseConnection()

    def handleContentChunk(self, data: bytes) -> None:
        """Drop a piece of a body."""

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Handle the request, unless it was refused."""
        if not self._refused:
            super().requestReceived(command, path, version)  # type: ignore[no-untyped-call]


class _Site(Site):
    """A factory of connections, of which at most `_MOST_CONNECTIONS` are open.

    places: the shares of addresses in the connections.
    """

    noisy = False
    protocol: Any = SharingChannel

    def __init__(self, root: Resource, reactor: Any) -> None:
        super().__init__(root, _BodylessRequest, reactor=reactor, timeout=_TIMEOUT)  # type: ignore[no-untyped-call]
        self.places = HttpPlaces(_MOST_CONNECTIONS)


def _no_access_log(request: Request) -> None:
    """Do nothing: requests arrive every few seconds and change nothing."""


class HttpServer(ListeningSite):
    """The HTTP server of a few pages.

    root: the root of its pages.
    """

    def __init__(self, reactor: Any, endpoint: str, pages: Mapping[str, Answer]) -> None:
        """`pages` has the answer of each path, without its first slash."""
        self.root = _Root()  # type: ignore[no-untyped-call]
        for name, answer in pages.items():
            self.root.putChild(name.encode(), Page(answer))
        site = _Site(self.root, reactor)
        site.displayTracebacks = False
        site.log = _no_access_log  # type: ignore[assignment]
        super().__init__(reactor, endpoint, site)
