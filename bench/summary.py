"""Write RESULTS.md and its plots from the results beside peers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from bench import pairs, plots
from bench.experiments import EXPERIMENTS, METRICS, NOTES, PAPER, PYLOGD, YARDSTICKS, Experiment, Target
from bench.results import Results, slug
from tests.pages import write_page


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _head(first: str, *others: str) -> list[str]:
    return [_row((first, *others)), _row(("---", *("--:" for _ in others)))]


def _own(experiment: Experiment) -> str:
    return next(peer for peer in experiment.peers if peer.startswith(PYLOGD))


def _median(results: Results, experiment: Experiment, peer: str, metric: str) -> float | None:
    found = results.get(experiment, peer)
    return found.median(metric) if found is not None else None


def _values(results: Results, experiment: Experiment, peer: str, metric: str) -> list[float]:
    found = results.get(experiment, peer)
    return found.values(metric) if found is not None else []


def _ratios(results: Results, experiment: Experiment, peer: str, metric: str) -> list[float]:
    """Return pylogd's value by the other's, for each pair of rounds."""
    own = _values(results, experiment, _own(experiment), metric)
    return pairs.ratios(own, _values(results, experiment, peer, metric))


def _shown(ratios: Sequence[float]) -> str:
    """Return the median of ratios with its interval, if there are enough for one."""
    found = pairs.interval(ratios)
    return str(found) if found is not None else f"{statistics.median(ratios):.2f}" if ratios else ""


def _void(results: Results, experiment: Experiment, peer: str) -> str:
    """Return why the comparison of pylogd with a peer is void, "" if it is not."""
    found = {name: results.get(experiment, name) for name in (_own(experiment), peer)}
    return pairs.why_void({peer: one.samples for peer, one in found.items() if one is not None})


def _cell(experiment: Experiment, results: Results, peer: str, metric: str) -> str:
    """Return a cell: the median, and pylogd's ratio to it."""
    found = results.get(experiment, peer)
    if peer not in experiment.peers:
        return ""
    if found is None:
        return "not run"
    value = found.median(metric)
    if value is None:
        return "-" if found.samples else found.why_not.partition(":")[0]
    text = format(value, METRICS[metric][1])
    ratio = "" if peer == _own(experiment) else _shown(_ratios(results, experiment, peer, metric))
    return f"{text}; {ratio}" if ratio else text


def _rounds(experiment: Experiment, results: Results) -> tuple[str, str, str]:
    """Return the number of rounds, the messages of each, and the seconds of the shortest and the longest."""
    found = [one for peer in experiment.peers if (one := results.get(experiment, peer)) is not None]
    samples = [sample for one in found for sample in one.samples]
    counts = sorted({sample["messages"] for sample in samples if "messages" in sample})
    seconds = [sample["seconds"] for sample in samples if "seconds" in sample]
    return (
        str(max((len(one.samples) for one in found), default=0)),
        ", ".join(f"{count:,.0f}" for count in counts),
        f"{min(seconds):.1f} to {max(seconds):.1f}" if seconds else "",
    )


def _tables(group: str, experiments: list[Experiment], results: Results) -> Iterator[str]:
    peers = list(dict.fromkeys(peer for one in experiments for peer in one.peers))
    yield from (f"## {group}", "")
    for metric in dict.fromkeys(metric for one in experiments for metric in one.shows):
        rows = [one for one in experiments if metric in one.shows]
        if not any(_median(results, one, peer, metric) is not None for one in rows for peer in one.peers):
            continue
        yield from _head(METRICS[metric][0], *(f"{peer}{_mark(peer)}" for peer in peers))
        for one in rows:
            yield _row((one.name, *(_cell(one, results, peer, metric) for peer in peers)))
        yield ""
    yield from _head("rows", "rounds of each", "messages of a round", "seconds of a round", "void comparisons")
    for one in experiments:
        void = [f"{peer}: {why}" for peer in one.peers if (why := _void(results, one, peer))]
        yield _row((one.name, *_rounds(one, results), "; ".join(void)))
    yield ""
    reasons = [*_notes(peers), *_reasons(experiments, results)]
    if reasons:
        yield from (*reasons, "")


def _mark(peer: str) -> str:
    """Return the mark of the footnote that says what a peer does not do, or does besides; "" if it has none."""
    marks = [mark for (mark, peers, _) in NOTES if peer in peers]
    return f" {','.join(marks)}" if marks else ""


