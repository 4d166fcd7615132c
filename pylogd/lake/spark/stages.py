"""Read the messages of an audited stage: a topic, or a lake up to its committed offsets.

Only committed records of topics count as received. Records of transactions that are still open are not loaded yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pylogd.lake.spark.audit import Stage, with_times
from pylogd.lake.spark.offsets import OffsetLookup
from pylogd.lake.spark.opening import lake_files
from pylogd.lake.spark.options import COMMITTED, UNCOMMITTED, SourceOptions, offsets_json
from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.parquet.lake import Lake
from pylogd.lake.tables.position import ByPartition, by_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: An empty set of client options (`kafka.*`).
_NONE: Mapping[str, str] = MappingProxyType({})


def of_topics(spark: SparkSession, bootstrap: str, topics: Sequence[str], client: Mapping[str, str] = _NONE) -> Stage:
    """Return a stage with all records of the topics of a cluster.

    client: options of the source that begin with `kafka.`.
    """
    options = _options(bootstrap, topics, client)
    with OffsetLookup(SourceOptions.for_batch(options)) as offsets:
        partitions = offsets.partitions()
        begins, (start, end) = offsets.earliest(partitions), offsets.undecided(partitions)
    trimmed = [partition for partition, begin in begins.items() if begin]
    return Stage(_read(spark, options), _read_undecided(spark, bootstrap, client, start, end), trimmed)


def of_lake(
    spark: SparkSession, root: str, bootstrap: str, topics: Sequence[str], client: Mapping[str, str] = _NONE
) -> Stage:
    """Return a stage with all records of a lake that was loaded from the topics of a cluster, and of its quarantine.

    Records of the topics after the lake's offsets are `unloaded`.
    client: see `of_topics`.

    Raises TableError if the lake is empty.
    """
    files = lake_files(spark, root)
    lake = Lake(files)
    snapshot = lake.snapshot()
    read, begins = lake.position.offsets, by_partition(snapshot.begins)
    paths = [files.path(path) for path in sorted(snapshot.files)]
    aside = [files.path(file.path) for file in snapshot.quarantined.values()]
    if not paths and not aside:
        raise TableError(f"the lake {root} is empty")
    parts = [
        with_times(spark.read.option("basePath", base).parquet(*found))
        for base, found in ((files.root, paths), (files.path("_pylogd/quarantine"), aside))
        if found
    ]
    received = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    received = received.where(received["topic"].isin(*topics))
    trimmed = [partition for partition, begin in begins.items() if begin and partition[0] in topics]
    missing = _not_loaded(lake, read, bootstrap, topics, client)
    unloaded = _read_undecided(spark, bootstrap, client, missing.undecided_start, missing.undecided_end)
    if missing.start != missing.end:
        options = {"startingOffsets": offsets_json(missing.start), "endingOffsets": offsets_json(missing.end)}
        named = sorted({topic for topic, _ in missing.start})
        committed = _read(spark, {**_options(bootstrap, named, client), **options})
        unloaded = committed if unloaded is None else unloaded.unionByName(committed)
    return Stage(received, unloaded, trimmed, missing.unknown_topics)


@dataclass(slots=True)
class _NotLoaded:
    """The records that a lake does not have yet: from `start` to `end`, and after that the records of open
    transactions.

    unknown_topics: the topics whose missing records are unknown: topics that do not exist, were never loaded although
    they have records, or were created again after they were loaded.
    """

    start: ByPartition = field(default_factory=dict)
    end: ByPartition = field(default_factory=dict)
    undecided_start: ByPartition = field(default_factory=dict)
    undecided_end: ByPartition = field(default_factory=dict)
    unknown_topics: list[str] = field(default_factory=list)


def _not_loaded(
    lake: Lake, read: ByPartition, bootstrap: str, topics: Sequence[str], client: Mapping[str, str]
) -> _NotLoaded:
    """Compare a lake with the topics that it is loaded from."""
    found = _NotLoaded()
    for topic in topics:
        with OffsetLookup(SourceOptions.for_batch(_options(bootstrap, [topic], client))) as offsets:
            partitions = offsets.existing()
            if partitions and not any(each in read for each in partitions) and _is_empty(offsets, partitions):
                continue  # the topic never had a record
            same = offsets.topic_ids(partitions).get(topic) in (None, lake.position.topic_ids.get(topic))
            if not partitions or not same or not any(partition in read for partition in partitions):
                found.unknown_topics.append(topic)
                continue
            begins, ends = offsets.earliest(partitions), offsets.latest(partitions)
            start, end = offsets.undecided(partitions)
        for partition in partitions:
            found.start[partition] = min(max(read.get(partition, 0), begins[partition]), ends[partition])
            found.end[partition] = ends[partition]
        # a lake of uncommitted records may have some of these records
        start = {each: max(offset, read.get(each, 0)) for each, offset in start.items()}
        ahead = [each for each in start if start[each] < end[each]]
        found.undecided_start.update({each: start[each] for each in ahead})
        found.undecided_end.update({each: end[each] for each in ahead})
    return found


def _is_empty(offsets: OffsetLookup, partitions: Sequence[tuple[str, int]]) -> bool:
    """Return whether nothing was ever written to these partitions."""
    return not any(offsets.latest(partitions).values()) and not offsets.undecided(partitions)[0]


def _read_undecided(
    spark: SparkSession, bootstrap: str, client: Mapping[str, str], start: ByPartition, end: ByPartition
) -> DataFrame | None:
    """Return the records of open transactions between these offsets; None if there are no offsets."""
    if not start:
        return None
    places: dict[str, list[int]] = {}
    for topic, partition in sorted(start):
        places.setdefault(topic, []).append(partition)
    options = {
        **_options(bootstrap, [], {**client, **UNCOMMITTED}),
        "assign": json.dumps(places),
        "startingOffsets": offsets_json(start),
        "endingOffsets": offsets_json(end),
    }
    del options["subscribe"]
    return _read(spark, options)


def _options(bootstrap: str, topics: Sequence[str], client: Mapping[str, str]) -> dict[str, str]:
    return {
        **COMMITTED,
        **client,
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": ",".join(topics),
        "includeHeaders": "true",
        "invalidTimestamps": "null",
    }


def _read(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    return spark.read.format("pylogd").options(**options).load()
