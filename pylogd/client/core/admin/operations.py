"""The administrator's operations, for all faces: topics, settings, offsets, the cluster, its disks.

Rules: an operation on several things answers for each: None or a KafkaError by name. An operation on one thing raises.
Requests that only the controller serves go to it. Nothing that may have been done is sent twice unasked: a change whose
reply was lost raises RequestTimedOut or BrokerUnavailable, and to look is better than to guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Literal

from pylogd.client.core.admin.acl_operations import AclOperations
from pylogd.client.core.admin.answers import Answers
from pylogd.client.core.admin.calls import Calls, ask, ask_any, change, once, question, refresh
from pylogd.client.core.admin.feature_operations import FeatureOperations
from pylogd.client.core.admin.group_operations import GroupOperations, Outcome
from pylogd.client.core.admin.label_operations import LabelOperations
from pylogd.client.core.admin.log_ends import EndSearch
from pylogd.client.core.admin.offsets import find_offsets, leader_of
from pylogd.client.core.admin.partition_operations import PartitionOperations
from pylogd.client.core.admin.quota_operations import QuotaOperations
from pylogd.client.core.admin.transaction_operations import TransactionOperations
from pylogd.client.core.admin.user_operations import UserOperations
from pylogd.client.core.metadata import check, error_text
from pylogd.client.core.model import (
    Broker,
    ClusterDescription,
    ConfigEntry,
    LogDir,
    LogEnds,
    NewTopic,
    OffsetAndTime,
    Topic,
    TopicPartition,
)
from pylogd.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.wire.messages import alter_replica_log_dirs as alter_dirs
from pylogd.wire.messages import create_partitions, create_topics, delete_records, delete_topics
from pylogd.wire.messages import describe_cluster as describe_cluster_messages
from pylogd.wire.messages import describe_configs as describe_configs_messages
from pylogd.wire.messages import describe_log_dirs as log_dirs
from pylogd.wire.messages import incremental_alter_configs as alter

ResourceKind = Literal["topic", "broker", "group"]

_KINDS: dict[str, int] = {"topic": 2, "broker": 4, "group": 32}
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_NAMES_UNTIL = 5  # of DeleteTopics
_SOURCES = {
    1: "topic",
    2: "broker, at run time",
    3: "all brokers, at run time",
    4: "broker's start",
    5: "default",
    6: "broker's logger",
    8: "group",
}


class Operations(
    GroupOperations, PartitionOperations, TransactionOperations, LabelOperations, AclOperations, QuotaOperations,
    UserOperations, FeatureOperations,
):  # fmt: skip
    """The operations on a cluster; the `Admin` of each face has them as its own methods."""

    def __init__(self, calls: Calls, request_timeout: float) -> None:
        super().__init__(calls)
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

    # Settings

    async def describe_configs(
        self, kind: ResourceKind, name: str, keys: Sequence[str] | None = None, *, documentation: bool = False
    ) -> list[ConfigEntry]:
        """Return settings of a topic, a group or a broker (by id): all, or those in `keys`. Raises KafkaError."""
        messages = describe_configs_messages
        resource = messages.DescribeConfigsResource(_KINDS[kind], name, None if keys is None else list(keys))
        request = messages.DescribeConfigsRequest(resources=[resource])

        def fit(version: int) -> None:
            request.include_documentation = documentation and version >= 3

        node_id = int(name) if kind == "broker" and name else None
        return _entries(await ask(self._calls, request, node_id, fit))

    async def configs_by_broker(
        self, brokers: Iterable[int], keys: Sequence[str], timeout: float | None = None
    ) -> dict[int, list[ConfigEntry] | PylogdError]:
        """Return settings of each broker, or its error if it does not answer within `timeout` seconds.

        All brokers are asked at the same time, without retries.
        """
        nodes = list(brokers)
        if not self._calls.metadata.brokers:
            await self._calls.call(lambda: refresh(self._calls))
        messages = describe_configs_messages
        resources = [messages.DescribeConfigsResource(_KINDS["broker"], str(node), list(keys)) for node in nodes]
        requests = [messages.DescribeConfigsRequest([resource]) for resource in resources]
        questions = [question(request, node) for node, request in zip(nodes, requests, strict=True)]
        found: dict[int, list[ConfigEntry] | PylogdError] = {}
        for node, answer in zip(nodes, await self._calls.send_all(questions, timeout), strict=True):
            try:
                found[node] = answer if isinstance(answer, PylogdError) else _entries(answer)
            except KafkaError as error:
                found[node] = error
        return found

    async def alter_configs(
        self,
        kind: ResourceKind,
        name: str,
        changes: Mapping[str, str | None],
        *,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change settings of a topic, a group or a broker: `changes` to a value, or with None to the default; `append`
        to and `subtract` from lists. Other settings are unchanged. Raises KafkaError.
        """
        operations = [
            alter.AlterableConfig(key, _DELETE if value is None else _SET, value) for key, value in changes.items()
        ]
        operations += [alter.AlterableConfig(key, _APPEND, value) for key, value in (append or {}).items()]
        operations += [alter.AlterableConfig(key, _SUBTRACT, value) for key, value in (subtract or {}).items()]
        request = alter.IncrementalAlterConfigsRequest(
            resources=[alter.AlterConfigsResource(_KINDS[kind], name, operations)], validate_only=validate_only
        )
        node_id = int(name) if kind == "broker" and name else None
        send_it = once if append or subtract else ask  # a list that is appended to twice is another list
        response: alter.IncrementalAlterConfigsResponse = await send_it(self._calls, request, node_id)
        for answer in response.responses:
            check(answer.error_code, answer.error_message)

    # Offsets

    async def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTime]:
        """Return an offset of each partition. `wanted` gives a time in milliseconds since 1970, for the first offset at
        or after it, or `EARLIEST`, `LATEST` or `MAX_TIMESTAMP`.
        """
        return await find_offsets(self._calls, wanted)

    async def log_ends(
        self, partitions: Iterable[TopicPartition], silent: Iterable[int] = (), timeout: float | None = None
    ) -> LogEnds:
        """Return the ends of logs, also beside leaders that do not answer within `timeout` seconds.

        All leaders are asked at the same time, each for all its logs at once.

        silent: brokers that have not answered before, and are not asked.
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

    # The cluster

    async def describe_cluster(self, timeout: float | None = None) -> ClusterDescription:
        """Return the cluster's id, its controller and its brokers.

        timeout: seconds after which another broker is asked; None to wait for one for the client's `request_timeout`.
        """
        response: describe_cluster_messages.DescribeClusterResponse = await ask_any(
            self._calls, describe_cluster_messages.DescribeClusterRequest(), timeout
        )
        check(response.error_code, response.error_message)
        brokers = tuple(
            Broker(b.broker_id, b.host, b.port, b.rack, b.host_id, tuple(b.labels)) for b in response.brokers
        )
        return ClusterDescription(response.cluster_id, response.controller_id, brokers)

    async def describe_log_dirs(self, brokers: Iterable[int] | None = None) -> list[LogDir]:
        """Return the data directories of some brokers, or of all, with the size of each partition in them.

        The brokers are asked at the same time, and those that fail again. Raises the error of one that does not answer.
        """
        if brokers is None:
            await self._calls.call(lambda: refresh(self._calls))
        nodes = sorted(self._calls.metadata.brokers) if brokers is None else list(brokers)
        found: dict[int, list[LogDir]] = {}

        async def attempt() -> None:
            failed = None
            for node, answer in (await self.log_dirs_by_broker([one for one in nodes if one not in found])).items():
                if isinstance(answer, PylogdError):
                    failed = answer
                else:
                    found[node] = answer
            if failed is not None:
                raise failed

        await self._calls.call(attempt)
        return [one for node in nodes for one in found[node]]

    async def log_dirs_by_broker(
        self, brokers: Iterable[int], timeout: float | None = None
    ) -> dict[int, list[LogDir] | PylogdError]:
        """Return the data directories of each broker, or its error if it does not answer within `timeout` seconds.

        All brokers are asked at the same time, without retries. Raises the error if the brokers' addresses can't be
        found.
        """
        nodes = list(brokers)
        if not self._calls.metadata.brokers:
            await self._calls.call(lambda: refresh(self._calls))
        request = log_dirs.DescribeLogDirsRequest(topics=None)
        answers = await self._calls.send_all([question(request, node) for node in nodes], timeout)
        return {node: _log_dirs(node, answer) for node, answer in zip(nodes, answers, strict=True)}

    async def reopen_log_dir(self, broker: int, path: str) -> LogDir:
        """Tell a broker to use a data directory again that was offline or full.

        Return the directory as it is afterwards; its `error` is None if it is in use. Raises KafkaError
        (LOG_DIR_NOT_FOUND) if the broker does not have this directory.
        """
        request = alter_dirs.AlterReplicaLogDirsRequest([alter_dirs.AlterReplicaLogDir(path)])
        await ask(self._calls, request, broker)
        for found in await self.describe_log_dirs([broker]):
            if found.path == path:
                return found
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"broker {broker} has no data directory {path}")

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._calls.metadata.forget(name)


def _entries(response: describe_configs_messages.DescribeConfigsResponse) -> list[ConfigEntry]:
    """Return the settings in an answer. Raises KafkaError."""
    entries = []
    for result in response.results:
        check(result.error_code, result.error_message)
        entries += [
            ConfigEntry(
                config.name,
                config.value,
                _SOURCES.get(config.config_source, "default" if config.is_default else "unknown"),
                config.read_only,
                config.is_sensitive,
                config.documentation or None,
            )
            for config in result.configs
        ]
    return sorted(entries)


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


def _log_dirs(node: int, answer: log_dirs.DescribeLogDirsResponse | PylogdError) -> list[LogDir] | PylogdError:
    """Return a broker's data directories, or why they are not known."""
    if isinstance(answer, PylogdError):
        return answer
    if answer.error_code:
        return KafkaError(error_for(answer.error_code))
    found = []
    for one in answer.results:
        sizes = {
            TopicPartition(topic.name, partition.partition_index): partition.partition_size
            for topic in one.topics
            for partition in topic.partitions
        }
        error = error_for(one.error_code).name if one.error_code else None
        found.append(LogDir(node, one.log_dir, error, one.total_bytes, one.usable_bytes, sizes, one.is_cordoned))
    return found


def _error(code: int, message: str | None) -> KafkaError | None:
    return KafkaError(error_for(code), message or error_text(code)) if code else None


def _raise(outcome: Outcome) -> None:
    for error in outcome.values():
        if error is not None:
            raise error
