"""What administrative operations are written on: `Calls`, the few things that each face does in its own way.

Strategy: an operation (`operations.py`, `offsets.py`) is an `async def` over `Calls`: open a connection, send a
request, pause between tries. On Twisted and asyncio those wait; in the blocking face they block and never suspend, so
that `blocking.calls.run` can complete a coroutine in the caller's thread.

Rules: an operation awaits nothing but what `Calls` gives it. No Twisted, no threads, no loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import Topic
from pylogd.errors import ErrorCode, KafkaError, PylogdError

T = TypeVar("T")
#: changes a request to suit the version that it will go at
Fit = Callable[[int], None]


class Negotiated(Protocol):
    """A connection, as far as operations see it."""

    def version_for(self, request: Any, highest: int | None = None) -> int:
        """The highest version that both sides know."""
        ...


class Calls(Protocol):
    """What a face does in its own way. Each raises PylogdError."""

    @property
    def metadata(self) -> Metadata:
        """What is known of the cluster."""
        ...

    async def connection(self, node_id: int | None) -> Negotiated:
        """An open connection to a broker, or to any."""
        ...

    async def request(self, connection: Any, request: Any, version: int) -> Any:
        """The response to a request."""
        ...

    async def call(self, attempt: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """What `attempt` returns, tried again after retriable errors."""
        ...


async def send(calls: Calls, request: Any, node_id: int | None = None, fit: Fit | None = None) -> Any:
    """The response of a broker, or of any, in one try."""
    connection = await calls.connection(node_id)
    version = connection.version_for(request)
    if fit is not None:
        fit(version)
    return await calls.request(connection, request, version)


async def refresh(calls: Calls, topics: Iterable[str] | None = ()) -> list[Topic]:
    """Ask for brokers, and topics by name or all of them, in one try. Raises as `Metadata.learn`."""
    metadata = calls.metadata
    connection = await calls.connection(None)
    request = metadata.request((), 0)
    version = connection.version_for(request)
    return metadata.learn(await calls.request(connection, metadata.request(topics, version), version))


async def ask(calls: Calls, request: Any, node_id: int | None = None, fit: Fit | None = None) -> Any:
    """The response to a question, which may be asked again."""

    async def attempt() -> Any:
        if node_id is not None and not calls.metadata.brokers:
            await refresh(calls)
        return await send(calls, request, node_id, fit)

    return await calls.call(attempt)


async def change(calls: Calls, request: Any, codes: Callable[[Any], Iterable[int]], fit: Fit | None = None) -> Any:
    """The controller's response to a change. It is sent again only if nothing was done: the broker asked is not the
    controller, which is among the `codes` that it answers.
    """

    async def find() -> tuple[Negotiated, int]:
        await refresh(calls)
        controller = calls.metadata.controller_id
        connection = await calls.connection(None if controller < 0 else controller)
        version = connection.version_for(request)
        if fit is not None:
            fit(version)
        return connection, version

    async def once() -> Any:
        connection, version = await calls.call(find)
        response = await calls.request(connection, request, version)
        if ErrorCode.NOT_CONTROLLER in codes(response):
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        return response

    try:
        return await once()
    except KafkaError as error:
        if error.code is not ErrorCode.NOT_CONTROLLER:
            raise
        return await calls.call(once)


async def ask_topics(calls: Calls, topics: Sequence[str]) -> dict[str, PylogdError | None]:
    """Ask for topics, in one try: all together, or one by one if there is something wrong with one of them. What is
    wrong with each.
    """
    outcome: dict[str, PylogdError | None] = {}
    if len(topics) > 1:
        try:
            await refresh(calls, topics)
        except KafkaError:
            pass
        except PylogdError as error:
            return dict.fromkeys(topics, error)
        else:
            outcome = dict.fromkeys(topics)
    for topic in topics:
        if topic not in outcome:
            try:
                await refresh(calls, [topic])
            except KafkaError as error:
                outcome[topic] = error
            except PylogdError as error:  # no broker answers, whatever the topic
                return {**dict.fromkeys(topics, error), **outcome}
        if topic not in calls.metadata.topics and outcome.get(topic) is None:
            outcome[topic] = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no answer for topic {topic!r}")
        outcome.setdefault(topic)
    return outcome
