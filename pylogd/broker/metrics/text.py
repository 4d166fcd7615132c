"""Write metrics as text, in the format that the client accepts: Prometheus' or OpenMetrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from pylogd.base.histogram import Histogram
from pylogd.broker.metrics.table import DEFINITIONS, Kind

_END = b"# EOF\n"

_FAMILIES: Final = {
    Kind.GAUGE: GaugeMetricFamily,
    Kind.COUNTER: CounterMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}

#: The values of a metric: one value, or several, each with the values of its labels.
Values: TypeAlias = "float | Histogram | Iterable[tuple[tuple[str, ...], float | Histogram]]"
#: The most samples of a metric that are written at once, which takes about a millisecond.
_CHUNK: Final = 100


class _One(CollectorRegistry):
    """A registry of one metric."""

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        yield self._metric


class Writer:
    """Makes a page of metrics, one metric at a time.

    kind: the page's media type.
    """

    def __init__(self, accept: str) -> None:
        """`accept` is the value of the request's Accept header."""
        self._encode, self.kind = choose_encoder(accept)
        self._parts: list[bytes] = []
        self._last = ""
        self._end = _END if "openmetrics" in self.kind else b""

    def add(self, metric: Metric) -> None:
        """Append a metric's samples. Consecutive calls for one metric share its HELP and TYPE lines."""
        text = self._encode(_One(metric)).removesuffix(_END)
        self._parts.append(_without_head(text) if metric.name == self._last else text)
        self._last = metric.name

    def end(self) -> bytes:
        """Return the page as bytes; OpenMetrics ends with its EOF line."""
        return b"".join(self._parts) + self._end


def _without_head(text: bytes) -> bytes:
    """Return the lines of a metric after its name, type and meaning."""
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith((b"# HELP ", b"# TYPE ", b"# UNIT ")))


def metrics(name: str, values: Values) -> Iterator[Metric]:
    """Yield a metric of the table with these values, in pieces with a limited number of samples; at least one piece."""
    definition = DEFINITIONS[name]
    found = iter([((), values)] if isinstance(values, int | float | Histogram) else values)
    samples = list(islice(found, _CHUNK))
    while True:
        family: Any = _FAMILIES[definition.kind](name, definition.text, labels=definition.labels)
        for labels, value in samples:
            if isinstance(value, Histogram):
                family.add_metric(labels, value.buckets(), value.sum)
            else:
                family.add_metric(labels, value)
        yield family
        samples = list(islice(found, _CHUNK))
        if not samples:
            return
