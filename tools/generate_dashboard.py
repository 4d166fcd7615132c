"""Write etc/broker-dashboard.json, a Grafana dashboard of brokers, from the panels below. A test checks it.

Usage: python tools/generate_dashboard.py [--check]

Strategy: Grafana's own SDK (grafana-foundation-sdk) makes the JSON, so its form is the one that Grafana reads. Import
the result in Grafana 10 or newer and choose the Prometheus that scrapes the brokers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
)

ROOT: Final = Path(__file__).resolve().parent.parent
FILE: Final = ROOT / "etc" / "broker-dashboard.json"
_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDTH: Final = 24  # of a row of panels
_I: Final = 'instance=~"$instance"'
_RATE: Final = "[$__rate_interval]"


class Panel(NamedTuple):
    """A panel. queries: expressions with their legends. unit: of Grafana. note: what an operator does about it."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    note: str = ""


def _rate(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{_I}{more}}}{_RATE}))"


def _top(metric: str, by: str) -> str:
    return f"topk(10, {_rate(metric, by)})"


def _quantile(metric: str, by: str, quantile: float = 0.99) -> str:
    return f"histogram_quantile({quantile}, sum by (le, {by}) (rate({metric}_bucket{{{_I}}}{_RATE})))"


def _mean(metric: str, by: str) -> str:
    return f"{_rate(metric + '_sum', by)} / {_rate(metric + '_count', by)}"


def _one(title: str, unit: str, expression: str, legend: str, note: str = "") -> Panel:
    return Panel(title, unit, ((expression, legend),), note)


#: The labels of what a client used of a quota of a broker.
_OF: Final = "instance, quota, user, client_id, ip"
_TOPICS: Final = "kafka_server_brokertopicmetrics_"
_REPLICAS: Final = "kafka_server_replicamanager_"
_CONTROLLER: Final = "kafka_controller_kafkacontroller_"

_RED, _GREEN = "red", "green"
_SOME: Final = ((None, _RED), (1, _GREEN))
_NONE: Final = ((None, _GREEN), (1, _RED))
#: Numbers at the top: title, expression, and the colours from which value on.
STATS: Final[tuple[tuple[str, str, tuple[tuple[int | None, str], ...]], ...]] = (
    ("Brokers that serve", "sum(pylogd_ready)", _SOME),
    ("Controllers", f"sum({_CONTROLLER}activecontrollercount)", (*_SOME, (2, _RED))),
    ("Partitions without a leader", f"max({_CONTROLLER}offlinepartitionscount)", _NONE),
    ("Partitions that refuse acks=all", f"sum({_REPLICAS}underminisrpartitioncount)", _NONE),
    ("Partitions not fully replicated", f"sum({_REPLICAS}underreplicatedpartitions)", _NONE),
    ("Data directories offline", "count(pylogd_log_dir_online == 0) or vector(0)", _NONE),
)

