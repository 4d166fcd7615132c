"""What Spark passes to sources and sinks of its own options, in every way of reading and writing, and that it works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter

from pylogd.client import Consumer, Producer
from pylogd.lake.spark.options import OPTIONS_OF_SPARK
from tests.docs.kinds import blocks_of_kind
from tests.integration.conftest import Address
from tests.sparks import python_environment, retried

pytestmark = pytest.mark.timeout(600)
SECONDS = 300
PIPELINE_SECONDS = 540  # Spark's command starts a server and a client for it
Create = Callable[..., None]


@pytest.fixture
def options(broker: Address, create: Create, request: pytest.FixtureRequest) -> dict[str, str]:
    """The options of a source and a sink of one topic, which has three records."""
    topic = request.node.name.partition("[")[0].replace("_", "-")[:100]
    create(topic, 1)
    with Producer(broker.address) as producer:
        for value in (b"a", b"b", b"c"):
            producer.send(topic, value)
    return {
        "kafka.bootstrap.servers": broker.address, "subscribe": topic, "topic": topic, "startingOffsets": "earliest",
    }  # fmt: skip


def values(options: Mapping[str, str]) -> list[bytes | None]:
    """Return the values of the topic's records."""
    with Consumer(options["kafka.bootstrap.servers"]) as consumer:
        [partition] = consumer.partitions(options["topic"])
        end = consumer.end_offsets([partition])[partition]
        consumer.assign({partition: 0})
        found: list[bytes | None] = []
        while len(found) < end:
            found += [record.value for record in consumer.poll(1.0)]
        return found


def finish(query: Any) -> None:
    """Wait until a query that ends by itself has ended. Raises its error."""
    try:
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()


def test_a_stream_with_a_name_and_all_options_of_spark(spark: Any, options: dict[str, str], tmp_path: Path) -> None:
    def copy() -> None:
        writer = (
            spark.readStream.format("pylogd").options(**options).option("partition.metadata.cache.ttl.ms", "30000")
            .load("/ignored").select("value").writeStream.format("pylogd").queryName("copies")
            .options(**options).option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("asyncProgressTrackingEnabled", "false").option("asyncProgressTrackingCheckpointIntervalMs", "1000")
            .trigger(availableNow=True)
        )  # fmt: skip
        query = writer.start("/ignored")
        assert query.name == "copies"
        finish(query)

    retried(copy)
    assert values(options) == [b"a", b"b", b"c"] * 2


def test_paths_of_batch_queries_are_ignored(spark: Any, options: dict[str, str]) -> None:
    for path in ("/ignored", ["/ignored", "/too"]):
        assert spark.read.format("pylogd").options(**options).load(path).count() == 3
    view = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    spark.sql(f"create or replace temporary view paths using pylogd options ({view}, path '/ignored')")
    assert spark.sql("select * from paths").count() == 3
    spark.sql("select value from paths").write.format("pylogd").options(**options).mode("append").save("/ignored")
    spark.catalog.dropTempView("paths")
    assert len(values(options)) == 6


def test_a_table_needs_its_options_in_each_query(spark: Any, options: dict[str, str]) -> None:
    given = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    spark.sql(f"create table if not exists flights_table using pylogd options ({given})")
    try:
        with pytest.raises(PySparkException, match=r"kafka\.bootstrap\.servers"):
            spark.sql("select * from flights_table").count()
        repeated = ", ".join(f"`{name}` = '{value}'" for name, value in options.items())
        assert spark.sql(f"select * from flights_table with ({repeated})").count() == 3
    finally:
        spark.sql("drop table flights_table")


def test_asynchronous_progress_is_refused(spark: Any, options: dict[str, str], tmp_path: Path) -> None:
    def start(**more: str) -> Any:
        rows = spark.readStream.format("pylogd").options(**options).load().select("value")
        writer = rows.writeStream.format("pylogd").options(**options).option("asyncProgressTrackingEnabled", "true")
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).options(**more).start()

    with pytest.raises(PySparkException, match="does not support async progress tracking"):
        start().awaitTermination(SECONDS)
    with pytest.raises(PySparkException, match="'transactional' can't be combined with asyncProgressTrackingEnabled"):
        start(_asyncProgressTrackingOverrideSinkSupportCheck="true", transactional="me").awaitTermination(SECONDS)


