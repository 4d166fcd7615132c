"""`make conformance-spark`: compare Spark's own Kafka source with pylogd's. Writes conformance/SPARK.md.

Both read the same pylogd broker in one session. The result of a query is its rows in order, or an error. Differences
listed in `KNOWN` are reported with the reason; any other makes the run fail.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql.functions import window

from conformance import checks
from conformance.checks import CACHE, HERE, Missing
from pylogd.client import Admin, Producer, TopicPartition
from pylogd.lake.spark.lag import behind_latest
from pylogd.lake.spark.options import offsets_json
from pylogd.lake.spark.stream_offsets import topics_of
from pylogd.lake.tables.position import by_partition
from pylogd.local.broker import BrokerProcess
from tests.pages import write_page
from tests.sparks import running_spark, traffic

POM = HERE / "spark" / "pom.xml"
JARS = CACHE / "spark" / "jars"
FORMATS = ("kafka", "pylogd")
SECONDS = 120
LIVE_ROWS = 1000
LIVE_PAUSE = 0.002  # seconds between two records
#: case -> why the results differ
KNOWN: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Case:
    """A query: options of the source, and a transformation of its rows.


    live: a stream over a topic that is written to meanwhile. It fails in its first batch and is restarted. window: of
    a stream that counts records by time, which gives the counts of windows that the watermark has passed.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    where: str = "true"
    stream: bool = False
    live: bool = False
    window: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a case with one source: rows, or the error.

    batches: of a stream, the end of each batch and how far it is behind the ends of the partitions.
    """

    rows: tuple[Any, ...] = ()
    batches: tuple[str, ...] = ()
    outcome: str = ""
    error: str | None = None

    def agrees(self, other: Result) -> bool:
        """Return whether two results are the same. Texts of errors may differ."""
        if self.error is not None or other.error is not None:
            return (self.error is None) == (other.error is None)
        return self == other


def _json(**partitions: int) -> str:
    inner = ",".join(f'"{name[1:]}":{value}' for name, value in partitions.items())
    return f'{{"numbers":{{{inner}}}}}'


_MANY = {"startingOffsetsByTimestampStrategy": "latest"}
BATCH = [
    Case("all of it"),
    Case("headers", {"includeHeaders": "true"}),
    Case("a pattern", {"subscribe": "", "subscribePattern": "num.*"}),
    Case("a pattern of a part of a name", {"subscribe": "", "subscribePattern": "mber"}),
    Case("assigned", {"subscribe": "", "assign": '{"numbers":[1]}'}),
    Case("earliest to latest", {"startingOffsets": "earliest", "endingOffsets": "latest"}),
    Case("offsets", {"startingOffsets": _json(p0=12, p1=-2), "endingOffsets": _json(p0=20, p1=-1)}),
    Case("offsets, nothing between", {"startingOffsets": _json(p0=12, p1=3), "endingOffsets": _json(p0=12, p1=3)}),
    Case("from a time", {"startingTimestamp": "1020000"}),
    Case("to a time", {"endingTimestamp": "1020500"}),
    Case("from a time that is too late", {"startingTimestamp": "1999999"}),
    Case("the same, at the end", {"startingTimestamp": "1999999", **_MANY}),
    Case("times by partition", {"startingOffsetsByTimestamp": _json(p0=1_030_000, p1=1_010_001)}),
    Case("ending times by partition", {"endingOffsetsByTimestamp": _json(p0=1_030_000, p1=1_999_999)}),
    Case("a time goes before offsets", {"startingTimestamp": "1030000", "startingOffsets": "earliest"}),
    Case("more tasks", {"minPartitions": "7"}),
    Case("small tasks", {"maxRecordsPerPartition": "3"}),
    Case("filters", where="partition = 1 and offset >= 5 and offset < 9"),
    Case("a filter on time", where="timestamp >= timestamp '1970-01-01 00:17:00'"),
    Case("nulls", where="key is null or value is null"),
    Case("a broker's times", {"subscribe": "appended"}),
    Case("records that were deleted", {"subscribe": "cut"}),
    Case("offsets before the first", {"subscribe": "cut", "startingOffsets": '{"cut":{"0":2}}'}),
    Case(
        "the same, losses allowed",
        {"subscribe": "cut", "startingOffsets": '{"cut":{"0":2}}', "failOnDataLoss": "false"},
    ),
    Case("committed only", {"kafka.isolation.level": "read_committed"}),
]
REFUSED = [
    Case("no subscription", {"subscribe": ""}),
    Case("two subscriptions", {"assign": '{"numbers":[1]}'}),
    Case("latest start", {"startingOffsets": "latest"}),
    Case("latest start of one", {"startingOffsets": _json(p0=-1, p1=0)}),
    Case("earliest end", {"endingOffsets": "earliest"}),
    Case("start behind end", {"startingOffsets": _json(p0=9, p1=0), "endingOffsets": _json(p0=8, p1=0)}),
    Case("not all partitions", {"startingOffsets": _json(p0=9)}),
    Case("too many partitions", {"startingOffsets": _json(p0=9, p1=0, p2=0)}),
    Case("bad JSON", {"startingOffsets": "{"}),
    Case("a topic that is not there", {"subscribe": "missing"}),
    Case("minPartitions 0", {"minPartitions": "0"}),
    Case("auto.offset.reset", {"kafka.auto.offset.reset": "earliest"}),
    Case("a deserializer", {"kafka.value.deserializer": "x"}),
    Case("auto commit", {"kafka.enable.auto.commit": "true"}),
    Case("interceptors", {"kafka.interceptor.classes": "x"}),
]
STREAM = [
    Case("stream: all", {"startingOffsets": "earliest"}, stream=True),
    Case("stream: default start", stream=True),
    Case("stream: 7 at a time", {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "7"}, stream=True),
    Case("stream: 25 at a time", {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "25"}, stream=True),
    Case("stream: offsets", {"startingOffsets": _json(p0=30, p1=-1)}, stream=True),
    Case("stream: from a time", {"startingTimestamp": "1020000"}, stream=True),
    Case("stream: deleted", {"subscribe": "cut", "startingOffsets": "earliest"}, stream=True),
    Case(
        "stream: windows, 7 at a time",
        {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "7"},
        stream=True,
        window="5 seconds",
    ),
    Case("stream: windows", {"startingOffsets": "earliest"}, stream=True, window="5 seconds"),
    Case("stream: ending offsets", {"endingOffsets": "latest"}, stream=True),
    Case("stream: latest, of a topic that is written to", {"subscribe": "live"}, stream=True, live=True),
    Case("stream: least over most", {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, stream=True),
]


def say(text: str) -> None:
    """Print progress on standard error."""
    print(f"conformance-spark: {text}", file=sys.stderr, flush=True)


def version(name: str = "source") -> str:
    """A pinned version."""
    found = re.search(rf"<{name}\.version>([^<]+)<", POM.read_text())
    return found[1] if found else "unknown"


def jars() -> list[Path]:
    """Return the jars of Spark's Kafka source, downloaded at the first use. Raises Missing if that fails."""
    if not list(JARS.glob(f"spark-sql-kafka-*-{version()}.jar")):
        maven = checks.tool("mvn", "maven")
        shutil.rmtree(JARS, ignore_errors=True)
        command = [maven, "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={JARS}"]
        checks.fetched(command, "Spark's Kafka source from Maven Central")
    return sorted(JARS.glob("*.jar"))


