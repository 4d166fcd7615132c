"""The offset of a streaming query, as Spark stores it in the checkpoint.

    {"flights": {"0": 23, "1": 7},
     "pylogd:topicIds": {"flights": "0f3c..."},
     "pylogd:leaderEpochs": {"flights": {"0": 5, "1": 5}},
     "pylogd:start": {"flights": {"0": 20, "1": 0}}}

The offsets have the format of Spark's Kafka source. The additional entries have names with a colon, which topic names
can't contain. A checkpoint without them, of an older version or of Spark's Kafka source, can be read too.

The entry `start` is needed because Spark asks the source again for its initial offset until a batch is committed, and a
Python source can't store the first answer. With `startingOffsets=latest` each answer is different. So the end offset of
the first batch, which Spark logs before it runs the batch, also has the start of that batch.

Must not know: brokers, Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pylogd.lake.tables.position import ByPartition, by_partition, nested, recreated

#: An offset as Spark passes it: a JSON object.
Document = dict[str, Any]
_OWN: Final = "pylogd:"
_IDS: Final = f"{_OWN}topicIds"
_EPOCHS: Final = f"{_OWN}leaderEpochs"
_START: Final = f"{_OWN}start"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The offset up to which each partition was read.

    topic_ids: the known ids of topics as hexadecimal digits, by name.
    leader_epochs: the known leader epochs at the time when the offsets were looked up.
    start: the start of the first batch, in the end offset of that batch; else None.
    """

    offsets: ByPartition
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    leader_epochs: ByPartition = field(default_factory=dict)
    start: ByPartition | None = None

    @property
    def is_initial(self) -> bool:
        """Whether nothing was read before this offset."""
        return self.start == self.offsets

    def recreated(self, topic_ids: Mapping[str, str]) -> list[str]:
        """Return the topics whose ids have changed, sorted."""
        return recreated(self.topic_ids, topic_ids)

    def document(self) -> Document:
        """Return the JSON object that Spark stores."""
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
        """Return the offset that `document` describes."""
        start = document.get(_START)
        return cls(
            by_partition(topics_of(document)),
            dict(document.get(_IDS, {})),
            by_partition(document.get(_EPOCHS, {})),
            None if start is None else by_partition(start),
        )


def topics_of(document: Mapping[str, Any]) -> Document:
    """Return only the offsets of a document, in the format of Spark's Kafka source."""
    return {topic: inner for topic, inner in document.items() if not topic.startswith(_OWN)}
