"""Consumers that lag and a busy disk, with and without the throttle (the talk's fifth part).

Twice: at a disk whose reads the kernel limits, by tenths of a second, and at one that serves evenly.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from bench.kuaishou import brokers, clients
from bench.kuaishou.clients import Clients, curve, percentile
from bench.kuaishou.experiment import Chart, Experiment, Measure, Points, Round, Scale, Target
from bench.kuaishou.lab import QUEUE, ControlGroup, Disk, Laboratory, slow_down
from bench.kuaishou.meter import Meter
from bench.kuaishou.waits import Waits
from pylogd.cli.throttled import throttled_clients
from pylogd.client import Admin
from pylogd.config import SETTINGS

SETTING: Final = "lagging.consumer.throttle.enable"
LAG_BYTES: Final = 32 << 20
MEMORY: Final = 256 << 20
DISK: Final = 4 << 30
HISTORY: Final = 1_200_000_000
QUICK_HISTORY: Final = 600_000_000
READ_LIMIT: Final = 30_000_000
EVEN_RATE: Final = 50_000_000  # of the disk that serves evenly, reads and writes together
FILL_RATE: Final = 80_000_000
LIVE_RATE: Final = 8_000_000
#: The producer writes to all partitions; each reader from the earliest offset reads one of the others.
LIVE: Final = "0"
OLD: Final = ("1", "2", "3")
ALL: Final = ",".join((LIVE, *OLD))
#: How long the throttle may take to find the rate.
SETTLE_SECONDS: Final = 30.0
THROTTLED: Final = {SETTING: "true", "lagging.consumer.lag.bytes": str(LAG_BYTES)}
CACHE_BYTES: Final = 96 << 20
SETTINGS_OF: Final[Mapping[str, Mapping[str, str]]] = {
    "stock": {},
    "throttled": THROTTLED,
    "with queues": {**THROTTLED, "log.write.queues": "always"},
    "with a cache": {**THROTTLED, "log.block.cache.bytes": str(CACHE_BYTES)},
}
_LIMIT_SECONDS: Final = 180.0
_MB: Final = 1_000_000


def run(lab: Laboratory, arm: str, scale: Scale) -> Round:
    """Do one round of an arm at a disk whose reads the kernel limits."""
    disk, group = lab.disk("data", DISK), lab.group("broker")
    return _round(lab, arm, scale, disk, group, partial(slow_down, disk, group, READ_LIMIT))


def run_evenly(lab: Laboratory, arm: str, scale: Scale) -> Round:
    """Do one round of an arm at a disk that serves evenly."""
    disk, group = lab.even_disk("data", DISK), lab.group("broker")

    def slow() -> None:
        disk.limit_queue(*QUEUE)
        disk.limit_rate(EVEN_RATE)

    return _round(lab, arm, scale, disk, group, slow)


def _round(
    lab: Laboratory, arm: str, scale: Scale, disk: Disk, group: ControlGroup, slow: Callable[[], object]
) -> Round:
    """slow: makes the disk slow, once the history is written."""
    group.limit_memory(MEMORY)
    group.count(disk.number)
    disk.limit_dirty(MEMORY // 8)
    settings = dict(SETTINGS_OF[arm])
    settings["default.replication.factor"] = "1"
    address = brokers.start_broker(lab, 1, brokers.start_zookeeper(lab), disk.mount / "data", group, settings)
    brokers.make_topic(address, [(1,)] * (1 + len(OLD)))
    size = QUICK_HISTORY if scale.quick else HISTORY
    clients.run("produce", address, partitions=",".join(OLD), rate=FILL_RATE, total_bytes=size)
    group.drop_page_cache()
    slow()
    running = Clients()
    try:
        producer = running.start("produce", address, partitions=ALL, rate=LIVE_RATE, samples=1)
        tail = running.start("tail", address, partitions=ALL)
        time.sleep(scale.seconds)
        with Meter(group, disk) as meter, Waits(group) as waits:
            laggards = [running.start("catch-up", address, partitions=one, seconds=_LIMIT_SECONDS) for one in OLD]
            read = [running.result(one) for one in laggards]
        with Admin(address) as admin:
            delayed, _ = throttled_clients(admin, _LIMIT_SECONDS)
        produced, seen = running.result(producer, stop=True), running.result(tail, stop=True)
    finally:
        running.stop()
    return _result(produced, seen, read, meter, waits, delayed)


def _result(
    produced: dict[str, Any], seen: dict[str, Any], read: list[dict[str, Any]], meter: Meter, waits: Waits,
    delayed: list[dict[str, Any]],
) -> Round:  # fmt: skip
    begun = min(one["begun"] for one in read)
    ended = max(one["begun"] + one["seconds"] for one in read)
    settled = begun + min(SETTLE_SECONDS, (ended - begun) / 2)
    idle = sorted(latency for due, latency in produced["samples"] if produced["begun"] + 1 < due < begun - 1)
    busy = sorted(latency for due, latency in produced["samples"] if settled <= due < ended)
    figures = {
        "utilisation of the disk": meter.mean_utilisation(settled, ended),
        "p99.9 of produce, idle": percentile(idle, 0.999) * 1000,
        "p99 of produce beside laggards": percentile(busy, 0.99) * 1000,
        "p99.9 of produce beside laggards": percentile(busy, 0.999) * 1000,
        "highest of produce beside laggards": percentile(busy, 1.0) * 1000,
        "main thread waited for the disk": sum(one[1] for one in waits.between(begun, ended)),
        "its longest wait": max((one[1] * 1000 for one in waits.between(settled, ended)), default=0.0),
        "highest median from producer to tail reader": max(
            (row[3] * 1000 for rows in seen["latencies"] for row in rows if row[0] >= settled), default=0.0
        ),
        "time until the laggards finished": ended - begun,
        "tail reader delayed": sum(one["total_seconds"] for one in delayed if one["client"] == "tail"),
        "laggards delayed": sum(one["total_seconds"] for one in delayed if one["client"] == "catch-up"),
        "laggards that finished": float(sum(one["finished"] for one in read)),
        "laggards together": sum(one["bytes"] for one in read) / (ended - begun) / _MB,
        "failed records": produced["failed"],
    }
    curves = {
        "utilisation": meter.utilisation(begun),
        "p99.9 of produce": curve(produced["stretches"], begun, 4, 1000.0),
        "read by all laggards": progress(read, begun),
    }
    return Round(figures, curves, [_causes(waits.between(begun, ended))])


def _causes(waits: list[tuple[float, float, str]]) -> str:
    """Return in words what the main thread waited for."""
    by_cause: dict[str, list[float]] = defaultdict(list)
    for _, taken, why in waits:
        by_cause[why].append(taken)
    parts = [
        f"{why} {sum(times):.2f} s (at most {max(times) * 1000:.0f} ms at a time)" for why, times in by_cause.items()
    ]
    return f"the main thread waited for {', '.join(parts) or 'nothing'}"


def progress(read: list[dict[str, Any]], begun: float) -> Points:
    """Return the MB that all laggards have read, over time."""
    rows = sorted((row[0], row[2]) for one in read for rows in one["rates"] for row in rows)
    total, points = 0.0, []
    for at, size in rows:
        total += size / _MB
        points.append((at - begun, total))
    return points


def why_not(arm: str) -> str:
    """Return why an arm can't run here."""
    missing = [name for name in SETTINGS_OF[arm] if name not in SETTINGS]
    return f"this pylogd has no setting {missing[0]}" if missing else ""