ROWS: Final[Mapping[str, tuple[Panel, ...]]] = {
    "Traffic": (
        _one("Bytes in", "Bps", _top(_TOPICS + "bytesin_total", "topic"), "{{topic}}"),
        _one("Bytes out", "Bps", _top(_TOPICS + "bytesout_total", "topic"), "{{topic}}"),
        _one("Records in", "cps", _top(_TOPICS + "messagesin_total", "topic"), "{{topic}}"),
        _one("Fetches that found records", "reqps", _top("pylogd_topic_fetches_total", "topic"), "{{topic}}"),
        Panel("Replication", "Bps", (
            (_rate(_TOPICS + "replicationbytesin_total", "instance"), "into {{instance}}"),
            (_rate(_TOPICS + "replicationbytesout_total", "instance"), "out of {{instance}}"),
        )),
        Panel("By broker", "Bps", (
            (_rate(_TOPICS + "bytesin_total", "instance"), "in {{instance}}"),
            (_rate(_TOPICS + "bytesout_total", "instance"), "out {{instance}}"),
        ), "One broker far above the others leads the hot partitions: move leaders with `pylogd reassign`."),
    ),
    "Requests": (
        _one("Requests", "reqps", _top("kafka_network_requestmetrics_requests_total", "request"), "{{request}}"),
        _one("Errors", "cps", _top("kafka_network_requestmetrics_errors_total", "request, error"),
             "{{request}} {{error}}"),
        _one("Duration, 99th percentile", "s", _quantile("pylogd_request_duration_seconds", "request"), "{{request}}",
             "With waits: a Fetch waits for records, a Produce with acks=all for replicas. Sampled."),
        _one("Request size, mean", "bytes", _mean("pylogd_request_size_bytes", "request"), "{{request}}"),
        _one("Response size, mean", "bytes", _mean("pylogd_response_size_bytes", "request"), "{{request}}"),
        _one("Requests that wait", "short",
             f"sum by (delayedoperation) (kafka_server_delayedoperationpurgatory_numdelayedoperations{{{_I}}})",
             "{{delayedoperation}}"),
        _one("Connections", "short", f"sum by (instance, listener) (pylogd_connections{{{_I}}})",
             "{{instance}} {{listener}}"),
        _one("Connections refused, cut off or closed", "cps", _rate("pylogd_events_total", "event"), "{{event}}"),
    ),
    "Quotas": (
        _one("Used of the quota", "percentunit",
             f"topk(10, {_rate('pylogd_quota_used_total', _OF)} / sum by ({_OF}) (pylogd_quota_limit{{{_I}}}))",
             "{{quota}} {{user}} {{client_id}} {{ip}} at {{instance}}",
             "Who is near 100 % is slowed down, or soon will be: docs/quotas.md."),
        _one("Requests that had to wait", "reqps", _rate("pylogd_throttled_requests_total", "quota"), "{{quota}}"),
        _one("Time of waits, per second", "s", _rate("pylogd_throttle_seconds_total", "quota"), "{{quota}}"),
    ),
    "Brokers": (
        _one("Reactor lag, 99th percentile", "s", _quantile("pylogd_reactor_lag_seconds", "instance"), "{{instance}}",
             "How long requests wait for their turn: the broker's processor is busy, or something holds it up."),
        _one("Processor", "percentunit", f"rate(process_cpu_seconds_total{{{_I}}}{_RATE})", "{{instance}}"),
        _one("Memory", "bytes", f"process_resident_memory_bytes{{{_I}}}", "{{instance}}"),
        _one("Partitions led", "short", f"{_REPLICAS}leadercount{{{_I}}}", "{{instance}}"),
        Panel("In-sync sets", "cps", (
            (_rate(_REPLICAS + "isrshrinks_total", "instance"), "shrinks {{instance}}"),
            (_rate(_REPLICAS + "isrexpands_total", "instance"), "expands {{instance}}"),
        )),
        Panel("Metadata session", "short", (
            (f"pylogd_metadata_session_connected{{{_I}}}", "connected {{instance}}"),
            (f"increase(kafka_server_sessionexpirelistener_zookeeperexpires_total{{{_I}}}{_RATE})",
             "expired {{instance}}"),
        )),
    ),
    "Disks": (
        _one("Free space", "percentunit", f"pylogd_log_dir_free_bytes{{{_I}}} / pylogd_log_dir_capacity_bytes{{{_I}}}",
             "{{instance}} {{directory}}"),
        _one("Size of logs", "bytes", f"topk(10, sum by (topic) (kafka_log_log_size{{{_I}}}))", "{{topic}}"),
        _one("Writes, 99th percentile", "s", _quantile("pylogd_log_write_duration_seconds", "instance"),
             "{{instance}}", "Writes go to the page cache. Slow ones: it is full, or the disk hangs."),
        _one("Flushes, 99th percentile", "s", _quantile("pylogd_log_flush_duration_seconds", "instance"),
             "{{instance}}"),
        _one("Share of fetches that read the disk", "percentunit",
             f"{_rate('pylogd_cold_reads_total', 'instance')} / {_rate('pylogd_topic_fetches_total', 'instance')}",
             "{{instance}}", "Consumers read what is no longer in memory: docs/lagging-consumers.md."),
        _one("Share of bytes out that were read from the disk", "percentunit",
             f"{_rate('pylogd_read_ahead_bytes_total', 'instance')} / {_rate(_TOPICS + 'bytesout_total', 'instance')}",
             "{{instance}}"),
        Panel("Block cache", "Bps", (
            (_rate("pylogd_block_cache_hit_bytes_total", "instance"), "from memory {{instance}}"),
            (_rate("pylogd_block_cache_miss_bytes_total", "instance"), "from files {{instance}}"),
        )),
        Panel("Cleaner", "short", (
            (_rate("pylogd_log_cleaner_compactions_total", "instance"), "logs/s {{instance}}"),
            (f"pylogd_log_cleaner_threads_working{{{_I}}}", "threads at work {{instance}}"),
            (f"pylogd_log_cleaner_given_up_logs{{{_I}}}", "logs given up {{instance}}"),
        )),
        _one("Waits for compaction, largest share of a log", "percent",
             f"kafka_log_logcleanermanager_max_dirty_percent{{{_I}}}", "{{instance}}",
             "Above min.cleanable.dirty.ratio for long: the cleaner does not keep up (log.cleaner.threads)."),
    ),
    "Consumer groups": (
        _one("Lag in time", "s", f"topk(10, pylogd_group_lag_seconds{{{_I}}})", "{{group}}"),
        _one("Lag in records", "short", f"topk(10, pylogd_group_lag_records{{{_I}}})", "{{group}}"),
        _one("Groups", "short", f"sum by (type, state) (pylogd_groups{{{_I}}})", "{{type}} {{state}}"),
        _one("Members", "short", f"sum by (instance) (pylogd_group_members{{{_I}}})", "{{instance}}"),
    ),
    "Clients, as they see it": (
        _one("Requests, longest", "ms",
             f'topk(10, max by (client_id) (pylogd_client_gauge_max{{{_I}, metric=~".+request.latency.max"}}))',
             "{{client_id}}", "Clients push these if a subscription asks them: docs/monitoring.md."),
        _one("In a producer's queue, longest", "ms",
             f'topk(10, max by (client_id) (pylogd_client_gauge_max{{{_I}, metric=~".+queue.time.max"}}))',
             "{{client_id}}"),
        _one("Clients", "short", f"sum by (software) (pylogd_client_instances{{{_I}}})", "{{software}}"),
        _one("Pushes", "reqps", _rate("pylogd_client_pushes_total", "error"), "{{error}}"),
    ),
}  # fmt: skip


