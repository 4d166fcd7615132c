"""`timeout_ms` of administrative requests: how long the client waits. After this time the change continues."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, TimeoutError
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.broker.api.context import RequestContext

log = Logger()

T = TypeVar("T")


async def wait_for(context: RequestContext, timeout_ms: int, change: Coroutine[Any, Any, T] | Deferred[T]) -> T:
    """Carry out a change and return its result.

    timeout_ms: how long to wait; with 0 or less, only a change that completes at once is in time.

    Raises KafkaError(REQUEST_TIMED_OUT) if it takes longer. The change continues, even if the client disconnects.
    """
    waiting: Deferred[T] = Deferred()

    def ended(result: Any) -> None:
        if not waiting.called:
            waiting.callback(result)  # a Failure makes it fail
        elif isinstance(result, Failure) and not result.check(PylogdError):
            log.failure("Unexpected error in a change whose client no longer waits", result)

    running = change if isinstance(change, Deferred) else Deferred.fromCoroutine(change)
    running.addBoth(ended)
    if not waiting.called:
        waiting.addTimeout(max(timeout_ms, 0) / 1000, context.broker.clock)
    try:
        return await waiting
    except TimeoutError as error:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT) from error
