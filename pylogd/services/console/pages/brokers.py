"""Brokers: their leaderships, their directories, and the figures of their metrics pages."""

from __future__ import annotations

from dataclasses import dataclass

from pylogd.base.errors import PylogdError
from pylogd.services.console.answers import Answer, PageRequest, Refused
from pylogd.services.console.view import View
from pylogd.services.console.web import Route, route


@dataclass(eq=False, slots=True)
class Brokers:
    """The pages of brokers."""

    _view: View

    def routes(self) -> list[Route]:
        """Return the routes of these pages: method, path, handler and the lowest role."""
        return [
            route("GET", "/c/{cluster}/brokers", self.brokers),
            route("GET", "/c/{cluster}/brokers/{node}", self.broker),
        ]

    def brokers(self, asked: PageRequest) -> Answer:
        """Return a page with all live brokers of the last sample."""
        return self._view.page("brokers.html", asked, self._view.cluster(asked), "brokers")

    async def broker(self, asked: PageRequest) -> Answer:
        """Return a page with a broker's share of the cluster, and its present settings: those that differ from their
        defaults, or with `all=1` all. Raises Refused for a broker that is not in the last sample.
        """
        cluster = self._view.cluster(asked)
        node = asked.parts["node"]
        state = cluster.sampler.last.brokers.get(int(node)) if node.isdecimal() else None
        if state is None:
            raise Refused(404, f"There is no broker {node} in the last sample.")
        everything = asked.options.get("all") == "1"
        problem = ""
        settings = []
        try:
            settings = await cluster.admin.describe_configs("broker", node)
        except PylogdError as error:
            problem = str(error)
        shown = [one for one in settings if everything or one.source != "default"]
        return self._view.page(
            "broker.html", asked, cluster, "brokers", state=state, settings=shown, everything=everything,
            problem=problem,
        )  # fmt: skip
