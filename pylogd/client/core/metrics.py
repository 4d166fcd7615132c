"""Statistics of a client: meters that are updated once per request or batch, and snapshots of the meters.

    window = Window(30.0)
    latency = window.meter()
    latency.record(1.5)
    latency.count, latency.total            # since the client was made
    latency.average, latency.highest        # within the window
    latency.rate(window.seconds(now))

Strategy: rates, averages and maxima are about a window of time, as with Kafka's `metrics.sample.window.ms` and
`metrics.num.samples=2`: the present sample period and the one before it. `tick` begins a new period when it is time;
it is called with every turn of the network, so that recording needs no clock.

Rules: names and units are Kafka's, with an underscore for a hyphen: latencies are in milliseconds, rates per second.
No I/O and no clock. Any thread may read meters while another one records; then the numbers of a snapshot may differ by
the latest events.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from pylogd.client.core.call import BrokerKey

_log = logging.getLogger("pylogd.client.metrics")


class Meter:
    """A quantity: the number of its occurrences and their sum, since the beginning and within the window."""

    __slots__ = ("_base", "_highest", "_marks", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._highest = [0.0, 0.0]  # the highest values of the present sample period and of the one before
        self._base = self._marks = (0, 0.0)  # count and total at the beginning of the window and of the present period

    def record(self, value: float) -> None:
        """Count one occurrence of `value`."""
        self.count += 1
        self.total += value
        if value > self._highest[0]:
            self._highest[0] = value

    def roll(self) -> None:
        """Begin a new sample period."""
        self._base, self._marks = self._marks, (self.count, self.total)
        self._highest = [0.0, self._highest[0]]

    @property
    def recent(self) -> tuple[int, float]:
        """Count and sum within the window."""
        return self.count - self._base[0], self.total - self._base[1]

    @property
    def average(self) -> float:
        """The average within the window; 0.0 without any occurrence."""
        count, total = self.recent
        return total / count if count else 0.0

    @property
    def highest(self) -> float:
        """The highest value within the window."""
        return max(self._highest)

    def rate(self, seconds: float) -> float:
        """The sum per second within the window, which has lasted `seconds`."""
        return self.recent[1] / seconds if seconds else 0.0

    def frequency(self, seconds: float) -> float:
        """Occurrences per second within the window, which has lasted `seconds`."""
        return self.recent[0] / seconds if seconds else 0.0


class Window:
    """The time that averages, maxima and rates cover: the present sample period and the one before it."""

    def __init__(self, period: float = 30.0) -> None:
        """`period` is in seconds. The first `tick` begins the first period."""
        self._period = period
        self._meters: list[Meter] = []
        self._base: float | None = None
        self._mark = 0.0
        self._ends = float("-inf")

    def meter(self) -> Meter:
        """Return a new meter of this window."""
        meter = Meter()
        self._meters.append(meter)
        return meter

    def tick(self, now: float) -> None:
        """Begin a new sample period if it is time."""
        if now < self._ends:
            return
        self._ends = now + self._period
        if self._base is None:
            self._base = self._mark = now
            return
        self._base, self._mark = self._mark, now
        for meter in self._meters:
            meter.roll()

    def seconds(self, now: float) -> float:
        """How long the window has lasted."""
        return 0.0 if self._base is None else max(now - self._base, 0.001)


class Statistics:
    """Base class of snapshots. `as_dict` returns a snapshot by Kafka's names, with values that JSON has."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers by Kafka's names, such as `request-latency-avg`."""
        assert is_dataclass(self)
        return {each.name.replace("_", "-"): _plain(getattr(self, each.name)) for each in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, Statistics):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics(Statistics):
    """Requests of one API that were answered. Latencies in milliseconds, from the request's write to its answer."""

    response_total: int
    response_rate: float
    request_latency_avg: float
    request_latency_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMetrics(Statistics):
    """The connections to one broker. `apis` has the answered requests by API, such as "Produce"."""

    address: str
    connection_count: int
    requests_in_flight: int
    request_total: int
    request_rate: float
    response_total: int
    response_rate: float
    request_latency_avg: float
    request_latency_max: float
    outgoing_byte_total: int
    outgoing_byte_rate: float
    incoming_byte_total: int
    incoming_byte_rate: float
    apis: Mapping[str, RequestMetrics]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetrics(Statistics):
    """All connections of a client, and each broker by its id, or by (host, port) while only its address is known.

    `window_seconds` is the time that rates, averages and maxima cover.
    """

    client_id: str
    window_seconds: float
    connection_count: int
    connection_creation_total: int
    connection_creation_rate: float
    connection_close_total: int
    connection_close_rate: float
    requests_in_flight: int
    request_total: int
    request_rate: float
    request_latency_avg: float
    request_latency_max: float
    outgoing_byte_total: int
    outgoing_byte_rate: float
    incoming_byte_total: int
    incoming_byte_rate: float
    brokers: Mapping[BrokerKey, BrokerMetrics] = field(default_factory=dict)


