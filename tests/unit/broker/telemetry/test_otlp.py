"""What clients push: sums and gauges, and payloads that are broken or too large."""

from __future__ import annotations

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from pylogd.broker.telemetry import otlp
from pylogd.broker.telemetry.otlp import Gauge, InvalidTelemetry, TelemetryTooLarge, read
from pylogd.wire.compression import CompressionType, compress

LIMIT = 1 << 20
DELTA, CUMULATIVE = 1, 2


def payload(**metrics: object) -> bytes:
    """Metrics by name with `_` for dots: numbers are gauges, (temporality, numbers) are monotonic sums."""
    data = MetricsData()
    scope = data.resource_metrics.add().scope_metrics.add()
    for name, values in metrics.items():
        metric = scope.metrics.add(name=name.replace("_", "."))
        if isinstance(values, tuple):
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = values[0]
            for value in values[1]:
                metric.sum.data_points.add(as_int=value)
        else:
            for value in values:  # type: ignore[attr-defined]
                metric.gauge.data_points.add(as_double=value)
    found: bytes = data.SerializeToString()
    return found


@pytest.mark.parametrize("codec", CompressionType)
def test_gauges_and_sums_of_each_codec(codec: CompressionType) -> None:
    raw = payload(a_b=[1.5, 4.0, 2.0], c=(DELTA, [1, 2]), d=(CUMULATIVE, [7]))
    found = read(codec, raw if codec is CompressionType.NONE else compress(codec, raw), LIMIT)
    assert found.gauges == {"a.b": Gauge(4.0, 7.5)}
    assert (found.deltas, found.totals, found.ignored) == ({"c": 3.0}, {"d": 7.0}, 0)


def test_metrics_of_several_scopes_are_added() -> None:
    found = read(0, payload(a=[1.0], c=(DELTA, [1])) + payload(a=[-5.0], c=(DELTA, [2])), LIMIT)
    assert (found.gauges, found.deltas) == ({"a": Gauge(1.0, -4.0)}, {"c": 3.0})


def test_a_sum_that_can_go_down_is_a_gauge() -> None:
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name="a")
    metric.sum.aggregation_temporality = CUMULATIVE
    metric.sum.data_points.add(as_int=-3)
    assert read(0, data.SerializeToString(), LIMIT).gauges == {"a": Gauge(-3.0, -3.0)}


def test_what_is_of_no_use_is_ignored() -> None:
    data = MetricsData()
    scope = data.resource_metrics.add().scope_metrics.add()
    scope.metrics.add(name="h").histogram.data_points.add(count=1)
    scope.metrics.add(name="")
    for name in ("", "a b", "x" * 201, '"'):
        scope.metrics.add(name=name).gauge.data_points.add(as_double=1.0)
    scope.metrics.add(name="nothing").gauge.SetInParent()
    scope.metrics.add(name="nan").gauge.data_points.add(as_double=float("nan"))
    scope.metrics.add(name="inf").gauge.data_points.add(as_double=float("inf"))
    scope.metrics.add(name="negative").sum.CopyFrom(_monotonic(-5))
    found = read(0, data.SerializeToString(), LIMIT)
    assert (found.gauges, found.totals, found.ignored) == ({}, {}, 6)
    assert found.deltas == {"negative": 0.0}


def _monotonic(value: int) -> object:
    metric = MetricsData().resource_metrics.add().scope_metrics.add().metrics.add(name="negative")
    metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, DELTA
    metric.sum.data_points.add(as_int=value)
    return metric.sum


@pytest.mark.parametrize("codec", CompressionType)
def test_what_can_not_be_read_is_refused(codec: CompressionType) -> None:
    with pytest.raises(InvalidTelemetry):
        read(codec, b"\xff\xff\xff\xff nonsense", LIMIT)
    if codec is not CompressionType.NONE:
        with pytest.raises(InvalidTelemetry):
            read(codec, compress(codec, b"\xff\xff\xff\xff nonsense"), LIMIT)


@pytest.mark.parametrize("codec", set(CompressionType) - {CompressionType.NONE})
def test_a_bomb_is_refused_before_it_is_unpacked(codec: CompressionType) -> None:
    with pytest.raises(TelemetryTooLarge):
        read(codec, compress(codec, bytes(10 * LIMIT)), LIMIT)


def test_very_many_parts_are_refused() -> None:
    resource, scope = b"\x0a\x00", b"\x12\x00"
    for raw in (
        resource * (otlp.MOST_POINTS + 1),
        b"\x0a" + _sized(scope * (otlp.MOST_POINTS + 1)),
        payload(a=[1.0] * (otlp.MOST_POINTS + 1)),
        payload(**{f"m{number}": [] for number in range(otlp.MOST_POINTS)}),
    ):
        with pytest.raises(TelemetryTooLarge):
            read(0, raw, LIMIT)


def _sized(raw: bytes) -> bytes:
    size, left = bytearray(), len(raw)
    while left > 127:
        size.append(left & 127 | 128)
        left >>= 7
    return bytes(size) + bytes([left]) + raw
