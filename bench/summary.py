"""RESULTS.md and its plots, from what `bench/run.py` has measured. It measures nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from bench import plots
from bench.experiments import EXPERIMENTS, METRICS, PYLOGD, Experiment, Target
from bench.results import Measurement, Results


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _own(experiment: Experiment) -> str:
    return next(peer for peer in experiment.peers if peer.startswith(PYLOGD))


def _cell(experiment: Experiment, results: Results, peer: str, metric: str) -> str:
    """A median, and how many times pylogd's it is."""
    found = results.get(experiment, peer)
    if peer not in experiment.peers:
        return ""
    if found is None:
        return "not run"
    value = found.median(metric)
    if value is None:
        return "-" if found.samples else found.why_not.partition(":")[0]
    text = format(value, METRICS[metric][1])
    own = results.get(experiment, _own(experiment))
    base = own.median(metric) if own is not None else None
    return text if peer == _own(experiment) or not base else f"{text} ({value / base:.2f})"


def _tables(group: str, experiments: list[Experiment], results: Results) -> Iterator[str]:
    peers = list(dict.fromkeys(peer for one in experiments for peer in one.peers))
    yield from (f"## {group}", "")
    for metric in dict.fromkeys(metric for one in experiments for metric in one.shows):
        rows = [one for one in experiments if metric in one.shows]
        if not any(_median(results, one, peer, metric) is not None for one in rows for peer in one.peers):
            continue
        yield _row((METRICS[metric][0], *peers))
        yield _row(("---", *("--:" for _ in peers)))
        for one in rows:
            yield _row((one.name, *(_cell(one, results, peer, metric) for peer in peers)))
        yield ""
    reasons = _reasons(experiments, results)
    if reasons:
        yield from (*reasons, "")


def _reasons(experiments: list[Experiment], results: Results) -> list[str]:
    """Why cells are empty, each reason once."""
    found: dict[str, list[str]] = {}
    for one in experiments:
        for peer in one.peers:
            measurement = results.get(one, peer)
            if measurement is not None and measurement.why_not:
                found.setdefault(f"{peer}: {measurement.why_not}", []).append(one.name)
    return [f"- {reason} ({', '.join(names)})" for reason, names in found.items()]


def _median(results: Results, experiment: Experiment, peer: str, metric: str) -> float | None:
    found: Measurement | None = results.get(experiment, peer)
    return found.median(metric) if found is not None else None


def _verdict(results: Results, experiment: Experiment, target: Target) -> tuple[str, str, str] | None:
    own = _median(results, experiment, _own(experiment), target.metric)
    beside = _median(results, experiment, target.beside, target.metric) if target.beside else 1.0
    if own is None or not beside:
        return None
    more = METRICS[target.metric][2]
    value = own / beside
    met = value >= target.ratio if more else value <= target.ratio
    shown = format(value, ".2f" if target.beside else ",.0f")
    wanted = f"{'≥' if more else '≤'} {target.ratio:,g}"
    return shown, wanted, "met" if met else "**missed**"


def _targets(results: Results) -> Iterator[str]:
    yield from ("## Targets", "", _row(("experiment", "metric", "against", "pylogd's ratio", "target", "")))
    yield _row(("---", "---", "---", "--:", "--:", "---"))
    for one in EXPERIMENTS:
        for target in one.targets:
            verdict = _verdict(results, one, target)
            beside = target.beside or "the paper's figure"
            cells = verdict or ("not measured", f"{target.ratio:,g}", "")
            yield _row((one.name, METRICS[target.metric][0], beside, *cells))
    yield ""


def _plot(group: str, experiments: list[Experiment], results: Results) -> str | None:
    metric = experiments[0].shows[0]
    heading, form, _ = METRICS[metric]
    blocks = []
    for one in experiments:
        block = [
            (peer, value, format(value, form))
            for peer in one.peers
            if metric in one.shows and (value := _median(results, one, peer, metric)) is not None
        ]
        if block:
            blocks.append((one.name, block))
    return plots.bars(group, heading, blocks, PYLOGD) if blocks else None


def write(results: Results, folder: Path, *, quick: bool) -> None:
    """RESULTS.md beside plots/, under `folder`."""
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    how = (
        "**Quick: one round of a fiftieth of the size. A look, not a result.** "
        if quick
        else "The median of three or five rounds (`rounds` in `experiments.py`; every round is in `results.json`). "
    )
    lines = [
        "# pylogd beside its peers",
        "",
        "Written by `make bench`; `README.md` says what is measured and how. One broker at a time on loopback, its "
        f"data on the same disk; clients share the cores with it. {how}In brackets: how many times pylogd's value.",
        "",
        *_targets(results),
    ]
    for group, members in groupby(EXPERIMENTS, key=lambda one: one.group):
        experiments = list(members)
        lines += _tables(group, experiments, results)
        picture = _plot(group, experiments, results)
        if picture is not None:
            name = re.sub(r"[^a-z0-9]+", "-", group.lower()).strip("-") + ".svg"
            (folder / "plots" / name).write_text(picture)
            lines += [f"![{group}](plots/{name})", ""]
    lines += ["## What was measured", "", _row(("peer", "version", "started as", "client")), _row(("---",) * 4)]
    for peer, about in results.peers.items():
        lines.append(_row((peer, about["version"], f"`{about['command']}`", about["client"])))
    lines += ["", "Measured on: " + ", ".join(f"{name} {value}" for name, value in results.about.items()) + ".", ""]
    (folder / "RESULTS.md").write_text("\n".join(lines))
