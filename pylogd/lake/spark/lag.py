"""Log how far streaming queries lag behind their topics, and export it to Prometheus if asked.

    listener = LagListener(registry=prometheus_client.REGISTRY)    # or LagListener(), which only logs
    spark.streams.addListener(listener)

Strategy: each progress report of a query has, for each source, the end of the micro-batch and the end of the topic when
the batch was planned (`reportLatestOffset`). The difference is the lag, which `of_progress` computes; `behind_latest`
gives its least, mean and greatest under the names that Spark's Kafka source has for them in `sources[].metrics`. A
Python source can't add metrics there: Spark asks only streams that implement `ReportsSourceMetrics`, which those of
Python sources do not. Spark calls listeners in a thread of the driver's Python process.

Rules: sources are considered if their offsets have the format of this source or of Spark's Kafka source. A listener
raises nothing into Spark. prometheus-client is imported only if a registry is passed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pylogd.base.errors import PylogdError
from pylogd.lake.spark.ranges import lag
from pylogd.lake.spark.stream_offsets import topics_of
from pylogd.lake.tables.position import ByPartition, by_partition

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_log = logging.getLogger(__name__)
_LABELS = ("query", "topic", "partition")
_SUMMARY_LABELS = ("query", "source")
#: The names of Spark's Kafka source, in the order of `BehindLatest`, with the names of the gauges.
_SUMMARY = {
    "minOffsetsBehindLatest": "pylogd_spark_min_offsets_behind_latest",
    "avgOffsetsBehindLatest": "pylogd_spark_avg_offsets_behind_latest",
    "maxOffsetsBehindLatest": "pylogd_spark_max_offsets_behind_latest",
}


class PrometheusMissing(PylogdError):
    """A registry was passed, but prometheus-client is not installed."""


class LagListener(StreamingQueryListener):
    """Logs the lag of each query, and sets gauges.

    `pylogd_spark_lag_records{query, topic, partition}` is the lag of each partition, and
    `pylogd_spark_{min,avg,max}_offsets_behind_latest{query, source}` the least, mean and greatest of each source, which
    is given as its position in the report, from 0 on.
    """

    def __init__(self, registry: Any = None, *, level: int = logging.INFO) -> None:
        """Pass a `prometheus_client.CollectorRegistry` or None, and the log level of the lines.

        Raises PrometheusMissing.
        """
        self._level = level
        self._gauge: Any = None
        self._summary: dict[str, Any] = {}
        self._labels: dict[str, set[tuple[Any, tuple[str, ...]]]] = {}
        if registry is not None:
            try:
                from prometheus_client import Gauge  # noqa: PLC0415 - optional
            except ImportError as error:
                raise PrometheusMissing("a registry needs prometheus-client: pip install prometheus-client") from error
            text = "Offsets between what a streaming query has read of a partition and its end"
            self._gauge = Gauge("pylogd_spark_lag_records", text, _LABELS, registry=registry)
            for name, gauge in _SUMMARY.items():
                what = f"As {name} of Spark's Kafka source, of all partitions that a source reads"
                self._summary[name] = Gauge(gauge, what, _SUMMARY_LABELS, registry=registry)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the lag is not known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Log and export the lag after a micro-batch."""
        try:
            self.note(json.loads(event.progress.json))
        except Exception:  # Spark drops a listener that raises
            _log.exception("can't read a progress report of Spark: the lag is not updated")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the last report is still right."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Remove the query's gauges."""
        for gauge, labels in self._labels.pop(str(event.runId), ()):
            gauge.remove(*labels)

    def note(self, progress: Mapping[str, Any]) -> None:
        """Log and export the lag in a progress report (parsed JSON)."""
        found = of_progress(progress)
        if not found:
            return
        query = str(progress.get("name") or progress["id"])
        sources = [behind_latest(source) for source in progress["sources"]]
        _log.log(
            self._level, "query %s is %d records behind (%s): %s", query, sum(found.values()),
            "; ".join(each.text for each in sources if each is not None),
            " ".join(f"{topic}-{index}:{behind}" for (topic, index), behind in sorted(found.items())),
        )  # fmt: skip
        if self._gauge is None:
            return
        kept: dict[tuple[Any, tuple[str, ...]], float] = {
            (self._gauge, (query, topic, str(index))): behind for (topic, index), behind in found.items()
        }
        for at, each in enumerate(sources):
            for name, value in (each.metrics if each else {}).items():
                kept[self._summary[name], (query, str(at))] = value
        run = str(progress["runId"])
        for gauge, labels in self._labels.get(run, set()) - kept.keys():
            gauge.remove(*labels)
        for (gauge, labels), value in kept.items():
            gauge.labels(*labels).set(value)
        self._labels[run] = set(kept)


@dataclass(frozen=True, slots=True)
class BehindLatest:
    """The lags of a source's partitions: minimum, average and maximum, in offsets."""

    least: int
    mean: float
    greatest: int

    @property
    def metrics(self) -> dict[str, float]:
        """Return the numbers under the names of Spark's Kafka source."""
        return dict(zip(_SUMMARY, (self.least, self.mean, self.greatest), strict=True))

    @property
    def text(self) -> str:
        """Return the lag as one line for the log."""
        return f"min {self.least}, avg {self.mean:.1f}, max {self.greatest}"


def behind_latest(source: Mapping[str, Any]) -> BehindLatest | None:
    """Return a source's lags, from its part of a progress report as parsed JSON; None if it lacks the offsets."""
    found = list(_of_source(source).values())
    return BehindLatest(min(found), sum(found) / len(found), max(found)) if found else None


def of_progress(progress: Mapping[str, Any]) -> ByPartition:
    """Return the lag of each partition that a query reads, from a progress report as parsed JSON.

    A partition that two sources read has the larger lag of both.
    """
    found: ByPartition = {}
    for source in progress.get("sources", ()):
        for partition, behind in _of_source(source).items():
            found[partition] = max(behind, found.get(partition, 0))
    return found


def _of_source(source: Mapping[str, Any]) -> ByPartition:
    consumed, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    # The first offset of a new partition is not known yet.
    return {partition: behind for partition, behind in lag(consumed, latest).items() if partition in consumed}


def _offsets(document: Any) -> ByPartition:
    """Return the offsets in a source's report, or nothing if it is another kind of source."""
    if isinstance(document, str):
        try:
            document = json.loads(document)
        except ValueError:
            return {}
    if not isinstance(document, dict):
        return {}
    try:
        return by_partition(topics_of(document))
    except (AttributeError, TypeError, ValueError):
        return {}
