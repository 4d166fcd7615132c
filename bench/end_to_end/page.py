"""Write bench/END_TO_END.md and its plots from the results of `bench.end_to_end`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.end_to_end.arms import LOADERS
from bench.plots import curves

PAPER_SECONDS = 10
_HEAD = (
    "| loader | events/s | p50, s | p99, s | mean, s | longest, s | events | not seen in time | cores: broker | JVM | "
    "Python |"
)
_LINE = "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |"


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of the page."""
    arms: Sequence[Mapping[str, Any]] = sorted(found["arms"].values(), key=lambda arm: (arm["loader"], arm["rate"]))
    about = found["machine"]
    seconds = sorted({arm["seconds"] for arm in arms})
    polls = statistics.median(arm["poll_ms"] for arm in arms)
    intervals = sorted({arm["interval"] for arm in arms if arm["loader"] == "follow"})
    return [
        "# From a send to a row that a query sees",
        "",
        f"Written by `make bench-end-to-end` on {found['date']}, at commit {about['commit']}: {about['processor']}, "
        f"{about['cores']} cores, {about['memory']}, {about['system']}, Python {about['python']}. {found['state']}",
        "",
        f"In the Kafka paper (section 4) the whole pipeline takes {PAPER_SECONDS} seconds on average.",
        "",
        _HEAD,
        _LINE,
        *map(_row, arms),
        "",
        "*How.* Broker, producer, loader and reader run on one machine, so there is one clock. The producer (its own "
        "process, `Producer` with `linger_ms=5` and acks=all) sends events of 100 bytes to 2 partitions at a constant "
        "rate; an event's time stamp is taken when it is given to `send`. "
        f"`pylogd load --follow --interval {', '.join(f'{each:g}' for each in intervals)}` begins a load that long "
        "after the one before began, or as soon as that one is done; the default interval is 60. The stream is Spark's "
        "file sink with its default trigger: the next micro-batch as soon as the one before is done. The query is "
        f"pyarrow's Parquet reader, which polls every {polls:.0f} ms (median): it lists the files of complete commits "
        "and reads the time stamps of new ones. An event is seen when that read has returned. Each arm had a broker, a "
        f"topic and a Spark of its own; the events of {', '.join(f'{each:g}' for each in seconds)} s count, after a "
        "warm-up. *Cores*: processor seconds a second; the producer is among Python. *Not seen in time*: events that "
        "were not in the table two minutes after the last one was sent; in "
        "percentiles they count as slower than all others. All others were in the table once.",
        "",
        *(f"![{name}](plots/end-to-end-{loader}.svg)" for loader, name in LOADERS.items()),
    ]


def _row(arm: Mapping[str, Any]) -> str:
    times = (f"{arm[name] / 1000:.2f}" for name in ("p50", "p99", "mean", "most"))
    cores = (f"{arm['cores'][kind]:.2f}" for kind in ("broker", "jvm", "python"))
    cells = [LOADERS[arm["loader"]], f"{arm['rate']:,}", *times, f"{arm['sent']:,}", f"{arm['behind']:,}", *cores]
    return f"| {' | '.join(cells)} |"


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """Draw a plot for each loader: the median over the time of sending, with a line for each rate."""
    for loader, name in LOADERS.items():
        mine = sorted((arm for arm in found["arms"].values() if arm["loader"] == loader), key=lambda arm: arm["rate"])
        series = [
            (f"{arm['rate']:,} events/s", [(float(at), ms / 1000) for at, ms in enumerate(arm["median_by_second"])])
            for arm in mine
        ]
        picture = curves(f"{name.strip('`')}: from send to query", "seconds (median of each second)", series)
        (folder / f"end-to-end-{loader}.svg").write_text(picture)