def fill(address: str) -> None:
    """Create topics with nulls, headers, all codecs, log append time, and deleted records."""
    with Admin(address) as admin:
        admin.create_topic("numbers", 2, configs={"retention.ms": "-1"})
        admin.create_topic("live", 1)
        admin.create_topic("appended", 1, configs={"message.timestamp.type": "LogAppendTime"})
    for at, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        with Producer(address, compression=codec) as producer:
            for number in range(8 * at, 8 * at + 8):
                for partition in range(1 + (number % 2 == 0)):
                    producer.send(
                        "numbers", None if number % 7 == 0 else b"v%d" % number, partition=partition,
                        key=None if number % 5 == 0 else b"k%d" % number, timestamp=1_000_000 + 1000 * number,
                        headers=[("h", b"%d" % number), ("n", None)] if number % 4 == 0 else [],
                    )  # fmt: skip
                producer.send("appended", b"%d" % number, partition=0)
                producer.send("cut", b"%d" % number, partition=0)
    with Admin(address) as admin:
        admin.delete_records({TopicPartition("cut", 0): 11})


class Side:
    """One of the two sources in the session."""

    def __init__(self, spark: Any, address: str, name: str, folder: Path) -> None:
        self.spark, self.address, self.name, self.folder = spark, address, name, folder

    def run(self, case: Case) -> Result:
        """A case's result."""
        given = {"kafka.bootstrap.servers": self.address, "subscribe": "numbers", **case.options}
        given |= {"kafkaConsumer.pollTimeoutMs": "15000"}
        given |= {"kafka.request.timeout.ms": "10000", "kafka.default.api.timeout.ms": "15000"}
        options = {name: value for name, value in given.items() if value}
        try:
            if case.live:
                return self._live(case, options)
            return self._stream(case, options) if case.stream else self._batch(case, options)
        except Exception as error:  # any error is a result
            return Result(error=reason(error))

    def _batch(self, case: Case, options: Mapping[str, str]) -> Result:
        frame = self.spark.read.format(self.name).options(**options).load()
        return Result(rows=_rows(frame.where(case.where).collect()))

    def _stream(self, case: Case, options: Mapping[str, str]) -> Result:
        found: list[Any] = []

        def keep(batch: Any, _: int) -> None:
            found.extend(batch.collect())

        frame = self.spark.readStream.format(self.name).options(**options).load().where(case.where)
        if case.window:
            frame = frame.withWatermark("timestamp", "2 seconds").groupBy(window("timestamp", case.window)).count()
        checkpoint = self.folder / f"{self.name}-{STREAM.index(case)}"
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            if not query.awaitTermination(SECONDS):
                return Result(error=f"not finished within {SECONDS} s")
        finally:
            query.stop()
        batches = [json.loads(progress.json) for progress in query.recentProgress]
        reports = [batch["sources"][0] for batch in batches if case.window or batch["numInputRows"]]
        return Result(_rows(found), tuple(map(_report, reports)))

    def _live(self, case: Case, options: Mapping[str, str]) -> Result:
        """Run a query from the latest offsets that fails in its first batch with rows, then restart it."""
        died: list[int] = []
        seen: list[int] = []

        def keep(batch: Any, _: int) -> None:
            found = sorted(row.offset for row in batch.select("offset").collect())
            if found and not died:
                died.extend(found)
                raise RuntimeError("fails in its first batch")
            seen.extend(found)

        frame = self.spark.readStream.format(self.name).options(**options).load()
        checkpoint = str(self.folder / f"{self.name}-live")
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
        with traffic(self.address, "live", LIVE_PAUSE):
            query = writer.start()
            try:
                if query.awaitTermination(SECONDS):
                    return Result(error="the query ended")
                return Result(error=f"no batch had rows in {SECONDS} s")
            except Exception as error:
                if not died:
                    return Result(error=reason(error))
            query = writer.start()
            deadline = time.monotonic() + SECONDS
            while len(seen) < len(died) + LIVE_ROWS and query.isActive and time.monotonic() < deadline:
                time.sleep(0.1)
            failed = query.exception()
            query.stop()
        if failed is not None:
            return Result(error=reason(failed))
        if seen[: len(died)] != died or seen != list(range(seen[0], seen[0] + len(seen))):
            return Result(outcome=f"failed with {died[0]} to {died[-1]}, continued with {seen[:1]} to {seen[-1:]}")
        return Result(outcome="the first batch again, then no gap")


