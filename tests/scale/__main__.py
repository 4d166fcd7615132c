"""Simulate large clusters, and write a page with plots: `python -m tests.scale [--brokers 10 67] [--results FILE]`.

Each size is a process of its own. A size has six topics a broker with 16 or 17 partitions each, as the fleet of the
Kuaishou talk has (2,000 brokers in 30 clusters, 12,000 topics, 200,000 partitions: about 67 brokers in a cluster).
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from tests.pages import write_page
from tests.scale import clients, scenarios
from tests.scale.cluster import LargeCluster
from tests.scale.page import Size, charts, page
from tests.scale.scenarios import Cost
from tests.scale.shared import shared
from tests.scale.store import Latencies

TOPICS_EACH, PARTITIONS_EACH = 6, 100  # for each broker
SLOWNESS: Final = 1.0
#: Up to so many brokers each reads all topics when it starts, and several restart one after the other.
_SMALL: Final = 200
_RESTARTED: Final = 5
_SIZES: Final = (10, 30, 67, 200, 500, 1000, 2000)


def measure(brokers: int, slowness: float = SLOWNESS) -> Size:
    """Run all scenarios on one cluster, one after the other; the rack last. slowness: see `ScaleTime`."""
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


def _measure_alone(brokers: int) -> Size:
    """Measure in a process of its own. Garbage is collected between scenarios: else a broker would seem to do it."""
    gc.disable()
    return measure(brokers)


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
    arguments = parser.parse_args()
    sizes: list[Size] = []
    for count in arguments.brokers:
        # A process of its own, whose memory is its own.
        with ProcessPoolExecutor(1) as pool:
            sizes.append(pool.submit(_measure_alone, count).result())
        print(f"{count} brokers: {sizes[-1].processor_seconds:.0f} s, {sizes[-1].megabytes:.0f} MB", flush=True)
        if arguments.results is not None:
            write_page(arguments.results, page(sizes))
            for name, chart in charts(sizes).items():
                (arguments.results.parent / name).write_text(chart)
    print("\n".join(page(sizes)))


if __name__ == "__main__":
    main()
