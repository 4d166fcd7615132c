"""Keep what the experiments measured in kuaishou.json, and write KUAISHOU.md with its plots from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from bench import plots
from bench.harness import interval
from bench.kuaishou.experiment import Experiment, Measure, Round, Target
from tests.pages import write_page

#: How many values of a line are kept in kuaishou.json.
_MOST_POINTS: Final = 400
_COLUMNS: Final = 120

_HEAD: Final = """\
# Kuaishou's inventions

In 2019 Zhao Jianbo of Kuaishou described how they run Kafka, at QCon Beijing (快手万亿级别 Kafka
集群应用实践与技术演进之路). pylogd has what he describes, off by default. This page has his experiments, scaled to one
small machine, with his figures beside ours. It is written by `make bench-kuaishou` (`bench/kuaishou/`;
`python -m bench kuaishou --help`).

Brokers run in control groups with a limit on memory, page cache included, and keep their logs on ext4 images behind
loop devices with direct I/O. Clients (librdkafka) run outside of the groups, on the same machine. Disk reads are the
kernel's counters of the brokers' groups. Disks are slowed by a limit on what the group reads from the device below the
loop device: the requests that wait there are in progress for the loop device, whose utilisation is reported. Each round
starts with empty disks; arms take turns. Figures are medians over rounds, in brackets their 95 % confidence interval
(bootstrap); ratios are medians of the rounds' ratios. Charts show the last round.
"""


@dataclass(slots=True)
class Results:
    """What was measured, by experiment: how, and for each arm figures by round and the last round's curves."""

    path: Path
    machine: dict[str, object] = field(default_factory=dict)
    experiments: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Return the results of earlier runs."""
        said = json.loads(path.read_text()) if path.exists() else {"machine": {}, "experiments": {}}
        return cls(path, said["machine"], said["experiments"])

    def begin(self, name: str, how: Mapping[str, object]) -> None:
        """Forget an experiment's earlier results. how: facts about the run, for the page."""
        self.experiments[name] = {"how": dict(how), "why_not": {}, "arms": {}, "notes": {}}

    def skip(self, name: str, arm: str, why: str) -> None:
        """Keep why an arm was not measured."""
        self.experiments[name]["why_not"][arm] = why
        self._save()

    def add(self, name: str, arm: str, one: Round) -> None:
        """Keep a round of an arm."""
        kept = self.experiments[name]["arms"].setdefault(arm, {"figures": {}, "curves": {}})
        for measure, value in one.figures.items():
            kept["figures"].setdefault(measure, []).append(round(value, 6))
        for chart, points in one.curves.items():
            stride = -(-len(points) // _MOST_POINTS) or 1
            kept["curves"][chart] = [[round(time, 2), round(value, 6)] for time, value in points[::stride]]
        if one.notes:
            self.experiments[name]["notes"][arm] = list(one.notes)
        self._save()

    def values(self, name: str, arm: str, measure: str) -> list[float]:
        """Return a figure of each round, in order; an empty list if there is none."""
        arms = self.experiments.get(name, {}).get("arms", {})
        return list(arms.get(arm, {}).get("figures", {}).get(measure, []))

    def _save(self) -> None:
        text = json.dumps({"machine": self.machine, "experiments": self.experiments}, ensure_ascii=False)
        partial = self.path.with_suffix(".partial")
        partial.write_text(re.sub(r'("(?:figures|curves|how|why_not|notes)")', r"\n\1", text) + "\n")
        partial.rename(self.path)


def write(results: Results, experiments: Sequence[Experiment], page: Path, images: Path) -> None:
    """Write the page, and its plots into the folder `images`."""
    images.mkdir(parents=True, exist_ok=True)
    where = images.relative_to(page.parent).as_posix()
    lines = [_HEAD]
    for experiment in experiments:
        lines += section(results, experiment, images, where)
    if results.machine:
        lines += ["Measured on: " + ", ".join(f"{name} {value}" for name, value in results.machine.items()) + "."]
    write_page(page, lines)


def section(results: Results, experiment: Experiment, images: Path, where: str) -> Iterator[str]:
    """Yield the lines of an experiment, and write its plots. where: the path of `images` as the page names it."""
    yield f"## {experiment.title}"
    for text in (f"**The talk.** {experiment.talk}", f"**Here.** {experiment.method}"):
        yield from ["", *wrap(text, _COLUMNS, break_long_words=False, break_on_hyphens=False)]
    yield ""
    yield from [f"- *{arm}*: {explanation}" for arm, explanation in experiment.arms.items()]
    yield ""
    kept = results.experiments.get(experiment.name)
    if kept is None:
        yield from ["Not measured yet.", ""]
        return
    arms = [arm for arm in experiment.arms if arm in kept["arms"]]
    yield from [f"Not measured: {arm}: {why}." for arm, why in kept["why_not"].items()]
    yield ""
    if arms:
        yield from _table(results, experiment, arms)
        yield from _targets(results, experiment)
        yield from _charts(kept, experiment, arms, images, where)
    yield from [f"{arm}: {note}" for arm in arms for note in kept["notes"].get(arm, ())]
    yield from ["", "; ".join(f"{name} {value}" for name, value in kept["how"].items()) + ".", ""]


def _table(results: Results, experiment: Experiment, arms: Sequence[str]) -> Iterator[str]:
    yield "| | " + " | ".join(arms) + " |"
    yield "| --- |" + " --- |" * len(arms)
    for measure in experiment.measures:
        cells = [_cell(results.values(experiment.name, arm, measure.name), measure) for arm in arms]
        if any(cells):
            yield f"| {measure.name}, {measure.unit} | " + " | ".join(cells) + " |"
    yield ""


def _cell(values: Sequence[float], measure: Measure) -> str:
    if len(values) > 1:
        return interval(values, measure.digits)
    return f"{values[0]:,.{measure.digits}f}" if values else ""


def _targets(results: Results, experiment: Experiment) -> Iterator[str]:
    if not experiment.targets:
        return
    yield "| target | measured | bound | | the talk |"
    yield "| --- | --- | --- | --- | --- |"
    for target in experiment.targets:
        values = _compared(results, experiment.name, target)
        what = f"{target.measure}, {target.arm}"
        if target.beside:
            other = f"{target.beside_measure}, " if target.beside_measure else ""
            what += f" : {other}{target.beside}"
        if not values:
            yield f"| {what} | not measured | {target.bound} | | {target.talk} |"
            continue
        measured = interval(values) if len(values) > 1 else f"{values[0]:,.2f}"
        verdict = "met" if target.met(values) else "**missed**"
        yield f"| {what} | {measured} | {target.bound} | {verdict} | {target.talk} |"
    yield ""


def _compared(results: Results, name: str, target: Target) -> list[float]:
    """Return what a target bounds, round by round."""
    values = results.values(name, target.arm, target.measure)
    if not target.beside:
        return values
    others = results.values(name, target.beside, target.beside_measure or target.measure)
    return [one / other for one, other in zip(values, others, strict=False) if other]


def _charts(
    kept: Mapping[str, Any], experiment: Experiment, arms: Sequence[str], images: Path, where: str
) -> Iterator[str]:
    for chart in experiment.charts:
        found = {arm: kept["arms"][arm]["curves"].get(chart.name) for arm in arms}
        lines = [(arm, [(time, value) for time, value in points]) for arm, points in found.items() if points]
        if lines:
            file = f"kuaishou-{experiment.name}-{re.sub(r'[^a-z0-9]+', '-', chart.name.lower()).strip('-')}.svg"
            (images / file).write_text(plots.curves(chart.name, chart.unit, lines, chart.logarithmic))
            yield from [f"![{chart.name}]({where}/{file})", ""]
