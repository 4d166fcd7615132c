"""Spark over pylogd's source and sink: `python -m bench spark [--only count,lengths,compressed,batches,sink,...]`.

* count: rows per second from two partitions to a count, beside Spark's own Kafka source as it is and tuned;
* lengths: the same to the sum of the values' lengths, so that values are read;
* compressed: as lengths, of a topic that its producer compressed with zstd;
* batches: the duration of small micro-batches of a stream of eight partitions, over TCP and over Unix sockets;
* sink: rows per second into a topic of two partitions;
* load: rows per second of `pylogd load` into a lake of Parquet files compressed with zstd, including the commit;
* memory: the peak memory of Spark's Python processes while one task reads gigabytes from one partition, uncompressed or
  compressed to a few megabytes in the log.

Strategy: one broker, one warm session on two threads, all on this machine. The sources take turns, and the ratio is the
median of the ratios of the turns, so that other load disturbs all alike. Processor time comes first, because it depends
less on other load, and because it is what a cluster is sized by: in Python and the JVM one source may use two cores
where another uses one. Without Spark's own source (`make conformance-spark` downloads it) its rows are missing. Each
measurement is written to bench/spark.json when it is done, so `--only` repeats one and bench/SPARK.md keeps the others.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import spark_batches
from bench.harness import say
from bench.spark_report import report
from conformance.checks import Missing
from conformance.spark_source import jars
from pylogd.client import Admin, Consumer, Producer
from pylogd.lake.spark.load import LoadPlan, load
from pylogd.lake.spark.opening import open_table
from pylogd.local.broker import BrokerProcess
from tests.pages import json_text, write_page
from tests.sparks import running_spark

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "spark.json"
MEASURES = ("count", "lengths", "compressed", "batches", "sink", "load", "memory")
TOPIC = "events"
COMPRESSED = "compressed"
#: What each name in the results reads or writes with: the format, and options.
SOURCES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "pylogd": ("pylogd", {}),
    "kafka": ("kafka", {}),
    # 4 MiB, as pylogd's source has by default; more records at a time for as many bytes
    "kafka tuned": (
        "kafka", {"kafka.max.partition.fetch.bytes": str(4 << 20), "kafka.max.poll.records": "20000"},
    ),
}  # fmt: skip
SIZE = 200
BACKLOG_SIZE = 1000
SINK_PART = 3  # writing takes several times as long as reading: a third of the rows
WARM_UPS = 3  # the JVM has compiled most of what it will
HOURS = 6
_CARRIERS = ("UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E", "WN", "VX")
_AIRPORTS = ("EWR", "JFK", "LGA", "ATL", "ORD", "LAX", "BOS", "MCO", "CLT", "SFO")
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Rounds:
    """The results of a query's rounds: rows per second, and processor seconds per million rows by kind of process."""

    rates: list[int] = field(default_factory=list)
    cpu: list[dict[str, float]] = field(default_factory=list)


class Processes:
    """The processes below this one: the broker, Spark's JVM, and its Python processes."""

    def __init__(self, broker: int) -> None:
        self._broker = broker

    def cpu(self) -> dict[str, float]:
        """Return the processor seconds so far by kind, including processes that have ended."""
        seconds = dict.fromkeys(("broker", "jvm", "python"), 0.0)
        for pid, kind in self._kinds().items():
            fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
            if fields:
                seconds[kind] += sum(map(int, fields[11:15])) / _TICK
        return seconds

    def forget_peaks(self) -> None:
        """Reset the peak memory of each process."""
        for pid in self._kinds():
            try:
                Path(f"/proc/{pid}/clear_refs").write_text("5")
            except OSError:  # the process has ended
                continue

    def python_peak(self) -> int:
        """Return the peak memory in bytes of Spark's Python processes."""
        most = 0
        for pid, kind in self._kinds().items():
            for line in _read(f"/proc/{pid}/status").splitlines():
                if kind == "python" and line.startswith("VmHWM:"):
                    most = max(most, int(line.split()[1]) * 1024)
        return most

    def _kinds(self) -> dict[int, str]:
        parents = {}
        for path in Path("/proc").glob("[0-9]*"):
            fields = _read(f"{path}/stat").rpartition(")")[2].split()
            if fields:
                parents[int(path.name)] = int(fields[1])
        below = {os.getpid()}
        while more := {pid for pid, parent in parents.items() if parent in below} - below:
            below |= more
        kinds = {}
        for pid in below - {os.getpid()}:
            java = "java" in _read(f"/proc/{pid}/cmdline").partition("\0")[0]
            kinds[pid] = "broker" if pid == self._broker else "jvm" if java else "python"
        return kinds


