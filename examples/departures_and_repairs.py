"""Join two streams by key: each repair of an aircraft with its late flights of the day before.

    python examples/departures_and_repairs.py localhost:9092 flights repairs suspects /var/lib/pylogd-checkpoint

Both topics are keyed by the tail number. Spark keeps a flight, or a repair, until the watermarks say that no match can
come any more. Matches go to a topic, keyed by the tail number. The query ends at the current end of the topics; with
`--follow` it continues with new records.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

LATE_MINUTES = 60


def join(
    spark: SparkSession, bootstrap: str, flights: str, repairs: str, target: str, checkpoint: str, *, follow: bool
) -> None:
    """Run the query: to the current end, or for ever with `follow`."""
    kafka = {"kafka.bootstrap.servers": bootstrap}

    def stream(topic: str, name: str) -> DataFrame:
        rows = spark.readStream.format("pylogd").options(**kafka, subscribe=topic, startingOffsets="earliest").load()
        tail = f.col("key").cast("string").alias(f"{name}_tail")
        event = f.col("value").cast("string").alias(name)
        return rows.select(tail, event, f.col("timestamp").alias(f"{name}_at")).withWatermark(f"{name}_at", "1 day")

    departures = stream(flights, "flight").withColumn("delay", f.get_json_object("flight", "$.dep_delay").cast("int"))
    matches = departures.where(f.col("delay") >= LATE_MINUTES).join(
        stream(repairs, "repair"),
        f.expr("flight_tail = repair_tail and flight_at <= repair_at and flight_at > repair_at - interval 1 day"),
    )
    found = f.struct(f.col("flight_tail").alias("tailnum"), "delay", "flight_at", "repair_at", "repair")
    rows = matches.select(f.col("flight_tail").alias("key"), f.to_json(found).alias("value"))
    writer = rows.writeStream.format("pylogd").options(**kafka, topic=target, checkpointLocation=checkpoint)
    (writer if follow else writer.trigger(availableNow=True)).start().awaitTermination()


def main() -> None:
    """Run the query as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bootstrap", "flights", "repairs", "target", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--follow", action="store_true")
    given = parser.parse_args()
    spark = SparkSession.builder.appName("departures and repairs").getOrCreate()
    join(spark, given.bootstrap, given.flights, given.repairs, given.target, given.checkpoint, follow=given.follow)


if __name__ == "__main__":
    main()
