"""Simulate large clusters, and write a page with plots: `python -m tests.scale [--brokers 10 67] [--results FILE]`.

`--only "a rack dies" --brokers 2000 --servers 3` runs one scenario and prints what it cost.

Each size is a process of its own. A size has six topics a broker with 16 or 17 partitions each, as the fleet of the
Kuaishou talk has (2,000 brokers in 30 clusters, 12,000 topics, 200,000 partitions: about 67 brokers in a cluster).
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from tests.pages import write_page
from tests.scale import clients, scenarios
from tests.scale.cluster import LargeCluster
from tests.scale.page import RETURNED, Size, charts, page
from tests.scale.scenarios import Cost
from tests.scale.shared import shared
from tests.scale.store import Latencies

T = TypeVar("T")

TOPICS_EACH, PARTITIONS_EACH = 6, 100  # for each broker
SLOWNESS: Final = 1.0
#: Up to so many brokers each reads all topics when it starts, and several restart one after the other.
_SMALL: Final = 200
_RESTARTED: Final = 5
_SIZES: Final = (10, 30, 67, 200, 500, 1000, 2000)


#: Scenarios of `--only`, which each run in a cluster to which nothing else has happened.
_ALONE: Final[dict[str, Callable[[LargeCluster], Cost]]] = {
    "a broker dies": scenarios.a_broker_dies,
    "the controller dies": scenarios.the_controller_dies,
    "ZooKeeper elects for 2 s": scenarios.zookeeper_elects,
    "a rack dies": scenarios.a_rack_dies,
    "a rack returns": scenarios.a_rack_returns,
}


def measure_one(name: str, brokers: int, servers: int = 1, slowness: float = SLOWNESS) -> Cost:
    """Run one scenario. servers: of ZooKeeper, over which brokers are spread."""
    cluster = LargeCluster(brokers, TOPICS_EACH * brokers, PARTITIONS_EACH * brokers, Latencies(), slowness, servers)
    with shared(cluster.time):
        scenarios.started(cluster, brokers > _SMALL)
        gc.collect()
        return _timed(name, partial(_ALONE[name], cluster))


def measure(brokers: int, slowness: float = SLOWNESS) -> Size:
    """Run all scenarios on one cluster, one after the other; those of a rack last. slowness: see `ScaleTime`."""
    began, used = time.monotonic(), time.process_time()
    partitions = PARTITIONS_EACH * brokers
    cluster = LargeCluster(brokers, TOPICS_EACH * brokers, partitions, Latencies(), slowness)
    seeded = brokers > _SMALL
    restarted = 1 if seeded else _RESTARTED
    with shared(cluster.time):
        scenarios.started(cluster, seeded)
        start = None if seeded else cluster.time.now
        watches = cluster.server.watches
        run: dict[str, Callable[[LargeCluster], Cost]] = {
            "a broker dies": scenarios.a_broker_dies,
            "the controller dies": scenarios.the_controller_dies,
            "ZooKeeper elects for 2 s": scenarios.zookeeper_elects,
            "a broker restarts": partial(scenarios.a_rolling_restart, brokers=restarted),
            "a rack dies": scenarios.a_rack_dies,
        }
        if brokers <= RETURNED:
            run["a rack returns"] = scenarios.a_rack_returns
        costs: dict[str, Cost] = {}
        for name, scenario in run.items():
            if name == "a rack dies":
                answers = clients.answers(cluster, partial(scenarios.a_broker_dies, cluster))
            costs[name] = _timed(name, partial(scenario, cluster))
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return Size(
        brokers,
        partitions,
        start,
        watches,
        costs,
        answers,
        time.monotonic() - began,
        time.process_time() - used,
        highest,
    )


def _alone(work: Callable[..., T], *arguments: object) -> T:
    """Return the result of a function that is called in a process of its own, whose memory is its own.

    Garbage is collected between scenarios only: else a broker would seem to do it.
    """
    with ProcessPoolExecutor(1, initializer=gc.disable) as pool:
        return pool.submit(work, *arguments).result()


def _timed(name: str, scenario: Callable[[], Cost]) -> Cost:
    began = time.monotonic()
    cost = scenario()
    gc.collect()
    print(f"  {name}: led again after {cost.led:.2f} s ({time.monotonic() - began:.0f} s of real time)", flush=True)
    return cost


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.add_argument("--brokers", type=int, nargs="+", default=_SIZES)
    parser.add_argument("--results", type=Path, help="write this page, and plots beside it")
    parser.add_argument("--processes", type=int, default=1, help="sizes that are simulated at the same time")
    parser.add_argument("--only", choices=_ALONE, help="run this scenario alone and print its costs; no page")
    parser.add_argument("--servers", type=int, default=1, help="of ZooKeeper, for --only")
    arguments = parser.parse_args()
    if arguments.only is not None:
        for count in arguments.brokers:
            print(f"{count} brokers: {_alone(measure_one, arguments.only, count, arguments.servers)}", flush=True)
        return
    sizes: list[Size] = []
    with ThreadPoolExecutor(arguments.processes) as pool:
        for size in pool.map(partial(_alone, measure), arguments.brokers):
            sizes = sorted([*sizes, size], key=lambda one: one.brokers)
            print(f"{size.brokers} brokers: {size.processor_seconds:.0f} s, {size.megabytes:.0f} MB", flush=True)
            if arguments.results is not None:
                write_page(arguments.results, page(sizes))
                for name, chart in charts(sizes).items():
                    (arguments.results.parent / name).write_text(chart)
    print("\n".join(page(sizes)))


if __name__ == "__main__":
    main()