def _read(path: str) -> str:
    """Return the text of a file of /proc; "" if its process has ended."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def event(number: int) -> bytes:
    """Return a JSON message of `SIZE` bytes, with names that repeat and numbers that don't."""
    text = (
        f'{{"carrier":"{_CARRIERS[number % 10]}","flight":{number * 7919 % 8000},"origin":"{_AIRPORTS[number % 3]}",'
        f'"dest":"{_AIRPORTS[number * 31 % 10]}","departure_delay":{number * 104729 % 240 - 30},"distance":'
        f'{number * 1299709 % 2500},"tail":"N{number * 15485863 % 99999}",'
        f'"id":"{number * 11400714819323198485 % 2**64:016x}'
    )
    return text.encode().ljust(SIZE - 2, b".")[: SIZE - 2] + b'"}'


def fill_events(address: str, rows: int, topic: str = TOPIC, *, partitions: int = 2, compression: str = "none") -> None:
    """Send events to some partitions, in the order of their times, over some hours."""
    with Admin(address) as admin:
        admin.create_topic(topic, partitions, configs={"retention.ms": "-1"})
    begin = int(time.time() * 1000) // 3_600_000 * 3_600_000 - HOURS * 3_600_000
    with Producer(address, compression=compression) as producer:
        for number in range(rows):
            stamp = begin + number * HOURS * 3_600_000 // rows
            producer.send(topic, event(number), key=b"%d" % number, partition=number % partitions, timestamp=stamp)


def fill_backlog(address: str, topic: str, megabytes: int, compression: str) -> int:
    """Fill one partition with a number of bytes of values. Return the number of rows."""
    rows = megabytes * 1_000_000 // BACKLOG_SIZE
    with Admin(address) as admin:
        admin.create_topic(topic, 1)
    value = bytes(BACKLOG_SIZE)
    with Producer(address, compression=compression) as producer:
        for _ in range(rows):
            producer.send(topic, value, partition=0)
    return rows


class Bench:
    """A broker with its topics, a Spark session, and the measurements."""

    def __init__(self, spark: Any, broker: BrokerProcess, folder: Path, options: argparse.Namespace) -> None:
        self._spark = spark
        self._address = broker.address
        self._folder = folder
        self._rows: int = options.rows
        self._rounds: int = options.rounds
        self._megabytes: int = options.megabytes
        self._processes = Processes(broker.pid)

    def queries(
        self, query: Callable[[Any], int], expected: int, sources: list[str], topic: str = TOPIC
    ) -> dict[str, Any]:
        """Measure `count`, `lengths` or `compressed`, with the sources in turns."""
        found = {name: Rounds() for name in sources}
        for turn in range(self._rounds + WARM_UPS):
            for name in sources:
                work = functools.partial(query, self._frame(name, topic))
                self._timed(found[name], name, expected, turn, work)
        return {name: asdict(rounds) for name, rounds in found.items()}

    def sink(self, sources: list[str]) -> dict[str, Any]:
        """Measure the rows per second of a batch query that writes to a topic, with the two sinks in turns."""
        found = {name: Rounds() for name in sources if name != "kafka tuned"}
        count = self._rows // SINK_PART
        rows = self._spark.range(0, count, 1, 2).selectExpr(
            "cast(id as string) as key", f"rpad(cast(id * 2654435761 as string), {SIZE}, '.') as value"
        )
        for turn in range(self._rounds + WARM_UPS):
            for name, rounds in found.items():
                target = f"sink-{name}-{turn}"
                work = functools.partial(self._write, rows, SOURCES[name][0], target)
                self._timed(rounds, f"sink {name}", count, turn, work, rows=count)
                with Admin(self._address) as admin:
                    admin.delete_topic(target)
        return {"rows": count, **{name: asdict(rounds) for name, rounds in found.items()}}

    def _write(self, rows: Any, name: str, topic: str) -> int:
        with Admin(self._address) as admin:
            admin.create_topic(topic, 2)
        writer = rows.write.format(name).option("kafka.bootstrap.servers", self._address).option("topic", topic)
        writer.mode("append").save()
        with Consumer(self._address) as consumer:
            return sum(consumer.end_offsets(consumer.partitions(topic)).values())

    def load(self) -> dict[str, Any]:
        """Measure the rows per second of loads into a new lake."""
        rounds = Rounds()
        written = 0
        for turn in range(self._rounds + 1):
            lake = self._folder / f"lake{turn}"

            def once(lake: Path = lake) -> int:
                nonlocal written
                table = open_table(self._spark, str(lake))
                commit = load(self._spark, table, LoadPlan(self._address, ("subscribe", TOPIC)))
                if commit is None:
                    return 0
                written = commit.bytes
                return commit.rows

            self._timed(rounds, "load", self._rows, turn + WARM_UPS - 1, once)
            shutil.rmtree(lake)
        return {"pylogd": asdict(rounds), "parquet_bytes": written}

    def memory(self) -> dict[str, Any]:
        """Measure the peak memory in bytes of reading each backlog."""
        found: dict[str, Any] = {"megabytes": self._megabytes}
        for topic, compression in (("plain", "none"), ("squeezed", "zstd")):
            rows = fill_backlog(self._address, topic, self._megabytes, compression)
            self._processes.forget_peaks()
            counted = self._frame("pylogd", topic).count()
            if counted != rows:
                raise RuntimeError(f"{counted} rows of {rows}")
            found[topic] = self._processes.python_peak()
            say(f"memory: {topic}: {found[topic] / 1e6:.0f} MB")
        return found

    def _frame(self, name: str, topic: str) -> Any:
        kind, options = SOURCES[name]
        reader = self._spark.read.format(kind).options(**options)
        return reader.option("kafka.bootstrap.servers", self._address).option("subscribe", topic).load()

    def _timed(
        self, rounds: Rounds, name: str, expected: int, turn: int, work: Callable[[], int], *, rows: int | None = None
    ) -> None:
        rows = rows or self._rows
        before, begun = self._processes.cpu(), time.monotonic()
        found = work()
        seconds, after = time.monotonic() - begun, self._processes.cpu()
        if found != expected:
            raise RuntimeError(f"{name} found {found} where there is {expected}")
        cpu = {kind: round((after[kind] - before[kind]) / rows * 1e6, 3) for kind in after}
        if turn >= WARM_UPS:
            rounds.rates.append(round(rows / seconds))
            rounds.cpu.append(cpu)
        say(f"{name}: {rows / seconds:,.0f} rows/s; CPU seconds for a million rows: {cpu}")


