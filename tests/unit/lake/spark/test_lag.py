"""The lag in progress reports of Spark."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pylogd.lake.spark.lag import BehindLatest, LagListener, behind_latest, of_progress


def report(end: Any, latest: Any, **more: Any) -> dict[str, Any]:
    sources = [{"description": "pylogd", "endOffset": end, "latestOffset": latest}]
    return {"id": "an-id", "runId": "a-run", "name": None, "sources": sources} | more


@pytest.mark.parametrize(
    ("end", "latest", "found"),
    [
        ({"t": {"0": 3, "10": 7}}, {"t": {"0": 5, "10": 7}}, {("t", 0): 2, ("t", 10): 0}),
        ('{"t":{"0":3}}', '{"t":{"0":5}}', {("t", 0): 2}),
        ({"t": {"0": 9}}, {"t": {"0": 5}}, {("t", 0): 0}),
        (
            {"t": {"0": 3}, "pylogd:topicIds": {"t": "0f"}, "pylogd:start": {"t": {"0": 1}}},
            {"t": {"0": 5}},
            {("t", 0): 2},
        ),
        ({"t": {"0": 3}}, {"t": {"0": 5, "1": 50}}, {("t", 0): 2}),
        ({"t": {"0": 3}}, None, {}),
        (None, None, {}),
        (17, 18, {}),
        ("17", "not json", {}),
        ({"logOffset": 3}, {"logOffset": 4}, {}),
        ({"t": {"x": 3}}, {"t": {"x": 4}}, {}),
    ],
)
def test_the_lag_of_a_report(end: Any, latest: Any, found: dict[Any, int]) -> None:
    assert of_progress(report(end, latest)) == found


def test_a_partition_in_two_sources() -> None:
    both = report({"t": {"0": 3}}, {"t": {"0": 5}})
    both["sources"] += report({"t": {"0": 1}}, {"t": {"0": 5}})["sources"]
    assert of_progress(both) == {("t", 0): 4}


def test_the_least_mean_and_greatest_lag_of_a_source() -> None:
    [source] = report({"t": {"0": 3, "1": 7, "2": 5}}, {"t": {"0": 5, "1": 7, "2": 9, "3": 99}})["sources"]
    found = behind_latest(source)
    assert found == BehindLatest(0, 2.0, 4)
    assert found.metrics == {
        "minOffsetsBehindLatest": 0, "avgOffsetsBehindLatest": 2.0, "maxOffsetsBehindLatest": 4,
    }  # fmt: skip
    assert behind_latest({"endOffset": 17, "latestOffset": 18}) is None


def test_the_lag_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    listener = LagListener()
    progress = report({"t": {"0": 3, "1": 0}}, {"t": {"0": 5, "1": 9}}, name="copy")
    with caplog.at_level(logging.INFO):
        listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress))))  # type: ignore[arg-type]
    assert "query copy is 11 records behind (min 2, avg 5.5, max 9): t-0:2 t-1:9" in caplog.text


def test_an_invalid_report_does_not_end_the_listener(caplog: pytest.LogCaptureFixture) -> None:
    LagListener().onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json="{")))  # type: ignore[arg-type]
    assert "can't read a progress report" in caplog.text


def test_gauges_exist_while_the_query_runs() -> None:
    registry = CollectorRegistry()
    listener = LagListener(registry)

    def value(partition: str) -> float | None:
        labels = {"query": "an-id", "topic": "t", "partition": partition}
        found: float | None = registry.get_sample_value("pylogd_spark_lag_records", labels)
        return found

    def summary() -> list[float | None]:
        labels = {"query": "an-id", "source": "0"}
        names = (f"pylogd_spark_{each}_offsets_behind_latest" for each in ("min", "avg", "max"))
        return [registry.get_sample_value(name, labels) for name in names]

    listener.note(report({"t": {"0": 3, "1": 4}}, {"t": {"0": 5, "1": 4}}))
    assert (value("0"), value("1")) == (2, 0)
    assert summary() == [0, 1, 2]
    listener.note(report({"t": {"0": 5}}, {"t": {"0": 6}}))
    assert (value("0"), value("1")) == (1, None)
    assert summary() == [1, 1, 1]
    listener.onQueryTerminated(SimpleNamespace(runId="a-run"))  # type: ignore[arg-type]
    assert value("0") is None
    assert summary() == [None, None, None]
    listener.onQueryTerminated(SimpleNamespace(runId="another"))  # type: ignore[arg-type]
