"""A disk that hangs, with and without queues for writes (the talk's third part, and its plan for half-dead disks).

The clients are those of `bench.isolation`, which has more experiments on the queues; this one adds curves over time.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from bench.isolation import (
    DISK_BYTES,
    FROZEN_PRODUCERS,
    QUEUE_REQUESTS,
    Load,
    LoadProcess,
    Samples,
    join,
    lost,
    running,
)
from bench.isolation import topics_on as topics_by_disk
from bench.kuaishou.clients import percentile
from bench.kuaishou.experiment import Chart, Experiment, Measure, Points, Round, Scale, Target
from bench.kuaishou.lab import Disk, Laboratory
from pylogd.base.errors import ErrorCode
from pylogd.config import SETTINGS
from tests.rawclient import RawClient

SETTING: Final = "log.write.queues"
#: Requests sent in the last moments before the freeze wait for the thaw, and the queue needs a moment to fill.
_MARGIN: Final = 0.5
_CALM: Final = 2.0


class Freeze:
    """One round: producers on both disks and a group's member, before, while and after the second disk is frozen."""

    def __init__(self, disks: list[Disk], mode: str, folder: Path, seconds: float) -> None:
        """mode: of `log.write.queues`."""
        with running(disks, mode, folder) as broker, RawClient(broker.address) as setup:
            join(setup, "warm")  # makes the offsets topic, on the first disk, before the others
            good, bad = topics_by_disk(disks, broker.address)
            load = Load(broker.address)
            self.others = [load.produce(name) for name in good]
            frozen = LoadProcess(broker.address, [bad[number % len(bad)] for number in range(FROZEN_PRODUCERS)])
            self.beats = load.heartbeat("g")
            time.sleep(_CALM)
            self.begin = time.monotonic()
            time.sleep(seconds)
            with disks[1].frozen(seconds + 5):
                self.freeze = time.monotonic()
                time.sleep(seconds)
            self.thaw = time.monotonic()
            time.sleep(_CALM)
            frozen.stop()
            load.stop()
            self.lost = lost(broker.address, load, frozen)
        self._frozen = frozen.samples
        self.acknowledged = sum(len(keys) for one in (load, frozen) for keys in one.acknowledged.values())

    def refused(self) -> list[float]:
        """Return the latencies of refusals once the queue is full, ascending."""
        begin, codes = self.freeze + _MARGIN, (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR)
        return sorted(took for one in self._frozen for took in one.between(begin, self.thaw, *codes))

    def produced(self, start: float, end: float) -> list[float]:
        """Return the latencies on the other disk, ascending."""
        return sorted(took for one in self.others for took in one.between(start, end, 0))


def run(lab: Laboratory, arm: str, scale: Scale) -> Round:
    """Do one round of an arm."""
    disks = [lab.disk(name, DISK_BYTES) for name in ("sound", "sick")]
    seen = Freeze(disks, "always" if arm == "queues" else "off", lab.folder, scale.seconds)
    refused = seen.refused()
    beats = seen.beats.between(seen.freeze, seen.thaw, 0)
    before = seen.produced(seen.begin, seen.freeze - _MARGIN)
    # Where nothing was answered while the disk was frozen, everybody waited for the thaw.
    during = seen.produced(seen.freeze, seen.thaw) or [seen.thaw - seen.freeze]
    figures = {
        "p99 of produce on the other disk, before": percentile(before, 0.99) * 1000,
        "p99 of produce on the other disk, frozen": percentile(during, 0.99) * 1000,
        "slowest heartbeat while frozen": (beats[-1] if beats else seen.thaw - seen.freeze) * 1000,
        "heartbeats while frozen": float(len(beats)),
        "refusals of the frozen topics": float(len(refused)),
        "records that were acknowledged": float(seen.acknowledged),
        "records that were acknowledged and lost": float(seen.lost),
    }
    if refused:
        figures["p99 of the time to a refusal"] = percentile(refused, 0.99) * 1000
    curves = {
        "heartbeats": over_time([seen.beats], seen.freeze),
        "produce on the other disk": over_time(seen.others, seen.freeze),
    }
    return Round(figures, curves)


def over_time(samples: list[Samples], begun: float, stretch: float = 0.1) -> Points:
    """Return the highest latency of each stretch of time, in milliseconds. begun: the time of second 0."""
    highest: dict[int, float] = {}
    for one in samples:
        for sent, took, _ in one.all:
            number = int((sent - begun) // stretch)
            highest[number] = max(highest.get(number, 0.0), took * 1000)
    return [(number * stretch, value) for number, value in sorted(highest.items())]


def why_not(arm: str) -> str:
    """Return why an arm can't run here."""
    return f"this pylogd has no setting {SETTING}" if arm == "queues" and SETTING not in SETTINGS else ""


EXPERIMENT: Final = Experiment(
    name="isolation",
    title="A disk that hangs",
    talk=(
        "If one topic's writes are slow, because its disk is, they occupy all threads that handle requests, and then "
        "every request of the broker hangs. So requests of the controller get a queue of their own, data gets queues "
        "by topic, and a full queue fails at once. Disks that are half dead are named as a plan; no figures are given."
    ),
    method=(
        "One broker with two data directories on two disks, and topics on each, to which small records are written "
        f"with acks=1, one after the other by each producer: {FROZEN_PRODUCERS} on the disk that is then frozen "
        f"(FIFREEZE), whose queue has room for {QUEUE_REQUESTS} requests, in a process of their own. Writes to it hang "
        "until the thaw. A member of a group sends heartbeats all the time. After the thaw every topic is read and "
        "compared with what was acknowledged. Second 0 of the charts is the freeze. `python -m bench isolation` has "
        "more, such as a freeze that lasts longer than `log.dir.failure.timeout.ms`."
    ),
    arms={
        "stock": "writes on the broker's only thread",
        "queues": f"`{SETTING}=always`, `log.write.queue.max.requests={QUEUE_REQUESTS}`",
    },
    measures=(
        Measure("p99 of produce on the other disk, before", "ms", 1),
        Measure("p99 of produce on the other disk, frozen", "ms", 1),
        Measure("slowest heartbeat while frozen", "ms"),
        Measure("heartbeats while frozen", "answered"),
        Measure("refusals of the frozen topics", "answers"),
        Measure("p99 of the time to a refusal", "ms", 1),
        Measure("records that were acknowledged", "of all topics"),
        Measure("records that were acknowledged and lost", "of all topics"),
    ),
    targets=(
        Target(
            "p99 of produce on the other disk, frozen", "queues", at_most=1.2, beside="queues",
            beside_measure="p99 of produce on the other disk, before", talk="unaffected",
        ),
        Target("slowest heartbeat while frozen", "queues", at_most=100, talk="unaffected"),
        Target("p99 of the time to a refusal", "queues", at_most=50, talk="at once"),
        Target("records that were acknowledged and lost", "queues", at_most=0),
    ),
    charts=(Chart("heartbeats", "ms", logarithmic=True), Chart("produce on the other disk", "ms", logarithmic=True)),
    run=run,
    why_not=why_not,
    seconds=10.0,
)  # fmt: skip
