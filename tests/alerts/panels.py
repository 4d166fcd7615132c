"""Ask a real Prometheus for every panel of the dashboard: `python -m tests.alerts.panels [--results FILE]`.

Three brokers on ZooKeeper work for clients of many kinds (`load.py`). Every query of etc/broker-dashboard.json, and
every metric of `pylogd.broker.metrics.table`, has to have series with numbers, and with other numbers than zero, apart
from those that are zero in a cluster without damage (`ZERO`). The queries that others have published for Kafka
(`published.py`) have to have series too, unless docs/monitoring.md says why not; Prometheus has to understand them all.

Exit status: 0 if all is so, 1 if something is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from pylogd.broker.metrics.table import DEFINITIONS, SECTIONS, Kind
from pylogd.local.zookeeper import LocalZooKeeper
from tests.alerts.drill import MonitoredCluster
from tests.alerts.load import Load
from tests.alerts.prometheus import Prometheus
from tests.alerts.published import absent_names, compares, is_explained, relabelling
from tests.alerts.published import queries as published_queries
from tests.conftest import CHECKOUT
from tests.pages import circumstances, write_page

DASHBOARD: Final = CHECKOUT / "etc" / "broker-dashboard.json"
#: What Grafana puts into queries, with scrapes each second.
_VARIABLES: Final = (("$__rate_interval", "1m"), ("$instance", ".*"))
_SECONDS: Final = 150.0
#: Panels and metrics that are zero as long as nothing is damaged, and what librdkafka counts when it reconnects.
ZERO: Final = frozenset(
    {
        "Partitions without a leader", "Partitions that refuse acks=all", "Data directories offline",
        "Cleaner: logs given up {{instance}}",
        "kafka_controller_kafkacontroller_offlinepartitionscount", "kafka_server_replicamanager_offlinereplicacount",
        "kafka_server_replicamanager_underminisrpartitioncount", "pylogd_log_cleaner_given_up_logs",
        "pylogd_log_dir_full", "pylogd_group_lag_unknown_partitions", "pylogd_client_ignored_metrics",
        "pylogd_client_counter", "kafka_controller_controllerstats_uncleanleaderelections",
        "kafka_log_logmanager_offlinelogdirectorycount", "kafka_cluster_partition_underminisr",
        "kafka_log_log_logstartoffset",
        "kafka_server_replicamanager_reassigningpartitions",
        "kafka_server_brokertopicmetrics_failedfetchrequests", "kafka_server_brokertopicmetrics_failedproducerequests",
        "kafka_server_brokertopicmetrics_fetchmessageconversions",
        "kafka_server_brokertopicmetrics_producemessageconversions",
        "kafka_server_fetchsessioncache_incrementalfetchsessionevictions",
        "kafka_coordinator_group_groupmetadatamanager_numgroupsdead",
        "kafka_coordinator_group_groupmetadatamanager_numgroupsempty",
        "kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance",
        "kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance",
        "kafka_server_kafkaserver_linux_disk_read_bytes",
    }
)  # fmt: skip


class Query(NamedTuple):
    """A query that has to be answered. section: where it stands.

    needs_series: whether it has to have any. may_be_zero: whether 0 is as good as another number.
    """

    section: str
    name: str
    expression: str
    needs_series: bool = True
    may_be_zero: bool = False


class Found(NamedTuple):
    """What a query's series were. least, most: of all their numbers; most is -inf if there was none."""

    query: Query
    series: int
    least: float
    most: float

    @property
    def wrong(self) -> str:
        """What is wrong with it, or nothing."""
        query = self.query
        if not self.series:
            return f"{query.name}: no series for {query.expression}" if query.needs_series else ""
        if not (self.most or self.least or query.may_be_zero or query.name in ZERO):
            return f"{self.query.name}: always 0, {self.query.expression}"
        return ""


def panels() -> Iterator[Query]:
    """Yield the queries of the dashboard's panels."""
    section = ""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] == "row":
            section = panel["title"]
        for target in panel.get("targets", ()):
            several = len(panel["targets"]) > 1
            name = f"{panel['title']}: {target['legendFormat']}" if several else panel["title"]
            expression = target["expr"]
            for variable, value in _VARIABLES:
                expression = expression.replace(variable, value)
            yield Query(section, name, expression)


def metrics() -> Iterator[Query]:
    """Yield a query for each metric of the table."""
    for section, definitions in SECTIONS.items():
        for one in definitions:
            suffix = {Kind.GAUGE: "", Kind.COUNTER: "_total", Kind.HISTOGRAM: "_count"}[one.kind]
            yield Query(section, one.name, one.name + suffix)


def published(renamed: bool) -> Iterator[Query]:
    """Yield the queries of published dashboards: those that need the relabelling, or the others."""
    listed = absent_names()
    for one in published_queries():
        if one.renamed is renamed:
            needed = not (is_explained(one.expression, listed) or compares(one.expression))
            yield Query(one.dashboard, one.title, one.expression, needed, True)


