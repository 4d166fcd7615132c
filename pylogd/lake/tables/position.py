"""The position of a table in its topics: the offset up to which it has each partition, and the logs of these offsets.

Strategy: a load reads from the position of the table to a later one. The commit that adds the load's files names both.
So a commit that does not begin at the table's present position is refused, and no record is added twice. Must not know:
formats, Spark, brokers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pylogd.lake.tables.errors import OffsetsMoved

#: An offset, a leader epoch or a time stamp by (topic, partition).
ByPartition = dict[tuple[str, int], int]


def by_partition(document: Mapping[str, Mapping[str, Any]]) -> ByPartition:
    """Return the offsets of a document of `nested`. Raises AttributeError, TypeError or ValueError."""
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in document.items()
        for partition, offset in partitions.items()
    }


def nested(offsets: Mapping[tuple[str, int], int]) -> dict[str, dict[str, int]]:
    """Return offsets as a JSON document, `{"topic": {"0": 23}}`, sorted by topic and partition."""
    document: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    return document


def recreated(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the topics whose id has changed, sorted, without topics whose id is unknown."""
    return sorted(topic for topic, known in before.items() if now.get(topic, known) != known)


@dataclass(frozen=True, slots=True)
class LoadRange:
    """The range of a load: the offsets from `start` up to, but not including, `end`.

    topic_ids: the known ids of the topics that were read, as hexadecimal digits.
    leader_epochs: the known leader epochs at which the ends were looked up.
    schema_ids: for typed tables, the registry's id of the schema from which each topic's columns come.
    """

    start: ByPartition
    end: ByPartition
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    leader_epochs: ByPartition = field(default_factory=dict)
    schema_ids: Mapping[str, int] = field(default_factory=dict)

    @property
    def read(self) -> ByPartition:
        """The number of offsets that it reads of each partition, without partitions of which it reads nothing."""
        counts = {partition: end - self.start[partition] for partition, end in self.end.items()}
        return {partition: count for partition, count in counts.items() if count}


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a table: for each partition ever loaded, the offset after the last one in the table.

    The fields are the same as in `LoadRange`, for all topics of the table.
    """

    offsets: ByPartition = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    leader_epochs: ByPartition = field(default_factory=dict)
    schema_ids: Mapping[str, int] = field(default_factory=dict)

    def after(self, loading: LoadRange) -> Position:
        """Return the position after a load.

        Partitions that the load did not read keep their offsets, unless their topic was recreated.
        """
        replaced = recreated(self.topic_ids, loading.topic_ids)
        offsets, epochs = _of_other_topics(self.offsets, replaced), _of_other_topics(self.leader_epochs, replaced)
        offsets.update(loading.end)
        for partition in loading.end:
            epochs.pop(partition, None)
        epochs.update({each: epoch for each, epoch in loading.leader_epochs.items() if each in loading.end})
        return Position(
            offsets,
            {**self.topic_ids, **loading.topic_ids},
            epochs,
            {**self.schema_ids, **loading.schema_ids},
        )

    def check(self, expected: Position, loading: LoadRange) -> None:
        """Check that a load that was planned at the position `expected` can be added at this one.

        Raises OffsetsMoved if the offset of a partition that it reads, or the id of its topic, has changed. Loads of
        other partitions do not matter.
        """
        for partition in sorted(loading.end):
            planned, now = expected.offsets.get(partition), self.offsets.get(partition)
            if planned != now:
                raise OffsetsMoved(partition, planned, now)
        for topic in sorted({topic for topic, _ in loading.end}):
            if expected.topic_ids.get(topic) != self.topic_ids.get(topic):
                raise OffsetsMoved((topic, None), expected.topic_ids.get(topic), self.topic_ids.get(topic))

    def as_document(self) -> dict[str, Any]:
        """Return the position as a JSON document."""
        return {
            "offsets": nested(self.offsets),
            "topic_ids": dict(self.topic_ids),
            "leader_epochs": nested(self.leader_epochs),
            "schema_ids": dict(self.schema_ids),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Position:
        """Return the position that a document describes; missing entries are empty. Raises ValueError or TypeError."""
        return cls(
            by_partition(document.get("offsets", {})),
            dict(document.get("topic_ids", {})),
            by_partition(document.get("leader_epochs", {})),
            dict(document.get("schema_ids", {})),
        )


def _of_other_topics(offsets: Mapping[tuple[str, int], int], topics: Collection[str]) -> ByPartition:
    return {partition: offset for partition, offset in offsets.items() if partition[0] not in topics}
