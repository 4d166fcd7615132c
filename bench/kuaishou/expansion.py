"""Adding a broker under peak load, with the stock reassignment and with the smooth one (the talk's first part)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from bench.kuaishou import brokers, clients
from bench.kuaishou.brokers import TOPIC
from bench.kuaishou.clients import Clients, curve, percentile
from bench.kuaishou.experiment import Chart, Experiment, Measure, Points, Round, Scale, Target
from bench.kuaishou.lab import ControlGroup, Disk, Laboratory, slow_down
from bench.kuaishou.meter import Meter
from pylogd.base.placement.moves import spread
from pylogd.client import Admin

MEMORY: Final = 192 << 20  # of each broker's group
DISK: Final = 3 << 30
HISTORY: Final = 1_600_000_000  # bytes of records before the expansion
QUICK_HISTORY: Final = 500_000_000
READ_LIMIT: Final = 40_000_000  # bytes a second of each broker's disk
FILL_RATE: Final = 60_000_000
LIVE_RATE: Final = 8_000_000
OLD: Final = (1, 2, 3)
NEW: Final = 4
PARTITIONS: Final = 8
ASSIGNMENT: Final = [(OLD[index % 3], OLD[(index + 1) % 3]) for index in range(PARTITIONS)]
LATEST_WAIT: Final = 120.0
#: The arms take 3 and 11 s: only over the same time are their percentiles comparable.
WINDOW: Final = 20.0
WINDOW_NAME: Final = f"p99.9 of produce in the {WINDOW:.0f} s from its begin"
_MOVE_SECONDS: Final = 300.0
_MB: Final = 1_000_000


class Cluster:
    """Brokers 1 to 3 with a filled topic, and broker 4 without partitions."""

    def __init__(self, lab: Laboratory, scale: Scale) -> None:
        self._scale = scale
        connect = brokers.start_zookeeper(lab)
        self.disks: dict[int, Disk] = {}
        self.groups: dict[int, ControlGroup] = {}
        self.addresses: dict[int, str] = {}
        for node in (*OLD, NEW):
            disk, group = lab.disk(f"data{node}", DISK), lab.group(f"broker{node}")
            group.limit_memory(MEMORY)
            group.count(disk.number)
            disk.limit_dirty(MEMORY // 8)
            self.disks[node], self.groups[node] = disk, group
            self.addresses[node] = brokers.start_broker(lab, node, connect, disk.mount / "data", group, {})
        brokers.make_topic(self.addresses[1], ASSIGNMENT)

    @property
    def address(self) -> str:
        """The address of a broker that stays."""
        return self.addresses[1]

    def fill(self) -> None:
        """Write the history, and drop it from the page cache, as if it were old; then make the disks slow."""
        size = QUICK_HISTORY if self._scale.quick else HISTORY
        partitions = ",".join(map(str, range(PARTITIONS)))
        # acks of "-1" are those of all, but the client is not idempotent then: an idempotent producer that has stopped
        # would be waited for, for two minutes.
        clients.run("produce", self.address, partitions=partitions, rate=FILL_RATE, total_bytes=size, acks="-1")
        for node in OLD:
            self.groups[node].drop_page_cache()
        for node, disk in self.disks.items():
            slow_down(disk, self.groups[node], READ_LIMIT)

    def move(self, latest_wait: float | None) -> tuple[float, float]:
        """Move a fair share of the replicas to the new broker. Return when that began and ended."""
        with Admin(self.address) as admin:
            layout = admin.layout([TOPIC])
            current = layout.current
            targets = {place: nodes for place, nodes in spread(layout).items() if nodes != current[place]}
            begun = time.monotonic()
            errors = [error for error in admin.reassign(targets, latest_wait=latest_wait).values() if error is not None]
            if errors:
                raise errors[0]
            deadline = begun + _MOVE_SECONDS
            while admin.reassignments(list(targets)):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the reassignment did not end within {_MOVE_SECONDS:.0f} s")
                time.sleep(0.1)
            return begun, time.monotonic()


def run(lab: Laboratory, arm: str, scale: Scale) -> Round:
    """Do one round of an arm."""
    cluster = Cluster(lab, scale)
    cluster.fill()
    running, calm = Clients(), scale.seconds / 2
    partitions = ",".join(map(str, range(PARTITIONS)))
    try:
        live = {"partitions": partitions, "rate": LIVE_RATE, "acks": "all", "samples": 1}
        producer = running.start("produce", cluster.address, **live)
        reader = running.start("tail", cluster.address, partitions=partitions, group="readers")
        with ExitStack() as stack:
            meters = [stack.enter_context(Meter(cluster.groups[node], cluster.disks[node])) for node in OLD]
            time.sleep(calm)
            before = [meter.taken() for meter in meters]
            begun, ended = cluster.move(LATEST_WAIT if arm == "smooth" else None)
            read = sum(meter.taken() - was for meter, was in zip(meters, before, strict=True))
            busy = max(meter.mean_utilisation(begun, ended) for meter in meters)
            time.sleep(max(calm, begun + WINDOW - ended))
        produced = running.result(producer, stop=True)
        running.result(reader, stop=True)
    finally:
        running.stop()
    return _result(produced, meters, (begun, ended), read, busy)


def _result(
    produced: dict[str, Any], meters: Sequence[Meter], move: tuple[float, float], read: int, busy: float
) -> Round:
    start, (begun, ended) = produced["begun"], move
    calm = sorted(latency for due, latency in produced["samples"] if start + 1 < due < begun)
    during = sorted(latency for due, latency in produced["samples"] if begun <= due < ended)
    window = sorted(latency for due, latency in produced["samples"] if begun <= due < begun + WINDOW)
    figures = {
        "disk reads of the leaders": read / _MB,
        "utilisation of the busiest disk": busy,
        "p99.9 of produce before": percentile(calm, 0.999) * 1000,
        "p99.9 of produce during it": percentile(during, 0.999) * 1000,
        WINDOW_NAME: percentile(window, 0.999) * 1000,
        "highest of produce during it": percentile(during, 1.0) * 1000,
        "time": ended - begun,
        "failed records": produced["failed"],
    }
    curves = {
        "p99.9 of produce": curve(produced["stretches"], begun, 4, 1000.0),
        "disk reads of the leaders": summed([meter.read_rate(begun) for meter in meters]),
        "utilisation of the busiest disk": busiest([meter.utilisation(begun) for meter in meters]),
    }
    return Round(figures, curves)


def summed(curves: Sequence[Points]) -> Points:
    """Return the sum of curves that were taken at about the same times."""
    return [(each[0][0], sum(value for _, value in each)) for each in zip(*curves, strict=False)]


def busiest(curves: Sequence[Points]) -> Points:
    """Return the highest of curves that were taken at about the same times."""
    return [(each[0][0], max(value for _, value in each)) for each in zip(*curves, strict=False)]


EXPERIMENT: Final = Experiment(
    name="expansion",
    title="Expansion at the evening peak",
    talk=(
        "A new broker's replicas copy their partitions from the earliest offset. Meanwhile the leaders read much from "
        "their disks, whose utilisation stays at 100 %, and p99.9 of produce rises steeply and becomes unsteady. When "
        "they begin with the latest offset instead, and join once all consumers have caught up, disk reads, their "
        "utilisation and p99.9 of produce hardly change, also at the evening peak."
    ),
    method=(
        f"Three brokers with {MEMORY >> 20} MB each and a topic of {PARTITIONS} partitions with two replicas and "
        f"{HISTORY / _MB:,.0f} MB of old records, which are not in the page cache. Each disk gives "
        f"{READ_LIMIT / _MB:.0f} MB/s to readers. While {LIVE_RATE / _MB:.0f} MB/s come in with acks=all, and a group "
        "reads and commits, a quarter of the replicas is moved to a fourth broker, by the plan of `pylogd reassign "
        "plan`. Second 0 of the charts is the begin of the move. *Smooth* is `--from-latest`. The plan moves "
        "replicas that do not lead where it can, so no leader changes here. When one does, librdkafka sends what was "
        "refused again after `retry.backoff.ms`, 100 ms, although the answer names the new leader (KIP-951). Smooth "
        "expansion once had a stall of 1.5 s here: a follower was a few batches ahead of a new leader, truncated them, "
        "and read 200 MB from its disk to restore what it knew of idempotent producers. Now it reads 1 MB."
    ),
    arms={
        "stock": "`pylogd reassign execute`",
        "smooth": f"`pylogd reassign execute --from-latest {LATEST_WAIT:.0f}s`",
    },
    measures=(
        Measure("time", "s", 1),
        Measure("disk reads of the leaders", "MB", 1),
        Measure("utilisation of the busiest disk", "%"),
        Measure("p99.9 of produce before", "ms"),
        Measure("p99.9 of produce during it", "ms"),
        Measure(WINDOW_NAME, "ms"),
        Measure("highest of produce during it", "ms"),
        Measure("failed records", "in all"),
    ),
    targets=(
        Target("disk reads of the leaders", "smooth", at_most=0.05, beside="stock", talk="almost none"),
        Target(WINDOW_NAME, "smooth", at_most=1.0, beside="stock", talk="steep rise without"),
        Target(
            "p99.9 of produce during it",
            "smooth",
            at_most=1.5,
            beside="smooth",
            beside_measure="p99.9 of produce before",
            talk="hardly changed",
        ),
    ),
    charts=(
        Chart("p99.9 of produce", "ms", logarithmic=True),
        Chart("disk reads of the leaders", "MB/s"),
        Chart("utilisation of the busiest disk", "%"),
    ),
    run=run,
    seconds=20.0,
)
