"""The page of results: a table by fault, what the other acts found, and two plots."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from bench import plots
from tests.fleet.cluster import FACTOR, LABELS, RACKS, SIZE
from tests.fleet.faults import FAULTS
from tests.fleet.run import FaultOutcome, FleetOutcome, Plan, by_fault
from tests.pages import circumstances, write_page

#: The plots, each with half of the faults.
PLOTS: Final = ("brokers.svg", "others.svg")
_HEAD: Final = (
    "| fault | brokers lost | partitions led | led again: median / worst (s) | written: median / worst (s) | "
    "partitions followed | written: median / worst (s) | latest record of the load (s) | load of the machine |"
)


def write(path: Path, outcome: FleetOutcome, plan: Plan) -> None:
    """Write the results as Markdown, and the plots beside them."""
    worst = max((one.outage.worst for one in outcome.outages), default=0.0)
    verdict = "Every promise was kept" if not outcome.faults else f"{len(outcome.faults)} FAULTS"
    read = (
        f"WHAT WAS READ IS WRONG: {len(outcome.lost)}"
        if outcome.lost
        else "each was read at its offset, once, in order"
    )
    lines = [
        "# A fleet acted out", "",
        f"`make fleet`, Python {platform.python_version()}. {circumstances()} {SIZE} brokers with "
        f"default settings, the "
        f"labels {' and '.join(LABELS)} on three of them each, over {len(RACKS)} racks; {outcome.partitions:,} "
        f"partitions with {FACTOR} replicas; ZooKeeper with a tick of {plan.tick_ms} ms. For each "
        f"label a producer with acks=all "
        f"writes to every partition each {plan.interval:g} s, and a consumer reads all. {plan.rounds} rounds of each "
        "fault.", "",
        f"**{verdict}.** {outcome.acknowledged:,} records were acknowledged; {read}. "
        f"The longest time from a fault until a partition was in use again is {worst:.1f} s; "
        f"{plan.bound:g} s are allowed.", "",
        "*Led*: until a broker without a fault names another leader for a partition whose leader had the fault. "
        "*Written*: until a record that was sent to that leader with acks=all was acknowledged. *Followed*: partitions "
        "that kept their leader and had a follower with the fault; a write to them waits until the in-sync set is "
        "without it. The latest record is what an application saw, with a request timeout of 5 s.", "",
        _HEAD, "| --- " + "| ---: " * 8 + "|",
    ]  # fmt: skip
    lines += [_row(name, rounds) for name, rounds in by_fault(outcome.outages).items()]
    if outcome.outages:
        lines += ["", *(f"![{name}]({name})" for name in PLOTS)]
        for name, text in zip(PLOTS, charts(outcome.outages), strict=True):
            path.with_name(name).write_text(text, encoding="utf-8")
    lines += ["", *_acts(outcome), "", *(f"- {fault}" for fault in outcome.faults[:50])]
    write_page(path, lines)


def _row(name: str, rounds: Sequence[FaultOutcome]) -> str:
    outages = [one.outage for one in rounds]
    lost = sorted({len(one.victims) for one in rounds})
    cells = [
        ", ".join(map(str, lost)),
        _count(outage.led for outage in outages),
        _times(outage.led for outage in outages),
        _times(outage.written for outage in outages),
        _count(outage.followed for outage in outages),
        _times(outage.followed for outage in outages),
        f"{max(one.latest for one in rounds):.1f}",
        f"{max(one.load for one in rounds):.0f}",
    ]
    never = sum(len(outage.missing) for outage in outages)
    return f"| {name} | " + " | ".join(cells) + " |" + (f" {never} NEVER" if never else "")


def _count(found: Iterable[dict[tuple[str, int], float]]) -> str:
    """Return the number of partitions in a round: the smallest and the largest, if they differ."""
    sizes = sorted(map(len, found))
    return f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"


def _times(found: Iterable[dict[tuple[str, int], float]]) -> str:
    times = [seconds for one in found for seconds in one.values()]
    return f"{statistics.median(times):.2f} / {max(times):.2f}" if times else "-"


def _acts(outcome: FleetOutcome) -> list[str]:
    """Return what the other acts found, a paragraph each."""
    spread = "; ".join(f"broker {node} has {has} and leads {led}" for node, (has, led) in outcome.spread.items())
    paragraphs = [
        "**Placement.** Each replica is within its topic's label, each partition in both racks. "
        f"Replicas: {spread}."
    ]  # fmt: skip
    if (grown := outcome.expansion) is not None:
        paragraphs.append(
            f"**Expansion.** A seventh broker with the first label, and `reassign`: it had {grown.moved} replicas "
            f"after {grown.grown:.1f} s. `brokers decommission` emptied it in {grown.shrunk:.1f} s. "
            f"All replicas stayed "
            f"within their labels, each partition in both racks; the latest record took {grown.latest:.1f} s."
        )
    if (act := outcome.mirror) is not None:
        paragraphs.append(
            f"**Mirror.** {act.routes} routes from three sources (the fleet is one) to two targets, three workers, "
            f"{act.partitions} partitions. {act.topics_added} topics that were created meanwhile had copies of their "
            f"records after {act.added_seconds:.1f} s. A worker was killed and missed after "
            f"{act.missed_seconds:.1f} s; "
            f"{act.moved} partitions, those that it had, got other owners (latest record {act.moved_latest:.1f} s), "
            f"and {act.kept} kept theirs (latest record {act.kept_latest:.1f} s; before, of all, "
            f"{act.calm_latest:.1f} s). "
            f"{act.records:,} records at the targets are those of the sources."
        )
    return [line for paragraph in paragraphs for line in (paragraph, "")]


def charts(outages: Sequence[FaultOutcome]) -> list[str]:
    """Return the plots: the share of affected partitions that can be written, over seconds since the fault."""
    found = by_fault(outages)
    lines = [(fault.short, _share(found[fault.name])) for fault in FAULTS if fault.name in found]
    half = (len(lines) + 1) // 2
    title = "Partitions in use again"
    return [plots.curves(title, "%", part) for part in (lines[:half], lines[half:])]


def _share(rounds: Sequence[FaultOutcome]) -> list[tuple[float, float]]:
    """Return how many percent were in use after how many seconds, as steps."""
    times = sorted(at for one in rounds for at in (*one.outage.written.values(), *one.outage.followed.values()))
    total = len(times) + sum(len(one.outage.missing) for one in rounds)
    return [(0.0, 0.0), *((at, 100 * (number + 1) / total) for number, at in enumerate(times))]