def _notes(peers: Sequence[str]) -> list[str]:
    """Return the footnotes of a table with these peers."""
    return [f"- {mark} {text}" for mark, those, text in NOTES if set(those) & set(peers)]


def _reasons(experiments: list[Experiment], results: Results) -> list[str]:
    """Return why cells are empty, each reason once."""
    found: dict[str, list[str]] = {}
    for one in experiments:
        for peer in one.peers:
            measurement = results.get(one, peer)
            if measurement is not None and measurement.why_not:
                found.setdefault(f"{peer}: {measurement.why_not}", []).append(one.name)
    return [f"- {reason} ({', '.join(names)})" for reason, names in found.items()]


def _verdict(results: Results, experiment: Experiment, target: Target) -> tuple[str, str, str]:
    """Return pylogd's ratio, or its value where nobody else's is compared, the target, and whether it was met."""
    more = METRICS[target.metric][2]
    bound = f"{'≥' if more else '≤'} {target.ratio:,g}"
    if target.beside:
        found = _ratios(results, experiment, target.beside, target.metric)
    else:
        found = [
            value / target.ratio for value in _values(results, experiment, _own(experiment), target.metric)
        ]  # fmt: skip
    measured = pairs.interval(found)
    shown = _shown(found) if target.beside else ""
    if not found:
        return shown, bound, "not measured"
    if _void(results, experiment, target.beside or _own(experiment)):
        return shown, bound, "void"
    if measured is None:
        return shown, bound, "too few rounds"
    return shown, bound, "met" if pairs.is_met(measured, target.ratio if target.beside else 1.0, more) else "**missed**"


def _targets(results: Results) -> Iterator[str]:
    yield from ("## Targets", "")
    yield from _head("experiment", "metric", "pylogd", "against", "its", "pylogd's ratio", "target", "verdict")
    for one in EXPERIMENTS:
        for target in one.targets:
            form = METRICS[target.metric][1]
            values = [
                "not measured" if value is None else format(value, form)
                for peer in (_own(one), target.beside)
                if peer
                for value in [_median(results, one, peer, target.metric)]
            ]
            own, its = values if target.beside else (values[0], f"{target.ratio:,.0f}")
            beside = target.beside or ("the paper's figure" if one.group == PAPER else "1 connection")
            cells = (METRICS[target.metric][0], own, beside, its, *_verdict(results, one, target))
            yield _row((one.name, *cells))
    yield ""


def _nearest(results: Results) -> Iterator[str]:
    """Return the broker without a target of its own beside which pylogd's result is worst."""
    yield from ("## The best of the others in each experiment", "")
    yield from ("Beside those that the table of targets does not have; ceiling and floor are no brokers.", "")
    yield from _head("experiment", "metric", "pylogd", "the best other", "its", "pylogd's ratio", "pylogd is")
    for one in EXPERIMENTS:
        for metric in dict.fromkeys((one.headline, *(name for name in ("rate", "megabytes") if name in one.shows))):
            found = _best_other(results, one, metric)
            if found is not None:
                yield _row(found)
    yield ""


def _best_other(results: Results, one: Experiment, metric: str) -> Sequence[str] | None:
    """Return the row of the best broker without a target of its own for this metric; None if there is none."""
    heading, form, more = METRICS[metric]
    own = _median(results, one, _own(one), metric)
    out = {_own(one), *YARDSTICKS, *(target.beside for target in one.targets if target.metric == metric)}
    others = {peer: value for peer in one.peers if peer not in out and (value := _median(results, one, peer, metric))}
    if own is None or not others:
        return None
    best = (max if more else min)(others, key=others.__getitem__)
    ratios = _ratios(results, one, best, metric)
    return (
        f"{one.name} ({one.group.partition(':')[0]})", heading, format(own, form), best, format(others[best], form),
        _shown(ratios), _standing(results, one, best, metric, ratios),
    )  # fmt: skip


def _standing(results: Results, experiment: Experiment, peer: str, metric: str, ratios: Sequence[float]) -> str:
    """Return `ahead`, `behind` or `draw`, or why nothing can be said."""
    found = pairs.interval(ratios)
    if _void(results, experiment, peer):
        return "void"
    return "too few rounds" if found is None else pairs.compared(found, METRICS[metric][2])


#: The metrics of a plot of percentiles, and their names in it.
_PERCENTILES = {"p50": "p50", "p99": "p99", "p999": "p99.9", "highest": "highest"}


