"""Write RESULTS.md and its plots from the results of `bench/run.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from bench import plots
from bench.experiments import EXPERIMENTS, METRICS, PAPER, PYLOGD, YARDSTICKS, Experiment, Target
from bench.results import Results
from tests.pages import write_page

_PAPER_FACTOR = 2.0  # the target in the paper's experiments: pylogd's ratio to every other broker


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _head(first: str, *others: str) -> list[str]:
    return [_row((first, *others)), _row(("---", *("--:" for _ in others)))]


def _own(experiment: Experiment) -> str:
    return next(peer for peer in experiment.peers if peer.startswith(PYLOGD))


def _median(results: Results, experiment: Experiment, peer: str, metric: str) -> float | None:
    found = results.get(experiment, peer)
    return found.median(metric) if found is not None else None


def _short(count: float) -> str:
    """Return a count of messages as 950, 12 k or 3.4 M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.{1 if count < 10 * size else 0}f} {unit}".replace(".0", "")
    return f"{count:.0f}"


def _spread(values: Sequence[float]) -> str:
    """Return half the distance from lowest to highest in percent of the median; "" for a single value."""
    if len(values) < 2 or not max(values) + min(values):
        return ""
    return f" ±{(max(values) - min(values)) / (max(values) + min(values)):.0%}"


def _cell(experiment: Experiment, results: Results, peer: str, metric: str) -> str:
    """Return a cell: median, spread if it is the headline's, and ratio to pylogd's."""
    found = results.get(experiment, peer)
    if peer not in experiment.peers:
        return ""
    if found is None:
        return "not run"
    value = found.median(metric)
    if value is None:
        return "-" if found.samples else found.why_not.partition(":")[0]
    text = format(value, METRICS[metric][1])
    if metric == experiment.headline:
        text += _spread(found.values(metric))
    base = _median(results, experiment, _own(experiment), metric)
    return text if peer == _own(experiment) or not base else f"{text} ({value / base:.2f})"


def _sample(experiment: Experiment, results: Results, peer: str) -> str:
    """Return the number of rounds and of messages in each."""
    found = results.get(experiment, peer)
    counts = found.values("messages") if found is not None else []
    if not counts:
        return ""
    rounds: dict[str, int] = {}
    for count in counts:
        rounds[_short(count)] = rounds.get(_short(count), 0) + 1
    return ", ".join(f"{number} of {count}" for count, number in rounds.items())


def _tables(group: str, experiments: list[Experiment], results: Results) -> Iterator[str]:
    peers = list(dict.fromkeys(peer for one in experiments for peer in one.peers))
    yield from (f"## {group}", "")
    for metric in dict.fromkeys(metric for one in experiments for metric in one.shows):
        rows = [one for one in experiments if metric in one.shows]
        if not any(_median(results, one, peer, metric) is not None for one in rows for peer in one.peers):
            continue
        yield from _head(METRICS[metric][0], *peers)
        for one in rows:
            yield _row((one.name, *(_cell(one, results, peer, metric) for peer in peers)))
        yield ""
    samples = [(one.name, *(_sample(one, results, peer) for peer in peers)) for one in experiments]
    if any("".join(cells[1:]) for cells in samples):
        yield from _head("rounds, and messages of each", *peers)
        yield from map(_row, samples)
        yield ""
    reasons = _reasons(experiments, results)
    if reasons:
        yield from (*reasons, "")


def _reasons(experiments: list[Experiment], results: Results) -> list[str]:
    """Return why cells are empty, each reason once."""
    found: dict[str, list[str]] = {}
    for one in experiments:
        for peer in one.peers:
            measurement = results.get(one, peer)
            if measurement is not None and measurement.why_not:
                found.setdefault(f"{peer}: {measurement.why_not}", []).append(one.name)
    return [f"- {reason} ({', '.join(names)})" for reason, names in found.items()]


def _met(metric: str, value: float, ratio: float) -> tuple[str, str]:
    """Return the target of a ratio, and whether it was met."""
    more = METRICS[metric][2]
    met = value >= ratio if more else value <= ratio
    return f"{'≥' if more else '≤'} {ratio:,g}", "met" if met else "**missed**"


def _verdict(results: Results, experiment: Experiment, target: Target) -> tuple[str, str, str, str]:
    """Return pylogd's value, its ratio to the other's if there is one, the target, and whether it was met."""
    own = results.get(experiment, _own(experiment))
    value = own.median(target.metric) if own is not None else None
    beside = _median(results, experiment, target.beside, target.metric) if target.beside else 1.0
    if own is None or value is None:
        return "not measured", "", f"{target.ratio:,g}", ""
    shown = format(value, METRICS[target.metric][1]) + _spread(own.values(target.metric))
    if not beside:
        return shown, "", f"{target.ratio:,g}", "nothing to compare"
    ratio = value / beside
    return shown, f"{ratio:.2f}" if target.beside else "", *_met(target.metric, ratio, target.ratio)


