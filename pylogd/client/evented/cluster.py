"""A cluster on an event loop: the network, its driver, and `Calls` for operations.

Strategy: one connection for each broker and purpose, opened when it is first needed. Only `call` retries operations.

Rules: one loop. After `close` everything fails with `Closed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from pylogd.base.errors import PylogdError
from pylogd.client.core.admin.calls import Question
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.call import Call
from pylogd.client.core.errors import Closed
from pylogd.client.core.metadata import Metadata, Retry, parse_bootstrap
from pylogd.client.core.network import Network
from pylogd.client.core.options import ClientOptions
from pylogd.client.evented.driver import Driver
from pylogd.client.evented.loop import Loop, Promise

T = TypeVar("T")


class EventedCluster:
    """Connections to all brokers of a cluster, and its metadata. Times are in seconds."""

    def __init__(
        self,
        loop: Loop,
        bootstrap_servers: str | Sequence[str],
        options: ClientOptions,
        *,
        retry_timeout: float,
        bootstrap_timeout: float | None,
        auto_create_topics: bool,
    ) -> None:
        """Calls are retried for `retry_timeout` seconds, or for `bootstrap_timeout` (default: the same) while no broker
        is known.

        Raises ValueError for an invalid address.
        """
        self.options = options
        self.loop = loop
        self.metadata = Metadata(
            parse_bootstrap(bootstrap_servers), auto_create_topics=auto_create_topics, rebootstraps=options.rebootstraps
        )
        self.network = Network(self.metadata, options.connection)
        self.driver = Driver(self.network, loop)
        self.retry_timeout = retry_timeout
        self.bootstrap_timeout = retry_timeout if bootstrap_timeout is None else bootstrap_timeout
        self._pauses: set[Promise[None]] = set()

    @property
    def request_timeout(self) -> float:
        """How long to wait for an answer, in seconds."""
        return self.options.request_timeout

    def close(self) -> None:
        """Close all connections; waiting requests fail with `Closed`."""
        self.driver.close()
        for pause in list(self._pauses):
            pause.fail(Closed("the client is closed"))

    # `Calls`

    async def send(self, question: Question) -> Any:
        """Return the response to a request, in one try."""
        promise: Promise[Any] = self.loop.promise()
        call = self._begin(question, promise.succeed, promise.fail, self.request_timeout)
        try:
            return await promise
        finally:
            question.sent = call.sent

    async def send_all(self, questions: Sequence[Question], timeout: float | None = None) -> list[Any]:
        """Send requests at the same time, each in one try, and return for each its response or its PylogdError."""
        seconds = self.request_timeout if timeout is None else min(timeout, self.request_timeout)
        promises: list[Promise[Any]] = [self.loop.promise() for _ in questions]
        calls = [
            self._begin(question, promise.succeed, promise.succeed, seconds)
            for question, promise in zip(questions, promises, strict=True)
        ]
        outcomes = [await promise for promise in promises]
        for question, call in zip(questions, calls, strict=True):
            question.sent = call.sent
        return outcomes

    def _begin(
        self, question: Question, answered: Callable[[Any], None], failed: Callable[[PylogdError], None],
        timeout: float,
    ) -> Call:  # fmt: skip
        """Send a request. Either `answered` or `failed` is called, at once or later."""
        call = Call(
            question.api, question.build, lambda response, _: answered(response),
            lambda error, _: failed(error), timeout, question.target, highest=question.highest,
        )  # fmt: skip
        self.driver.send(call)
        return call

    async def call(
        self, attempt: Callable[[], Awaitable[T]], timeout: float | None = None, backoff: Backoff | None = None
    ) -> T:
        """Call `attempt` and return its result. Retry after retriable errors, for up to `timeout` seconds."""
        retry = Retry(self.loop.now(), self.retry_timeout if timeout is None else timeout, backoff)
        while True:
            try:
                return await attempt()
            except PylogdError as error:
                self.metadata.note(error)
                most = float("inf") if self.metadata.brokers else self.bootstrap_timeout
                pause = retry.pause(error, self.loop.now(), most)
                if pause is None:
                    raise
            await self.sleep(pause)

    async def sleep(self, seconds: float) -> None:
        """Wait. Raises Closed."""
        if self.driver.closed:
            raise Closed("the client is closed")
        promise: Promise[None] = self.loop.promise()
        self._pauses.add(promise)
        timer = self.loop.later(seconds, lambda: promise.succeed(None))
        try:
            await promise
        finally:
            timer.cancel()
            self._pauses.discard(promise)
