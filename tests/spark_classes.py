"""`python -m tests.spark_classes FILE`: archive the classes that Spark loads, so that others start in half the time.

Java finds, checks and links some 15,000 classes whenever a Spark starts; from an archive (class data sharing) it only
maps them. `tests/parts.py` has one made beside the first tests of a run. The job does a little of what the tests have
Spark do: queries, a data source in Python, a stream, Parquet and JSON files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition, SimpleDataSourceStreamReader

from tests.spark_java import LAUNCHER_OPTIONS, link_spark


class Numbers(DataSource):
    """A source of a few numbers, in a batch and as a stream."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "numbers"

    def schema(self) -> str:
        """Return the columns."""
        return "number int, text string, data binary, at timestamp"

    def reader(self, schema: Any) -> DataSourceReader:
        """Return what reads a batch."""
        return NumbersReader()

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        """Return what reads the stream."""
        return NumbersStream()


class NumbersReader(DataSourceReader):
    """Reads the batch in two partitions."""

    def partitions(self) -> list[InputPartition]:
        """Return the partitions."""
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a partition."""
        yield partition.value, "text", b"data", None


class NumbersStream(SimpleDataSourceStreamReader):
    """Reads one number at a time, up to three."""

    def initialOffset(self) -> dict[str, int]:
        """Return where the stream begins."""
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[Any, ...]], dict[str, int]]:
        """Return the next rows, and the offset behind them."""
        at = start["at"]
        return iter([(at, "text", b"data", None)] if at < 3 else []), {"at": min(3, at + 1)}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[Any, ...]]:
        """Yield rows that were read before."""
        return ((at, "text", b"data", None) for at in range(start["at"], end["at"]))


def main(target: Path) -> None:
    """Write the archive to `target`, which appears when it is complete. Files of the job stay beside it."""
    unfinished = target.with_name(f"{target.name}.unfinished")
    # The collector and the paths of the classes have to be those of the JVMs that use the archive.
    os.environ["SPARK_SUBMIT_OPTS"] = f"{LAUNCHER_OPTIONS} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    home = link_spark(target.parent)
    assert home is not None
    os.environ["SPARK_HOME"] = home
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _use_spark(target.parent)
    unfinished.replace(target)


def _use_spark(folder: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.local.dir", str(folder / "local")).config("spark.sql.shuffle.partitions", "2")
    session = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(Numbers)
    numbers = session.read.format("numbers").load()
    numbers.where("number > 0").groupBy("text").agg({"number": "sum"}).orderBy("text").collect()
    numbers.write.partitionBy("number").parquet(str(folder / "parquet"))
    session.read.parquet(str(folder / "parquet")).join(numbers, "text").count()
    numbers.selectExpr("to_json(struct(*)) as value").write.json(str(folder / "json"))
    query = session.readStream.format("numbers").load().writeStream.foreachBatch(_count)
    query.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM writes the archive when it ends
    gateway.proc.wait()


def _count(rows: Any, _: int) -> None:
    rows.count()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
