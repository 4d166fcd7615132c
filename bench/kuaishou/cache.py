"""The block cache beside the page cache, in the same memory (the talk's third part)."""

from __future__ import annotations

from typing import Final

from bench.kuaishou import brokers, clients
from bench.kuaishou.clients import Clients, curve
from bench.kuaishou.experiment import Chart, Experiment, Measure, Points, Round, Scale, Target
from bench.kuaishou.lab import ControlGroup, Disk, Laboratory, slow_down
from bench.kuaishou.meter import Meter
from conformance import java_tools
from conformance.checks import Missing
from pylogd.config import SETTINGS

SETTING: Final = "log.block.cache.bytes"
MEMORY: Final = 512 << 20
#: What the cache leaves of the group's memory: the interpreter (60 MB) and pages on their way to the disk.
SPARE: Final = 128 << 20
DISK: Final = 6 << 30
READ_LIMIT: Final = 60_000_000  # bytes a second, a slow disk's
FILL_RATE: Final = 80_000_000
LIVE_RATE: Final = 4_000_000  # of each broker's partitions
OWN: Final = "0,1,2,3"
OTHERS: Final = "4,5,6,7"
ALL: Final = f"{OWN},{OTHERS}"
ASSIGNMENT: Final = [(1, 2)] * 4 + [(2, 1)] * 4
_OWN_PARTITIONS: Final = 4
#: Reads below this share of the lag are the kernel's of indexes and of blocks that hold both ends; not of records.
_NONE: Final = 0.01
_STEPS: Final = 4
_MB: Final = 1_000_000


