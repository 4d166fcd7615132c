"""Serve the audit's metrics and report over HTTP: `/metrics`, `/` for people, `/windows.json`, `/health`.

Anyone who can connect may read the pages; no request changes anything. Put a proxy in front, or listen on localhost. A
page of all windows is made in a thread, one at a time: with thousands of windows it takes a second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.threads import deferToThread

from pylogd.services.audit.ledger import Ledger
from pylogd.services.audit.report import Row, as_html, sort_rows
from pylogd.web.pages import PROMETHEUS_TEXT, Answer, HttpServer, Reply


def rows_of(ledger: Ledger) -> list[Row]:
    """Return the verdicts of all judged windows in memory, unordered."""
    return [
        Row(stage, topic, start, mine.judgement, mine.revision)
        for (topic, start), window in ledger.windows.items()
        for stage, mine in window.stages.items()
        if mine.judgement is not None
    ]


class AuditWeb(HttpServer):
    """The HTTP server of the audit."""

    def __init__(
        self, reactor: Any, listen: str, ledger: Callable[[], Ledger], metrics: Callable[[], bytes],
        in_thread: Callable[..., Deferred[Any]] = deferToThread,
    ) -> None:  # fmt: skip
        """`listen` is a Twisted server endpoint. `ledger` and `metrics` return the ledger, and the metrics as text."""
        self._in_thread = in_thread
        self._ledger = ledger
        self._one_page = DeferredLock()
        pages: dict[str, Answer] = {
            "": lambda _: self._page(_html, "text/html; charset=utf-8"),
            "metrics": lambda _: Reply(metrics(), PROMETHEUS_TEXT),
            "windows.json": lambda _: self._page(_json, "application/json"),
            "health": lambda _: Reply(b"ok\n"),
        }
        super().__init__(reactor, listen, pages)

    def _page(self, make: Callable[[list[Row], Sequence[str], int], bytes], kind: str) -> Deferred[Reply]:
        """Return a page that a thread makes of all windows, in their state at the beginning of its turn."""

        def begin() -> Deferred[bytes]:
            ledger = self._ledger()
            return self._in_thread(make, rows_of(ledger), list(ledger.stages), ledger.options.width_ms)

        return self._one_page.run(begin).addCallback(Reply, kind)


def _html(rows: list[Row], stages: Sequence[str], width_ms: int) -> bytes:
    return as_html(sort_rows(rows, stages), stages, width_ms).encode()


def _json(rows: list[Row], stages: Sequence[str], width_ms: int) -> bytes:
    return json.dumps([row.as_document() for row in sort_rows(rows, stages)]).encode()
