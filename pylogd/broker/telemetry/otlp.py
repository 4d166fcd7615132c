"""Read the metrics that clients push: OpenTelemetry's MetricsData, version 1, in Protobuf.

Strategy: the points of a metric are summed up, since their attributes (broker ids, topics, partitions) would make too
many values. The repeated parts of a payload are counted first, so that hostile payloads cost little.

Gaps: histograms and summaries are ignored; the clients of Kafka push none.
Source: KIP-714; opentelemetry/proto/metrics/v1/metrics.proto.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pylogd.wire.compression import CompressionType, decompress
from pylogd.wire.exceptions import InvalidRecordBatch, TooLarge

#: The most parts and points of a payload together.
MOST_POINTS: Final = 20_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_DELTA: Final = 1
_CUMULATIVE: Final = 2


class InvalidTelemetry(ValueError):
    """The pushed metrics can't be read."""


class TelemetryTooLarge(ValueError):
    """The pushed metrics are larger than allowed."""


class Gauge(NamedTuple):
    """The points of a gauge: the largest point, and their sum."""

    largest: float
    sum: float


@dataclass(slots=True)
class Pushed:
    """The contents of a push, by metric name.

    deltas, totals: the sums since the last push, and since the client's start.

    ignored: the number of metrics that were left out.
    """

    gauges: dict[str, Gauge] = field(default_factory=dict)
    deltas: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    ignored: int = 0


def is_available() -> bool:
    """Return whether the package opentelemetry-proto is installed."""
    try:
        import opentelemetry.proto.metrics.v1.metrics_pb2  # noqa: F401, PLC0415 - an optional dependency
    except ImportError:
        return False
    return True


def read(codec: int, data: bytes, max_bytes: int) -> Pushed:
    """Return the pushed metrics. Raises InvalidTelemetry; TelemetryTooLarge if they are too large when decompressed."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - an optional dependency
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData  # noqa: PLC0415 - an optional dependency

    try:
        plain = data if codec == CompressionType.NONE else decompress(codec, data, max_bytes)
        found = MetricsData.FromString(bytes(plain))
    except TooLarge as error:
        raise TelemetryTooLarge(str(error)) from error
    except (InvalidRecordBatch, DecodeError) as error:
        raise InvalidTelemetry(f"the metrics can't be read: {error}") from error
    pushed = Pushed()
    for metric in _metrics(found):
        _add(metric, pushed)
    return pushed


def _metrics(found: Any) -> Iterator[Any]:
    """Yield the metrics. Raises TelemetryTooLarge if there are too many metrics or points."""
    left = MOST_POINTS - len(found.resource_metrics)
    for resource in found.resource_metrics if left >= 0 else ():
        left -= len(resource.scope_metrics)
        for scope in resource.scope_metrics if left >= 0 else ():
            left -= len(scope.metrics)
            for metric in scope.metrics if left >= 0 else ():
                kind = metric.WhichOneof("data")
                left -= 0 if kind is None else len(getattr(metric, kind).data_points)
                if left < 0:
                    break
                yield metric
    if left < 0:
        raise TelemetryTooLarge(f"more than {MOST_POINTS} metrics and points in one push")


def _add(metric: Any, pushed: Pushed) -> None:
    kind = metric.WhichOneof("data")
    if kind not in ("gauge", "sum") or _NAME.fullmatch(metric.name) is None:
        pushed.ignored += 1
        return
    body = getattr(metric, kind)
    values = _values(body.data_points)
    name = metric.name
    if not values:
        return
    if kind == "sum" and body.is_monotonic and body.aggregation_temporality in (_DELTA, _CUMULATIVE):
        sums = pushed.deltas if body.aggregation_temporality == _DELTA else pushed.totals
        sums[name] = sums.get(name, 0.0) + max(sum(values), 0.0)
        return
    before = pushed.gauges.get(name)
    largest, total = max(values), sum(values)
    pushed.gauges[name] = Gauge(largest, total) if before is None else Gauge(
        max(before.largest, largest), before.sum + total
    )  # fmt: skip


def _values(points: Sequence[Any]) -> list[float]:
    found = []
    for point in points:
        kind = point.WhichOneof("value")
        if kind is not None:
            value = float(getattr(point, kind))
            if value - value == 0.0:  # true if it is neither infinite nor NaN
                found.append(value)
    return found
