"""Write tests/chain/RESULTS.md and its plot from the outcome of a run."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

from bench.plots import curves
from tests.chain.plan import Victim
from tests.chain.run import Outcome
from tests.kills.processes import python_version
from tests.pages import circumstances, write_page

PLOT: Final = "latency.svg"
_PAPER_SECONDS: Final = 10


def write(path: Path, outcome: Outcome) -> None:
    """Write the page, and the plot beside it."""
    path.with_name(PLOT).write_text(drawn(outcome))
    write_page(path, lines(outcome))


def drawn(outcome: Outcome) -> str:
    """Return the plot: latency from send to row by the second of the send, with a mark for each strike."""
    by_second: defaultdict[int, list[int]] = defaultdict(list)
    for ms, took in outcome.latencies:
        by_second[(ms - outcome.begun_ms) // 1000].append(took)
    seconds = sorted(by_second)
    series = [
        ("slowest of each second", [(float(at), max(by_second[at]) / 1000) for at in seconds]),
        ("median of each second", [(float(at), statistics.median(by_second[at]) / 1000) for at in seconds]),
    ]
    marks = [((ms - outcome.begun_ms) / 1000, victim.name.lower()) for ms, victim in outcome.struck]
    return curves(
        "From a producer's send to a row of the lake, while processes are struck", "seconds", series, events=marks
    )


def lines(outcome: Outcome) -> list[str]:
    """Return the lines of the page."""
    setting = outcome.setting
    late = {name: count for name, count in outcome.reads.items() if name != "steady"}
    return [
        "# The chain of the paper, acted out",
        "",
        f"`make chain`, seed {setting.seed}, Python {python_version()}. {circumstances()} {setting.producers} audited "
        f"producers sent {outcome.sent:,} events through HAProxy to three brokers; {setting.members} members of a "
        "group in ZooKeeper read them, `pylogd mirror` copied them to another cluster, `pylogd load --follow` loaded "
        f"the copy into a lake, and `pylogd audit serve` judged all stages, in windows of {setting.window} s and "
        f"periods of {setting.period} s. {len(outcome.struck)} strikes hit them; the run took {outcome.seconds:.0f} s.",
        "",
        *_struck(outcome),
        "",
        "Every count is compared with the producers' own journals, which the audit does not know:",
        "",
        "| what | events |",
        "| --- | ---: |",
        f"| sent | {outcome.sent:,} |",
        f"| acknowledged: each is in the log once, where its producer was told | {outcome.acked:,} |",
        f"| in the log of the serving cluster, of the mirror's target, and in the lake: the same rows, each once | "
        f"{outcome.received:,} |",
        f"| of producers that were killed with a full buffer: nowhere | {outcome.lost:,} |",
        f"| handed out by the members of the group that keeps up: each at least once | {outcome.reads['steady']:,} |",
        f"| handed out by {len(late)} groups that caught up: each at least once | {sum(late.values()):,} |",
        "",
        f"{outcome.behind} of the {len(late)} groups that catch up had a backlog when a member of theirs was killed or "
        "frozen. No member handed out a record of a partition after a later owner of it had handed out one. The lake "
        f"has {outcome.commits:,} commits.",
        "",
        f"The audit gave {_counts(outcome.windows)} on windows at its three stages, and `pylogd audit wait --stage "
        f"serving --stage mirror --stage lake` {_counts(outcome.periods)} on periods: all of them are the truth, and "
        "so are the counts of each window (incomplete: the killed producers' lost events).",
        "",
        _latency(outcome),
        "",
        f"![latency]({PLOT})",
        *(["", "What loaders said that ended by an error, to be started again:", ""] if outcome.ends else []),
        *(f"* {count} x `{words[:160]}`" for words, count in outcome.ends.most_common()),
    ]


def _struck(outcome: Outcome) -> list[str]:
    struck = Counter(victim for _, victim in outcome.struck)
    return ["| struck | times |", "| --- | ---: |", *(f"| {victim} | {struck[victim]} |" for victim in Victim)]


def _latency(outcome: Outcome) -> str:
    times = sorted(took / 1000 for _, took in outcome.latencies) or [0.0]
    half, most = (times[min(int(len(times) * share), len(times) - 1)] for share in (0.5, 0.99))
    return (
        f"From a send to a row of a complete commit: {statistics.fmean(times):.1f} s on average, median {half:.1f} s, "
        f"99 % {most:.1f} s, longest {times[-1]:.1f} s. (The paper says about {_PAPER_SECONDS} s on average, without "
        "kills.)"
    )


def _counts(found: Counter[str]) -> str:
    return " and ".join(f"{count} times *{verdict}*" for verdict, count in sorted(found.items()))
