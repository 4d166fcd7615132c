"""Options of connections, and which addresses could not be reached."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pylogd.base.errors import AuthenticationFailed, PylogdError
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.security import NOT_SECURED, SecurityOptions

_log = logging.getLogger("pylogd.client.network")

MAX_REPLY_BYTES = 128 * 1024 * 1024

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options of connections. Times are in seconds. Settings that Kafka has too have its names.

    connect_timeout, connect_timeout_max: the limit for one address, including ApiVersions. It starts at the first value
    and doubles with each failed attempt, up to the second (KIP-601).
    reconnect_backoff, reconnect_backoff_max: the pause after a failed attempt, which doubles in the same way.
    connections_max_idle: a connection that was not used for so long is closed.
    rebootstrap_trigger: after so long without metadata the client rebootstraps; None: never.
    """

    client_id: str = "pylogd"
    connect_timeout: float = 10.0
    connect_timeout_max: float = 30.0
    request_timeout: float = 30.0
    reconnect_backoff: float = 0.05
    reconnect_backoff_max: float = 1.0
    connections_max_idle: float = 540.0
    metrics_sample_window: float = 30.0
    rebootstrap_trigger: float | None = 300.0
    max_reply_bytes: int = MAX_REPLY_BYTES
    security: SecurityOptions = NOT_SECURED


@dataclass(slots=True)
class _Unreachable:
    """When to try an address again, the error of the last attempt, and the number of failed attempts."""

    backoff: Backoff
    until: float
    error: PylogdError
    failures: int = 0


class UnreachableAddresses:
    """The addresses to which the last attempt to connect failed."""

    def __init__(self, options: ConnectionOptions) -> None:
        """Nothing has failed yet."""
        self._options = options
        self._addresses: dict[Address, _Unreachable] = {}

    @property
    def last_error(self) -> PylogdError | None:
        """The last error of a connection attempt, if there is one."""
        errors = [found.error for found in self._addresses.values()]
        return errors[-1] if errors else None

    def error(self, address: Address, now: float) -> PylogdError | None:
        """Return why an address is not to be tried now; None if it may be."""
        found = self._addresses.get(address)
        return found.error if found is not None and now < found.until else None

    def connect_timeout(self, address: Address) -> float:
        """Return how long connecting to an address may take, in seconds: longer after each failed attempt."""
        found = self._addresses.get(address)
        failures = 0 if found is None else min(found.failures, 30)
        first = self._options.connect_timeout
        return min(first * 2.0**failures, max(first, self._options.connect_timeout_max))

    def failed(self, address: Address, error: PylogdError, now: float) -> None:
        """Note that an attempt to connect failed."""
        found = self._addresses.get(address)
        if found is None:
            options = self._options
            backoff = Backoff(options.reconnect_backoff, options.reconnect_backoff_max)
            found = self._addresses[address] = _Unreachable(backoff, 0.0, error)
        pause = found.backoff.next()
        if isinstance(error, AuthenticationFailed):  # the next attempt will hardly succeed
            pause = max(pause, self._options.reconnect_backoff_max)
        found.until, found.error, found.failures = now + pause, error, found.failures + 1
        _log.info("%s; the next attempt is in %.2f s at the earliest", error, pause)

    def reached(self, address: Address) -> None:
        """Note that an attempt to connect succeeded."""
        self._addresses.pop(address, None)
