"""Simulate large clusters, and write a page with plots: `python -m tests.scale [--brokers 10 67] [--results FILE]`.

Each size is a process of its own. A size has six topics a broker with 16 or 17 partitions each, as the fleet of the
Kuaishou talk has (2,000 brokers in 30 clusters, 12,000 topics, 200,000 partitions: about 67 brokers in a cluster).
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench import plots
from tests.pages import circumstances, write_page
from tests.scale import scenarios
from tests.scale.cluster import LargeCluster
from tests.scale.scenarios import Cost
from tests.scale.store import Latencies

_TOPICS_EACH, _PARTITIONS_EACH = 6, 100  # for each broker
_RESTARTED: Final = 5
_SCENARIOS: Final[dict[str, Callable[[LargeCluster], Cost]]] = {
    "a broker dies": scenarios.a_broker_dies,
    "the controller dies": scenarios.the_controller_dies,
    "ZooKeeper elects for 2 s": scenarios.zookeeper_elects,
    f"{_RESTARTED} brokers restart, one after the other": partial(scenarios.a_rolling_restart, brokers=_RESTARTED),
    "a rack dies": scenarios.a_rack_dies,
}
_COLUMNS: Final = {
    "led": ("led again, s", ",.2f"),
    "known": ("known to all, s", ",.2f"),
    "reads": ("reads", ",.0f"),
    "writes": ("writes", ",.0f"),
    "events": ("events of watches", ",.0f"),
    "processor": ("busiest broker, s of a core", ",.3f"),
}


@dataclass(frozen=True, slots=True)
class Size:
    """What a cluster of one size cost. start: simulated seconds until all brokers were ready, all started at once."""

    brokers: int
    partitions: int
    start: float
    costs: dict[str, Cost]
    real_seconds: float
    megabytes: float


def measure(brokers: int) -> Size:
    """Run all scenarios on one cluster, one after the other; the rack last."""
    begun = time.monotonic()
    partitions = _PARTITIONS_EACH * brokers
    cluster = scenarios.started(LargeCluster(brokers, _TOPICS_EACH * brokers, partitions, Latencies()))
    start = cluster.time.now
    costs = {name: scenario(cluster) for name, scenario in _SCENARIOS.items()}
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return Size(brokers, partitions, start, costs, time.monotonic() - begun, highest)


def page(sizes: Sequence[Size]) -> list[str]:
    """Return RESULTS.md."""
    costs = Latencies()
    lines = [
        "# Large clusters, simulated", "",
        "By `python -m tests.scale`: the real registries and controllers of all brokers of a cluster in one process, "
        "on simulated time, with a simulated ZooKeeper. Copying of records is not simulated. The session timeout is "
        "the default, 4 s, which is most of the time until a dead broker's partitions are led again. "
        f"{circumstances()}", "",
        f"The simulated ZooKeeper: {costs.way * 1000:g} ms each way, {costs.read * 1e6:g} us of one thread for a read, "
        f"{costs.operation * 1e6:g} us for each operation of a write, and {costs.commit * 1000:g} ms until a write is "
        "on disk.", "",
        "| brokers | partitions | all started at once, s | the simulation took, s | its memory, MB |",
        "| ---: | ---: | ---: | ---: | ---: |",
        *(f"| {one.brokers:,} | {one.partitions:,} | {one.start:,.1f} | {one.real_seconds:,.0f} | "
          f"{one.megabytes:,.0f} |" for one in sizes),
    ]  # fmt: skip
    for name in _SCENARIOS:
        lines += ["", f"## {name[0].upper()}{name[1:]}", "", "| brokers | " + " | ".join(
            heading for heading, _ in _COLUMNS.values()) + " |", "| ---: |" + " ---: |" * len(_COLUMNS)]  # fmt: skip
        for one in sizes:
            cells = (format(getattr(one.costs[name], field), form) for field, (_, form) in _COLUMNS.items())
            lines.append(f"| {one.brokers:,} | {' | '.join(cells)} |")
    return [*lines, "", "![Reads at ZooKeeper](reads.svg)", "", "![Until all brokers know](known.svg)"]


def chart(sizes: Sequence[Size], field: str, title: str, unit: str) -> str:
    """Return bars of a cost, a block for each scenario."""
    form = _COLUMNS[field][1]
    blocks = [
        (name, [
            plots.Bar(f"{one.brokers:,} brokers", value, format(value, form))
            for one in sizes for value in [float(getattr(one.costs[name], field))]
        ])
        for name in _SCENARIOS
    ]  # fmt: skip
    return plots.bars(title, unit, blocks, "no broker is marked")


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.add_argument("--brokers", type=int, nargs="+", default=[10, 30, 67, 200])
    parser.add_argument("--results", type=Path, help="write this page, and plots beside it")
    arguments = parser.parse_args()
    sizes = []
    for count in arguments.brokers:
        with ProcessPoolExecutor(1) as pool:  # a process of its own, whose memory is its own
            sizes.append(pool.submit(measure, count).result())
        print(f"{count} brokers: {sizes[-1].real_seconds:.0f} s, {sizes[-1].megabytes:.0f} MB", flush=True)
    lines = page(sizes)
    print("\n".join(lines))
    if arguments.results is not None:
        write_page(arguments.results, lines)
        folder = arguments.results.parent
        (folder / "reads.svg").write_text(chart(sizes, "reads", "Reads at ZooKeeper", "less is better"))
        (folder / "known.svg").write_text(chart(sizes, "known", "Until all brokers know", "simulated seconds"))


if __name__ == "__main__":
    main()
