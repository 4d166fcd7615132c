"""The administrator's operations on labels, for all faces (see `operations`): which brokers carry which, and the label
that each topic names.

Both are settings, `broker.labels` and `placement.label`, particular to pylogd. `reassign` changes a topic's label.
"""

from __future__ import annotations

from collections.abc import Iterable

from pylogd.client.core.admin.calls import Calls, ask, refresh
from pylogd.client.core.metadata import check
from pylogd.errors import ErrorCode
from pylogd.wire.messages import describe_configs as messages

_TOPIC, _BROKER = 2, 4
_TOPICS_AT_ONCE = 1000


class LabelOperations:
    """What can be asked about labels."""

    _calls: Calls

    async def broker_labels(self) -> dict[int, tuple[str, ...]]:
        """Return the labels of each live broker, by id; none for brokers that do not know labels. Raises KafkaError."""
        await self._calls.call(lambda: refresh(self._calls))
        found = {}
        for node in sorted(self._calls.metadata.brokers):
            values = await self._read(_BROKER, [str(node)], "broker.labels", node)
            found[node] = tuple(filter(None, values.get(str(node), "").split(",")))
        return found

    async def topic_labels(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the label of each of these topics, by name; "" for none. Topics that do not exist are left out.

        Raises KafkaError.
        """
        names, found = sorted(topics), {}
        for start in range(0, len(names), _TOPICS_AT_ONCE):
            found.update(await self._read(_TOPIC, names[start : start + _TOPICS_AT_ONCE], "placement.label"))
        return found

    async def _read(self, kind: int, names: list[str], setting: str, node_id: int | None = None) -> dict[str, str]:
        """Return a setting of several resources of one kind, by name; "" where it is unset or not known."""
        resources = [messages.DescribeConfigsResource(kind, name, [setting]) for name in names]
        request = messages.DescribeConfigsRequest(resources=resources)
        response: messages.DescribeConfigsResponse = await ask(self._calls, request, node_id)
        found = {}
        for result in response.results:
            if result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                check(result.error_code, result.error_message)
                found[result.resource_name] = next((config.value or "" for config in result.configs), "")
        return found
