"""Options that all clients have: connections, timeouts, retries. All faces share them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from pylogd.client.core.backoff import Backoff
from pylogd.client.core.connections import ConnectionOptions
from pylogd.client.core.security import NOT_SECURED, SecurityOptions


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """The options that all clients have. Times are in seconds.

    client_id: the name of this client in the brokers' logs and quotas.
    request_timeout: how long to wait for the answer to a request.
    connect_timeout, connect_timeout_max: how long a connection attempt, including its first request, may take. The
        limit starts at the first value and doubles after each failed attempt, up to the second.
    reconnect_backoff, reconnect_backoff_max: the pause before the next attempt to connect to an unreachable broker. It
        starts at the first value and doubles after each failed attempt, up to the second.
    connections_max_idle: connections that are idle for longer are closed.
    metadata_max_age: metadata that is older is refreshed.
    metadata_recovery_strategy: "rebootstrap" asks the bootstrap servers again if no known broker answers, or if a
        broker tells the client to; "none" asks only known brokers (KIP-899).
    metadata_recovery_rebootstrap_trigger: after so long without metadata, the client drops the known brokers and asks
        the bootstrap servers (KIP-1102).
    retry_backoff, retry_backoff_max: the pause before a request is retried. It doubles in the same way.
    metrics_sample_window: rates, averages and maxima of `metrics()` cover one to two periods of this length.
    security: TLS and SASL; None means plain TCP without credentials.
    statistics_interval, on_statistics: a function that is called with `metrics()` at this interval; 0 means never.
    """

    client_id: str = "pylogd"
    request_timeout: float = 30.0
    connect_timeout: float = 10.0
    connect_timeout_max: float = 30.0
    reconnect_backoff: float = 0.05
    reconnect_backoff_max: float = 1.0
    connections_max_idle: float = 540.0
    metadata_max_age: float = 300.0
    metadata_recovery_strategy: Literal["rebootstrap", "none"] = "rebootstrap"
    metadata_recovery_rebootstrap_trigger: float = 300.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0
    metrics_sample_window: float = 30.0
    security: SecurityOptions | None = None
    statistics_interval: float = 0.0
    on_statistics: Callable[[Any], None] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if a value is unknown."""
        check_choice(self.metadata_recovery_strategy, ("rebootstrap", "none"), "metadata_recovery_strategy")

    @property
    def rebootstraps(self) -> bool:
        """Whether the client asks the bootstrap servers again if no known broker helps."""
        return self.metadata_recovery_strategy == "rebootstrap"

    @classmethod
    def of(cls, options: Self | None, settings: dict[str, Any]) -> Self:
        """Return `options`, or the defaults, with the values of `settings` in place of its own.

        Raises TypeError for an unknown option, ValueError for options that contradict each other.
        """
        known = {field.name: getattr(options, field.name) for field in fields(cls)} if options is not None else {}
        return cls(**{**known, **settings})

    @property
    def connection(self) -> ConnectionOptions:
        """The options of connections."""
        return ConnectionOptions(
            client_id=self.client_id,
            connect_timeout=self.connect_timeout,
            connect_timeout_max=self.connect_timeout_max,
            request_timeout=self.request_timeout,
            reconnect_backoff=self.reconnect_backoff,
            reconnect_backoff_max=self.reconnect_backoff_max,
            connections_max_idle=self.connections_max_idle,
            metrics_sample_window=self.metrics_sample_window,
            rebootstrap_trigger=self.metadata_recovery_rebootstrap_trigger if self.rebootstraps else None,
            security=self.security or NOT_SECURED,
        )

    def backoff(self) -> Backoff:
        """Return the pauses between retries."""
        return Backoff(self.retry_backoff, self.retry_backoff_max)


def check_choice(value: str, allowed: Sequence[str], name: str) -> None:
    """Raise ValueError unless an option has one of the allowed values."""
    if value not in allowed:
        raise ValueError(f"{name} must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {value!r}")
