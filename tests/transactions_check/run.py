"""Run a load on a cluster while faults are injected, and check what came of it."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.transactions_check import confluent, java
from tests.transactions_check.checker import check
from tests.transactions_check.cycles import overtaking
from tests.transactions_check.history import History, Outcome
from tests.transactions_check.workload import (
    CLASSIC,
    CONSUMER,
    JAVA_CLASSIC,
    JAVA_CONSUMER,
    OWN,
    SOURCES,
    CopyGroup,
    Load,
    Work,
    copy,
    feed,
    mix,
    read,
    read_all,
    settle,
    start_all,
    watch,
)

_INTERNAL_PARTITIONS = 2
SETTINGS = {
    "offsets.topic.num.partitions": str(_INTERNAL_PARTITIONS),
    "transaction.state.log.num.partitions": str(_INTERNAL_PARTITIONS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.heartbeat.interval.ms": "2000",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "5000",
}
#: The topics of the coordinators, with the number of their partitions.
INTERNAL = dict.fromkeys(["__consumer_offsets", "__transaction_state"], _INTERNAL_PARTITIONS)
_WORK: list[tuple[str, int, Work]] = [
    ("feeder", 2, feed), ("mixer", 2, mix), ("copier", 2, copy), ("classic", 2, confluent.copy_classic),
    ("consumer", 2, confluent.copy_consumer), ("reader", 2, read), ("watcher", 1, watch),
]  # fmt: skip
_JAVA_WORK: list[tuple[str, int, Work]] = [
    ("java-classic", 2, java.copy_classic), ("java-consumer", 2, java.copy_consumer),
]  # fmt: skip
_GROUPS = (OWN, CLASSIC, CONSUMER)
_JAVA_GROUPS = (JAVA_CLASSIC, JAVA_CONSUMER)
_WRITERS = {"feeder", "mixer"}
_JOIN_SECONDS = 300.0


@dataclass
class Result:
    """The outcome of a run: `anomalies` is empty if all is well.

    committed_by: how many transactions each kind of worker committed. overtaking: see `cycles`. faults: how often each
    was injected. troubles: the errors of clients.
    """

    seed: int
    seconds: float
    transactions: dict[str, int]
    committed_by: dict[str, int]
    records: int
    overtaking: int
    faults: dict[str, int]
    troubles: dict[str, int]
    anomalies: list[str]


def groups(*, with_java: bool) -> tuple[CopyGroup, ...]:
    """Return the groups of copiers of a run."""
    return _GROUPS + _JAVA_GROUPS if with_java else _GROUPS


def topics(*, with_java: bool) -> dict[str, int]:
    """Return all topics of a run, with the number of their partitions."""
    return {**Load("", groups(with_java=with_java), 0).topics, **INTERNAL}


def run(
    bootstrap: str,
    seed: int,
    brokers: int,
    trouble: Callable[[], Counter[str]],
    settle_seconds: float,
    *,
    with_java: bool = False,
) -> Result:
    """Load a cluster while `trouble` runs, and return what was found.

    trouble: injects faults, heals them, and returns how many of each there were: all brokers are up and connected then.
    settle_seconds: after which a transaction that is still open hangs. with_java: whether Java's client takes part.
    """
    started = time.monotonic()
    load = Load(bootstrap, groups(with_java=with_java), seed)
    load.create_topics(min(3, brokers))
    workers = start_all(load, _WORK + _JAVA_WORK if with_java else _WORK)
    faults: Counter[str] = Counter()
    anomalies = []
    try:
        faults = trouble()
    finally:
        load.stopping.set()
    try:
        _join([worker for worker in workers if worker.name.rstrip("0123456789") in _WRITERS])
        settle(load, settle_seconds)
    except Exception as error:
        anomalies.append(f"never settles: {error}")
    load.draining.set()
    try:
        _join(workers)
    except TimeoutError as error:
        error.add_note(f"found until then: {anomalies or 'nothing'}, troubles: {load.troubles}")
        raise
    history = load.history
    history.final = read_all(load, settle_seconds)
    anomalies += check(history, set(SOURCES), load.targets)
    counts = Counter(outcome.value for outcome in history.outcomes.values())
    return Result(
        seed, round(time.monotonic() - started, 1), {outcome.value: counts[outcome.value] for outcome in Outcome},
        _committed_by(history), len(history.final), overtaking(history), dict(faults), load.troubles, anomalies,
    )  # fmt: skip


def _committed_by(history: History) -> dict[str, int]:
    """Return how many transactions each kind of worker committed: transactions are `<kind><number>-<number>`."""
    committed = [name for name, outcome in history.outcomes.items() if outcome is Outcome.COMMITTED]
    return dict(Counter(name.rpartition("-")[0].rstrip("0123456789") for name in committed))


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(_JOIN_SECONDS)
        if thread.is_alive():
            faulthandler.dump_traceback(all_threads=True)  # to stderr: where it hangs
            raise TimeoutError(f"{thread.name} does not end")
