"""Ask the broker that coordinates a group or a transactional id.

Rules: the coordinator is looked up anew in each try, so that one that moved is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pylogd.client.core.admin.calls import Calls, Question, send
from pylogd.client.core.metadata import check
from pylogd.client.core.model import Broker
from pylogd.client.core.producer.transaction_requests import GROUP_KEY, find_coordinator
from pylogd.errors import KafkaError, error_for
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest


async def coordinator_of(calls: Calls, key: str, key_type: int = GROUP_KEY) -> int:
    """Return the id of the broker that coordinates a group or a transactional id, in one try. Raises KafkaError."""
    request = FindCoordinatorRequest()

    def fit(version: int) -> None:
        made = find_coordinator(key, key_type, version)
        request.key, request.key_type, request.coordinator_keys = made.key, made.key_type, made.coordinator_keys

    response = await send(calls, request, fit=fit)
    found = response.coordinators[0] if response.coordinators else response
    check(found.error_code, found.error_message)
    node: int = found.node_id
    if node not in calls.metadata.brokers:
        calls.metadata.brokers[node] = Broker(node, found.host, found.port)
    return node


async def ask_coordinator(
    calls: Calls,
    key: str,
    at: Callable[[int], Any],
    codes: Callable[[Any], Iterable[int]],
    *,
    api: Any = None,
    highest: int | None = None,
    key_type: int = GROUP_KEY,
) -> tuple[int, Any]:
    """Return the coordinator, and its answer to what `at` makes for a version; asked again while an error code of it
    says so.
    """

    async def attempt() -> tuple[int, Any]:
        node = await coordinator_of(calls, key, key_type)
        response = await calls.send(Question(type(at(0)) if api is None else api, at, node, highest))
        for code in codes(response):
            if error_for(code).retriable:
                raise KafkaError(error_for(code))
        return node, response

    return await calls.call(attempt)
