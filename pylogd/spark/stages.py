"""Where an audit looks for messages: a topic, or a lake up to the offsets that it has committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pylogd.spark.audit import Stage
from pylogd.spark.hadoop import HadoopFiles
from pylogd.spark.lake import Lake, LakeError
from pylogd.spark.offsets import Offsets, Place
from pylogd.spark.options import ByPartition, SourceOptions, offsets_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def of_topics(spark: SparkSession, bootstrap: str, topics: Sequence[str]) -> Stage:
    """What is in the topics of a cluster."""
    with Offsets(SourceOptions.for_batch(_given(bootstrap, topics))) as offsets:
        begins = offsets.earliest(offsets.partitions())
    return Stage(_read(spark, _given(bootstrap, topics)), cut=[place for place, begin in begins.items() if begin])


def of_lake(spark: SparkSession, root: str, bootstrap: str, topics: Sequence[str]) -> Stage:
    """What is in a lake that was loaded from the topics of a cluster, and in its quarantine; what is behind its offsets
    there is still to come. Raises `LakeError` for a lake that holds nothing.
    """
    files = HadoopFiles(spark, root)
    lake = Lake(files)
    read, begins = lake.offsets, _begins(lake)
    paths = [files.path(path) for path in sorted(lake.files())]
    aside = [files.path(file.path) for file in lake.quarantined()]
    if not paths and not aside:
        raise LakeError(f"{root} holds nothing")
    columns = ("topic", "partition", "offset", "headers")
    parts = [
        spark.read.option("basePath", base).parquet(*found).select(*columns)
        for base, found in ((files.root, paths), (files.path("_pylogd/quarantine"), aside))
        if found
    ]
    received = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    received = received.where(received["topic"].isin(*topics))
    cut = [place for place, begin in begins.items() if begin and place[0] in topics]
    start, end, unsure = _not_loaded(lake, read, bootstrap, topics)
    unloaded = None
    if start != end:
        options = {"startingOffsets": offsets_json(start), "endingOffsets": offsets_json(end)}
        named = sorted({topic for topic, _ in start})
        unloaded = _read(spark, {**_given(bootstrap, named), **options})
    return Stage(received, unloaded, cut, unsure)


def _begins(lake: Lake) -> ByPartition:
    """The first offset of each partition that a lake ever read."""
    found: dict[Place, int] = {}
    for commit in lake.history():
        for topic, partitions in commit.offsets.items():
            for partition, end in partitions.items():
                begin = end - commit.read.get(topic, {}).get(partition, 0)
                found.setdefault((topic, int(partition)), begin)
    return found


def _not_loaded(
    lake: Lake, read: ByPartition, bootstrap: str, topics: Sequence[str]
) -> tuple[ByPartition, ByPartition, list[str]]:
    """Which offsets of the topics are still to be loaded, from where to where; and the topics that are not those that
    the lake was loaded from, or that are not there.
    """
    start: ByPartition = {}
    end: ByPartition = {}
    unsure = []
    for topic in topics:
        with Offsets(SourceOptions.for_batch(_given(bootstrap, [topic]))) as offsets:
            places = offsets.existing()
            same = offsets.topic_ids(places).get(topic) in (None, lake.topic_ids.get(topic))
            if not places or not same or not any(place in read for place in places):
                unsure.append(topic)
                continue
            begins, ends = offsets.earliest(places), offsets.latest(places)
        for place in places:
            start[place] = min(max(read.get(place, 0), begins[place]), ends[place])
            end[place] = ends[place]
    return start, end, unsure


def _given(bootstrap: str, topics: Sequence[str]) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": ",".join(topics),
        "includeHeaders": "true",
        "invalidTimestamps": "null",
    }


def _read(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    return spark.read.format("pylogd").options(**options).load()
