"""The services beside a cluster: mirrors, the audit, and tables, from their last readings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from pylogd.services.console.answers import Answer, PageRequest, Refused
from pylogd.services.console.clusters import PeriodicReads, WatchedCluster
from pylogd.services.console.listing import Column, Listing
from pylogd.services.console.mirrors import Mirrors
from pylogd.services.console.tables import TableState, behind, total
from pylogd.services.console.view import View
from pylogd.services.console.web import Route, route

_SECTION: Final = "admin"
_WINDOW_COLUMNS: Final = {
    "window": Column("Window", lambda row: row.start_ms, largest=True),
    "stage": Column("Stage", lambda row: row.stage),
    "verdict": Column("Verdict", lambda row: str(row.judgement.verdict)),
    "reported": Column("Reported", lambda row: row.judgement.reported, largest=True),
    "received": Column("Received", lambda row: row.judgement.received, largest=True),
    "missing": Column("Missing", lambda row: row.judgement.missing, largest=True),
    "lost": Column("Lost", lambda row: row.judgement.lost, largest=True),
    "duplicates": Column("Duplicates", lambda row: row.judgement.duplicates, largest=True),
    "pending": Column("Pending", lambda row: row.judgement.pending, largest=True),
}
_BEHIND_COLUMNS: Final = {
    "partition": Column("Partition", lambda row: (row.topic, row.partition)),
    "offset": Column("Loaded up to", lambda row: row.offset, largest=True),
    "end": Column("Log end", lambda row: row.end, largest=True),
    "lag": Column("Lag", lambda row: row.lag, largest=True),
}


class TableRow(NamedTuple):
    """A table in the list of tables.

    lag: the number of records in its topics that it does not have; None if unknown.
    """

    table: TableState
    lag: int | None


@dataclass(eq=False, slots=True)
class ServicePages:
    """The pages of mirrors, the audit and tables, from the last readings: a page view sends no request to a service."""

    _view: View

    def routes(self) -> list[Route]:
        """Return the routes of these pages: method, path, handler and the lowest role."""
        return [
            route("GET", "/c/{cluster}/mirrors", self.mirrors),
            route("GET", "/c/{cluster}/mirrors/{route}", self.mirror_route),
            route("GET", "/c/{cluster}/audit", self.audit),
            route("GET", "/c/{cluster}/tables", self.tables),
            route("GET", "/c/{cluster}/tables/{table}", self.table),
        ]

    def mirrors(self, asked: PageRequest) -> Answer:
        """Return a page with the routes, their progress, and the processes that copy them."""
        cluster = self._view.cluster(asked)
        found = None if cluster.mirrors is None else cluster.mirrors.last
        return self._page("mirrors.html", asked, cluster, cluster.mirrors, found=found)

    def mirror_route(self, asked: PageRequest) -> Answer:
        """Return a page with the figures of a route, and its lag over time. Raises Refused."""
        cluster = self._view.cluster(asked)
        reading: PeriodicReads[Mirrors] | None = cluster.mirrors
        last = None if reading is None else reading.last
        found = None if last is None else last.routes.get(asked.parts["route"])
        if found is None or reading is None:
            raise Refused(404, f"No process of a mirror tells about a route {asked.parts['route']!r}.")
        points = list(found.lags)
        chart = {"times": [at for at, _ in points], "unit": "records", "values": [lag for _, lag in points]}
        return self._page("mirror.html", asked, cluster, reading, found=found, chart=chart)

    def audit(self, asked: PageRequest) -> Answer:
        """Return a page with the verdicts by topic and stage, and a chart and the windows of the topic `topic`."""
        cluster = self._view.cluster(asked)
        found = None if cluster.audit is None else cluster.audit.last
        verdicts: Sequence[str] = ()
        topic, chart, listing = "", Markup(""), None
        if found is not None and found.topics:
            from pylogd.services.console.audits import VERDICTS  # noqa: PLC0415 - needs the extra `audit`

            verdicts = VERDICTS
            wish = asked.options.get("topic", "")
            topic = wish if wish in found.topics else found.topics[0]
            chart = Markup(found.chart(topic))
            listing = Listing(
                found.of(topic), _WINDOW_COLUMNS, lambda row: f"{row.stage} {row.judgement.verdict}", asked.options
            )  # fmt: skip
        return self._page(
            "audit.html", asked, cluster, cluster.audit, found=found, topic=topic, svg=chart, listing=listing,
            verdicts=verdicts,
        )  # fmt: skip

    def tables(self, asked: PageRequest) -> Answer:
        """Return a page with all tables: their formats, their last commits, and their lags."""
        cluster = self._view.cluster(asked)
        found: Mapping[str, TableState] = {} if cluster.tables is None else cluster.tables.last or {}
        rows = [TableRow(table, total(behind(table, cluster.sampler.last))) for table in found.values()]
        return self._page("tables.html", asked, cluster, cluster.tables, rows=rows)

    def table(self, asked: PageRequest) -> Answer:
        """Return a page with a table's position in its topics, and its last commits. Raises Refused."""
        cluster, name = self._view.cluster(asked), asked.parts["table"]
        found = None if cluster.tables is None or cluster.tables.last is None else cluster.tables.last.get(name)
        if found is None:
            raise Refused(404, f"There is no table {name!r} in the console's configuration, or it was not read yet.")
        rows = behind(found, cluster.sampler.last)
        listing = Listing(rows, _BEHIND_COLUMNS, lambda row: f"{row.topic}:{row.partition}", asked.options, "lag")
        line = shlex.join(["pylogd", "load", "--table", found.location, "--history"])
        return self._page(
            "lake.html", asked, cluster, cluster.tables, table=found, lag=total(rows), listing=listing, line=line
        )  # fmt: skip

    def _page(
        self,
        template: str,
        asked: PageRequest,
        cluster: WatchedCluster,
        reading: PeriodicReads[Any] | None,
        **values: Any,
    ) -> Answer:
        """Return a page about a reading.

        reading: the last reading; None if the configuration does not name the service.
        """
        return self._view.page(template, asked, cluster, _SECTION, reading=reading, **values)
