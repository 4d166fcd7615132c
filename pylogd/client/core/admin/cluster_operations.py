"""The administrator's operations on the cluster, for all faces (see `operations`): brokers, disks, settings, features.

Labels are particular to pylogd: the settings `broker.labels` and `placement.label`. `reassign` changes a topic's label.
Features: KIP-584.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, UnsupportedByBroker, error_for
from pylogd.client.core.admin.calls import Calls, ask, ask_any, once, question, refresh
from pylogd.client.core.admin.visibility import Probe, configured, labelled, tells, until_shown
from pylogd.client.core.metadata import check
from pylogd.client.core.model import Broker, ClusterDescription, ConfigEntry, LogDir, TopicPartition
from pylogd.wire.messages import alter_replica_log_dirs as alter_dirs
from pylogd.wire.messages import api_versions, update_features
from pylogd.wire.messages import describe_cluster as clusters
from pylogd.wire.messages import describe_configs as configs
from pylogd.wire.messages import describe_log_dirs as log_dirs
from pylogd.wire.messages import incremental_alter_configs as alter

ResourceKind = Literal["topic", "broker", "group"]
_KINDS: dict[str, int] = {"topic": 2, "broker": 4, "group": 32}
#: The source of a resource's own settings; for brokers, of the settings that all brokers share.
_OWN_SOURCES: dict[str, int] = {"topic": 1, "broker": 3, "group": 8}
_LABELS = "broker.labels"
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_SOURCES = {
    1: "topic",
    2: "broker, at run time",
    3: "all brokers, at run time",
    4: "broker's start",
    5: "default",
    6: "broker's logger",
    8: "group",
}
_TOPIC, _LABEL = 2, "placement.label"
_TOPICS_AT_ONCE = 1000
_UPGRADE, _UNSAFE_DOWNGRADE = 1, 3
_FIRST_WITH_TYPE = 1  # a version of UpdateFeatures
_FIRST_WITH_FEATURES = 3  # a version of ApiVersions


class Feature(NamedTuple):
    """A feature.

    level: the level in use, 0 for none.
    lowest, highest: the levels that the broker supports.
    """

    name: str
    level: int
    lowest: int
    highest: int


class ClusterOperations:
    """Operations on brokers, their data directories, settings, labels and features."""

    _calls: Calls

    async def describe_cluster(self, timeout: float | None = None) -> ClusterDescription:
        """Return the cluster's id, its controller and its brokers.

        timeout: seconds after which another broker is asked; None to wait for one for the client's `request_timeout`.
        """
        response: clusters.DescribeClusterResponse = await ask_any(
            self._calls, clusters.DescribeClusterRequest(), timeout
        )
        check(response.error_code, response.error_message)
        brokers = tuple(
            Broker(
                b.broker_id, b.host, b.port, b.rack, b.host_id, tuple(b.labels), b.is_cordoned, b.has_full_volume,
                None if b.partition_room < 0 else b.partition_room,
            )
            for b in response.brokers
        )  # fmt: skip
        return ClusterDescription(response.cluster_id, response.controller_id, brokers)

    async def describe_log_dirs(self, brokers: Iterable[int] | None = None) -> list[LogDir]:
        """Return the data directories of some brokers, or of all, with the size of each partition in them.

        The brokers are asked at the same time. Brokers that fail are asked again. Raises the error of a broker that
        does not answer.
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

    async def describe_configs(
        self, kind: ResourceKind, name: str, keys: Sequence[str] | None = None, *, documentation: bool = False
    ) -> list[ConfigEntry]:
        """Return settings of a topic, a group or a broker (by id): all, or those in `keys`. Raises KafkaError."""
        resource = configs.DescribeConfigsResource(_KINDS[kind], name, None if keys is None else list(keys))
        request = configs.DescribeConfigsRequest(resources=[resource])

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
        resources = [configs.DescribeConfigsResource(_KINDS["broker"], str(node), list(keys)) for node in nodes]
        requests = [configs.DescribeConfigsRequest([resource]) for resource in resources]
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
        """Change settings of a topic, a group or a broker. Other settings are unchanged. Raises KafkaError.

        changes: the new values; None restores the default.
        append, subtract: what to add to, and remove from, settings that are lists.
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
        send_it = once if append or subtract else ask  # to append twice would give another list
        response: alter.IncrementalAlterConfigsResponse = await send_it(self._calls, request, node_id)
        for answer in response.responses:
            check(answer.error_code, answer.error_message)
        keys = {*changes, *(append or ()), *(subtract or ())}
        if validate_only or not keys:
            return
        if node_id is None:
            removed = [key for key, value in changes.items() if value is None]
            await until_shown(self._calls, configured(_KINDS[kind], name, keys, _OWN_SOURCES[kind], removed))
        elif _LABELS in keys:  # the only setting of a broker that other brokers show
            await until_shown(self._calls, labelled())

    async def broker_labels(self) -> dict[int, tuple[str, ...]]:
        """Return the labels of each live broker, by id. A broker that does not support labels has none.

        Raises KafkaError.
        """
        response: clusters.DescribeClusterResponse = await ask(self._calls, clusters.DescribeClusterRequest())
        check(response.error_code, response.error_message)
        return {broker.broker_id: tuple(broker.labels) for broker in response.brokers}

    async def topic_labels(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the label of each of these topics, by name; "" for none. Topics that do not exist are left out.

        Raises KafkaError.
        """
        names, found = sorted(topics), {}
        for start in range(0, len(names), _TOPICS_AT_ONCE):
            asked = names[start : start + _TOPICS_AT_ONCE]
            resources = [configs.DescribeConfigsResource(_TOPIC, name, [_LABEL]) for name in asked]
            request = configs.DescribeConfigsRequest(resources=resources)
            response: configs.DescribeConfigsResponse = await ask(self._calls, request)
            for result in response.results:
                if result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    check(result.error_code, result.error_message)
                    found[result.resource_name] = next(
                        (config.value or "" for config in result.configs if config.name == _LABEL), ""
                    )
        return found

    async def describe_features(self) -> list[Feature]:
        """Return the features that a broker supports or the cluster uses, by name. Raises KafkaError."""
        request = api_versions.ApiVersionsRequest("pylogd", "1")
        response: api_versions.ApiVersionsResponse = await ask(self._calls, request)
        check(response.error_code)
        levels = {one.name: one.max_version_level for one in response.finalized_features}
        ranges = {one.name: (one.min_version, one.max_version) for one in response.supported_features}
        return [Feature(name, levels.get(name, 0), *ranges.get(name, (0, 0))) for name in sorted({*levels, *ranges})]

    async def update_features(
        self, levels: Mapping[str, int], *, downgrade: bool = False, validate_only: bool = False
    ) -> None:
        """Change the levels of features: all of them, or none if one fails. Raises KafkaError.

        levels: the new level of each feature; 0 turns it off.
        downgrade: whether lower levels are allowed.
        validate_only: whether to check the change without making it.
        """
        updates = [update_features.FeatureUpdateKey(name, level) for name, level in levels.items()]
        request = update_features.UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only)

        def fit(version: int) -> None:
            if version < _FIRST_WITH_TYPE and validate_only:
                raise UnsupportedByBroker("the broker does not support validate_only for features")
            for update in updates:
                if version < _FIRST_WITH_TYPE:
                    update.allow_downgrade = downgrade
                else:
                    update.upgrade_type = _UNSAFE_DOWNGRADE if downgrade else _UPGRADE

        response: update_features.UpdateFeaturesResponse = await once(self._calls, request, None, fit)
        check(response.error_code, response.error_message)
        for result in response.results:
            check(result.error_code, result.error_message)
        if not validate_only:
            await until_shown(self._calls, _levels(levels))


def _log_dirs(node: int, answer: log_dirs.DescribeLogDirsResponse | PylogdError) -> list[LogDir] | PylogdError:
    """Return a broker's data directories, or the error."""
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


def _entries(response: configs.DescribeConfigsResponse) -> list[ConfigEntry]:
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


def _levels(wanted: Mapping[str, int]) -> Probe:
    """Return the probe that shows the levels of features."""

    def read(response: api_versions.ApiVersionsResponse) -> dict[str, int] | None:
        if not tells(response.error_code):
            return None
        return {one.name: one.max_version_level for one in response.finalized_features}

    def expected(found: dict[str, int]) -> bool:
        return all(found.get(name, 0) == level for name, level in wanted.items())

    def build(version: int) -> api_versions.ApiVersionsRequest:
        if version < _FIRST_WITH_FEATURES:
            raise UnsupportedByBroker("the broker does not tell its features")
        return api_versions.ApiVersionsRequest("pylogd", "1")

    return Probe(api_versions.ApiVersionsRequest, build, read, expected)