def expressions() -> Iterable[str]:
    """Yield every expression of the dashboard."""
    yield from (expression for _, expression, _ in STATS)
    yield from (expression for panels in ROWS.values() for panel in panels for expression, _ in panel.queries)


def text() -> str:
    """Return the dashboard as JSON."""
    made = dashboard.Dashboard("pylogd brokers").uid("pylogd-brokers").tags(["pylogd", "kafka"]).refresh("30s")
    made = made.time("now-1h", "now").tooltip(DashboardCursorSync.CROSSHAIR)
    for variable in _variables():
        made = made.with_variable(variable)
    made = made.with_row(dashboard.Row("Overview"))
    for title, expression, colours in STATS:
        made = made.with_panel(_stat(title, expression, colours))
    for title, panels in ROWS.items():
        made = made.with_row(dashboard.Row(title))
        for panel in panels:
            made = made.with_panel(_timeseries(panel))
    built = made.build()
    for number, panel_or_row in enumerate(built.panels or (), 1):
        panel_or_row.id_val = number
    for variable in _templating(built):
        variable.id_val = variable.name  # the SDK gives all of them one id, and Grafana keeps the last of an id
    return JSONEncoder(sort_keys=True, indent=2).encode(built) + "\n"


def _templating(built: Any) -> Iterable[Any]:
    return built.templating.list_val or ()


def _variables() -> Iterable[Any]:
    default = VariableOption(selected=False, text="default", value="default")
    yield dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus").current(default)
    instances: Any = {"query": "label_values(pylogd_ready, instance)", "refId": "instances"}
    every = VariableOption(selected=True, text=["All"], value=["$__all"])
    yield (
        dashboard.QueryVariable("instance").label("Broker").datasource(_SOURCE).query(instances).current(every)
        .multi(True).include_all(True).all_value(".*").refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )  # fmt: skip


def _queries(panel: Any, queries: Iterable[tuple[str, str]]) -> Any:
    panel = panel.datasource(_SOURCE)
    for number, (expression, legend) in enumerate(queries):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id("ABCDEF"[number])
        panel = panel.with_target(query)
    return panel


def _timeseries(panel: Panel) -> Any:
    made = timeseries.Panel().title(panel.title).description(panel.note).unit(panel.unit).min(0).span(8).height(8)
    legend = common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST)
    return _queries(made.fill_opacity(8).legend(legend.placement(LegendPlacement.BOTTOM)), panel.queries)


def _stat(title: str, expression: str, colours: Iterable[tuple[int | None, str]]) -> Any:
    steps = [Threshold(value=value, color=colour) for value, colour in colours]
    thresholds = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
    made = stat.Panel().title(title).thresholds(thresholds).span(_WIDTH // len(STATS)).height(4)
    return _queries(made, [(expression, "")])


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("run tools/generate_dashboard.py" if FILE.read_text(encoding="utf-8") != text() else 0)
    FILE.write_text(text(), encoding="utf-8")
