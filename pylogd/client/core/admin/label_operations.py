"""The administrator's operations on labels, for all faces (see `operations`): the labels of brokers and of topics.

Labels are particular to pylogd: the settings `broker.labels` and `placement.label`. `reassign` changes a topic's label.
"""

from __future__ import annotations

from collections.abc import Iterable

from pylogd.base.errors import ErrorCode
from pylogd.client.core.admin.calls import Calls, ask
from pylogd.client.core.metadata import check
from pylogd.wire.messages import describe_cluster as clusters
from pylogd.wire.messages import describe_configs as configs

_TOPIC, _LABEL = 2, "placement.label"
_TOPICS_AT_ONCE = 1000


class LabelOperations:
    """Operations that read labels."""

    _calls: Calls

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
