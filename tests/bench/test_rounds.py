"""How `python -m bench peers` measures by turns, and what it makes of the rounds: files, the report."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import pairs, plots, schedule, summary, transactions_visible
from bench.experiments import CEILING, EXPERIMENTS, FLOOR, KAFKA, METRICS, PYLOGD, Experiment
from bench.peers import PEERS
from bench.peers.base import unwind_on_sigterm
from bench.results import GroupResults, Measurement, Results
from bench.rounds import Ready, Rounds


def experiment(name: str) -> Experiment:
    return next(one for one in EXPERIMENTS if one.name == name)


def rounds_of(metric: str, *values: float, messages: float = 2_000_000.0, seconds: float = 1.5) -> Measurement:
    return Measurement([{metric: value, "messages": messages, "seconds": seconds} for value in values])


def saved(folder: Path, name: str, found: dict[str, Measurement]) -> Results:
    results, one = Results(folder / "results"), experiment(name)
    results.save(GroupResults(one.group, "2026-11-24 12:00", {"cores": 2, "commit": "abc"}, {}, {name: found}))
    return results


def report(results: Results) -> str:
    summary.write(results, results.folder.parent, quick=False)
    return (results.folder.parent / "RESULTS.md").read_text()


def row(text: str, *begin: str) -> list[str]:
    """Return the cells of the first row that begins with these cells."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {' | '.join(begin)} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_names_are_not_used_twice_and_all_metrics_are_known() -> None:
    names = [f"{one.group}: {one.name}" for one in EXPERIMENTS]
    assert len(set(names)) == len(names)
    for one in EXPERIMENTS:
        assert {*one.shows, one.headline, *(target.metric for target in one.targets)} <= set(METRICS)
        assert {target.beside for target in one.targets if target.beside} <= set(one.peers) <= set(PEERS)
    assert len(list(groupby(EXPERIMENTS, key=lambda one: one.group))) == len(schedule.groups()), (
        "groups are in one place"
    )


def test_the_floor_is_in_every_row_in_which_it_can_take_part() -> None:
    """It has one topic with one partition on one node and no TLS, keeps nothing over a restart, and serves no client of
    Java's.
    """
    for one in EXPERIMENTS:
        can = one.partitions == 1 and one.client is None and one.kind != "restart" and "pylogd" in one.peers
        others = ("queues", "beside Kafka")  # rows that only add peers to rows that have it
        assert (FLOOR in one.peers) == (can and not any(word in one.group for word in others)), one


def test_groups_with_targets_come_first() -> None:
    groups = list(schedule.groups().values())
    with_targets = [any(one.targets for one in rows) for rows in groups]
    assert with_targets.index(False) >= 6


def test_a_target_rests_on_ten_pairs_and_every_row_has_an_interval() -> None:
    assert all(one.rounds == 10 for one in EXPERIMENTS if one.targets)
    assert all(pairs.rank(one.rounds) for one in EXPERIMENTS)


@pytest.mark.parametrize(("count", "rank"), [(1, 0), (5, 0), (6, 1), (8, 1), (9, 2), (10, 2), (20, 6), (100, 40)])
def test_the_ranks_of_an_interval(count: int, rank: int) -> None:
    assert pairs.rank(count) == rank  # tables of the sign test have these


@given(st.lists(st.floats(0.1, 10), min_size=6, max_size=30))
def test_the_interval_has_the_median_in_it_and_no_more_than_the_values(values: list[float]) -> None:
    found = pairs.interval(values)
    assert found is not None
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    doubled = pairs.interval([2 * value for value in values])
    assert doubled == pairs.Interval(2 * found.median, 2 * found.low, 2 * found.high)


def test_intervals_hold_the_true_median_as_often_as_they_say() -> None:
    chance = random.Random(1)
    samples = [pairs.interval([chance.lognormvariate(0, 1) for _ in range(10)]) for _ in range(2000)]
    hits = sum(found is not None and found.low <= 1.0 <= found.high for found in samples)
    assert 0.965 < hits / len(samples) < 0.99  # 0.979


def test_rounds_are_compared_with_those_of_the_same_turn() -> None:
    assert pairs.ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert pairs.ratios([2.0], [1.0, 3.0]) == [] == pairs.ratios([2.0], [0.0])


def test_verdicts_look_at_the_end_of_the_interval_that_is_worse() -> None:
    found = pairs.Interval(1.2, 0.9, 1.5)
    assert not pairs.is_met(found, 1.0, more=True) and not pairs.is_met(found, 1.4, more=False)
    assert pairs.is_met(found, 0.9, more=True) and pairs.is_met(found, 1.5, more=False)
    assert pairs.compared(found, more=True) == "draw"
    better = pairs.Interval(1.2, 1.1, 1.5)
    assert (pairs.compared(better, more=True), pairs.compared(better, more=False)) == ("ahead", "behind")


