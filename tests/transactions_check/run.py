"""Run a load on a cluster while brokers die, and check what came of it."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pylogd.client import Admin
from tests.clusters import BrokerCluster
from tests.transactions_check.checker import check
from tests.transactions_check.history import Outcome
from tests.transactions_check.workload import Load, read_all, settle

SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "5000",
}
_SOURCES, _TARGETS, _PARTITIONS = ("source-a", "source-b"), ("copy-a", "copy-b"), 2
_SETTLE_SECONDS = 120.0


@dataclass
class Result:
    """The outcome of a run: `anomalies` is empty if all is well."""

    seed: int
    seconds: float
    transactions: dict[str, int]
    records: int
    faults: list[str]
    troubles: dict[str, int]
    anomalies: list[str]


def run(cluster: BrokerCluster, seed: int, seconds: float, *, kills: bool = True) -> Result:
    """Load a cluster for so many seconds, and return what was found. `kills`: brokers are killed and started again."""
    started = time.monotonic()
    load = Load(cluster.bootstrap, _SOURCES, _TARGETS, _PARTITIONS, "copiers", seed)
    with Admin(cluster.bootstrap) as admin:
        for name in (*_SOURCES, *_TARGETS):
            admin.create_topic(name, _PARTITIONS, min(3, len(cluster.ports)))
    workers = load.workers(feeders=3, copiers=2, readers=2)
    for worker in workers:
        worker.start()
    faults: list[str] = []
    if kills:
        faults = _kill_some(cluster, random.Random(seed), seconds)
    else:
        time.sleep(seconds)
    load.stopping.set()
    anomalies = []
    try:
        _join([worker for worker in workers if worker.name.startswith("feeder")])
        settle(load, _SETTLE_SECONDS)
    except Exception as error:
        anomalies.append(f"never settles: {error}")
    load.draining.set()
    _join(workers)
    load.history.final = read_all(load)
    anomalies += check(load.history, set(_SOURCES), set(_TARGETS))
    counts = Counter(outcome.value for outcome in load.history.outcomes.values())
    return Result(
        seed, round(time.monotonic() - started, 1), {outcome.value: counts[outcome.value] for outcome in Outcome},
        len(load.history.final), faults, load.troubles, anomalies,
    )  # fmt: skip


def _kill_some(cluster: BrokerCluster, rng: random.Random, seconds: float) -> list[str]:
    """Kill, pause or stop one broker after the other for so many seconds."""
    done: list[str] = []
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, rng.uniform(1.0, 3.0)))
        node, what = rng.choice(list(cluster.ports)), rng.choice(["kill", "kill", "stop"])
        done.append(f"{what} {node}")
        if what == "kill":
            cluster.kill(node)
        else:
            cluster.stop(node)
        time.sleep(rng.uniform(0.0, 2.0))
        cluster.start(node)
        with contextlib.suppress(AssertionError):
            cluster.wait_for_brokers(list(cluster.ports))
    return done


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(_SETTLE_SECONDS)
        if thread.is_alive():
            raise TimeoutError(f"{thread.name} does not end")


def keep(result: Result, path: Path) -> None:
    """Write the anomalies to a file."""
    path.write_text("\n".join(result.anomalies))