class BrokerMeters:
    """The counters of the connections to one broker."""

    __slots__ = ("_latency", "_window", "address", "connections", "in_flight", "received", "sent")

    def __init__(self, window: Window, address: str) -> None:
        self.address = address
        self.connections = 0
        self.in_flight = 0
        self.sent = window.meter()  # the bytes of each request
        self.received = window.meter()  # the received bytes
        self._latency: dict[str, Meter] = {}
        self._window = window

    def answered(self, api: type[Any], seconds: float) -> None:
        """Record an answer to a request of an API."""
        name = api.__name__
        meter = self._latency.get(name)
        if meter is None:
            meter = self._latency[name] = self._window.meter()
        meter.record(seconds * 1000)

    def snapshot(self, seconds: float) -> BrokerMetrics:
        """Return the numbers; the window has lasted `seconds`."""
        apis = {
            name.removesuffix("Request"): RequestMetrics(
                response_total=meter.count, response_rate=meter.frequency(seconds),
                request_latency_avg=meter.average, request_latency_max=meter.highest,
            )
            for name, meter in list(self._latency.items())
        }  # fmt: skip
        meters = list(self._latency.values())
        recent = sum(meter.recent[0] for meter in meters)
        return BrokerMetrics(
            address=self.address,
            connection_count=self.connections,
            requests_in_flight=self.in_flight,
            request_total=self.sent.count,
            request_rate=self.sent.frequency(seconds),
            response_total=sum(meter.count for meter in meters),
            response_rate=recent / seconds if seconds else 0.0,
            request_latency_avg=sum(meter.recent[1] for meter in meters) / recent if recent else 0.0,
            request_latency_max=max((meter.highest for meter in meters), default=0.0),
            outgoing_byte_total=int(self.sent.total),
            outgoing_byte_rate=self.sent.rate(seconds),
            incoming_byte_total=int(self.received.total),
            incoming_byte_rate=self.received.rate(seconds),
            apis=apis,
        )


class NetworkMeters:
    """The counters of all connections of a client. Other meters of the client use `window` too."""

    def __init__(self, client_id: str, period: float) -> None:
        """`period` is the sample period of the window, in seconds."""
        self.client_id = client_id
        self.window = Window(period)
        self.created = self.window.meter()  # the opened connections
        self.closed = self.window.meter()
        self._brokers: dict[BrokerKey, BrokerMeters] = {}

    def broker(self, key: BrokerKey, address: str) -> BrokerMeters:
        """Return the meters of a broker."""
        meters = self._brokers.get(key)
        if meters is None:
            meters = self._brokers[key] = BrokerMeters(self.window, address)
        meters.address = address
        return meters

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return the fields of `ClientMetrics`."""
        seconds = self.window.seconds(now)
        brokers = {key: meters.snapshot(seconds) for key, meters in list(self._brokers.items())}
        found = list(brokers.values())
        responses = sum(broker.response_rate for broker in found)
        latency = sum(broker.request_latency_avg * broker.response_rate for broker in found)
        return {
            "client_id": self.client_id,
            "window_seconds": seconds,
            "connection_count": sum(broker.connection_count for broker in found),
            "connection_creation_total": self.created.count,
            "connection_creation_rate": self.created.frequency(seconds),
            "connection_close_total": self.closed.count,
            "connection_close_rate": self.closed.frequency(seconds),
            "requests_in_flight": sum(broker.requests_in_flight for broker in found),
            "request_total": sum(broker.request_total for broker in found),
            "request_rate": sum(broker.request_rate for broker in found),
            "request_latency_avg": latency / responses if responses else 0.0,
            "request_latency_max": max((broker.request_latency_max for broker in found), default=0.0),
            "outgoing_byte_total": sum(broker.outgoing_byte_total for broker in found),
            "outgoing_byte_rate": sum(broker.outgoing_byte_rate for broker in found),
            "incoming_byte_total": sum(broker.incoming_byte_total for broker in found),
            "incoming_byte_rate": sum(broker.incoming_byte_rate for broker in found),
            "brokers": brokers,
        }


class StatisticsReporter:
    """Calls the application with a snapshot every `interval` seconds; never if it is 0 or there is no callback."""

    def __init__(
        self, interval: float, callback: Callable[[Any], None] | None, snapshot: Callable[[float], ClientMetrics]
    ) -> None:
        """snapshot: makes the callback's argument, given the time.

        The first call is one interval after the first use.
        """
        self._interval = interval
        self._callback = callback if interval > 0 else None
        self._snapshot = snapshot
        self._due: float | None = None

    def next_time(self, now: float) -> float | None:
        """Return when the next call of `report` is due; None if never."""
        if self._callback is None:
            return None
        if self._due is None:
            self._due = now + self._interval
        return self._due

    def report(self, now: float) -> None:
        """Call the application's function if it is time. Its exceptions are logged."""
        if self._callback is None or (due := self.next_time(now)) is None or now < due:
            return
        self._due = now + self._interval
        try:
            self._callback(self._snapshot(now))
        except Exception:
            _log.exception("on_statistics failed")
