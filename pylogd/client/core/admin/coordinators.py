"""Ask the broker that coordinates a group or a transactional id.

Rules: each try looks up the coordinator again, because it may have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pylogd.base.errors import KafkaError, error_for
from pylogd.client.core.admin.calls import Answers, Calls, Question, send
from pylogd.client.core.metadata import check
from pylogd.client.core.model import Broker
from pylogd.client.core.producer.transaction_requests import GROUP_KEY, find_coordinator, find_coordinators
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest

#: The most groups in one request.
_MOST_KEYS: Final = 1000


async def coordinator_of(calls: Calls, key: str, key_type: int = GROUP_KEY) -> int:
    """Return the id of the broker that coordinates a group or a transactional id, in one try. Raises KafkaError."""
    request = FindCoordinatorRequest()

    def fit(version: int) -> None:
        made = find_coordinator(key, key_type, version)
        request.key, request.key_type, request.coordinator_keys = made.key, made.key_type, made.coordinator_keys

    response = await send(calls, request, fit=fit)
    found = response.coordinators[0] if response.coordinators else response
    check(found.error_code, found.error_message)
    return _learn(calls, found)


async def coordinators_of(
    calls: Calls, answers: Answers, names: Sequence[str]
) -> tuple[dict[int, list[str]], dict[str, KafkaError]]:
    """Return groups by their coordinators' ids, and the errors of other groups, in one try.

    The first broker that answers is asked for all groups at once, or for one after the other if it does not know
    FindCoordinator version 4 (Kafka 3.0). The result is empty if no broker answers.
    """
    by_node: dict[int, list[str]] = {}
    errors: dict[str, KafkaError] = {}
    nodes = sorted(calls.metadata.brokers)
    pieces = [list(names[at : at + _MOST_KEYS]) for at in range(0, len(names), _MOST_KEYS)]
    found = await answers.of_first(nodes, lambda node: [_find(node, some) for some in pieces])
    if found and not found[0].coordinators:
        pieces = [[name] for name in names]
        found = await answers.of_first(nodes, lambda node: [_find(node, some) for some in pieces])
    for some, response in zip(pieces, found or (), strict=False):
        for name, one in zip(some, response.coordinators or [response], strict=True):
            if one.error_code:
                errors[name] = KafkaError(error_for(one.error_code), one.error_message)
            else:
                by_node.setdefault(_learn(calls, one), []).append(name)
    return by_node, errors


def _find(node: int, names: Sequence[str]) -> Question:
    return Question(FindCoordinatorRequest, lambda version: find_coordinators(names, GROUP_KEY, version), node)


def _learn(calls: Calls, found: Any) -> int:
    """Return the id of a coordinator from an answer, and remember its address."""
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
    """Return the coordinator, and its answer to the request that `at` makes for a version. Ask again after a retriable
    error.
    """

    async def attempt() -> tuple[int, Any]:
        node = await coordinator_of(calls, key, key_type)
        response = await calls.send(Question(type(at(0)) if api is None else api, at, node, highest))
        for code in codes(response):
            if error_for(code).retriable:
                raise KafkaError(error_for(code))
        return node, response

    return await calls.call(attempt)
