"""The administrator's client: topics, settings, offsets, the cluster, its disks.

Rules: an operation on several things answers for each: None or a KafkaError by name. An operation on one thing raises.
Requests that only the controller serves go to it. Nothing that may have been done is sent twice unasked: a change whose
reply was lost raises RequestTimedOut or BrokerUnavailable, and to look is better than to guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pylogd.client.cluster import Cluster, check, error_text
from pylogd.client.model import (
    Broker,
    ClusterDescription,
    ConfigEntry,
    LogDir,
    NewTopic,
    OffsetAndTime,
    Topic,
    TopicPartition,
)
from pylogd.client.offsets import list_offsets
from pylogd.errors import ErrorCode, KafkaError, error_for
from pylogd.wire.messages import create_partitions, create_topics, delete_records, delete_topics
from pylogd.wire.messages import describe_cluster as describe_cluster_messages
from pylogd.wire.messages import describe_configs as describe_configs_messages
from pylogd.wire.messages import describe_log_dirs as log_dirs
from pylogd.wire.messages import incremental_alter_configs as alter

ResourceKind = Literal["topic", "broker"]
Outcome = dict[str, KafkaError | None]

_KINDS: dict[str, int] = {"topic": 2, "broker": 4}
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_NAMES_UNTIL = 5  # of DeleteTopics
_SOURCES = {
    1: "topic",
    2: "broker, at run time",
    3: "all brokers, at run time",
    4: "broker's start",
    5: "default",
    6: "broker's logger",
}


class Admin:
    """An administrator on a cluster of its own, or on one that is given. Times in seconds."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        *,
        request_timeout: float = 30.0,
        retry_timeout: float = 60.0,
        client_id: str = "pylogd",
    ) -> None:
        """Nothing is connected yet."""
        if isinstance(bootstrap_servers, Cluster):
            self.cluster, self._own_cluster = bootstrap_servers, False
        else:
            self.cluster = Cluster(
                bootstrap_servers, client_id=client_id, request_timeout=request_timeout, retry_timeout=retry_timeout
            )
            self._own_cluster = True
        self._timeout_ms = int(request_timeout * 1000)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if self._own_cluster:
            self.cluster.close()

    # Topics

    def list_topics(self, *, internal: bool = False) -> list[Topic]:
        """All topics, by name; those for the brokers' own use only if asked for."""
        return [topic for topic in self.cluster.topics() if internal or not topic.internal]

    def describe_topic(self, name: str) -> Topic:
        """A topic's id and partitions, as they are now. Raises KafkaError."""
        self.cluster.forget(name)
        return self.cluster.topic(name)

    def create_topic(
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
        _raise(self.create_topics([topic], validate_only=validate_only))

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> Outcome:
        """Create topics, or only check whether they could be."""
        request = create_topics.CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics], timeout_ms=self._timeout_ms, validate_only=validate_only
        )
        response: create_topics.CreateTopicsResponse = self._change(request, lambda r: [t.error_code for t in r.topics])
        self._forget(topic.name for topic in topics)
        return {topic.name: _error(topic.error_code, topic.error_message) for topic in response.topics}

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records. Raises KafkaError."""
        _raise(self.delete_topics([name]))

    def delete_topics(self, names: Sequence[str]) -> Outcome:
        """Delete topics and all their records."""
        request = delete_topics.DeleteTopicsRequest(timeout_ms=self._timeout_ms)

        def fit(version: int) -> None:
            if version <= _NAMES_UNTIL:
                request.topic_names = list(names)
            else:
                request.topics = [delete_topics.DeleteTopicState(name=name) for name in names]

        response = self._change(request, lambda r: [t.error_code for t in r.responses], fit)
        self._forget(names)
        return {answer.name or "": _error(answer.error_code, answer.error_message) for answer in response.responses}

    def create_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        """Let a topic have `count` partitions, which must be more than it has. Raises KafkaError."""
        request = create_partitions.CreatePartitionsRequest(
            topics=[create_partitions.CreatePartitionsTopic(name=topic, count=count, assignments=None)],
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )
        response = self._change(request, lambda r: [t.error_code for t in r.results])
        self._forget([topic])
        _raise({answer.name: _error(answer.error_code, answer.error_message) for answer in response.results})

    # Settings

    def describe_configs(
        self, kind: ResourceKind, name: str, keys: Sequence[str] | None = None, *, documentation: bool = False
    ) -> list[ConfigEntry]:
        """The settings of a topic or of a broker (by its id), all or some. Raises KafkaError."""
        messages = describe_configs_messages
        resource = messages.DescribeConfigsResource(_KINDS[kind], name, None if keys is None else list(keys))
        request = messages.DescribeConfigsRequest(resources=[resource])

        def fit(version: int) -> None:
            request.include_documentation = documentation and version >= 3

        node_id = int(name) if kind == "broker" and name else None
        response: messages.DescribeConfigsResponse = self._ask(request, node_id, fit)
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

    def alter_configs(
        self,
        kind: ResourceKind,
        name: str,
        changes: Mapping[str, str | None],
        *,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change settings of a topic or of a broker: to a value, or to the default with None; `append` to lists and
        `subtract` from them. Settings that are not named stay. Raises KafkaError.
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
        response: alter.IncrementalAlterConfigsResponse = self._ask(request, node_id)
        for answer in response.responses:
            check(answer.error_code, answer.error_message)

    # Offsets

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTime]:
        """For each partition the first offset at or after a time in milliseconds, or one of
        `pylogd.client.offsets.EARLIEST`, `LATEST`, `MAX_TIMESTAMP`.
        """
        return list_offsets(self.cluster, wanted)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before an offset (-1: all that consumers may read). Answers where each log now begins."""
        by_leader: dict[int, dict[str, delete_records.DeleteRecordsTopic]] = {}
        for (name, index), offset in before.items():
            partition = TopicPartition(name, index)
            leader = self.cluster.call(lambda p=partition: self.cluster.leader(p)).leader  # type: ignore[misc]
            topic = by_leader.setdefault(leader, {}).setdefault(name, delete_records.DeleteRecordsTopic(name))
            topic.partitions.append(delete_records.DeleteRecordsPartition(index, offset))
        found = {}
        for leader, topics in by_leader.items():
            request = delete_records.DeleteRecordsRequest(list(topics.values()), self._timeout_ms)
            for answered in self._ask(request, leader).topics:
                for answer in answered.partitions:
                    check(answer.error_code, f"{answered.name}-{answer.partition_index}")
                    found[TopicPartition(answered.name, answer.partition_index)] = answer.low_watermark
        return found

    # The cluster

    def describe_cluster(self) -> ClusterDescription:
        """Its id, its controller, its brokers."""
        response: describe_cluster_messages.DescribeClusterResponse = self._ask(
            describe_cluster_messages.DescribeClusterRequest()
        )
        check(response.error_code, response.error_message)
        brokers = tuple(Broker(b.broker_id, b.host, b.port, b.rack) for b in response.brokers)
        return ClusterDescription(response.cluster_id, response.controller_id, brokers)

    def describe_log_dirs(self, brokers: Iterable[int] | None = None) -> list[LogDir]:
        """The data directories of some brokers, or of all, with the size of each partition in them."""
        nodes = [broker.node_id for broker in self.cluster.brokers()] if brokers is None else list(brokers)
        found = []
        for node in nodes:
            response: log_dirs.DescribeLogDirsResponse = self._ask(log_dirs.DescribeLogDirsRequest(topics=None), node)
            check(response.error_code)
            for answer in response.results:
                sizes = {
                    TopicPartition(topic.name, partition.partition_index): partition.partition_size
                    for topic in answer.topics
                    for partition in topic.partitions
                }
                error = error_for(answer.error_code).name if answer.error_code else None
                found.append(LogDir(node, answer.log_dir, error, answer.total_bytes, answer.usable_bytes, sizes))
        return found

    # Asking

    def _ask(self, request: Any, node_id: int | None = None, fit: Any = None) -> Any:
        """A question may be asked again. `fit` may change the request to suit the version."""

        def attempt() -> Any:
            if node_id is not None:
                self.cluster.brokers()
            connection = self.cluster.any_connection() if node_id is None else self.cluster.connection(node_id)
            version = connection.version_for(request)
            if fit is not None:
                fit(version)
            return connection.request(request, version=version)

        return self.cluster.call(attempt)

    def _change(self, request: Any, codes: Any, fit: Any = None) -> Any:
        """Ask the controller to change something; again only if it says that it is not the controller."""

        def attempt() -> Any:
            self.cluster.refresh(())
            controller = self.cluster.controller_id
            connection = self.cluster.any_connection() if controller < 0 else self.cluster.connection(controller)
            version = connection.version_for(request)
            if fit is not None:
                fit(version)
            return connection, version

        def send() -> Any:
            connection, version = self.cluster.call(attempt)
            response = connection.request(request, version=version)
            if ErrorCode.NOT_CONTROLLER in codes(response):
                raise KafkaError(ErrorCode.NOT_CONTROLLER)
            return response

        try:
            return send()
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                raise
            return self.cluster.call(send)

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self.cluster.forget(name)


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
