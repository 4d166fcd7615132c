"""Report replicas on brokers that do not carry the label of their topic (see `metadata.labels`).

Strategy: the controller checks all topics when it is elected and whenever brokers register, end or change their labels.
It logs a warning for each broker and label whose number of misplaced replicas has changed, and a message when there are
none any more. Nothing is moved: the broker may have lost the label by mistake.
Must not know: stores, who carries decisions out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from twisted.logger import Logger

from pylogd.broker.metadata.image import Broker, Topic
from pylogd.broker.metadata.labels import label_at, misplaced

log = Logger()


class MisplacedReport:
    """Logs what has changed since the last check.

    counts: misplaced replicas by (broker, label), as of the last check.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, str]] = Counter()

    def look(self, topics: Iterable[Topic], brokers: Mapping[int, Broker]) -> None:
        """Compare all topics with the labels of the live brokers, which are given by id."""
        counts: Counter[tuple[int, str]] = Counter()
        for topic in topics:
            if not topic.configs:  # most topics; neither they nor their partitions name a label
                continue
            for state in topic.partitions:
                label = label_at(topic.configs, state.index)
                counts.update((node, label) for node in misplaced(topic, state, brokers) if label)
        before, self.counts = self.counts, counts
        for (node, label), count in sorted(counts.items()):
            if before[node, label] != count:
                log.warn(
                    'broker {node} has {count} replicas of topics with the label "{label}", which it does not carry '
                    "(its broker.labels: {labels}). They stay there, in use. Give the broker the label, or move them: "
                    "`pylogd cluster describe` lists them, `pylogd reassign plan` plans the moves",
                    node=node, count=count, label=label, labels=",".join(brokers[node].labels) or "none",
                )  # fmt: skip
        for node, label in sorted(before.keys() - counts.keys()):
            log.info('broker {node} has no misplaced replica of label "{label}" any more, or is not alive',
                     node=node, label=label)  # fmt: skip
