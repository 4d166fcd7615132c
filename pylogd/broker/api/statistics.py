"""Count requests and measure their durations, at almost no cost for the most frequent ones.

Strategy: every request is counted by its API, which is one addition to a list (`Dispatcher.handle`). Requests that the
fast path of Produce answers are counted by partition. While metrics are served, a timer calls `Dispatcher.sample`.
After each call the next request of each API on each listener is measured; all others run unmeasured. So histograms have
at most one request per API, listener and call; rare requests are all in them. Sizes are sampled likewise
(`wire.size_sampling`). Errors are counted where the answers of Fetch and Produce are made, and for other APIs by
looking into every answer while metrics are served.

Rules: counts are those of the process, which runs one broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred

from pylogd.base.histogram import SIZE_BOUNDS, Histogram
from pylogd.broker.api.registry import Handler
from pylogd.wire.messages.fetch import FetchRequest
from pylogd.wire.messages.produce import ProduceRequest

FETCH: Final = FetchRequest.API_KEY
PRODUCE: Final = ProduceRequest.API_KEY
#: More than the largest API key.
_KEYS: Final = 128
#: Only so many elements of an answer are searched for errors; errors in the rest of a larger answer are not counted.
_MOST_ELEMENTS: Final = 1000


class RequestStatistics:
    """The statistics of requests.

    requests: how many requests came, by API key; without those that the fast path of Produce answers.
    follower_fetches: how many of the fetches were followers'.
    errors: how many errors clients were told, by API key and error code.
    durations: the seconds from the call of the handler to its answer, waits included, of sampled requests, by API key.
    request_sizes, response_sizes: the bytes of sampled messages, without headers, by API key.
    cold_reads: how often records of a partition had to be found on the disk for a fetch.
    throttled: how often clients were muted, by the name of the quota with the longest wait.
    throttled_seconds: for how many seconds clients were muted, by the name of this quota.
    """

    __slots__ = (
        "cold_reads", "durations", "errors", "follower_fetches", "request_sizes", "requests", "response_sizes",
        "throttled", "throttled_seconds",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests = [0] * _KEYS
        self.cold_reads = self.follower_fetches = 0
        self.throttled: Counter[str] = Counter()
        self.throttled_seconds: dict[str, float] = {}
        self.errors: Counter[tuple[int, int]] = Counter()
        self.durations: dict[int, Histogram] = {}
        self.request_sizes: dict[int, Histogram] = {}
        self.response_sizes: dict[int, Histogram] = {}

    def request_size(self, api_key: int, size: int) -> None:
        """Note the size of a sampled request."""
        self.request_sizes.setdefault(api_key, Histogram(SIZE_BOUNDS)).observe(size)

    def response_size(self, api_key: int, size: int) -> None:
        """Note the size of a sampled response."""
        self.response_sizes.setdefault(api_key, Histogram(SIZE_BOUNDS)).observe(size)

    def count_throttle(self, quota: str, seconds: float) -> None:
        """Count a request whose client has to wait for a quota."""
        self.throttled[quota] += 1
        self.throttled_seconds[quota] = self.throttled_seconds.get(quota, 0.0) + seconds

    def count_errors(self, api_key: int, response: Any) -> None:
        """Count the errors in an answer that is not encoded yet."""
        for code in _error_codes(response, [_MOST_ELEMENTS]):
            self.errors[api_key, code] += 1


#: The statistics of this process.
STATISTICS: Final = RequestStatistics()


def _error_codes(message: Any, budget: list[int]) -> Iterator[int]:
    """Yield the error codes of a message and of its parts.

    budget: how many more parts may be examined.
    """
    if code := getattr(message, "error_code", 0):
        yield code
    for name in getattr(message, "__slots__", ()):
        value = getattr(message, name)
        for element in value if isinstance(value, list) else ():
            budget[0] -= 1
            if budget[0] < 0 or not hasattr(element, "__slots__"):
                break
            yield from _error_codes(element, budget)


def watched_handlers(handlers: Mapping[int, Handler], statistics: RequestStatistics) -> dict[int, Handler]:
    """Return handlers that count errors, except the handlers of Fetch and Produce, which count them themselves."""

    def counted(api_key: int, response: Any) -> Any:
        statistics.count_errors(api_key, response)
        return response

    def call(api_key: int, handler: Handler, context: Any, request: Any) -> Any:
        result = handler(context, request)
        if isinstance(result, Deferred):
            return result.addCallback(partial(counted, api_key))
        return counted(api_key, result)

    return {
        key: handler if key in (FETCH, PRODUCE) else partial(call, key, handler) for key, handler in handlers.items()
    }


def timed_handlers(
    handlers: dict[int, Handler], statistics: RequestStatistics, seconds: Callable[[], float]
) -> dict[int, Handler]:
    """Return handlers that measure one call, and then restore the former entry of `handlers`."""
    return {key: _timed(handlers, key, statistics, seconds) for key in handlers}


def _timed(
    handlers: dict[int, Handler], api_key: int, statistics: RequestStatistics, seconds: Callable[[], float]
) -> Handler:
    handler = handlers[api_key]
    durations = statistics.durations.setdefault(api_key, Histogram())

    def answered(begun: float, response: Any) -> Any:
        durations.observe(seconds() - begun)
        if type(response) is bytes:  # encoded already
            statistics.response_size(api_key, len(response))
        return response

    def call(context: Any, request: Any) -> Any:
        handlers[api_key] = handler
        begun = seconds()
        result = handler(context, request)
        if isinstance(result, Deferred):
            return result.addCallback(partial(answered, begun))
        return answered(begun, result)

    return call
