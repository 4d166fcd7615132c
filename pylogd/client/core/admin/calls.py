"""The interface on which administrative operations are written: `Calls`, which each face implements.

Strategy: an operation (`operations.py`, `offsets.py`) is an `async def` over `Calls`, which sends questions and pauses
between tries.

Rules: an operation awaits only methods of `Calls`. No Twisted, no threads, no loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, RequestTimedOut, UnsupportedByBroker
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.call import Target
from pylogd.client.core.errors import is_retriable
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import Topic
from pylogd.wire.messages.metadata import MetadataRequest

T = TypeVar("T")
#: changes a request to suit the version that it will be sent at
Fit = Callable[[int], None]
_BROKERS: Final = 3  # the most brokers that are asked, one after the other, while none answers


@dataclass(slots=True, eq=False)
class Question:
    """A request to send once. `build(version)` makes the message for a version up to `highest`.

    sent: whether bytes were handed to a connection. If not, a failed request had no effect.
    """

    api: type[Any]
    build: Callable[[int], Any]
    target: Target = None
    highest: int | None = None
    sent: bool = field(default=False, init=False)


class Calls(Protocol):
    """The methods that each face implements in its own way. They raise PylogdError."""

    @property
    def metadata(self) -> Metadata:
        """The known metadata of the cluster."""
        ...

    @property
    def request_timeout(self) -> float:
        """How long to wait for an answer, in seconds."""
        ...

    async def send(self, question: Question) -> Any:
        """Return the response to a request, in one try."""
        ...

    async def send_all(self, questions: Sequence[Question], timeout: float | None = None) -> list[Any]:
        """Send requests at the same time, each in one try, and return for each its response or its PylogdError.

        timeout: seconds to wait for answers; None for the client's `request_timeout`.

        Errors of brokers are returned, not raised.
        """
        ...

    async def call(
        self, attempt: Callable[[], Awaitable[T]], timeout: float | None = None, backoff: Backoff | None = None
    ) -> T:
        """Return what `attempt` returns. Call it again after retriable errors.

        backoff: the pauses between the calls.
        """
        ...


class Uncertain(Exception):
    """The request of a change failed, but the change may have been made: the request must not be sent again."""

    def __init__(self, error: PylogdError) -> None:
        self.error = error


def question(request: Any, node_id: int | None = None, fit: Fit | None = None) -> Question:
    """Return a question that sends a request unchanged, or as `fit` changes it for a version."""

    def build(version: int) -> Any:
        if fit is not None:
            fit(version)
        return request

    return Question(type(request), build, node_id)


async def send(calls: Calls, request: Any, node_id: int | None = None, fit: Fit | None = None) -> Any:
    """Return the response of a broker, or of any broker, in one try."""
    return await calls.send(question(request, node_id, fit))


async def _any_broker(calls: Calls, asked: Question, timeout: float | None) -> Any:
    """Return the response of any broker.

    timeout: seconds after which the next of at most `_BROKERS` brokers is asked. None asks one broker, for as long as
    the client waits. A connection without an answer is closed, so that the next try goes to another broker.
    """
    if timeout is None:
        return await calls.send(asked)
    answer: Any = None
    for _ in range(_BROKERS):
        [answer] = await calls.send_all([asked], timeout)
        if not isinstance(answer, RequestTimedOut):
            break
    if isinstance(answer, PylogdError):
        raise answer
    return answer


async def refresh(calls: Calls, topics: Iterable[str] | None = (), timeout: float | None = None) -> list[Topic]:
    """Ask for brokers, and for topics by name or for all topics, in one try. Raises the errors of `Metadata.learn`.

    timeout: seconds after which the next broker is asked; None to wait for one as long as the client waits.
    """
    metadata = calls.metadata
    names = None if topics is None else list(topics)
    asked = Question(MetadataRequest, lambda version: metadata.request(names, version))
    return metadata.learn(await _any_broker(calls, asked, timeout))


async def ask_any(calls: Calls, request: Any, timeout: float | None = None) -> Any:
    """Return any broker's response to a question that may be asked again.

    timeout: see `refresh`.
    """
    return await calls.call(lambda: _any_broker(calls, question(request), timeout))


async def ask(calls: Calls, request: Any, node_id: int | None = None, fit: Fit | None = None) -> Any:
    """Return the response to a question that may be asked again."""

    async def attempt() -> Any:
        if node_id is not None and not calls.metadata.brokers:
            await refresh(calls)
        return await send(calls, request, node_id, fit)

    return await calls.call(attempt)


async def once(calls: Calls, request: Any, node_id: int | None = None, fit: Fit | None = None) -> Any:
    """Return the response to a request that must not take effect twice: it is retried only if it was not sent."""

    async def attempt() -> Any:
        if node_id is not None and not calls.metadata.brokers:
            await refresh(calls)
        asked = question(request, node_id, fit)
        try:
            return await calls.send(asked)
        except PylogdError as error:
            if asked.sent and is_retriable(error):
                raise Uncertain(error) from error
            raise

    try:
        return await calls.call(attempt)
    except Uncertain as uncertain:
        raise uncertain.error from None


async def change(calls: Calls, request: Any, codes: Callable[[Any], Iterable[int]], fit: Fit | None = None) -> Any:
    """Return the controller's response to a change. The change is sent again only if it had no effect: it was not sent,
    or was refused because the broker is not the controller (`codes`).
    """

    async def attempt() -> Any:
        await refresh(calls)
        controller = calls.metadata.controller_id
        asked = question(request, None if controller < 0 else controller, fit)
        try:
            response = await calls.send(asked)
        except PylogdError as error:
            if asked.sent and is_retriable(error):
                raise Uncertain(error) from error
            raise
        if ErrorCode.NOT_CONTROLLER in codes(response):
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        return response

    try:
        return await calls.call(attempt)
    except Uncertain as uncertain:
        raise uncertain.error from None


class Answers:
    """The answers of brokers to one operation.

    silent: brokers that did not answer, during this operation or before it.
    missed: the silent brokers that this operation needed.
    """

    def __init__(self, calls: Calls, silent: Iterable[int], timeout: float | None) -> None:
        """Do not ask `silent` brokers. Wait `timeout` seconds for answers; None means the client's timeout."""
        self.silent = set(silent)
        self.missed: set[int] = set()
        self._calls = calls
        self._timeout = timeout

    async def of(self, questions: Sequence[tuple[int, Question]]) -> list[Any]:
        """Return the answer to each question. Each has a broker's id and the request.

        The answer is None if the broker does not answer, and is silent from now on, or if it does not know the API.
        """
        silent = set(self.silent)
        asked = [one for node, one in questions if node not in silent]
        answers = iter(await self._calls.send_all(asked, self._timeout) if asked else [])
        found = []
        for node, _ in questions:
            answer = None if node in silent else next(answers)
            if isinstance(answer, PylogdError):
                if not isinstance(answer, (KafkaError, UnsupportedByBroker)):
                    self.silent.add(node)
                answer = None
            if node in self.silent:
                self.missed.add(node)
            found.append(answer)
        return found

    async def of_first(self, nodes: Iterable[int], ask: Callable[[int], Sequence[Question]]) -> list[Any] | None:
        """Return the answers of the first broker that answers all questions; None if no broker does.

        ask: returns the questions for a broker.
        """
        for node in nodes:
            if node not in self.silent:
                answers = await self.of([(node, one) for one in ask(node)])
                if all(answer is not None for answer in answers):
                    return answers
        return None