def _report(source: Mapping[str, Any]) -> str:
    """Return the end of a batch, and its metrics; those of pylogd are computed from its report."""
    metrics = source.get("metrics")
    if not metrics:
        behind = behind_latest(source)
        metrics = behind.metrics if behind else {}
    end = offsets_json(by_partition(topics_of(source["endOffset"])))
    return f"{end} {sorted((name, float(value)) for name, value in metrics.items())}"


def _rows(rows: list[Any]) -> tuple[Any, ...]:
    plain = [tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row) for row in rows]
    return tuple(map(str, sorted(plain, key=lambda row: row[2:5] if len(row) > 2 else row)))


def reason(error: Exception) -> str:
    """Return the line of an error that gives the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kinds = r"(?:: |Caused by: )?((?:pylogd|java|org)\.[\w.]*(?:Error|Loss|Exception|Topic|TimedOut)\b.*)"
    own = [found[1] for line in lines if (found := re.match(kinds, line))]
    said = own[-1] if own else lines[0] if lines else type(error).__name__
    return re.sub(r"\[id = .*?\] ", "", said)[:300]


@contextmanager
def both() -> Iterator[list[Side]]:
    """Yield the two sources, with a broker that has been filled."""
    libraries = ",".join(map(str, jars()))
    with tempfile.TemporaryDirectory(prefix="conformance-spark-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        broker = BrokerProcess(folder / "data", folder / "log")
        try:
            fill(broker.address)
            with running_spark(folder, {"spark.jars": libraries}) as spark:
                yield [Side(spark, broker.address, each, folder) for each in FORMATS]
        finally:
            broker.stop()


def compare(sides: list[Side]) -> tuple[list[str], list[str]]:
    """Run all cases. Return the lines of the table and the unexpected differences."""
    lines, faults = [], []
    for case in [*BATCH, *REFUSED, *STREAM]:
        first, second = (side.run(case) for side in sides)
        same = first.agrees(second)
        why = KNOWN.get(case.name, "")
        if same == bool(why):
            faults.append(f"{case.name}: {'the same now' if same else f'{first} and {second}'}"[:2000])
        say(f"{case.name}: {'same' if same else 'DIFFERENT'}")
        verdict = "same" if same else f"**differs**: {why}"
        lines.append(f"| {case.name} | {_told(first)} | {_told(second)} | {verdict} |")
    return lines, faults


def _told(result: Result) -> str:
    if result.error is not None:
        text = re.sub(r"127\.0\.0\.1:\d+", "BROKER", result.error)
        return "refused: " + text.replace("|", "\\|").replace("<", "&lt;")
    if result.outcome:
        return result.outcome
    batches = f" in {len(result.batches)} batches" if result.batches else ""
    return f"{len(result.rows)} rows{batches}"


def main(write: Callable[[str], Any] = lambda text: write_page(HERE / "SPARK.md", [text])) -> int:
    """Run all cases and write the table. Return 1 if there are unexpected differences."""
    try:
        with both() as sides:
            lines, faults = compare(sides)
    except Missing as missing:
        say(str(missing))
        return 2
    head = [
        "# Spark's Kafka source and pylogd's",
        "",
        "Written by `make conformance-spark`. Each query is run by both sources over the same pylogd broker, in one "
        f"session of PySpark {pyspark.__version__}; Spark's source is spark-sql-kafka-0-10 {version()} "
        f"(with the token provider of {version('token')} and kafka-clients {version('kafka')}). Rows are compared "
        "whole: key, value, topic, partition, offset, time stamp and its type, headers. For streams, the ends of the "
        "micro-batches are compared too, and how many offsets they are behind the ends of the partitions (least, mean, "
        "greatest), which Spark's source gives in `metrics` of its progress and `pylogd.lake.spark.lag.behind_latest` "
        "computes from that of pylogd's. If both refuse a query, the texts may differ: both are given.",
        "",
        "| query | Spark's | pylogd's | |",
        "| --- | --- | --- | --- |",
    ]
    write("\n".join(head + lines) + "\n")
    for fault in faults:
        say(f"unexpected: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