def ask(prometheus: Prometheus, query: Query, begun: float) -> Found:
    """Return what a query gave since `begun`, in seconds since 1970."""
    span = {"query": query.expression, "start": f"{begun:.3f}", "end": f"{time.time():.3f}", "step": "1"}
    answer: Any = json.loads(prometheus.get(f"/api/v1/query_range?{urlencode(span)}"))
    rows = [[float(value) for _, value in one["values"]] for one in answer["data"]["result"]]
    kept = [numbers for row in rows if (numbers := [number for number in row if math.isfinite(number)])]
    return Found(query, len(kept), min(map(min, kept), default=math.inf), max(map(max, kept), default=-math.inf))


def ask_all(prometheus: Prometheus, begun: float, asked: Sequence[Query]) -> list[Found]:
    """Return what the queries gave: repeat those that had no numbers until they have, for a bounded time."""
    found: dict[Query, Found] = {}
    while True:
        for query in asked:
            if query not in found or found[query].wrong:
                found[query] = ask(prometheus, query, begun)
        if not any(one.wrong for one in found.values()) or time.time() > begun + _SECONDS:
            return [found[query] for query in asked]
        time.sleep(1.0)


def _of_published(found: Sequence[Found]) -> list[str]:
    """Return the lines about published dashboards: how many of their queries had series."""
    lines = ["## Published dashboards for Kafka", "", "| dashboard or rules | queries | with series | conditions |",
             "| --- | --: | --: | --: |"]  # fmt: skip
    for name in dict.fromkeys(one.query.section for one in found):
        own = [one for one in found if one.query.section == name]
        conditions = sum(compares(one.query.expression) for one in own)
        lines.append(f"| {name} | {len(own)} | {sum(one.series > 0 for one in own)} | {conditions} |")
    return [*lines, ""]


def page(found: list[Found], others: list[Found]) -> list[str]:
    """Return the lines of the page. others: of published dashboards."""
    count = len(list(panels()))
    lines = [
        "# The dashboard's queries, and all metrics, under a real Prometheus",
        "",
        "Written by `make panels`. Three brokers on ZooKeeper work for clients of many kinds; Prometheus scrapes each "
        "second. A query passes if it has series with numbers, and with other numbers than 0, apart from what is 0 in "
        "a cluster without damage.",
        "",
        circumstances(),
        "",
    ]
    for title, rows in (("Panels", found[:count]), ("Metrics", found[count:])):
        lines += [f"## {title}", "", "| section | name | series | least | most |", "| --- | --- | --: | --: | --: |"]
        lines += [
            f"| {one.query.section} | {one.query.name.replace('{{', '').replace('}}', '')} | {one.series} "
            f"| {one.least:.4g} | {one.most:.4g} |"
            for one in rows
        ]
        lines += [""]
    lines += _of_published(others)
    wrong = [one.wrong for one in [*found, *others] if one.wrong]
    return [*lines, *(["What went wrong:", "", *(f"- {text}" for text in wrong)] if wrong else [])]


def run(folder: Path, hold: Path | None) -> tuple[list[Found], list[Found]]:
    """Start everything, and return what the queries gave: ours, and published ones. hold: see `main`."""
    more = {
        "log.block.cache.bytes": str(1 << 20), "log.cleaner.backoff.ms": "500",
        # Leaders notice a stopped follower before its session expires.
        "replica.lag.time.max.ms": "2000", "zookeeper.session.timeout.ms": "8000",
    }  # fmt: skip
    with LocalZooKeeper(folder / "zookeeper", sync=False) as store:
        cluster = MonitoredCluster(folder, store.hosts, more)
        try:
            with (
                Prometheus(folder / "prometheus", cluster.targets) as prometheus,
                Prometheus(folder / "renamed", cluster.targets, relabelling=relabelling()) as renaming,
            ):
                prometheus.wait_for_targets()  # or it would see no counter before the disturbance
                renaming.wait_for_targets()
                begun, load = time.time(), Load(cluster)
                try:
                    load.disturb()
                    found = ask_all(prometheus, begun, [*panels(), *metrics()])
                    others = ask_all(prometheus, begun, [*published(False)])
                    others += ask_all(renaming, begun, [*published(True)])
                    if hold is not None:
                        hold.write_text(f"{prometheus.url}\n", encoding="utf-8")
                        print(f"Prometheus is at {prometheus.url}; remove {hold} to end", flush=True)
                        while hold.exists():
                            time.sleep(0.5)
                    return found, others
                finally:
                    load.close()
        finally:
            cluster.kill_all()


def main() -> int:
    """Run it, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.alerts.panels", description=__doc__)
    parser.add_argument("--results", type=Path, help="the page to write")
    parser.add_argument("--hold", type=Path, metavar="FILE",
                        help="write Prometheus's URL to this file, and go on until it is removed")  # fmt: skip
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pylogd-panels-") as folder:
        found, others = run(Path(folder), arguments.hold)
    if arguments.results:
        write_page(arguments.results, page(found, others))
    wrong = [one.wrong for one in [*found, *others] if one.wrong]
    print(
        f"{len(found)} queries, of {len(DEFINITIONS)} metrics and all panels, and {len(others)} published ones; "
        f"{len(wrong)} wrong"
    )
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