def test_what_makes_a_row_void() -> None:
    fine = [{"messages": 10.0, "seconds": 1.0}]
    assert pairs.why_void({"a": fine, "b": fine, "c": []}) == "" == pairs.why_void({"a": [{"started": 0.3}]})
    assert pairs.why_void({"a": fine, "b": [{"messages": 9.0, "seconds": 2.0}]}) == "rounds of 9 to 10 messages"
    assert pairs.why_void({"a": fine, "b": [{"messages": 10.0, "seconds": 0.5}]}) == "a round of b took 0.50 s"


class Broker:
    """A broker in a row: notes its rounds, and fails in the one with a given number."""

    def __init__(
        self,
        name: str,
        rate: float,
        turns: list[str],
        fails: int = 99,
        seconds: float = 2.0,
        error: Exception | None = None,
    ) -> None:
        self.name, self.rate, self.turns, self.fails, self.seconds = name, rate, turns, fails, seconds
        self.error = error or RuntimeError("it fell over")
        self.closed = False

    def rounds(self) -> Rounds:
        """Be ready, then note each round."""
        try:
            done = 0
            count = yield Ready(self.rate)
            while count:
                if done == self.fails:
                    raise self.error
                done += 1
                self.turns.append(f"{self.name}{count}")
                count = yield {"rate": self.rate, "messages": float(count), "seconds": self.seconds}
            yield {"overhead": 7.0}
        finally:
            self.closed = True


def _fitting(rate: float) -> int:
    return int(rate) or 7


def by_turns(brokers: list[Broker], rounds: int) -> dict[str, Measurement]:
    starts = [(broker.name, broker.rounds) for broker in brokers]
    found = schedule.by_turns(experiment("produce, batches of 1"), starts, _fitting, rounds, lambda text: None)
    assert all(broker.closed for broker in brokers)
    return found


def test_brokers_take_turns_with_as_many_messages_as_suit_the_quickest() -> None:
    turns: list[str] = []
    found = by_turns([Broker(PYLOGD, 50, turns), Broker("nats", 100, turns), Broker(KAFKA, 20, turns)], 3)
    assert turns == [f"{name}100" for name in (
        PYLOGD, "nats",  # the rehearsal, which Kafka does not need: it takes 5 s for a hundred
        PYLOGD, "nats", KAFKA,
        "nats", KAFKA, PYLOGD,
        KAFKA, PYLOGD, "nats",
    )]  # fmt: skip
    assert [sample.get("overhead") for sample in found[PYLOGD].samples] == [None, None, 7.0]


def test_after_a_short_rehearsal_rounds_have_more_messages() -> None:
    turns: list[str] = []
    found = by_turns([Broker(PYLOGD, 100, turns, seconds=0.5), Broker(KAFKA, 20, turns)], 1)
    assert turns == [f"{PYLOGD}100", f"{PYLOGD}301", f"{KAFKA}301"]
    assert [sample["messages"] for sample in found[PYLOGD].samples] == [301.0]


def test_a_broker_that_fails_once_has_no_result() -> None:
    turns: list[str] = []
    found = by_turns([Broker("nats", 10, turns), Broker(PYLOGD, 10, turns, fails=1)], 3)
    assert found[PYLOGD].samples == [] and found[PYLOGD].why_not == "failed: it fell over"
    assert len(found["nats"].samples) == 3


def test_a_client_that_does_not_end_is_told_without_its_command() -> None:
    stuck = subprocess.TimeoutExpired(["/somewhere/client", "produce"], 300.0)
    found = by_turns([Broker("nats", 10, [], fails=0, error=stuck)], 1)
    assert found["nats"].why_not == "failed: its client did not end within 300 s"


def test_slow_brokers_are_left_out_but_for_those_of_targets() -> None:
    turns: list[str] = []
    found = by_turns([Broker("redis", 100, turns), Broker("nats", 12, turns), Broker(KAFKA, 12, turns)], 1)
    assert found["nats"].why_not == "too slow: 12 messages/s in the warm-up"
    assert len(found[KAFKA].samples) == 1


def test_kafka_is_never_left_out_for_being_slow() -> None:
    without_targets = Experiment("produce, 64 KB", "sizes", "produce", peers=(PYLOGD, "nats", KAFKA))
    assert without_targets.compared == {PYLOGD, KAFKA}


