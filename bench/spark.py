"""How fast Spark reads a topic through pylogd's source, beside Spark's own Kafka source: `python -m bench.spark`.

Both count the same topic of two partitions on one pylogd broker, in one warm session on two threads, taking turns; the
best and the median of the rounds are told, and how much memory the largest Python worker took. With `--rows` of a few
ten millions the topic is larger than that memory by far. Without Spark's own source (`make conformance-spark` fetches
it) its column stays empty. Writes bench/SPARK.md and bench/spark.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conformance.checks import Missing
from conformance.spark_source import jars
from pylogd.client import Admin, Producer
from tests.brokers import BrokerProcess
from tests.sparks import running_spark

HERE = Path(__file__).resolve().parent
TOPIC = "t"
SIZE = 200
TARGET_RATE, TARGET_RATIO, TARGET_MEGABYTES = 1_500_000, 0.8, 500
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Measured:
    """Rates in rows a second. `kafka` is Spark's own source, None where it was not to be had."""

    rows: int
    value_bytes: int
    rounds: int
    pylogd: list[float]
    kafka: list[float] | None
    worker_megabytes: float

    @property
    def ratio(self) -> float | None:
        """pylogd's median by that of Spark's own source."""
        return None if self.kafka is None else statistics.median(self.pylogd) / statistics.median(self.kafka)


class WorkerMemory:
    """The largest resident size of any Python process below this one, looked at every 50 ms."""

    def __init__(self) -> None:
        self.most = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> WorkerMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    if b"pyspark" in (process / "cmdline").read_bytes() and int(process.name) != os.getpid():
                        resident = int((process / "statm").read_text().split()[1]) * _PAGE
                        if b"java" not in (process / "cmdline").read_bytes().split(b"\0")[0]:
                            self.most = max(self.most, resident)
                except (OSError, IndexError):  # it has ended
                    continue


def fill(address: str, rows: int) -> None:
    """A topic of two partitions of keyed messages."""
    with Admin(address) as admin:
        admin.create_topic(TOPIC, 2)
    value = bytes(range(SIZE))
    with Producer(address) as producer:
        for number in range(rows):
            producer.send(TOPIC, value, key=b"%d" % number, partition=number % 2)


def count(spark: Any, name: str, address: str, rows: int) -> float:
    """Rows a second of one count of all of it."""
    frame = spark.read.format(name).option("kafka.bootstrap.servers", address).option("subscribe", TOPIC).load()
    begun = time.monotonic()
    found = frame.count()
    seconds = time.monotonic() - begun
    if found != rows:
        raise RuntimeError(f"{name} counted {found} rows of {rows}")
    return rows / seconds


def measure(rows: int, rounds: int) -> Measured:
    """Fill a topic, warm up, and take turns."""
    try:
        settings = {"spark.jars": ",".join(map(str, jars()))}
    except Missing as missing:
        print(f"bench: {missing}", file=sys.stderr)
        settings = {}
    names = ["pylogd", "kafka"] if settings else ["pylogd"]
    rates: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as name:
        folder = Path(name)
        broker = BrokerProcess(folder / "data", folder / "log")
        try:
            fill(broker.address, rows)
            with running_spark(folder, settings) as spark, WorkerMemory() as memory:
                for turn in range(rounds + 2):
                    for each in names:
                        rate = count(spark, each, broker.address, rows)
                        if turn >= 2:  # the JVM has compiled what it will
                            rates[each].append(round(rate))
                        print(f"bench: {each}: {rate:,.0f} rows/s", file=sys.stderr)
        finally:
            broker.stop()
    return Measured(rows, SIZE, rounds, rates["pylogd"], rates.get("kafka"), round(memory.most / 1e6, 1))


def report(found: Measured) -> str:
    """bench/SPARK.md."""
    ratio = "not measured" if found.ratio is None else f"{found.ratio:.2f}"
    lines = [
        "# Reading a topic into Spark",
        "",
        f"Written by `python -m bench.spark`: {found.rows:,} messages of {found.value_bytes} bytes in 2 partitions, "
        f"counted by `local[2]` in a warm session, {found.rounds} rounds by turns on one machine of {os.cpu_count()} "
        "cores that also ran the broker.",
        "",
        "| source | best, rows/s | median, rows/s |",
        "| --- | --: | --: |",
        f"| pylogd | {max(found.pylogd):,.0f} | {statistics.median(found.pylogd):,.0f} |",
    ]
    if found.kafka is not None:
        lines.append(f"| Spark's own | {max(found.kafka):,.0f} | {statistics.median(found.kafka):,.0f} |")
    lines += [
        "",
        f"Targets: {TARGET_RATE:,} rows/s; {TARGET_RATIO} of Spark's own (median by median: {ratio}); a Python worker "
        f"under {TARGET_MEGABYTES} MB whatever the backlog (the largest took {found.worker_megabytes} MB).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="rows a second from a topic into Spark")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dry", action="store_true", help="write no files")
    options = parser.parse_args()
    found = measure(options.rows, options.rounds)
    text = report(found)
    print(text)
    if not options.dry:
        (HERE / "SPARK.md").write_text(text)
        (HERE / "spark.json").write_text(json.dumps(asdict(found), indent=1) + "\n")


if __name__ == "__main__":
    main()
