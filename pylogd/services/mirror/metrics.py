"""Metrics for Prometheus about a process of a mirror, computed on request.

Labels are routes and targets, whose number is limited by the mirror's file. No label has topics or partitions. `pylogd
mirror describe` shows single partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pylogd.services.mirror.copying import Copier
from pylogd.services.mirror.feeds import RouteFigures

_GAUGES: Final = (
    ("lag", "lag_records", "Records of the source that are not committed at the target yet"),
    ("lag_max", "lag_records_max", "The same of the partition with the most"),
    ("lag_seconds", "lag_seconds", "For how long records have waited, in the partition where they wait longest"),
)
_TOTALS: Final = (
    ("bytes", "copied_bytes", "Bytes of record batches that were copied"),
    ("records", "copied_records", "Records that were copied"),
    ("lost_records", "lost_records", "Records that the source had deleted before they were copied"),
    ("throttled_seconds", "throttled_seconds", "For how long batches have waited for a throttle"),
)


class Mirroring(Protocol):
    """The part of `service.MirrorService` that the metrics need."""

    file_error: str

    @property
    def copiers(self) -> Mapping[str, Copier]:
        """The copiers, by target."""

    @property
    def refused(self) -> Mapping[str, Mapping[str, str]]:
        """The topics that the controller refuses to have copied, by route."""

    @property
    def is_controller(self) -> bool:
        """Whether this process is the controller."""


class MirrorMetrics:
    """A collector of `prometheus_client`."""

    def __init__(self, service: Mirroring) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        service = self._service
        routes = {name: found for each in service.copiers.values() for name, found in each.figures().items()}
        yield from _route_metrics(routes)
        yield from _target_metrics(service.copiers)
        refused = GaugeMetricFamily(
            "pylogd_mirror_refused_topics", "Topics that the controller does not have copied", labels=("route",)
        )
        for name, topics in sorted(service.refused.items()):
            refused.add_metric((name,), len(topics))
        yield refused
        text = "Whether this process is the controller"
        yield GaugeMetricFamily("pylogd_mirror_is_controller", text, value=service.is_controller)
        text = "Whether the mirror's file is used as it is now; 0 if it has an error"
        yield GaugeMetricFamily("pylogd_mirror_file_is_valid", text, value=not service.file_error)


def _route_metrics(routes: Mapping[str, RouteFigures]) -> Iterator[Metric]:
    partitions = GaugeMetricFamily(
        "pylogd_mirror_partitions", "Partitions that this process is to copy", labels=("route", "state")
    )
    for name, found in sorted(routes.items()):
        states = {
            "copied": found.partitions,
            "starting": found.starting - found.set_aside,
            "set_aside": found.set_aside,
        }
        for state, count in states.items():
            partitions.add_metric((name, state), max(0, count))
    yield partitions
    measured = {name: found for name, found in routes.items() if found.measured}
    for kind, table, some in ((GaugeMetricFamily, _GAUGES, measured), (CounterMetricFamily, _TOTALS, routes)):
        for field, metric, text in table:
            family = kind(f"pylogd_mirror_{metric}", text, labels=("route",))
            for name, found in sorted(some.items()):
                family.add_metric((name,), getattr(found, field))
            yield family


def _target_metrics(copiers: Mapping[str, Copier]) -> Iterator[Metric]:
    commits = CounterMetricFamily("pylogd_mirror_commits", "Commits at a target", labels=("target",))
    text = "How often copying to a target began again at the last checkpoints, after an error"
    interruptions = CounterMetricFamily("pylogd_mirror_interruptions", text, labels=("target",))
    for target, copier in sorted(copiers.items()):
        commits.add_metric((target,), copier.commits)
        interruptions.add_metric((target,), copier.interruptions)
    yield from (commits, interruptions)
