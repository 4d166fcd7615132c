"""Run operations that are written as coroutines (`core.admin.calls`) on blocking connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pylogd.client.blocking.cluster import Cluster
from pylogd.client.core.metadata import Metadata

T = TypeVar("T")


class BlockingCalls:
    """`Calls` on a blocking cluster: nothing here ever suspends."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def metadata(self) -> Metadata:
        return self.cluster.metadata

    async def connection(self, node_id: int | None) -> Any:
        return self.cluster.any_connection() if node_id is None else self.cluster.connection(node_id)

    async def request(self, connection: Any, request: Any, version: int) -> Any:
        return connection.request(request, version=version)

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