def test_rows_whose_count_is_their_own_have_no_rehearsal() -> None:
    turns: list[str] = []
    by_turns([Broker(PYLOGD, 0, turns), Broker(KAFKA, 0, turns)], 1)
    assert [turn.startswith(name) for name, turn in zip((PYLOGD, KAFKA), turns, strict=True)] == [True, True]


def test_groups_without_results_come_first_then_the_oldest(tmp_path: Path) -> None:
    results, names = Results(tmp_path), list(schedule.groups())
    for name, when in ((names[0], "2026-11-24 12:00"), (names[2], "2026-11-23 12:00")):
        rows = {one.name: {peer: Measurement() for peer in one.peers} for one in schedule.groups()[name]}
        results.save(GroupResults(name, when, rows=rows))
    results.save(GroupResults(names[3], "2026-11-24 12:00", rows={"a row of an earlier version": {}}))
    order = schedule.due(results)
    assert order == [names[1], *names[3:], names[2], names[0]]
    assert schedule.due(results, ["compression", "of 200"]) == ["Compression: flights in JSON", names[0]]


def test_results_are_read_as_they_were_saved(tmp_path: Path) -> None:
    name = "produce, batches of 50"
    results = saved(
        tmp_path, name, {PYLOGD: rounds_of("rate", 1.0, 3.0, 2.0), KAFKA: Measurement(why_not="missing: no java")}
    )
    again = Results.load(results.folder)
    assert again.groups == results.groups
    found = again.get(experiment(name), PYLOGD)
    assert found is not None
    assert (found.median("rate"), found.median("cpu")) == (2.0, None)
    assert not list(results.folder.glob("*.partial"))


def test_a_report_without_measurements(tmp_path: Path) -> None:
    text = report(Results(tmp_path / "results"))
    assert "not measured" in text
    assert "| met |" not in text
    assert "missed" not in text


@pytest.mark.parametrize(("kafka", "verdict"), [(70_000, "met"), (78_000, "**missed**")])
def test_targets_have_the_ratio_its_interval_and_the_verdict(tmp_path: Path, kafka: float, verdict: str) -> None:
    name = "produce, batches of 50"  # 1.5 times Kafka
    own = [120_000 + 1000 * step for step in range(-5, 5)]
    found = {PYLOGD: rounds_of("rate", *own), KAFKA: rounds_of("rate", *[kafka] * 10)}
    found[CEILING] = Measurement(why_not="failed: it fell over")
    text = report(saved(tmp_path, name, found))
    cells = row(text, name, "messages/s")
    assert cells[2:5] == ["119,500", "kafka", f"{kafka:,.0f}"] and cells[6:] == ["≥ 1.5", verdict]
    assert cells[5] == f"{119_500 / kafka:.2f} ({116_000 / kafka:.2f} to {123_000 / kafka:.2f})"
    assert row(text, name, "messages/s", "119,500", "ceiling")[4:] == ["not measured", "", "≥ 0.85", "not measured"]
    assert row(text, name, "messages/s", "119,500", "the paper's figure")[4:] == [
        "400,000",
        "",
        "≥ 400,000",
        "**missed**",
    ]


def test_a_void_comparison_meets_nothing(tmp_path: Path) -> None:
    name = "produce, batches of 50"
    found = {PYLOGD: rounds_of("rate", *[9.0] * 10), KAFKA: rounds_of("rate", *[1.0] * 10, messages=5.0)}
    text = report(saved(tmp_path, name, found))
    assert row(text, name, "messages/s")[-1] == "void"
    assert row(text[text.index("| rows |") :], name)[-1] == "kafka: rounds of 5 to 2,000,000 messages"


def test_less_is_better_for_latency(tmp_path: Path) -> None:
    name = "10,000 messages/s"
    found = {peer: rounds_of("p99", *[value] * 10) for peer, value in
             ((PYLOGD, 2.0), (KAFKA, 4.0), ("nats", 1.0), ("redis", 3.0))}  # fmt: skip
    text = report(saved(tmp_path, name, found))
    assert row(text, name, "p99, ms")[-3:] == ["0.50 (0.50 to 0.50)", "≤ 1", "met"]
    nearest = row(text, f"{name} ({experiment(name).group})")
    assert nearest[3:] == ["nats", "1.00", "2.00 (2.00 to 2.00)", "behind"]


