"""Log how far streaming queries lag behind their topics, and export it to Prometheus if asked.

    listener = LagListener(registry=prometheus_client.REGISTRY)    # or LagListener(), which only logs
    spark.streams.addListener(listener)

Strategy: each progress report of a query has, for each source, the end of the micro-batch and the end of the topic when
the batch was planned (`reportLatestOffset`). The difference is the lag, which `of_progress` computes. Spark calls
listeners in a thread of the driver's Python process.

Rules: sources are considered if their offsets have the format of this source or of Spark's Kafka source. A listener
raises nothing into Spark. prometheus-client is imported only if a registry is passed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pylogd.errors import PylogdError
from pylogd.spark.ranges import lag
from pylogd.spark.stream_offsets import topics_of
from pylogd.tables.position import ByPartition, by_partition

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_log = logging.getLogger(__name__)
_LABELS = ("query", "topic", "partition")


class PrometheusMissing(PylogdError):
    """A registry was passed, but prometheus-client is not installed."""


class LagListener(StreamingQueryListener):
    """Logs the lag of each query, and sets the gauge `pylogd_spark_lag_records{query, topic, partition}`."""

    def __init__(self, registry: Any = None, *, level: int = logging.INFO) -> None:
        """`registry`: a `prometheus_client.CollectorRegistry`, or None. `level`: the log level.

        Raises PrometheusMissing.
        """
        self._level = level
        self._gauge: Any = None
        self._labels: dict[str, set[tuple[str, str, str]]] = {}
        if registry is not None:
            try:
                from prometheus_client import Gauge  # noqa: PLC0415 - optional
            except ImportError as error:
                raise PrometheusMissing("a registry needs prometheus-client: pip install prometheus-client") from error
            text = "Offsets between what a streaming query has read of a partition and its end"
            self._gauge = Gauge("pylogd_spark_lag_records", text, _LABELS, registry=registry)

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
        for labels in self._labels.pop(str(event.runId), ()):
            self._gauge.remove(*labels)

    def note(self, progress: Mapping[str, Any]) -> None:
        """Log and export the lag in a progress report, which is given as parsed JSON."""
        found = of_progress(progress)
        if not found:
            return
        query = str(progress.get("name") or progress["id"])
        _log.log(
            self._level, "query %s is %d records behind: %s", query, sum(found.values()),
            " ".join(f"{topic}-{index}:{behind}" for (topic, index), behind in sorted(found.items())),
        )  # fmt: skip
        if self._gauge is None:
            return
        kept = {(query, topic, str(index)): behind for (topic, index), behind in found.items()}
        for labels in self._labels.get(str(progress["runId"]), set()) - kept.keys():
            self._gauge.remove(*labels)
        for labels, behind in kept.items():
            self._gauge.labels(*labels).set(behind)
        self._labels[str(progress["runId"])] = set(kept)


def of_progress(progress: Mapping[str, Any]) -> ByPartition:
    """Return the lag of each partition that a query reads, from a progress report as parsed JSON.

    A partition that two sources read has the larger lag of both.
    """
    found: ByPartition = {}
    for source in progress.get("sources", ()):
        consumed, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for partition, behind in lag(consumed, latest).items():
            if partition in consumed:  # the first offset of a new partition is not known yet
                found[partition] = max(behind, found.get(partition, 0))
    return found


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
