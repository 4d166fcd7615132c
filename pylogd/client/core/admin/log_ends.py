"""Find the ends of many logs, in a number of requests that depends on brokers, not on partitions.

Strategy: one broker is asked for the leaders. Then all leaders are asked at the same time, each for the ends of all its
logs. A retry asks only for missing ends that may still be found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client.core.admin.answers import Answers
from pylogd.client.core.admin.calls import Calls, Question, question
from pylogd.client.core.admin.offsets import LATEST, offsets_request, read_offsets
from pylogd.client.core.model import TopicPartition
from pylogd.wire.messages.metadata import MetadataRequest

_UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class EndSearch:
    """What leaders have answered.

    found: the log end offsets.
    deleted: partitions that do not exist any more.

    The log ends of other partitions are not known: they have no leader, or their leader does not answer.
    """

    def __init__(self, calls: Calls, answers: Answers) -> None:
        self.found: dict[TopicPartition, int] = {}
        self.deleted: set[TopicPartition] = set()
        self._calls = calls
        self._answers = answers

    async def find(self, partitions: Iterable[TopicPartition], nodes: Sequence[int], timeout: float | None) -> None:
        """Find the log end offsets of partitions.

        nodes: brokers that know the leaders of partitions; they are asked one after the other, until one answers.
        """
        wanted = sorted(partitions)
        with suppress(KafkaError):  # ends that can't be found now stay unknown
            await self._calls.call(lambda: self._attempt(wanted, nodes), timeout)

    async def _attempt(self, partitions: Sequence[TopicPartition], nodes: Sequence[int]) -> None:
        """Find the ends that are missing, in one try. Raises KafkaError if another try may find more."""
        wanted = [one for one in partitions if one not in self.found and one not in self.deleted]
        leaders = await self._leaders(nodes, {partition.topic for partition in wanted})
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition in wanted:
            leader = leaders.get(partition.topic, {}).get(partition.partition)
            if leader is None and partition.topic in leaders:
                self.deleted.add(partition)
            elif leader is not None and leader >= 0:
                by_leader.setdefault(leader, {})[partition] = LATEST
        questions = [
            (leader, question(offsets_request(some, self._calls.metadata.leader_epochs(some)), leader))
            for leader, some in by_leader.items()
        ]
        passing = None
        for answer in await self._answers.of(questions):
            for partition, found in (read_offsets(answer) if answer is not None else {}).items():
                if not isinstance(found, KafkaError):
                    self.found[partition] = found.offset
                elif found.retriable:
                    passing = found
        if passing is not None:
            raise passing

    async def _leaders(self, nodes: Sequence[int], topics: Collection[str]) -> dict[str, dict[int, int]]:
        """Return the leaders of topics' partitions, from the first broker that answers; none for a deleted topic.
        Topics that this broker does not know are left out.
        """
        if not topics:
            return {}
        metadata = self._calls.metadata
        answers = await self._answers.of_first(nodes, lambda node: [
            Question(MetadataRequest, lambda version: metadata.request(topics, version, create=False), node)
        ])  # fmt: skip
        if answers is None:
            return {}
        errors = metadata.learn_each(answers[0])
        deleted = [name for name, error in errors.items() if error.code is _UNKNOWN]
        known = [metadata.topics[name] for name in topics if name in metadata.topics]
        return {name: {} for name in deleted} | {
            topic.name: {one.index: one.leader for one in topic.partitions} for topic in known
        }
