"""The clusters and the health of each."""

from __future__ import annotations

import heapq
from typing import Final

from pylogd.services.console.answers import Answer, PageRequest, redirect
from pylogd.services.console.events import EventStreams
from pylogd.services.console.rendering import path
from pylogd.services.console.view import View
from pylogd.services.console.web import Route, route

_TOP: Final = 10


class Overview:
    """The page with all clusters, and the overview of each."""

    def __init__(self, view: View, events: EventStreams) -> None:
        self._view = view
        self._events = events

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
