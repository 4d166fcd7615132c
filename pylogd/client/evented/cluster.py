"""A cluster on an event loop: the network, its driver, and `Calls` for operations.

Strategy: one connection for each broker and purpose, opened when it is first needed. Only `call` retries operations.

Rules: one loop. After `close` everything fails with `Closed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from pylogd.client.core.admin.calls import Question
from pylogd.client.core.call import Call
from pylogd.client.core.errors import Closed
from pylogd.client.core.metadata import Metadata, Retry, parse_bootstrap
from pylogd.client.core.network import Network
from pylogd.client.core.options import ClientOptions
from pylogd.client.evented.driver import Driver
from pylogd.client.evented.loop import Loop, Promise
from pylogd.errors import PylogdError

T = TypeVar("T")


class EventedCluster:
    """Connections to all brokers of a cluster, and its metadata. Times in seconds."""

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
        """`retry_timeout` bounds a call with its retries, `bootstrap_timeout` the same before any broker is known (by
        default it is as long). Raises ValueError for an invalid address.
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
        """How long a request may go unanswered, in seconds."""
        return self.options.request_timeout

    def close(self) -> None:
        """Close all connections; requests that wait fail with `Closed`."""
        self.driver.close()
        for pause in list(self._pauses):
            pause.fail(Closed("the client is closed"))

    # `Calls`

    async def send(self, question: Question) -> Any:
        """Return the response to a request, in one try."""
        promise: Promise[Any] = self.loop.promise()
        call = Call(
            question.api, question.build, lambda response, _: promise.succeed(response),
            lambda error, _: promise.fail(error), self.request_timeout, question.target, highest=question.highest,
        )  # fmt: skip
        self.driver.send(call)
        try:
            return await promise
        finally:
            question.sent = call.sent

    async def call(self, attempt: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Return what `attempt` returns; call it again after retriable errors, for up to `timeout` seconds."""
        retry = Retry(self.loop.now(), self.retry_timeout if timeout is None else timeout)
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
