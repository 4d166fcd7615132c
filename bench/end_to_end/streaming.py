"""Spark structured streaming from pylogd's source to Parquet files, until SIGTERM, a process of its own.

    python -m bench.end_to_end.streaming ADDRESS TOPIC DIRECTORY CHECKPOINTS

A micro-batch begins as soon as the one before it is done, which is Spark's default.
"""

from __future__ import annotations

import signal
import sys

from pylogd.cli.spark import session
from pylogd.lake.spark.load import find_source


def stream(address: str, topic: str, directory: str, checkpoints: str) -> None:
    """Run the query."""
    spark = session("local[2]", {}, "end to end")
    find_source(spark)
    rows = spark.readStream.format("pylogd").option("kafka.bootstrap.servers", address).option("subscribe", topic)
    rows = rows.option("startingOffsets", "earliest").load()
    query = rows.writeStream.format("parquet").option("path", directory).option("checkpointLocation", checkpoints)
    running = query.start()
    signal.signal(signal.SIGTERM, lambda *_: running.stop())
    running.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    stream(*sys.argv[1:5])
