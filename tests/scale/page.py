"""The page of results, RESULTS.md, and its plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bench import plots
from tests.pages import circumstances
from tests.scale.clients import Answers
from tests.scale.scenarios import Cost
from tests.scale.store import Latencies


class Column(NamedTuple):
    """A column of a scenario's table. scale: what the value is multiplied by."""

    heading: str
    field: str
    form: str
    scale: float = 1


_COLUMNS: Final = (
    Column("led again, s", "led", ",.2f"),
    Column("leaders know, s", "leading", ",.2f"),
    Column("known to all, s", "known", ",.2f"),
    Column("reads", "reads", ",.0f"),
    Column("requests to read", "requests", ",.0f"),
    Column("writes", "writes", ",.0f"),
    Column("events of watches", "events", ",.0f"),
    Column("read, MB", "bytes", ",.1f", 1e-6),
    Column("largest write, KB", "largest", ",.0f", 1e-3),
    Column("controller, ms", "controller", ",.0f", 1e3),
    Column("other broker, ms", "other", ",.1f", 1e3),
)
_RETURN_COLUMNS: Final = (
    Column("known to all, s", "known", ",.2f"),
    Column("in sync again, s", "in_sync", ",.2f"),
    *(column for column in _COLUMNS if column.field in {"reads", "requests", "writes"}),
    Column("of these refused", "refused", ",.0f"),
    *(column for column in _COLUMNS if column.field in {"events", "bytes", "largest", "controller", "other"}),
)
_ANSWERS: Final = (
    Column("all topics, MB", "bytes", ",.2f", 1e-6),
    Column("the first answer, ms", "first", ",.0f", 1e3),
    Column("one more, ms", "again", ",.3f", 1e3),
    Column("after an in-sync change, ms", "changed", ",.2f", 1e3),
    Column("after a broker's death, ms", "died", ",.2f", 1e3),
    Column("ten topics, KB", "named_bytes", ",.1f", 1e-3),
    Column("ten topics, ms", "named", ",.3f", 1e3),
    Column("after an in-sync change of one, ms", "named_changed", ",.3f", 1e3),
)
_LED_SECONDS: Final = 6.0
#: Up to so many brokers the return of a rack is simulated.
RETURNED: Final = 200


@dataclass(frozen=True, slots=True)
class Size:
    """What a cluster of one size cost. start: simulated seconds until all brokers were ready, all started at once; None
    if they did not read the topics one by one. watches: at ZooKeeper, when nothing happens.
    """

    brokers: int
    partitions: int
    start: float | None
    watches: int
    costs: dict[str, Cost]
    answers: Answers
    real_seconds: float
    processor_seconds: float
    megabytes: float


def page(sizes: Sequence[Size]) -> list[str]:
    """Return RESULTS.md."""
    lines = [*_introduction(sizes), "", *_verdict(sizes)]
    for name in sizes[0].costs:
        columns = _RETURN_COLUMNS if name == "a rack returns" else _COLUMNS
        lines += ["", f"## {name[0].upper()}{name[1:]}", "", *_EXPLANATIONS.get(name, ()), *_table(
            columns, [(one, one.costs[name]) for one in sizes if name in one.costs])]  # fmt: skip
    lines += [
        "", "## Clients' Metadata requests", "",
        "The real handler of a broker that is not the controller, with the registries of the simulation. Processor "
        "time. An answer is joined of encoded pieces; a change renews those that it changes.", "",
        *_table(_ANSWERS, [(one, one.answers) for one in sizes]), "",
    ]  # fmt: skip
    return lines + [f"![{title}]({name})" for name, title, _, _ in _PLOTS]


_EXPLANATIONS: Final = {
    "a broker restarts": [
        "By SIGTERM, one broker after the other: it hands its leaders over, ends its session, and registers again. "
        "Within a second all leaders have it in their in-sync sets again. Counts are for one restart; times are the "
        "longest.", "",
    ],
    "ZooKeeper elects for 2 s": [
        "All brokers lose their connection for 2 s and restore it at once, within their sessions. `led again` begins "
        "with the loss; leaders lead on meanwhile.", "",
    ],
    "a rack dies": [
        "The third of the brokers that has the controller, at once. Each partition has a replica in each of the three "
        "racks.", "",
    ],
    "a rack returns": [
        "All brokers of that rack are started again, at once. When all know them, their replicas catch up: within one "
        "second, one leader after the other writes those of all its partitions into the in-sync sets. A write is "
        "refused if another leader has changed one of its topics meanwhile; it is then repeated with fewer topics. "
        f"Only up to {RETURNED:,} brokers.", "",
    ],
}  # fmt: skip


