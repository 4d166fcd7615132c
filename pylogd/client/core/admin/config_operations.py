"""The administrator's operations on settings of topics, groups and brokers, for all faces (see `operations`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pylogd.base.errors import KafkaError, PylogdError
from pylogd.client.core.admin.calls import Calls, ask, once, question, refresh
from pylogd.client.core.admin.visibility import configured, labelled, until_shown
from pylogd.client.core.metadata import check
from pylogd.client.core.model import ConfigEntry
from pylogd.wire.messages import describe_configs as describe_configs_messages
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


class ConfigOperations:
    """Operations on settings."""

    _calls: Calls

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