def measure(options: argparse.Namespace, done: Callable[[str, Any], None]) -> None:
    """Run the selected measurements; call `done` after each."""
    sources = list(SOURCES)
    settings: dict[str, str] = {}
    try:
        settings["spark.jars"] = ",".join(map(str, jars()))
    except Missing as missing:
        say(str(missing))
        sources = ["pylogd"]
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as name:
        folder = Path(name)
        broker = BrokerProcess(folder / "data", folder / "log")
        try:
            if {"count", "lengths", "load"} & set(options.only):
                fill_events(broker.address, options.rows)
            if "compressed" in options.only:
                fill_events(broker.address, options.rows, COMPRESSED, compression="zstd")
            rest = [each for each in options.only if each != "batches"]
            if rest:
                with running_spark(folder, settings) as spark:
                    bench = Bench(spark, broker, folder, options)
                    for each in rest:
                        done(each, {"rows": options.rows, **_measured(bench, each, options.rows, sources)})
            if "batches" in options.only:
                fill_events(
                    broker.address, spark_batches.ROWS, spark_batches.TOPIC, partitions=spark_batches.PARTITIONS
                )
                kinds = [name for name, (kind, _) in spark_batches.SOURCES.items() if kind in sources]
                processes = Processes(broker.pid)
                done("batches", spark_batches.measure(settings, folder, broker.address, processes.cpu, kinds))
        finally:
            broker.stop()


def _measured(bench: Bench, name: str, rows: int, sources: list[str]) -> dict[str, Any]:
    def lengths(frame: Any) -> int:
        return int(frame.selectExpr("sum(length(value))").collect()[0][0])

    work: dict[str, Callable[[], dict[str, Any]]] = {
        "count": lambda: bench.queries(lambda frame: int(frame.count()), rows, sources),
        "lengths": lambda: bench.queries(lengths, rows * SIZE, sources),
        "compressed": lambda: bench.queries(lengths, rows * SIZE, sources, COMPRESSED),
        "sink": lambda: bench.sink(sources),
        "load": bench.load,
        "memory": bench.memory,
    }
    return work[name]()


def main() -> None:
    """Measure and write; see the module."""
    parser = argparse.ArgumentParser(
        description="Spark over pylogd's source and sink: processor time, rates and memory"
    )
    parser.add_argument("--only", default=",".join(MEASURES), help=f"which of {', '.join(MEASURES)}")
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=2_500, help="of the backlog that memory is measured with")
    parser.add_argument("--dry", action="store_true", help="write no files")
    options = parser.parse_args()
    options.only = [name for name in options.only.split(",") if name]
    if unknown := set(options.only) - set(MEASURES):
        parser.error(f"no measure {', '.join(sorted(unknown))}")
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def done(name: str, result: Any) -> None:
        found[name] = result
        if not options.dry:
            RESULTS.write_text(json_text(found))
            write_page(HERE / "SPARK.md", [report(found)])

    begun = time.monotonic()
    measure(options, done)
    print(report(found))
    say(f"{time.monotonic() - begun:.0f} s, the median of the counts {_median(found)}")


def _median(found: dict[str, Any]) -> str:
    return f"{statistics.median(found['count']['pylogd']['rates']):,.0f} rows/s" if "count" in found else "not measured"


if __name__ == "__main__":
    main()
