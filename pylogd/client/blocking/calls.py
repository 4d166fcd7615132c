"""Run operations that are written as coroutines (`core.admin.calls`) on blocking connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pylogd.client.blocking.cluster import Cluster
from pylogd.client.core.admin.calls import Question
from pylogd.client.core.call import Endpoint
from pylogd.client.core.metadata import Metadata

T = TypeVar("T")


class BlockingCalls:
    """`Calls` on a blocking cluster: nothing here ever suspends."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def metadata(self) -> Metadata:
        return self.cluster.metadata

    async def send(self, question: Question) -> Any:
        """Return the response to a request, in one try."""
        target = question.target
        if target is None:
            connection = self.cluster.any_connection()
        elif isinstance(target, Endpoint):
            connection = self.cluster.connection_at(target.node_id, target.host, target.port)
        else:
            connection = self.cluster.connection(target)
        version = connection.version_for(question.api, question.highest)
        message = question.build(version)
        question.sent = True
        return connection.request(message, version=version)

    async def call(self, attempt: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        return self.cluster.call(lambda: run(attempt()), timeout)


def run(operation: Awaitable[T]) -> T:
    """What a coroutine on `BlockingCalls` returns."""
    coroutine: Coroutine[Any, Any, T] = operation  # type: ignore[assignment]
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise AssertionError("an operation of the blocking face waited for something else than its calls")
