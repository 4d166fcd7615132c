"""Options that all clients have: connections, time-outs, retries. Written once for all faces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Self

from pylogd.client.core.backoff import Backoff
from pylogd.client.core.network import ConnectionOptions


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """What every client of a cluster can be told. Times in seconds.

    client_id: the name under which brokers know this client, in logs and quotas.
    request_timeout: how long a request may go unanswered.
    connect_timeout, connect_timeout_max: how long connecting may take, its first exchange included; it doubles from the
        first to the second while attempts fail.
    reconnect_backoff, reconnect_backoff_max: the pause before a broker that could not be reached is tried again; it
        doubles from the first to the second.
    connections_max_idle: a connection that was not used for so long is closed.
    metadata_max_age: metadata that is older is asked for again.
    retry_backoff, retry_backoff_max: the pause between two tries of a request, doubling likewise.
    metrics_sample_window: rates, averages and maxima of `metrics()` are about one to two periods of this length.
    statistics_interval, on_statistics: a function that is called with `metrics()` every so many seconds; 0 is never.
    """

    client_id: str = "pylogd"
    request_timeout: float = 30.0
    connect_timeout: float = 10.0
    connect_timeout_max: float = 30.0
    reconnect_backoff: float = 0.05
    reconnect_backoff_max: float = 1.0
    connections_max_idle: float = 540.0
    metadata_max_age: float = 300.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0
    metrics_sample_window: float = 30.0
    statistics_interval: float = 0.0
    on_statistics: Callable[[Any], None] | None = None

    @classmethod
    def of(cls, options: Self | None, settings: dict[str, Any]) -> Self:
        """Return `options`, or the defaults, with single `settings` changed by name.

        Raises TypeError for a name that is no option, ValueError for options that contradict each other.
        """
        known = {field.name: getattr(options, field.name) for field in fields(cls)} if options is not None else {}
        return cls(**{**known, **settings})

    @property
    def connection(self) -> ConnectionOptions:
        """The options that concern connections."""
        return ConnectionOptions(
            client_id=self.client_id,
            connect_timeout=self.connect_timeout,
            connect_timeout_max=self.connect_timeout_max,
            request_timeout=self.request_timeout,
            reconnect_backoff=self.reconnect_backoff,
            reconnect_backoff_max=self.reconnect_backoff_max,
            connections_max_idle=self.connections_max_idle,
            metrics_sample_window=self.metrics_sample_window,
        )

    def backoff(self) -> Backoff:
        """The pauses between the tries of one thing."""
        return Backoff(self.retry_backoff, self.retry_backoff_max)
