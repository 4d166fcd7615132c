"""The page that `bench.spark` writes, from results that are made up."""

from __future__ import annotations

from typing import Any

from bench.spark import SOURCES
from bench.spark_batches import SESSIONS
from bench.spark_batches import SOURCES as BATCH_SOURCES
from bench.spark_report import report


def rounds(rate: int, jvm: float, python: float) -> dict[str, Any]:
    cpu = {"broker": 0.1, "jvm": jvm, "python": python}
    return {"rates": [rate, 2 * rate], "cpu": [cpu, {**cpu, "jvm": 2 * jvm, "python": 2 * python}]}


def results() -> dict[str, Any]:
    by_source = {
        name: rounds(rate, jvm, python)
        for name, (rate, jvm, python) in zip(
            SOURCES, ((3_000_000, 0.3, 0.2), (1_000_000, 1.0, 0.0), (1_500_000, 0.75, 0.0)), strict=True
        )
    }
    sink = {name: by_source[name] for name in ("pylogd", "kafka")}
    batches = {
        kind: {
            name: [{"ms": [ms, ms + 10, ms + 20], "cpu_ms": {"broker": 1, "jvm": 100, "python": 40}}]
            for name, ms in zip(BATCH_SOURCES, (150, 90, 120), strict=True)
        }
        for kind in SESSIONS
    }
    return {
        **{name: {"rows": 3_000_000, **by_source} for name in ("count", "lengths", "compressed")},
        "sink": {"rows": 1_000_000, **sink},
        "batches": {"rows": 8000, "partitions": 8, **batches},
    }


def test_processor_time_comes_first_with_ratios_turn_by_turn() -> None:
    lines = report(results()).splitlines()
    assert lines.index("## Processor time: seconds of a core for a million rows") < lines.index("## To a count")
    assert "| To a count | 0.75 | 1.50 | 2.00 (2.00 to 2.00) | 1.12 | 1.50 (1.50 to 1.50) |" in lines
    assert "| Into a topic | 0.75 | 1.50 | 2.00 (2.00 to 2.00) |  |  |" in lines
    assert any("3.00 (3.00 to 3.00) of Spark's own, 2.00 (2.00 to 2.00) of the tuned one" in line for line in lines)


def test_micro_batches_are_compared_within_a_session() -> None:
    lines = [line for line in report(results()).splitlines() if line.startswith("| Unix sockets")]
    assert [line.rpartition("|")[0].rpartition("|")[2].strip() for line in lines] == [
        "1.23 (1.23 to 1.23)", "0.77 (0.77 to 0.77)", "",
    ]  # fmt: skip
    assert "| 160 | " in lines[0] and "| 100 | 40 |" in lines[0]


def test_without_spark_s_own_source_there_is_no_comparison() -> None:
    found = {"count": {"rows": 5, "pylogd": rounds(5, 0.3, 0.2)}}
    assert "Processor time:" not in report(found)
    assert "Spark's own source was not to be had." in report(found)
