"""Read the messages of an audited stage: a topic, or a lake up to its committed offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pylogd.spark.audit import Stage
from pylogd.spark.offsets import OffsetLookup
from pylogd.spark.opening import lake_files
from pylogd.spark.options import SourceOptions, offsets_json
from pylogd.tables.errors import TableError
from pylogd.tables.parquet.lake import Lake
from pylogd.tables.position import ByPartition, by_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: No options of the source that begin with `kafka.`.
_NONE: Mapping[str, str] = MappingProxyType({})


def of_topics(spark: SparkSession, bootstrap: str, topics: Sequence[str], client: Mapping[str, str] = _NONE) -> Stage:
    """Return a stage with all records of the topics of a cluster.

    client: options of the source that begin with `kafka.`.
    """
    options = _options(bootstrap, topics, client)
    with OffsetLookup(SourceOptions.for_batch(options)) as offsets:
        begins = offsets.earliest(offsets.partitions())
    trimmed = [partition for partition, begin in begins.items() if begin]
    return Stage(_read(spark, options), trimmed=trimmed)


def of_lake(
    spark: SparkSession, root: str, bootstrap: str, topics: Sequence[str], client: Mapping[str, str] = _NONE
) -> Stage:
    """Return a stage with all records of a lake that was loaded from the topics of a cluster, and of its quarantine.

    Records of the topics after the lake's offsets are `unloaded`. client: as for `of_topics`. Raises TableError if the
    lake is empty.
    """
    files = lake_files(spark, root)
    lake = Lake(files)
    snapshot = lake.snapshot()
    read, begins = lake.position.offsets, by_partition(snapshot.begins)
    paths = [files.path(path) for path in sorted(snapshot.files)]
    aside = [files.path(file.path) for file in snapshot.quarantined.values()]
    if not paths and not aside:
        raise TableError(f"the lake {root} is empty")
    columns = ("topic", "partition", "offset", "headers")
    parts = [
        spark.read.option("basePath", base).parquet(*found).select(*columns)
        for base, found in ((files.root, paths), (files.path("_pylogd/quarantine"), aside))
        if found
    ]
    received = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    received = received.where(received["topic"].isin(*topics))
    trimmed = [partition for partition, begin in begins.items() if begin and partition[0] in topics]
    start, end, unknown_topics = _not_loaded(lake, read, bootstrap, topics, client)
    unloaded = None
    if start != end:
        options = {"startingOffsets": offsets_json(start), "endingOffsets": offsets_json(end)}
        named = sorted({topic for topic, _ in start})
        unloaded = _read(spark, {**_options(bootstrap, named, client), **options})
    return Stage(received, unloaded, trimmed, unknown_topics)


def _not_loaded(
    lake: Lake, read: ByPartition, bootstrap: str, topics: Sequence[str], client: Mapping[str, str]
) -> tuple[ByPartition, ByPartition, list[str]]:
    """Return the start and end offsets that are still to be loaded, and the topics for which they are unknown.

    It is unknown of a topic that does not exist, was never loaded, or was created again after it was loaded.
    """
    start: ByPartition = {}
    end: ByPartition = {}
    unknown_topics = []
    for topic in topics:
        with OffsetLookup(SourceOptions.for_batch(_options(bootstrap, [topic], client))) as offsets:
            partitions = offsets.existing()
            same = offsets.topic_ids(partitions).get(topic) in (None, lake.position.topic_ids.get(topic))
            if not partitions or not same or not any(partition in read for partition in partitions):
                unknown_topics.append(topic)
                continue
            begins, ends = offsets.earliest(partitions), offsets.latest(partitions)
        for partition in partitions:
            start[partition] = min(max(read.get(partition, 0), begins[partition]), ends[partition])
            end[partition] = ends[partition]
    return start, end, unknown_topics


def _options(bootstrap: str, topics: Sequence[str], client: Mapping[str, str]) -> dict[str, str]:
    return {
        **client,
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": ",".join(topics),
        "includeHeaders": "true",
        "invalidTimestamps": "null",
    }


def _read(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    return spark.read.format("pylogd").options(**options).load()