class Trial:
    """One round of an arm: the brokers run, and the topic is empty."""

    def __init__(self, address: str, group: ControlGroup, disk: Disk, scale: Scale) -> None:
        self._address = address
        self._group = group
        self._disk = disk
        self._scale = scale
        self.figures: dict[str, float] = {}
        self.curves: dict[str, Points] = {}

    def run(self) -> None:
        """Take all measurements."""
        self._fill(2.0)
        self._largest_lag()
        self._pollution()
        self._catch_up()
        self._live()

    def _fill(self, share: float) -> None:
        """Write this share of the group's memory: half of it is the first broker's, half comes to it as a follower."""
        size = int(MEMORY * share)
        clients.run("produce", self._address, partitions=ALL, rate=FILL_RATE, total_bytes=size, acks="all")

    def _read(self, lag: int, **options: object) -> int:
        """Read the first broker's partitions from `lag` bytes before their end; return what that read from the disk."""
        with Meter(self._group, self._disk) as meter:
            lags = {"lag_bytes": lag // _OWN_PARTITIONS} if lag else {}
            clients.run("catch-up", self._address, partitions=OWN, **lags, **options)
        return meter.read_bytes

    def _largest_lag(self) -> None:
        """Halve the interval between a lag that needs no disk reads and one that does."""
        low, high = 0, MEMORY
        for _ in range(3 if self._scale.quick else _STEPS):
            middle = (low + high) // 2
            self._fill(1.3)
            if self._read(middle) <= middle * _NONE:
                low = middle
            else:
                high = middle
        self.figures["largest lag without disk reads"] = low / _MB

    def _pollution(self) -> None:
        """Have one reader read from the earliest offset; then let tail readers that lag a little read on."""
        lag = MEMORY // 8
        self._fill(1.3)
        old = self._read(0, total_bytes=MEMORY // _OWN_PARTITIONS)
        self.figures["read by a reader from the earliest offset"] = old / _MB
        self.figures["then read by tail readers"] = self._read(lag) / _MB

    def _catch_up(self) -> None:
        """Let consumers catch up with a lag that the page cache can't hold, on a slow disk, beside producers."""
        self._fill(1.3)
        slow_down(self._disk, self._group, READ_LIMIT)
        running = Clients()
        try:
            producers = [running.start("produce", self._address, partitions=p, rate=LIVE_RATE) for p in (OWN, OTHERS)]
            lag = int(MEMORY * 0.65) // _OWN_PARTITIONS
            with Meter(self._group, self._disk) as meter:
                said = running.result(running.start("catch-up", self._address, partitions=OWN, lag_bytes=lag))
            for producer in producers:
                running.result(producer, stop=True)
        finally:
            running.stop()
        self.figures["time to catch up"] = said["seconds"]
        self.figures["read while catching up"] = meter.read_bytes / _MB
        self.curves["disk reads while catching up"] = meter.read_rate(said["begun"])

    def _live(self) -> None:
        """Produce at a fixed rate, beside tail readers and one reader after another from the earliest offset."""
        running, seconds = Clients(), self._scale.seconds
        common = {"seconds": seconds}
        try:
            own = running.start("produce", self._address, partitions=OWN, rate=LIVE_RATE, **common)
            others = running.start("produce", self._address, partitions=OTHERS, rate=LIVE_RATE, **common)
            tail = running.start("tail", self._address, partitions=OWN, seconds=seconds - 2)
            earliest = running.start("catch-up", self._address, partitions=OWN, seconds=seconds - 2)
            with Meter(self._group, self._disk) as meter:
                produced = running.result(own)
            read, _, _ = running.result(tail), running.result(earliest), running.result(others)
        finally:
            running.stop()
        begun = produced["begun"]
        self.figures["p99.9 of produce"] = produced["p99.9"] * 1000
        self.figures["p50 of produce"] = produced["p50"] * 1000
        self.figures["highest of produce"] = produced["highest"] * 1000
        self.figures["p99.9 from producer to tail reader"] = read["p99.9"] * 1000
        self.figures["failed records"] = produced["failed"]
        self.curves["p99.9 of produce"] = curve(produced["stretches"], begun, 4, 1000.0)
        self.curves["disk reads"] = meter.read_rate(begun)
        self.curves["utilisation"] = meter.utilisation(begun)


def run(lab: Laboratory, arm: str, scale: Scale) -> Round:
    """Do one round of an arm."""
    disk, group = lab.disk("data", DISK), lab.group("broker")
    group.limit_memory(MEMORY)
    group.count(disk.number)
    disk.limit_dirty(MEMORY // 10)
    if arm == "Kafka":
        address = brokers.start_kafka(lab, disk, group)
    else:
        address = brokers.start_pylogd(lab, disk, group, {SETTING: str(MEMORY - SPARE)} if arm == "block cache" else {})
    brokers.make_topic(address, ASSIGNMENT)
    trial = Trial(address, group, disk, scale)
    trial.run()
    return Round(trial.figures, trial.curves)


def why_not(arm: str) -> str:
    """Return why an arm can't run here."""
    if arm == "block cache" and SETTING not in SETTINGS:
        return f"this pylogd has no setting {SETTING}"
    if arm == "Kafka":
        try:
            java_tools.java()
        except Missing as error:
            return str(error)
    return ""


EXPERIMENT: Final = Experiment(
    name="cache",
    title="Block cache",
    talk=(
        "Five brokers, one of them with the block cache; a topic of 150 partitions with 3 replicas gets production's "
        "traffic, and 150 consumers begin with a lag of 4.5 million messages. The stock broker reads much from its "
        "disk, the one with the cache nothing. The cache holds twice the data that is of use, since followers' data "
        "does not enter it; consumers catch up 30 % faster; p99.9 of produce is much lower and steadier."
    ),
    method=(
        f"Two brokers; the one that is measured has {MEMORY >> 20} MB for itself and its page cache, leads half of "
        "eight partitions and follows the other half. *Largest lag*: after 1.3 times its memory was written, readers "
        "start at a lag and read to the end; bisection finds the largest lag at which the group reads less than 1 % "
        f"of it from the disk, to a {2**_STEPS}th of the memory. *Tail readers*: a reader from the earliest offset "
        "reads as much as the memory holds; then readers that lag by an eighth of the memory read on, and what that "
        "reads from the disk is counted. *Catching up*: readers start with a lag of 0.65 of the memory, the disk "
        f"gives {READ_LIMIT / _MB:.0f} MB/s, and {2 * LIVE_RATE / _MB:.0f} MB/s come in. *Produce*: the same traffic "
        "for a while, with tail readers and a reader from the earliest offset. Latencies are from the time at which a "
        "record was due. acks=1, records of 10 kB, dirty pages of the disk bounded to a tenth of the memory."
    ),
    arms={
        "stock": "pylogd, whose only cache is the page cache",
        "block cache": f"pylogd with `{SETTING}` of {(MEMORY - SPARE) >> 20} MB",
        "Kafka": f"Apache Kafka, heap {' '.join(brokers.HEAP)}, in a group of the same size",
    },
    measures=(
        Measure("largest lag without disk reads", "MB"),
        Measure("read by a reader from the earliest offset", "MB"),
        Measure("then read by tail readers", "MB", 1),
        Measure("read while catching up", "MB"),
        Measure("time to catch up", "s", 1),
        Measure("p50 of produce", "ms", 1),
        Measure("p99.9 of produce", "ms"),
        Measure("highest of produce", "ms"),
        Measure("p99.9 from producer to tail reader", "ms"),
        Measure("failed records", "in all"),
    ),
    targets=(
        Target("then read by tail readers", "block cache", at_most=1, talk="0 (MB)"),
        Target("largest lag without disk reads", "block cache", at_least=2, beside="stock", talk="2"),
        Target("time to catch up", "block cache", at_most=0.77, beside="stock", talk="30 % faster (0.77)"),
        Target("p99.9 of produce", "block cache", at_most=1, beside="stock", talk="much lower, steadier"),
        Target("p99.9 of produce", "block cache", at_most=1, beside="Kafka"),
    ),
    charts=(
        Chart("p99.9 of produce", "ms", logarithmic=True),
        Chart("disk reads", "MB/s"),
        Chart("disk reads while catching up", "MB/s"),
        Chart("utilisation", "%"),
    ),
    run=run,
    why_not=why_not,
    seconds=20.0,
)
