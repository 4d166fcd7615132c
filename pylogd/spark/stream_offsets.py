"""A streaming query's offset, as Spark keeps it in the checkpoint: where each partition is read to, and of which log.

    {"flights": {"0": 23, "1": 7},
     "pylogd:topicIds": {"flights": "0f3c..."},
     "pylogd:leaderEpochs": {"flights": {"0": 5, "1": 5}},
     "pylogd:start": {"flights": {"0": 20, "1": 0}}}

The offsets are written as Spark's Kafka source writes them. What this source adds has names with a colon, which no
topic can have. A checkpoint without them, of an older version or of Spark's source, is read too.

The start: Spark asks a source for its initial offset again whenever no batch is committed yet, and gives a Python
source no place to keep the answer. With `startingOffsets=latest` each answer is another. So the end of the first batch,
which Spark logs before the batch runs, names the batch's start too, and a batch whose end names a start begins there.

Must not know: brokers, Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pylogd.spark.options import ByPartition, by_partition, nested
from pylogd.spark.ranges import recreated

#: An offset as Spark passes it: JSON objects.
Document = dict[str, Any]
_OWN: Final = "pylogd:"
_IDS: Final = f"{_OWN}topicIds"
_EPOCHS: Final = f"{_OWN}leaderEpochs"
_START: Final = f"{_OWN}start"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where each partition is read to.

    topic_ids: by name, the id of the topic that the offsets belong to, as hexadecimal digits. leader_epochs: by
    partition, the leader's epoch when the offset was looked up. start: of the first batch's end, where that batch
    begins. Ids and epochs may lack topics and partitions of which they are not known.
    """

    offsets: ByPartition
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    leader_epochs: ByPartition = field(default_factory=dict)
    start: ByPartition | None = None

    @property
    def is_initial(self) -> bool:
        """Whether nothing was read before it."""
        return self.start == self.offsets

    def recreated(self, topic_ids: Mapping[str, str]) -> list[str]:
        """The topics that have another id by now, in order."""
        return recreated(self.topic_ids, topic_ids)

    def document(self) -> Document:
        """As Spark keeps it."""
        found: Document = nested(self.offsets)
        if self.topic_ids:
            found[_IDS] = dict(sorted(self.topic_ids.items()))
        if self.leader_epochs:
            found[_EPOCHS] = nested(self.leader_epochs)
        if self.start is not None:
            found[_START] = nested(self.start)
        return found

    @classmethod
    def read(cls, document: Document) -> StreamOffset:
        """The inverse."""
        start = document.get(_START)
        return cls(
            by_partition(topics_of(document)),
            dict(document.get(_IDS, {})),
            by_partition(document.get(_EPOCHS, {})),
            None if start is None else by_partition(start),
        )


def topics_of(document: Mapping[str, Any]) -> Document:
    """Only the offsets of a document, as Spark's Kafka source would have written them."""
    return {topic: inner for topic, inner in document.items() if not topic.startswith(_OWN)}