_SEEDED: Final = [
    "", "In the sizes with - only the first broker reads the topics when it starts; the others are given what it has.",
]  # fmt: skip


def _introduction(sizes: Sequence[Size]) -> list[str]:
    costs = Latencies()
    return [
        "# Large clusters, simulated", "",
        "By `python -m tests.scale` (`make scale`): the real registries, controllers and in-sync writes of all brokers "
        "of a cluster in one process, on simulated time, with a simulated ZooKeeper. A broker's work takes as much "
        "simulated time as it takes of this machine's processor. Copying of records is not simulated. The session "
        "timeout is the brokers' default, 4 s: most of the time until a dead broker's partitions are led again. "
        f"{circumstances()}", "",
        "Each broker has six topics and 100 partitions with three replicas, placed as a new topic's are. That is the "
        "fleet of the Kuaishou talk: 2,000 brokers, 12,000 topics, 200,000 partitions. There they are 30 clusters of "
        "about 67 brokers; the other sizes show how costs grow, up to the whole fleet as one cluster.", "",
        f"The simulated ZooKeeper has one processor: {costs.request * 1e3:g} ms of it for a request to read, "
        f"{costs.node * 1e6:g} us for each node in it and {costs.byte * 1e9:g} ns for each byte, "
        f"{costs.write * 1e3:g} ms for a write and {costs.operation * 1e6:g} us for each of its operations, "
        f"{costs.commit * 1e3:g} ms until it is on disk, {costs.way * 1e3:g} ms each way. All but the way was measured "
        "on a real ZooKeeper (`python -m tests.scale.latencies`). An ensemble of several servers, with several "
        "processors each, is faster.", "",
        "| brokers | topics | partitions | all started at once, s | watches | processor time of the simulation, s | "
        "its memory, MB |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(f"| {one.brokers:,} | {one.brokers * 6:,} | {one.partitions:,} | "
          f"{'-' if one.start is None else format(one.start, ',.1f')} | {one.watches:,} | "
          f"{one.processor_seconds:,.0f} | {one.megabytes:,.0f} |" for one in sizes),
        *_SEEDED * any(one.start is None for one in sizes),
    ]  # fmt: skip


def _verdict(sizes: Sequence[Size]) -> list[str]:
    """Return which sizes have every partition led again in time, after whatever happens."""
    late = {
        name: [one.brokers for one in sizes if name in one.costs and one.costs[name].led > _LED_SECONDS]
        for name in sizes[0].costs
    }
    found = [f"{name}: not with {', '.join(format(count, ',') for count in counts)} brokers"
             for name, counts in late.items() if counts]  # fmt: skip
    return [
        f"Every partition is led again within {_LED_SECONDS:g} s, whatever happens"
        + (f", but for these. {'; '.join(found)[:1].upper()}{'; '.join(found)[1:]}." if found else ", at every size.")
    ]


def _table(columns: Sequence[Column], rows: Sequence[tuple[Size, object]]) -> list[str]:
    lines = [
        "| brokers | " + " | ".join(column.heading for column in columns) + " |", "| ---: |" + " ---: |" * len(columns)
    ]  # fmt: skip
    for size, found in rows:
        cells = (format(getattr(found, column.field) * column.scale, column.form) for column in columns)
        lines.append(f"| {size.brokers:,} | {' | '.join(cells)} |")
    return lines


_PLOTS: Final = (
    ("known.svg", "Until all brokers know", "simulated seconds", Column("", "known", "")),
    ("reads.svg", "Reads at ZooKeeper", "nodes", Column("", "reads", "")),
    ("controller.svg", "Processor time of the controller", "ms", Column("", "controller", "", 1e3)),
    ("other.svg", "Processor time of another broker", "ms", Column("", "other", "", 1e3)),
)


def charts(sizes: Sequence[Size]) -> dict[str, str]:
    """Return the plots by file name: how costs grow with the number of brokers. What costs nothing is left out."""
    made = {}
    for name, title, unit, column in _PLOTS:
        lines = [
            (happened, [(one.brokers, getattr(one.costs[happened], column.field) * column.scale)
                        for one in sizes if happened in one.costs])
            for happened in sizes[0].costs
        ]  # fmt: skip
        made[name] = plots.growth(title, unit, "brokers", [line for line in lines if all(cost for _, cost in line[1])])
    return made