def test_cells_have_ratios_and_reasons(tmp_path: Path) -> None:
    name = "produce, batches of 1"
    found = {PYLOGD: rounds_of("rate", *[100.0] * 6), "redis": rounds_of("rate", *[50.0] * 6)}
    found["nats"] = Measurement(why_not="can't: no such thing")
    text = report(saved(tmp_path, name, found))
    columns = [cell.partition(" ¹")[0].partition(" ²")[0] for cell in row(text, "messages/s")]
    cells = dict(zip(columns, row(text[text.index("## The paper's") :], name), strict=True))
    assert cells[PYLOGD] == "100" and cells["redis"] == "50; 2.00 (2.00 to 2.00)"
    assert (cells["nats"], cells[KAFKA]) == ("can't", "not run")
    assert row(text[text.index("| rows |") :], name) == [name, "6", "2,000,000", "1.5 to 1.5", ""]
    assert f"- nats: can't: no such thing ({name})" in text
    assert (tmp_path / "plots").is_dir()


def test_plots_are_well_formed_and_the_longest_bar_fits() -> None:
    first = [plots.Bar("pylogd", 3.0, "3"), plots.Bar("other", 1.5, "1.5", 1.0, 2.5)]
    blocks = [("a <b> & c", first), ("none", [plots.Bar("pylogd", 0.0, "0")])]
    root = ElementTree.fromstring(plots.bars("title & more", "MB/s", blocks, "pylogd"))
    bars = [rect for rect in root.iter("{http://www.w3.org/2000/svg}rect") if rect.get("x") is not None]
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert (widths[0], widths[2]) == (2 * widths[1], 1)
    assert all(float(bar.attrib["x"]) + width < plots.WIDTH for bar, width in zip(bars, widths, strict=True))


def test_latency_is_drawn_as_percentiles_with_intervals(tmp_path: Path) -> None:
    name, percentiles = "10,000 messages/s", {"p50": 1.0, "p99": 2.0, "p999": 8.0, "highest": 20.0}
    samples = [
        {metric: value * (1 + step / 100) for metric, value in percentiles.items()} | {"messages": 9.0, "seconds": 2.0}
        for step in range(10)
    ]
    report(saved(tmp_path, name, {PYLOGD: Measurement(samples), KAFKA: Measurement(samples[:2])}))
    root = ElementTree.parse(tmp_path / "plots" / "end-to-end-latency.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    heights = [[float(point.split(",")[1]) for point in line.attrib["points"].split()]
               for line in root.iter(f"{space}polyline")]  # fmt: skip
    assert len(heights) == 2 and all(line == sorted(line, reverse=True) for line in heights)
    assert len(list(root.iter(f"{space}circle"))) == 8
    intervals = [path for path in root.iter(f"{space}path") if "V" in path.attrib["d"]]
    assert len(intervals) == 4, "Kafka has too few rounds for intervals"


def test_growth_is_compared_with_its_bound_alone(tmp_path: Path) -> None:
    name = "5,000 active connections"
    text = report(saved(tmp_path, name, {PYLOGD: rounds_of("growth", *[1.9] * 9, 2.2)}))
    cells = row(text, name, "broker's CPU seconds by those with 1 connection")
    assert cells[2:] == ["1.90", "1 connection", "2", "", "≤ 2", "met"]


def test_what_is_not_measured_and_where_work_differs_is_said(tmp_path: Path) -> None:
    name = "produce, batches of 1"
    text = report(saved(tmp_path, name, {PYLOGD: rounds_of("rate", 1.0), "redis": rounds_of("rate", 1.0)}))
    missing = text[text.index("## Not measured") :]
    assert (
        "- End-to-end latency: 10,000 messages/s; half" in missing
        and "- The paper's experiments: messages" not in missing
    )
    assert "redis ²" in text and "- ² another protocol" in text and "- ⁴" not in text


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


def test_the_time_until_a_transaction_is_visible_is_compared_by_pairs() -> None:
    same, other = transactions_visible.SAME, transactions_visible.OTHER
    turns = {
        "pylogd": [transactions_visible.Samples({same: [1.0, 3.0], other: [6.0]}, {same: [1.0] * 2, other: [1.0]})] * 2,
        "Kafka": [transactions_visible.Samples({same: [4.0, 4.0], other: [3.0]}, {same: [2.0] * 2, other: [2.0]})] * 2,
    }
    assert transactions_visible.read(transactions_visible.written(turns)) == turns
    page = "\n".join(transactions_visible.section(turns, "pylogd", "Kafka"))
    assert f"| {same} | 2.0 : 4.0 | 0.50 (0.50 to 0.50) | met |" in page
    assert f"| {other} | 6.0 : 3.0 | 2.00 (2.00 to 2.00) | **missed** |" in page
    assert "2 pairs, 6 transactions with each." in page
    assert "Not measured yet." in transactions_visible.section({}, "pylogd", "Kafka")
