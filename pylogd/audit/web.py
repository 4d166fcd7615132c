"""Serve the audit's metrics and report over HTTP: `/metrics`, `/` for people, `/windows.json`, `/health`.

Anyone who can connect may read it; it changes nothing. Put a proxy in front, or listen on localhost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from twisted.internet.endpoints import serverFromString
from twisted.internet.interfaces import IListeningPort
from twisted.web.resource import Resource
from twisted.web.server import Request, Site

from pylogd.audit.ledger import Ledger
from pylogd.audit.report import Row, as_html, sort_rows

_TIMEOUT = 60


class _Page(Resource):
    """A page whose body a function returns."""

    isLeaf = True

    def __init__(self, kind: str, body: Callable[[], bytes]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kind = kind
        self._body = body

    def render_GET(self, request: Request) -> bytes:
        """Answer."""
        request.setHeader(b"Content-Type", self._kind.encode())
        request.setHeader(b"Cache-Control", b"no-store")
        return self._body()


def _no_access_log(request: Request) -> None:
    """Do nothing: requests come every few seconds and change nothing."""


def rows_of(ledger: Ledger) -> list[Row]:
    """Return the verdicts of all windows in memory that have one."""
    rows = [
        Row(stage, topic, start, mine.judgement, mine.revision)
        for (topic, start), window in ledger.windows.items()
        for stage, mine in window.stages.items()
        if mine.judgement is not None
    ]
    return sort_rows(rows, list(ledger.stages))


class AuditWeb:
    """The HTTP server. `address`: (host, port) once it listens."""

    def __init__(self, reactor: Any, listen: str, ledger: Callable[[], Ledger], metrics: Callable[[], bytes]) -> None:
        """listen: a Twisted server endpoint. ledger, metrics: return the ledger, and the metrics as text."""
        self._reactor = reactor
        self._listen = listen
        self._ledger = ledger
        self.root = root = Resource()
        pages = {
            b"": _Page("text/html; charset=utf-8", self._html),
            b"metrics": _Page("text/plain; version=0.0.4; charset=utf-8", metrics),
            b"windows.json": _Page("application/json", self._json),
            b"health": _Page("text/plain; charset=utf-8", lambda: b"ok\n"),
        }
        for name, page in pages.items():
            root.putChild(name, page)
        self._site = Site(root, timeout=_TIMEOUT)
        self._site.noisy = False
        self._site.log = _no_access_log  # type: ignore[assignment]
        self._port: IListeningPort | None = None
        self.address = ("", 0)

    async def start(self) -> None:
        """Open the port."""
        self._port = await serverFromString(self._reactor, self._listen).listen(self._site)
        bound: Any = self._port.getHost()
        self.address = (bound.host, bound.port)

    async def stop(self) -> None:
        """Close the port."""
        if self._port is not None:
            stopped: Any = self._port.stopListening()
            if stopped is not None:
                await stopped

    def _html(self) -> bytes:
        ledger = self._ledger()
        return as_html(rows_of(ledger), list(ledger.stages), ledger.options.width_ms).encode()

    def _json(self) -> bytes:
        return json.dumps([row.as_document() for row in rows_of(self._ledger())]).encode()