def _targets(results: Results) -> Iterator[str]:
    yield from ("## Targets", "")
    yield from _head("experiment", "metric", "pylogd", "against", "its", "pylogd's ratio", "target", "")
    for one in EXPERIMENTS:
        for target in one.targets:
            value, *verdict = _verdict(results, one, target)
            beside = target.beside or "the paper's figure"
            theirs = _cell(one, results, target.beside, target.metric) if target.beside else f"{target.ratio:,.0f}"
            cells = (METRICS[target.metric][0], value, beside, theirs.partition(" (")[0], *verdict)
            yield _row((one.name, *cells))
    yield ""


def _nearest(results: Results) -> Iterator[str]:
    """Return the broker without a target of its own beside which pylogd's result is worst."""
    yield from ("## The best of the others in each experiment", "")
    yield from ("Beside those that the table of targets does not have; ceiling and floor are no brokers.", "")
    yield from _head("experiment", "metric", "pylogd", "the best other", "its", "pylogd's ratio", "target", "")
    for one in EXPERIMENTS:
        metric = one.headline
        own = _median(results, one, _own(one), metric)
        out = {_own(one), *YARDSTICKS, *(target.beside for target in one.targets)}
        others = {
            peer: value for peer in one.peers if peer not in out and (value := _median(results, one, peer, metric))
        }
        if not own or not others:
            continue
        more = METRICS[metric][2]
        best = (max if more else min)(others, key=others.__getitem__)
        factor = _PAPER_FACTOR if one.group == PAPER else 1.0
        ratio = own / others[best]
        form = METRICS[metric][1]
        cells = (METRICS[metric][0], format(own, form), best, format(others[best], form), f"{ratio:.2f}")
        yield _row((f"{one.name} ({one.group.partition(':')[0]})", *cells, *_met(metric, ratio, factor)))
    yield ""


def _plot(group: str, experiments: list[Experiment], results: Results) -> str | None:
    metric = experiments[0].headline
    heading, form, more = METRICS[metric]
    blocks = []
    for one in experiments:
        block = [
            (peer, value, format(value, form))
            for peer in one.peers
            if metric in one.shows and (value := _median(results, one, peer, metric)) is not None
        ]
        if block:
            blocks.append((one.name, block))
    unit = f"{heading} ({'more' if more else 'less'} is better)"
    return plots.bars(group, unit, blocks, PYLOGD) if blocks else None


def _about(results: Results) -> Iterator[str]:
    yield from ("## What was measured", "", _row(("peer", "version", "started as", "client")), _row(("---",) * 4))
    for peer, about in results.peers.items():
        yield _row((peer, about["version"], f"`{about['command']}`", about["client"]))
    yield ""
    own = (one for row in results.found.values() for peer, one in row.items() if peer.startswith(PYLOGD))
    commits = dict.fromkeys(one.commit for one in own if one.commit)
    yield f"pylogd was measured at commit {', '.join(commits)}." if commits else "pylogd was not measured."
    machine = (f"{name} {value}" for name, value in results.about.items() if name != "commit")
    yield from ("Measured on: " + ", ".join(machine) + ".", "")


def write(results: Results, folder: Path, *, quick: bool) -> None:
    """Write RESULTS.md and plots/ into `folder`."""
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    how = "**Quick: one short round of each. A look, not a result.** " if quick else "Cells are medians of the rounds. "
    lines = [
        "# pylogd beside its peers",
        "",
        "Written by `make bench`; `README.md` says what is measured and how; every round is in `results.json`. One "
        f"broker at a time on loopback, its data on the same disk; clients share the cores with it. {how}"
        "± is half the distance from the lowest round to the highest. In brackets: how many times pylogd's value.",
        "",
        *_targets(results),
        *_nearest(results),
    ]
    for group, members in groupby(EXPERIMENTS, key=lambda one: one.group):
        experiments = list(members)
        if not any(results.get(one, peer) for one in experiments for peer in one.peers):
            continue
        lines += _tables(group, experiments, results)
        picture = _plot(group, experiments, results)
        if picture is not None:
            name = re.sub(r"[^a-z0-9]+", "-", group.lower()).strip("-") + ".svg"
            (folder / "plots" / name).write_text(picture)
            lines += [f"![{group}](plots/{name})", ""]
    write_page(folder / "RESULTS.md", [*lines, *_about(results)])
