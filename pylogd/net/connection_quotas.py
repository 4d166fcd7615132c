"""Limits on connections over all listeners of a broker: how many, how many from one address, how many in a second.

Strategy: one `ConnectionQuotas` per broker counts; each listener asks it before it takes a connection, and has limits
of its own in addition. Rates are kept by a `ConnectionRate`, which says how long to accept nothing: what came too early
is made up for by a longer pause, so the rate holds on average.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

UNLIMITED: Final = 2**31 - 1


@dataclass(slots=True, frozen=True)
class QuotaLimits:
    """Limits of a broker; each is the setting named behind it."""

    connections: int = UNLIMITED  # max.connections
    per_host: int = UNLIMITED  # max.connections.per.ip
    per_host_overrides: Mapping[str, int] = field(default_factory=dict)  # max.connections.per.ip.overrides
    rate: int = UNLIMITED  # max.connection.creation.rate, per second


class ConnectionRate:
    """How soon the next connection may be accepted, at `rate` in a second."""

    def __init__(self) -> None:
        self._due = 0.0

    def accept(self, now: float, rate: int) -> float:
        """Count a connection. Return for how many seconds to accept no further one."""
        if rate >= UNLIMITED:
            return 0.0
        self._due = max(self._due, now - 1.0) + 1.0 / rate  # what was not used in the last second may be used now
        return max(0.0, self._due - now)


class ConnectionQuotas:
    """The connections of all listeners, by the address of their clients."""

    def __init__(self, limits: QuotaLimits | None = None) -> None:
        self.limits = limits or QuotaLimits()
        self.rate = ConnectionRate()
        self.count = 0
        self._by_host: Counter[str] = Counter()

    def admit(self, host: str, exempt: bool) -> str | None:
        """Count a connection from the address `host`. Return None, or why it has to be refused; it does not count then.

        exempt: whether the limit of the broker does not hold for its listener.
        """
        limits = self.limits
        if self.count >= limits.connections and not exempt:
            return f"max.connections={limits.connections} is reached"
        most = limits.per_host_overrides.get(host)
        name = "max.connections.per.ip" if most is None else "max.connections.per.ip.overrides"
        most = limits.per_host if most is None else most
        if self._by_host[host] >= most:
            return f"{name}={most} is reached"
        self.count += 1
        self._by_host[host] += 1
        return None

    def release(self, host: str) -> None:
        """Count a connection no more."""
        self.count -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