def _with_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the median of values, and the ends of its interval, if they are enough for one."""
    found = pairs.interval(values)
    return (statistics.median(values), *((None, None) if found is None else (found.low, found.high)))


def _percentiles(group: str, experiments: list[Experiment], results: Results) -> str | None:
    """Return the plot of a group about latency."""
    rows = []
    for one in experiments:
        values = {peer: [_values(results, one, peer, metric) for metric in _PERCENTILES] for peer in one.peers}
        lines = [
            plots.Percentiles(peer, [_with_interval(samples) for samples in found])
            for peer, found in values.items()
            if all(found)
        ]
        if lines:
            rows.append((one.name, lines))
    return plots.percentiles(group, "ms", list(_PERCENTILES.values()), rows) if rows else None


def _plot(group: str, experiments: list[Experiment], results: Results) -> str | None:
    if set(_PERCENTILES) <= set(experiments[0].shows):
        return _percentiles(group, experiments, results)
    metric = experiments[0].headline
    heading, form, more = METRICS[metric]
    blocks = []
    for one in experiments:
        block = []
        for peer in one.peers:
            values = _values(results, one, peer, metric)
            if metric in one.shows and values:
                middle, low, high = _with_interval(values)
                block.append(plots.Bar(peer, middle, format(middle, form), low, high))
        if block:
            blocks.append((one.name, block))
    unit = f"{heading} ({'more' if more else 'less'} is better)"
    return plots.bars(group, unit, blocks, PYLOGD) if blocks else None


def _about(results: Results) -> Iterator[str]:
    yield from ("## What was measured", "", _row(("peer", "version", "started as", "client")), _row(("---",) * 4))
    peers = {peer: about for group in results.groups.values() for peer, about in group.peers.items()}
    for peer, about in peers.items():
        yield _row((peer, about["version"], f"`{about['command']}`", about["client"]))
    yield from ("", _row(("group", "measured, UTC", "pylogd's commit", "machine")), _row(("---",) * 4))
    for name in dict.fromkeys(one.group for one in EXPERIMENTS):
        if name not in results.groups:
            yield _row((name, "not measured", "", ""))
            continue
        group = results.groups[name]
        machine = ", ".join(f"{key} {value}" for key, value in group.about.items() if key != "commit")
        yield _row((name, group.measured, str(group.about.get("commit", "")), machine))
    yield ""


def _not_measured(results: Results) -> list[str]:
    """Return the rows that have no results, by group."""
    groups = [(name, [one.name for one in rows]) for name, rows in groupby(EXPERIMENTS, key=lambda one: one.group)]
    missing = [f"- {name}: {'; '.join(rows)}" for name, rows in groups if name not in results.groups]
    return ["## Not measured", "", *(missing or ["Every group has results."]), ""]


_ELSEWHERE = (
    "## Measured elsewhere", "",
    "- One request's processor time beside the floor's, by requests in a read: [FLOOR.md](FLOOR.md)",
    "- Failover, a follower's copying, changes of the controller: [CLUSTER.md](CLUSTER.md)",
    "- What idle partitions cost: [PARTITIONS.md](PARTITIONS.md)",
    "- Disks that hang: [ISOLATION.md](ISOLATION.md)",
    "",
)  # fmt: skip


def write(results: Results, folder: Path, *, quick: bool) -> None:
    """Write RESULTS.md and plots/ into `folder`."""
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    how = "**Quick: one short round of each. A look, not a result.** " if quick else ""
    lines = [
        "# pylogd beside its peers",
        "",
        "Written by `make bench WHAT=peers`; `README.md` says what is measured and how; every round is in `results/`. "
        "The brokers of a row are measured by turns, with the same number of messages for all, on loopback and on one "
        f"disk; clients share the cores with them. {how}Cells are medians of the rounds. Behind the semicolon: "
        "pylogd's value by this one's, the median of the ratios of pairs, with its interval of 95 % or more. A target "
        "is met if the whole interval meets it. A comparison is "
        "void if the two had different numbers of messages, or one a round of less than a second.",
        "",
        *_targets(results),
        *_nearest(results),
    ]
    for group, members in groupby(EXPERIMENTS, key=lambda one: one.group):
        experiments = list(members)
        if group not in results.groups:
            continue
        lines += _tables(group, experiments, results)
        picture = _plot(group, experiments, results)
        if picture is not None:
            name = f"{slug(group)}.svg"
            (folder / "plots" / name).write_text(picture)
            lines += [f"![{group}](plots/{name})", ""]
    write_page(folder / "RESULTS.md", [*lines, *_not_measured(results), *_ELSEWHERE, *_about(results)])
