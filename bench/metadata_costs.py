"""What a change of the metadata costs a broker, beside 100, 1,000 and 10,000 topics. Prints a table.

    python -m bench.metadata_costs [--topics 100,1000,10000] [--brokers 3,30,100] [--partitions 3]

In one process, on an embedded store (tests/metadata_costs.py). Counted are nodes read at the store and bytecode
instructions, which do not depend on the machine or its load; times are medians of a few runs, to compare with.
The numbers of topics and of brokers belong together, the first to the first.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.metadata_costs import Fleet

_RUNS = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", default="100,1000,10000")
    parser.add_argument("--brokers", default="3,30,100")
    parser.add_argument("--partitions", type=int, default=3, help="of each topic, with three replicas each")
    arguments = parser.parse_args()
    sizes = zip(map(int, arguments.topics.split(",")), map(int, arguments.brokers.split(",")), strict=True)
    for topics, brokers in sizes:
        print(f"{topics:,} topics, {brokers} brokers")
        with tempfile.TemporaryDirectory() as folder:
            fleet = Fleet(Path(folder), topics, brokers, arguments.partitions)
            for name, row in _rows(fleet).items():
                print(f"    {name:58} {row}", flush=True)
            fleet.close()


def _rows(fleet: Fleet) -> dict[str, str]:
    rows: dict[str, str] = {}
    some = fleet.names[1 : 1 + _RUNS]
    rows["read an in-sync change"] = str(fleet.read_after(fleet.change_isr))
    rows["read three changes, two of them missed"] = str(
        fleet.read_after(*(lambda name=name: fleet.change_isr(name) for name in some[:3]))
    )
    rows["read a new topic"] = str(fleet.read_after(lambda: fleet.create_topic("new")))
    fleet.join(5000)
    rows["a broker comes"] = str(fleet.spend(lambda: fleet.join(5001)))
    rows["a broker goes"] = str(fleet.spend(lambda: fleet.leave(5001)))
    changes: dict[str, Callable[[int], object]] = {
        "nothing": lambda number: None,
        "an in-sync change": lambda number: fleet.change_isr(),
        "a new topic": lambda number: fleet.create_topic(f"newer-{number}"),
        "a broker that came": lambda number: fleet.join(6000 + number),
    }
    for what, change in changes.items():
        for name, asked in (("all topics", ()), ("one topic", fleet.names[:1])):
            fleet.ask(*asked)
            change(-1 if asked else -2)
            counted = fleet.spend(lambda: fleet.ask(*asked)).instructions  # noqa: B023
            times = []
            for number in range(_RUNS):
                change(2 * number + bool(asked))
                begun = time.perf_counter()
                fleet.ask(*asked)
                times.append(time.perf_counter() - begun)
            text = f"{counted:>10,} instructions {statistics.median(times) * 1e6:>10,.0f} us"
            rows[f"Metadata of {name} after {what}"] = text
    return rows


if __name__ == "__main__":
    main()
