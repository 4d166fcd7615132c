"""Count the events of several topics by key in windows of event time, and write the counts to a topic, exactly once.

    python examples/counts_exactly_once.py localhost:9092 departures,repairs counts /var/lib/pylogd-checkpoint

Only committed events are read, and each micro-batch is written in one transaction, so that a consumer of committed
records sees each count once, whatever was killed meanwhile. The key of a count has the time stamp of its window's
start, the topic and the key, such as `1700000000000/repairs/N14228`; its value is the number of events.

A count is written when its window can't change any more. The query ends at the current end of the topics; with
`--follow` it continues with new events.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def count(
    spark: SparkSession, bootstrap: str, sources: str, target: str, checkpoint: str, *, name: str,
    window: str, late: str, most: int, follow: bool,
) -> None:  # fmt: skip
    """Run the query: to the current end, or for ever with `follow`.

    name: the transactional id, which no other query may have. window: the length of windows. late: how much later than
    other events one may come. most: the most events in a micro-batch, about.
    """
    kafka = {"kafka.bootstrap.servers": bootstrap}
    reading = {"subscribe": sources, "startingOffsets": "earliest", "isolation.level": "read_committed"}
    events = spark.readStream.format("pylogd").options(**kafka, **reading, maxOffsetsPerTrigger=str(most)).load()
    counts = events.withWatermark("timestamp", late).groupBy(f.window("timestamp", window), "topic", "key").count()
    start = f.unix_millis("window.start")
    rows = counts.select(
        f.concat_ws("/", start, "topic", f.col("key").cast("string")).alias("key"),
        f.col("count").cast("string").alias("value"),
    )
    writer = rows.writeStream.format("pylogd").options(**kafka, topic=target, transactional=name)
    writer = writer.option("checkpointLocation", checkpoint).outputMode("append")
    (writer if follow else writer.trigger(availableNow=True)).start().awaitTermination()


def main() -> None:
    """Run the query as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bootstrap", "sources", "target", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--name", default="counts")
    parser.add_argument("--window", default="1 hour")
    parser.add_argument("--late", default="1 day")
    parser.add_argument("--most", type=int, default=100_000)
    parser.add_argument("--follow", action="store_true")
    given = vars(parser.parse_args())
    spark = SparkSession.builder.appName("counts").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    count(spark, **given)


if __name__ == "__main__":
    main()
