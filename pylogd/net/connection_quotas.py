"""Limits on connections over all listeners of a broker: how many, how many from one address, how many in a second.

Strategy: one `ConnectionQuotas` per broker counts; each listener asks it before it takes a connection, and has limits
of its own in addition. Rates are kept by a `ConnectionRate`, which says how long to accept nothing: what came too early
is made up for by a longer pause, so the rate holds on average.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

UNLIMITED: Final = 2**31 - 1
_MAPPED: Final = "::ffff:"


def plain_address(host: str) -> str:
    """Return a client's address as limits, quotas, ACLs and logs have it: an IPv4 one, if it came in over IPv6.

    A listener on `::` sees IPv4 clients as `::ffff:10.0.0.1`; Java's InetAddress makes 10.0.0.1 of that too.
    """
    if not host.startswith(_MAPPED):
        return host
    try:
        mapped = ipaddress.IPv6Address(host).ipv4_mapped
    except ValueError:
        return host
    return host if mapped is None else str(mapped)


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
    """The connections of all listeners, by the address of their clients.

    admit_address: counts a new connection of an address; returns whether their rate is within its quota.
    """

    def __init__(self, limits: QuotaLimits | None = None) -> None:
        self.limits = limits or QuotaLimits()
        self.rate = ConnectionRate()
        self.count = 0
        self.admit_address: Callable[[str], bool] = lambda _: True
        self._by_host: Counter[str] = Counter()

    def admit(self, host: str, exempt: bool) -> str | None:
        """Count a connection from the address `host`. Return None, or why it has to be refused; it does not count then.

        exempt: whether the limit of the broker does not hold for its listener.
        """
        if not self.admit_address(host):
            return "the quota connection_creation_rate of its address is exceeded"
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
