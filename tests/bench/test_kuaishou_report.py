"""How `make bench-kuaishou` keeps what it measured and writes its page, without root, brokers or groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import plots
from bench.kuaishou import __main__ as command
from bench.kuaishou import clients, expansion, report
from bench.kuaishou.experiment import Chart, Experiment, Measure, Round, Scale, Target
from bench.kuaishou.lab import Laboratory, Unavailable


def run(lab: Laboratory, arm: str, scale: Scale) -> Round:
    raise AssertionError("nothing is run here")


EXPERIMENT = Experiment(
    name="reads",
    title="Reads",
    talk="They read 2 MB.",
    method="We read too.",
    arms={"stock": "as it is", "new": "with the setting"},
    measures=(Measure("read", "MB", 1), Measure("never taken", "s")),
    targets=(
        Target("read", "new", at_most=0.5, beside="stock", talk="half"),
        Target("read", "stock", at_least=9),
        Target("never taken", "new", at_most=1),
    ),
    charts=(Chart("reads", "MB/s"), Chart("nothing", "s")),
    run=run,
)


@pytest.fixture
def results(tmp_path: Path) -> report.Results:
    made = report.Results(tmp_path / "kuaishou.json", {"cores": 2})
    made.begin("reads", {"Commit": "abc", "rounds": 3})
    return made


def page(results: report.Results, experiments: Sequence[Experiment] = (EXPERIMENT,)) -> str:
    folder = results.path.parent
    report.write(results, experiments, folder / "KUAISHOU.md", folder / "plots")
    return (folder / "KUAISHOU.md").read_text()


def add(results: report.Results, arm: str, *values: float) -> None:
    for value in values:
        results.add("reads", arm, Round({"read": value}, {"reads": [(0.0, value), (1.0, 2 * value)]}, ["it held"]))


def test_what_was_not_measured_is_said(results: report.Results) -> None:
    results.experiments.clear()
    assert "Not measured yet." in page(results)


def test_medians_targets_and_plots(results: report.Results) -> None:
    add(results, "stock", 8.0, 4.0, 6.0)
    add(results, "new", 2.0, 1.0, 3.0)
    text = page(results)
    assert "| read, MB | 6.0 (4.0 to 8.0) | 2.0 (1.0 to 3.0) |" in text
    assert "never taken, s |" not in text
    assert "| read, new : stock | 0.25 (0.25 to 0.50) | at most 0.5 | met | half |" in text
    assert "| read, stock | 6.00 (4.00 to 8.00) | at least 9 | **missed** |" in text
    assert "| never taken, new | not measured | at most 1 |" in text
    assert "![reads](plots/kuaishou-reads-reads.svg)" in text
    assert "nothing.svg" not in text
    assert "new: it held" in text
    assert "Commit abc; rounds 3." in text
    plot = ElementTree.parse(results.path.parent / "plots" / "kuaishou-reads-reads.svg")
    assert len(plot.findall("{http://www.w3.org/2000/svg}polyline")) == 2


def test_one_round_has_no_interval(results: report.Results) -> None:
    add(results, "stock", 8.0)
    assert "| read, MB | 8.0 |" in page(results)


def test_a_skipped_arm_has_its_reason(results: report.Results) -> None:
    add(results, "stock", 8.0)
    results.skip("reads", "new", "there is no such setting")
    text = page(results)
    assert "Not measured: new: there is no such setting." in text
    assert "| read, new : stock | not measured |" in text


def test_results_are_read_as_they_were_kept(results: report.Results) -> None:
    add(results, "stock", 8.0, 4.0)
    again = report.Results.load(results.path)
    assert again.experiments == results.experiments
    assert again.machine == {"cores": 2}
    assert again.values("reads", "stock", "read") == [8.0, 4.0]
    assert not list(results.path.parent.glob("*.partial"))


@pytest.fixture
def no_laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLaboratory:
        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(command, "laboratory", NoLaboratory)


def test_an_arm_that_this_machine_does_not_allow_is_skipped(
    results: report.Results, no_laboratory: None, tmp_path: Path
) -> None:
    asked: list[str] = []

    def refuse(lab: object, arm: str, scale: Scale) -> Round:
        asked.append(arm)
        if arm == "new":
            raise Unavailable("no loop devices")
        return Round({"read": 1.0})

    one = Experiment("reads", "Reads", "", "", EXPERIMENT.arms, EXPERIMENT.measures, refuse)
    assert not command.measure(one, results, 2, Scale(1.0), tmp_path, [])
    assert asked == ["stock", "new", "stock"]
    assert results.values("reads", "stock", "read") == [1.0, 1.0]
    assert results.experiments["reads"]["why_not"] == {"new": "no loop devices"}


def test_an_arm_that_fails_does_not_end_the_others(
    results: report.Results, no_laboratory: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(lab: object, arm: str, scale: Scale) -> Round:
        if arm == "stock":
            raise RuntimeError("a client ended with 1")
        return Round({"read": 1.0})

    one = Experiment("reads", "Reads", "", "", EXPERIMENT.arms, EXPERIMENT.measures, fail)
    assert command.measure(one, results, 2, Scale(1.0), tmp_path, [])
    assert results.values("reads", "new", "read") == [1.0, 1.0]
    assert results.experiments["reads"]["why_not"] == {"stock": "round 1 failed: 'a client ended with 1'"}
    assert "Traceback" in capsys.readouterr().err


def test_every_experiment_has_what_its_page_names() -> None:
    for one in command.EXPERIMENTS:
        measures = {measure.name for measure in one.measures}
        assert len(measures) == len(one.measures)
        for target in one.targets:
            assert {target.arm, *filter(None, [target.beside])} <= set(one.arms), target
            assert {target.measure, *filter(None, [target.beside_measure])} <= measures, target


def test_percentiles() -> None:
    values = [float(number) for number in range(1000)]
    assert clients.percentile(values, 0.5) == 500
    assert clients.percentile(values, 0.999) == 999
    assert clients.percentile([], 0.5) == 0


def test_values_are_kept_by_stretches_of_time() -> None:
    stretches = clients.Stretches()
    for at, value in ((10.0, 3.0), (10.4, 1.0), (10.6, 9.0)):
        stretches.add(at, value)
    assert stretches.result() == [[10.0, 2, 4.0, 3.0, 3.0, 3.0], [10.5, 1, 9.0, 9.0, 9.0, 9.0]]
    assert clients.curve(stretches.result(), 10.0, 5, 1000.0) == [(0.0, 3000.0), (0.5, 9000.0)]


def test_curves_of_several_disks() -> None:
    curves = [[(0.0, 1.0), (1.0, 5.0)], [(0.1, 2.0), (1.1, 3.0), (2.0, 4.0)]]
    assert expansion.summed(curves) == [(0.0, 3.0), (1.0, 8.0)]
    assert expansion.busiest(curves) == [(0.0, 2.0), (1.0, 5.0)]


def test_a_plot_keeps_peaks_and_draws_zero_on_a_logarithmic_scale() -> None:
    points = [(float(number), 100.0 if number == 777 else 1.0) for number in range(2000)]
    assert "100" in plots.curves("latency", "ms", [("a", points)])
    drawings: list[list[plots.Line]] = [[("a", [(0.0, 0.0), (1.0, 10.0), (2.0, 1000.0)])], [("a", [])], []]
    for lines in drawings:
        ElementTree.fromstring(plots.curves("<latency>", "ms", lines, logarithmic=True))
