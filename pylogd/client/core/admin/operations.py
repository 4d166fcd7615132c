"""The administrator's operations, for all faces: topics, settings, offsets, the cluster, its disks.

Rules: an operation on several things returns None or a KafkaError for each name; an operation on one thing raises.
Requests that only the controller serves go to the controller. A change that may have been made is not sent again: if
its reply is lost, RequestTimedOut or BrokerUnavailable is raised, and the caller has to find out what was done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from pylogd.base.errors import ErrorCode, KafkaError, error_for
from pylogd.client.core.admin.access_operations import AccessOperations
from pylogd.client.core.admin.calls import Answers, Calls, ask, change, refresh
from pylogd.client.core.admin.group_operations import GroupOperations, Outcome
from pylogd.client.core.admin.move_operations import MoveOperations
from pylogd.client.core.admin.offsets import EndSearch, find_offsets, leader_of
from pylogd.client.core.admin.transaction_operations import TransactionOperations
from pylogd.client.core.admin.visibility import created, deleted, grown, until_shown
from pylogd.client.core.metadata import check, error_text
from pylogd.client.core.model import LogEnds, NewTopic, OffsetAndTime, Topic, TopicPartition
from pylogd.wire.messages import create_partitions, create_topics, delete_records, delete_topics

_NAMES_UNTIL = 5  # a version of DeleteTopics


class Operations(GroupOperations, MoveOperations, TransactionOperations, AccessOperations):
    """The operations on a cluster; the `Admin` of each face has them as its own methods.

    An operation that changes something returns when all brokers that answer show the change (see `visibility`).
    """

    def __init__(self, calls: Calls, request_timeout: float) -> None:
        self._calls = calls
        self._timeout_ms = int(request_timeout * 1000)

    # Topics

    async def list_topics(self, *, internal: bool = False, timeout: float | None = None) -> list[Topic]:
        """Return all topics, by name. Internal topics are included only with `internal=True`.

        timeout: seconds after which another broker is asked; None to wait for one for the client's `request_timeout`.
        """
        found = await self._calls.call(lambda: refresh(self._calls, None, timeout))
        return sorted((topic for topic in found if internal or not topic.internal), key=lambda topic: topic.name)

    async def describe_topic(self, name: str) -> Topic:
        """Return a topic's id and partitions, read from a broker now. Raises KafkaError."""
        [found] = await self._calls.call(lambda: refresh(self._calls, [name]))
        return found

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Create a topic. Raises KafkaError."""
        topic = NewTopic(name, partitions, replication_factor, configs or {})
        _raise(await self.create_topics([topic], validate_only=validate_only))

    async def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> Outcome:
        """Create topics, or with `validate_only` only check that they could be created."""
        request = create_topics.CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics], timeout_ms=self._timeout_ms, validate_only=validate_only
        )
        response = await change(self._calls, request, lambda r: [t.error_code for t in r.topics])
        self._forget(topic.name for topic in topics)
        # A topic that exists already may have been created just before, by another client.
        there = [one.name for one in response.topics if one.error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)]
        if there and not validate_only:
            await until_shown(self._calls, created(self._calls, there))
        return {topic.name: _error(topic.error_code, topic.error_message) for topic in response.topics}

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records. Raises KafkaError."""
        _raise(await self.delete_topics([name]))

    async def delete_topics(self, names: Sequence[str]) -> Outcome:
        """Delete topics and all their records."""
        request = delete_topics.DeleteTopicsRequest(timeout_ms=self._timeout_ms)

        def fit(version: int) -> None:
            if version <= _NAMES_UNTIL:
                request.topic_names = list(names)
            else:
                request.topics = [delete_topics.DeleteTopicState(name=name) for name in names]

        response = await change(self._calls, request, lambda r: [t.error_code for t in r.responses], fit)
        self._forget(names)
        gone = {one.name or "": bytes(one.topic_id) for one in response.responses if not one.error_code}
        if gone:
            await until_shown(self._calls, deleted(self._calls, gone))
        return {answer.name or "": _error(answer.error_code, answer.error_message) for answer in response.responses}

    async def create_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        """Increase a topic's number of partitions to `count`. Raises KafkaError."""
        request = create_partitions.CreatePartitionsRequest(
            topics=[create_partitions.CreatePartitionsTopic(name=topic, count=count, assignments=None)],
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )
        response = await change(self._calls, request, lambda r: [t.error_code for t in r.results])
        self._forget([topic])
        _raise({answer.name: _error(answer.error_code, answer.error_message) for answer in response.results})
        if not validate_only:
            await until_shown(self._calls, grown(self._calls, topic, count))

    # Offsets

    async def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTime]:
        """Return an offset of each partition: the first at or after a time in milliseconds since 1970, or `EARLIEST`,
        `LATEST` or `MAX_TIMESTAMP`, as `wanted` says.
        """
        return await find_offsets(self._calls, wanted)

    async def log_ends(
        self, partitions: Iterable[TopicPartition], silent: Iterable[int] = (), timeout: float | None = None
    ) -> LogEnds:
        """Return the ends of logs, except those whose leaders do not answer within `timeout` seconds.

        All leaders are asked at the same time, each for all its logs at once.

        silent: brokers that did not answer earlier, and are not asked again.
        """
        answers = Answers(self._calls, silent, timeout)
        search = EndSearch(self._calls, answers)
        if not self._calls.metadata.brokers:
            await self._calls.call(lambda: refresh(self._calls))
        await search.find(partitions, sorted(self._calls.metadata.brokers), timeout)
        return LogEnds(search.found, tuple(sorted(answers.missed)))

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before an offset; -1 means the high watermark.

        Return each partition's new log start offset.
        """
        by_leader: dict[int, dict[str, delete_records.DeleteRecordsTopic]] = {}
        for (name, index), offset in before.items():
            partition = TopicPartition(name, index)
            leader = await self._calls.call(partial(leader_of, self._calls, partition))
            topic = by_leader.setdefault(leader, {}).setdefault(name, delete_records.DeleteRecordsTopic(name))
            topic.partitions.append(delete_records.DeleteRecordsPartition(index, offset))
        found = {}
        for leader, topics in by_leader.items():
            request = delete_records.DeleteRecordsRequest(list(topics.values()), self._timeout_ms)
            for answered in (await ask(self._calls, request, leader)).topics:
                for answer in answered.partitions:
                    check(answer.error_code, f"{answered.name}-{answer.partition_index}")
                    found[TopicPartition(answered.name, answer.partition_index)] = answer.low_watermark
        return found

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._calls.metadata.forget(name)


def _creatable(topic: NewTopic) -> create_topics.CreatableTopic:
    return create_topics.CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.assignments else topic.partitions,
        replication_factor=-1 if topic.assignments else topic.replication_factor,
        assignments=[
            create_topics.CreatableReplicaAssignment(index, list(replicas))
            for index, replicas in topic.assignments.items()
        ],
        configs=[create_topics.CreatableTopicConfig(name, value) for name, value in topic.configs.items()],
    )


def _error(code: int, message: str | None) -> KafkaError | None:
    return KafkaError(error_for(code), message or error_text(code)) if code else None


def _raise(outcome: Outcome) -> None:
    for error in outcome.values():
        if error is not None:
            raise error
