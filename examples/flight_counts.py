"""Count the flights that leave each airport in each hour of event time, and write the counts to a topic.

    python examples/flight_counts.py localhost:9092 flights flights-per-hour /var/lib/pylogd-checkpoint

Reads to the current end, writes a JSON record for each window and airport (keyed by the airport), and ends. The next
run continues there; with `--follow` the query continues by itself. Events may be a day late: a count is written when
its window can't change any more.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

FLIGHT = "origin string, carrier string, tailnum string, dep_delay int"


def count(spark: SparkSession, bootstrap: str, source: str, target: str, checkpoint: str, *, follow: bool) -> None:
    """Run the query: to the current end, or for ever with `follow`."""
    kafka = {"kafka.bootstrap.servers": bootstrap}
    events = spark.readStream.format("pylogd").options(**kafka, subscribe=source, startingOffsets="earliest").load()
    flights = events.select("timestamp", f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight"))
    counts = (
        flights.withWatermark("timestamp", "1 day")
        .groupBy(f.window("timestamp", "1 hour"), "flight.origin")
        .agg(f.count("*").alias("flights"))
        .select(
            f.col("origin").alias("key"),
            f.to_json(f.struct(f.col("window.start").alias("hour"), "origin", "flights")).alias("value"),
        )
    )
    writer = counts.writeStream.format("pylogd").options(**kafka, topic=target, checkpointLocation=checkpoint)
    writer = writer.outputMode("append")
    (writer if follow else writer.trigger(availableNow=True)).start().awaitTermination()


def main() -> None:
    """Run the query as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bootstrap", "source", "target", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--follow", action="store_true")
    given = parser.parse_args()
    spark = SparkSession.builder.appName("flight counts").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    count(spark, given.bootstrap, given.source, given.target, given.checkpoint, follow=given.follow)


if __name__ == "__main__":
    main()
