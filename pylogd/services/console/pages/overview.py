"""The clusters and the health of each.

Browsers learn of new samples by server-sent events (WHATWG's HTML standard). The number of streams is limited. A
comment every `_ALIVE_SECONDS` keeps proxies from closing a quiet stream.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from twisted.internet.task import LoopingCall

from pylogd.services.console.answers import Answer, PageRequest, Refused, redirect
from pylogd.services.console.rendering import path
from pylogd.services.console.sampler import ClusterSampler
from pylogd.services.console.view import View
from pylogd.services.console.web import Route, route

_MOST: Final = 200
_ALIVE_SECONDS: Final = 20.0


class EventStreams:
    """The open streams of server-sent events, one for each page that follows a cluster's samples."""

    def __init__(self, clock: Any) -> None:
        self._open: dict[Any, Callable[[], None]] = {}
        self._alive = LoopingCall(self._keep_alive)
        self._alive.clock = clock

    def start(self) -> None:
        """Send a comment to all streams from time to time, so that no proxy closes them."""
        self._alive.start(_ALIVE_SECONDS, now=False).addErrback(lambda _: None)

    def stop(self) -> None:
        """End all streams. Their browsers connect again after 5 s."""
        if self._alive.running:
            self._alive.stop()
        for request, forget in list(self._open.items()):
            forget()
            request.finish()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request: Any, sampler: ClusterSampler) -> None:
        """Answer a request with a stream. Raises Refused if there are too many."""
        if len(self._open) >= _MOST:
            raise Refused(503, "too many pages are open: close some, or reload this one later")
        request.setHeader(b"Content-Type", b"text/event-stream")
        request.setHeader(b"Cache-Control", b"no-store")
        request.setHeader(b"X-Accel-Buffering", b"no")
        request.write(b"retry: 5000\n\n")

        def tell() -> None:
            request.write(b"event: sample\ndata: %d\n\n" % sampler.last.number)

        def forget() -> None:
            sampler.listeners.discard(tell)
            self._open.pop(request, None)

        sampler.listeners.add(tell)
        self._open[request] = forget
        request.notifyFinish().addBoth(lambda _: forget())

    def _keep_alive(self) -> None:
        for request in list(self._open):
            request.write(b": alive\n\n")


_TOP: Final = 10


@dataclass(eq=False, slots=True)
class Overview:
    """The page with all clusters, and the overview of each."""

    _view: View
    _events: EventStreams

    def routes(self) -> list[Route]:
        """Return the routes of these pages: method, path, handler and the lowest role."""
        return [
            route("GET", "/", self.home),
            route("GET", "/c/{cluster}", self.overview),
            route("GET", "/c/{cluster}/events", self.events),
        ]

    def home(self, asked: PageRequest) -> Answer:
        """Return a page with all clusters; if there is only one, an answer that leads to it."""
        if len(self._view.clusters) == 1:
            return redirect(path("c", next(iter(self._view.clusters))))
        return self._view.page("home.html", asked)

    def overview(self, asked: PageRequest) -> Answer:
        """Return a page with a cluster's verdict and reasons, its busiest topics, and the groups furthest behind."""
        cluster = self._view.cluster(asked)
        sample = cluster.sampler.last
        busiest = heapq.nlargest(
            _TOP, (one for one in sample.topics.values() if one.rate), key=lambda one: one.rate or 0
        )
        behind = heapq.nlargest(
            _TOP, (one for one in sample.groups.values() if one.lag), key=lambda one: (one.seconds or 0, one.lag)
        )
        return self._view.page("overview.html", asked, cluster, "overview", busiest=busiest, behind=behind)

    def events(self, asked: PageRequest) -> None:
        """Keep the connection, and send an event for each new sample."""
        self._events.open(asked.request, self._view.cluster(asked).sampler)