def test_real_time_mode_is_refused(spark: Any, options: dict[str, str], tmp_path: Path) -> None:
    rows = spark.readStream.format("pylogd").options(**options).load().select("value")
    reading = rows.writeStream.format("console").outputMode("update").trigger(realTime="5 minutes")
    with pytest.raises(PySparkException, match=r"STREAMING_REAL_TIME_MODE\.INPUT_STREAM_NOT_SUPPORTED"):
        retried(lambda: finish(reading.option("checkpointLocation", str(tmp_path / "reads")).start()))
    rates = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    writing = rates.writeStream.format("pylogd").options(**options).outputMode("update").trigger(realTime="5 minutes")
    with pytest.raises(PySparkException, match=r"STREAMING_REAL_TIME_MODE\.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST"):
        retried(lambda: finish(writing.option("checkpointLocation", str(tmp_path / "writes")).start()))


def test_spark_passes_no_other_options(spark: Any, tmp_path: Path) -> None:
    """A source that notes what it gets: this fails once a newer Spark passes an option that the table does not have."""
    seen = tmp_path / "seen"

    class Noting(DataSource):
        @classmethod
        def name(cls) -> str:
            return "noting"

        def schema(self) -> str:
            return "value string"

        def _note(self) -> None:
            with seen.open("a") as file:
                file.writelines(f"{name}\n" for name in dict(self.options))

        def reader(self, schema: Any) -> DataSourceReader:
            self._note()

            class Reader(DataSourceReader):
                def read(self, partition: Any) -> Any:
                    yield ("a",)

            return Reader()

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            self._note()
            raise NotImplementedError("noted")

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
            self._note()
            raise NotImplementedError("noted")

    spark.dataSource.register(Noting)
    assert spark.read.format("noting").load("/p").count() == 1
    assert spark.read.format("noting").load(["/p", "/q"]).count() == 1
    rates = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    checkpoint = {"checkpointLocation": str(tmp_path / "checkpoint")}
    with pytest.raises(PySparkException, match="noted"):
        finish(rates.writeStream.format("noting").queryName("q").options(**checkpoint).start("/p"))
    reading = spark.readStream.format("noting").load("/p").writeStream.format("noop").options(**checkpoint)
    with pytest.raises(PySparkException, match="noted"):
        finish(reading.start())
    found = set(seen.read_text().split())
    assert found == {"path", "paths", "queryname", "checkpointlocation"} <= {name.lower() for name in OPTIONS_OF_SPARK}


def test_a_declarative_pipeline(broker: Address, create: Create, tmp_path: Path) -> None:
    """The pipeline of docs/spark.md, as a process of Spark's own command."""
    pytest.importorskip("pyspark.pipelines")
    [block] = blocks_of_kind("pipeline")
    options = {"kafka.bootstrap.servers": broker.address, "topic": "pipeline-out"}
    create("pipeline-in", 1)
    create("pipeline-out", 1)
    with Producer(broker.address) as producer:
        for value in (b"a", b"b"):
            producer.send("pipeline-in", value)
    text = block.text.replace("localhost:9092", broker.address)
    text = text.replace('"flights-copy"', '"pipeline-out"').replace('"flights"', '"pipeline-in"')
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "copy.py").write_text(text)
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: copies\nstorage: {(tmp_path / 'storage').as_uri()}\nlibraries:\n"
        "  - glob:\n      include: transformations/**\n"
        "configuration:\n  spark.sql.shuffle.partitions: '2'\n"
    )
    command = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    environment = {
        **os.environ, **python_environment(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run(
        [command, "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=1g", "run", "--spec",
         "spark-pipeline.yml"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PIPELINE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert values(options) == [b"a", b"b"]
