"""How far streaming queries are behind their topics: logged, and exported for Prometheus where that is asked for.

    listener = LagListener(registry=prometheus_client.REGISTRY)    # or LagListener(), which only logs
    spark.streams.addListener(listener)

Strategy: every progress report of a query has, for each source, where the micro-batch ended and where the topic ended
when it was planned (`reportLatestOffset`); the difference is the lag. `of_progress` is that arithmetic, on the report
as JSON. Spark calls listeners in a thread of the driver's Python process.

Rules: only sources whose offsets look like ours, or those of Spark's Kafka source, are looked at. A listener raises
nothing into Spark. prometheus-client is imported only where a registry is passed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pylogd.errors import PylogdError
from pylogd.spark.options import ByPartition, by_partition
from pylogd.spark.ranges import lag
from pylogd.spark.stream_offsets import topics_of

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
    """A registry was given, and prometheus-client is not installed."""


class LagListener(StreamingQueryListener):
    """Logs each query's lag, and keeps it in the gauge `pylogd_spark_lag_records{query, topic, partition}`."""

    def __init__(self, registry: Any = None, *, level: int = logging.INFO) -> None:
        """`registry` is a `prometheus_client.CollectorRegistry`; `level` that of the log. Raises PrometheusMissing."""
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
        """Nothing is known of it yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A micro-batch is done."""
        try:
            self.note(json.loads(event.progress.json))
        except Exception:  # a report of a kind that is not known must not end the listener
            _log.exception("a progress report could not be read")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing new: the last report stands."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Its gauges go."""
        for labels in self._labels.pop(str(event.runId), ()):
            self._gauge.remove(*labels)

    def note(self, progress: Mapping[str, Any]) -> None:
        """Take in a progress report as JSON has it."""
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
    """The lag of each partition that a query reads, by (topic, partition), from a progress report as JSON has it.

    A partition that two sources read counts once, with the larger lag.
    """
    found: ByPartition = {}
    for source in progress.get("sources", ()):
        consumed, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for partition, behind in lag(consumed, latest).items():
            if partition in consumed:  # of one that is new nobody knows yet where it begins
                found[partition] = max(behind, found.get(partition, 0))
    return found


def _offsets(document: Any) -> ByPartition:
    """Offsets as a source wrote them; none of a source of another kind."""
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