EXPERIMENT: Final = Experiment(
    name="laggards",
    title="Throttled laggards",
    talk=(
        "Consumers that lag read from the disk: its utilisation is 100 % and produce takes seconds. When their fetches "
        "are delayed while the disk is busy, utilisation settles a little above 60 %, and produce is quick and steady "
        "again. Consumers that keep up are never delayed."
    ),
    method=(
        f"One broker with {MEMORY >> 20} MB, and {HISTORY / _MB:,.0f} MB of old records, not in the page cache. "
        f"{LIVE_RATE / _MB:.0f} MB/s come in (acks=1), and a tail reader reads them. After a while three readers begin "
        f"at the earliest offsets of three partitions (second 0 of the charts); the disk gives {READ_LIMIT / _MB:.0f} "
        "MB/s to readers: it serves a tenth of a second's bytes as quickly as it can, and then nobody for up to 90 ms, "
        "writers and the file system's journal neither, once these are read. "
        "[EARLIER.md](EARLIER.md) says how long a program waits there that only writes. "
        f"Figures beside laggards are from second {SETTLE_SECONDS:.0f} on, or from the middle if they "
        "end earlier, until the last one has finished."
    ),
    arms={
        "stock": "no throttle",
        "throttled": f"`{SETTING}=true`, `lagging.consumer.lag.bytes={LAG_BYTES}`",
        "with queues": "throttled, and `log.write.queues=always`",
        "with a cache": f"throttled, and `log.block.cache.bytes={CACHE_BYTES}`",
    },
    measures=(
        Measure("utilisation of the disk", "%"),
        Measure("p99.9 of produce, idle", "ms"),
        Measure("p99 of produce beside laggards", "ms"),
        Measure("p99.9 of produce beside laggards", "ms"),
        Measure("highest of produce beside laggards", "ms"),
        Measure("main thread waited for the disk", "s", 2),
        Measure("its longest wait", "ms"),
        Measure("highest median from producer to tail reader", "ms"),
        Measure("tail reader delayed", "s", 1),
        Measure("laggards delayed", "s", 1),
        Measure("laggards together", "MB/s", 1),
        Measure("time until the laggards finished", "s"),
        Measure("laggards that finished", "of 3"),
        Measure("failed records", "in all"),
    ),
    targets=(
        Target("utilisation of the disk", "stock", at_least=95, talk="100 %"),
        Target("utilisation of the disk", "throttled", at_least=55, at_most=75, talk="a little above 60 %"),
        Target(
            "p99.9 of produce beside laggards", "throttled", at_most=2, beside="throttled",
            beside_measure="p99.9 of produce, idle", talk="low and steady, after seconds",
        ),
        Target(
            "p99.9 of produce beside laggards", "with a cache", at_most=2, beside="with a cache",
            beside_measure="p99.9 of produce, idle",
        ),
        Target("tail reader delayed", "throttled", at_most=0, talk="never"),
        Target("laggards that finished", "throttled", at_least=3),
    ),
    charts=(
        Chart("utilisation", "%"),
        Chart("p99.9 of produce", "ms", logarithmic=True),
        Chart("read by all laggards", "MB"),
    ),
    run=run,
    why_not=why_not,
    seconds=15.0,
)  # fmt: skip

EVEN_EXPERIMENT: Final = replace(
    EXPERIMENT,
    name="laggards-even",
    title="Throttled laggards at a disk that serves evenly",
    talk="The same as before.",
    method=(
        f"The same as before, with another disk: it takes the same requests, {QUEUE[0]} of {QUEUE[1] >> 10} KB at most "
        "in progress, and serves one after the other, reads and writes alike, each in the time that "
        f"{EVEN_RATE / _MB:.0f} MB/s take. The kernel's limit, in the experiment before, serves a tenth of a second's "
        "bytes at once and then nobody, so that a write, or a commit of the file system's journal, may wait for up to "
        "90 ms at whatever utilisation. The disk is a FUSE file system below the loop device "
        "(`bench/kuaishou/even_disk.py`). Without laggards the kernel writes what is dirty every 5 s, which at this "
        "disk takes most of a second in which appends wait for the lock of their page; beside laggards the broker "
        "hands it over ten times a second. So produce is slower idle than beside throttled laggards: compare with 10 "
        "to 13 ms, idle at the disk before."
    ),
    run=run_evenly,
)
