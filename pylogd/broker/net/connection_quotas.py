"""Limits on connections: which new ones are accepted, which have to wait for their turn, and which are refused.

Strategy: as in Kafka, a listener accepts no more connections while `max.connections` or a rate is reached: new
connections wait in the kernel's queue. A port accepts several in one turn of the reactor. Those that exceed a limit
wait here, unread, and go before those in the kernel's queue. So the connections of all listeners are served in the
order in which they were accepted. An address over its own limit is refused at once, so that it does not keep others
waiting.

The listener between brokers is exempt from the limits of the broker. If its connections exceed `max.connections`, the
connections of other listeners that were idle for longest are closed.

`ConnectionQuotas` has what is counted over all listeners of a broker; each listener has an `Admission`. Limits may be
changed at any time; `ConnectionQuotas.set_limits` puts them into effect for all listeners.

Source: Kafka's ConnectionQuotas in SocketServer; KIP-402, KIP-612.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import nsmallest
from typing import Any, Final, Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from pylogd.base.limits.admission import AdmissionRate
from pylogd.base.limits.log_lines import LimitedLog

log = Logger()
_limited = LimitedLog(log)

UNLIMITED: Final = 2**31 - 1
#: How many connections a port accepts in one turn of the reactor: this takes about a millisecond.
_AT_ONCE: Final = 5
_LOG_SECONDS: Final = 60.0  # seconds between two log lines that a listener is full
_MAPPED: Final = "::ffff:"


def plain_address(host: str) -> str:
    """Return a client's address in the form for limits, quotas, ACLs and logs: IPv4 if it came in over IPv6.

    A listener on `::` sees IPv4 clients as `::ffff:10.0.0.1`; Java's InetAddress also makes 10.0.0.1 of that.
    """
    if not host.startswith(_MAPPED):
        return host
    try:
        mapped = ipaddress.IPv6Address(host).ipv4_mapped
    except ValueError:
        return host
    return host if mapped is None else str(mapped)


class Candidate(Protocol):
    """A connection, new or admitted.

    host: the client's address.
    last_active: when the connection last received something.
    """

    host: str
    last_active: float

    def admitted(self) -> None:
        """Serve the client, which has waited for its turn."""

    def give_up(self, reason: str) -> None:
        """Close the connection at once."""


class Verdict(Enum):
    """The decision about a new connection."""

    TAKEN = "It is served."
    WAITS = "It is not read from until `admitted` is called."
    REFUSED = "It has to be closed."


@dataclass(slots=True, frozen=True)
class QuotaLimits:
    """The limits of a broker. The comment after each names its setting."""

    connections: int = UNLIMITED  # max.connections
    per_host: int = UNLIMITED  # max.connections.per.ip
    per_host_overrides: Mapping[str, int] = field(default_factory=dict)  # max.connections.per.ip.overrides
    rate: int = UNLIMITED  # max.connection.creation.rate, per second


class ConnectionQuotas:
    """The connections of all listeners.

    limits: the limits of the broker.
    count: how many connections are admitted.
    waiting: the connections that wait, the oldest first.
    admit_address: counts a new connection of an address; returns whether the rate of the address is within its quota.
    """

    def __init__(self, limits: QuotaLimits | None = None) -> None:
        self.limits = limits or QuotaLimits()
        self.rate = AdmissionRate()
        self.count = 0
        self.admit_address: Callable[[str], bool] = lambda _: True
        self.waiting: OrderedDict[Candidate, Admission] = OrderedDict()
        self.listeners: list[Admission] = []
        self._by_host: Counter[str] = Counter()
        self._closing: set[Candidate] = set()  # connections that are being closed to make space

    def set_limits(self, limits: QuotaLimits) -> None:
        """Replace the limits of the broker, and apply them and the limits of the listeners."""
        self.limits = limits
        self._close_excess()
        self.serve()

    @property
    def full(self) -> bool:
        """Whether `max.connections` is reached."""
        return self.count >= self.limits.connections

    def refusal(self, host: str) -> str | None:
        """Return why an address may have no further connection; None if it may."""
        limits = self.limits
        most = limits.per_host_overrides.get(host)
        name = "max.connections.per.ip" if most is None else "max.connections.per.ip.overrides"
        most = limits.per_host if most is None else most
        return f"{name}={most} is reached" if self._by_host[host] >= most else None

    def take(self, connection: Candidate) -> None:
        """Count a connection."""
        self.count += 1
        self._by_host[connection.host] += 1
        if self.full:
            self._close_excess()
            for listener in self.listeners:
                listener.update()

    def release(self, connection: Candidate) -> None:
        """Stop counting a connection, and let another one have its place."""
        was_full, host = self.full, connection.host
        self.count -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        self._closing.discard(connection)
        if was_full or self.waiting:
            self.serve()

    def serve(self) -> None:
        """Accept waiting connections, in their order, as far as the limits allow; then accept new ones."""
        for connection, listener in list(self.waiting.items()):
            if connection in self.waiting and listener.may_take():
                del self.waiting[connection]
                listener.begin(connection)
        for listener in self.listeners:
            listener.update()

    def _close_excess(self) -> None:
        """Close the longest idle connections beyond `max.connections`, except connections of exempt listeners."""
        most = self.limits.connections
        excess = self.count - len(self._closing) - most
        if excess <= 0:
            return
        others = (one for listener in self.listeners if not listener.exempt for one in listener.taken)
        idle = nsmallest(excess, (one for one in others if one not in self._closing), key=lambda one: one.last_active)
        self._closing.update(idle)
        for connection in idle:
            connection.give_up(f"max.connections={most} is exceeded, and it has been idle for longest")


class Admission:
    """The connections of one listener.

    taken: the connections that are served.
    total: how many connections were admitted since the start.
    exempt: whether the limits of the broker do not apply.
    port: the port that accepts the connections, once there is one.
    """

    def __init__(
        self, clock: IReactorTime, quotas: ConnectionQuotas, name: str, limits: Callable[[], tuple[int, int]]
    ) -> None:
        """limits: returns the most connections of the listener, and the most new connections per second."""
        self._clock = clock
        self._quotas = quotas
        self._name = name
        self._limits = limits
        self.taken: set[Any] = set()
        self.total = 0
        self.exempt = False
        self.port: Any = None
        self._rate = AdmissionRate()
        self._accepting = True
        self._told_at = float("-inf")
        self._closed = False
        self._timer: IDelayedCall | None = None
        self._slowing: IDelayedCall | None = None
        quotas.listeners.append(self)

    def arrived(self, connection: Candidate) -> Verdict:
        """Decide on a new connection, which counts if it is admitted."""
        if self._slowing is None and self.port is not None:
            self._slowing = self._clock.callLater(0, self._accept_few)
        quotas, host = self._quotas, connection.host
        reason = quotas.refusal(host)
        if reason is None and not quotas.admit_address(host):
            reason = "the quota connection_creation_rate of its address is exceeded"
        if reason is not None:
            self.refuse(connection, reason)
            return Verdict.REFUSED
        if self._waiting or not self.may_take():
            quotas.waiting[connection] = self
            self.update()
            return Verdict.WAITS
        self._take(connection)
        return Verdict.TAKEN

    def refuse(self, connection: Candidate, reason: str) -> None:
        """Log why a connection is refused."""
        _limited.warn("Refused a connection from {host}: {reason}", event="connections refused", host=connection.host,
                      reason=reason)  # fmt: skip

    def begin(self, connection: Candidate) -> None:
        """Admit a connection that has waited, unless its address has too many by now."""
        reason = self._quotas.refusal(connection.host)
        if reason is not None:
            connection.give_up(reason)
            return
        self._take(connection)
        connection.admitted()

    def _take(self, connection: Candidate) -> None:
        now = self._clock.seconds()
        self.taken.add(connection)
        self.total += 1
        self._rate.take(self._limits()[1], now)
        if not self.exempt:
            self._quotas.rate.take(self._quotas.limits.rate, now)
        self._quotas.take(connection)
        self.update()

    def dismiss(self, connection: Candidate) -> bool:
        """Forget a connection that has ended. Return whether it had been admitted."""
        if connection not in self.taken:
            self._quotas.waiting.pop(connection, None)
            self.update()
            return False
        self.taken.discard(connection)
        self._quotas.release(connection)
        if len(self.taken) + 1 >= self._limits()[0]:
            self._quotas.serve()
        return True

    def give_up_waiting(self, reason: str) -> None:
        """Close the waiting connections."""
        for connection in self._waiting:
            del self._quotas.waiting[connection]
            connection.give_up(reason)

    @property
    def _waiting(self) -> list[Candidate]:
        waiting = self._quotas.waiting
        return [one for one, listener in waiting.items() if listener is self] if waiting else []

    def _delay(self) -> float:
        """Return for how many seconds the rates allow no further connection."""
        now, quotas = self._clock.seconds(), self._quotas
        delay = self._rate.delay(self._limits()[1], now)
        return delay if self.exempt else max(delay, quotas.rate.delay(quotas.limits.rate, now))

    def _has_room(self) -> bool:
        return len(self.taken) < self._limits()[0] and (self.exempt or not self._quotas.full)

    def may_take(self) -> bool:
        """Return whether the limits of listener and broker allow one more connection now."""
        return self._has_room() and self._delay() == 0

    def update(self) -> None:
        """Accept connections, or leave them in the kernel's queue, by the limits. Check again when a rate allows."""
        if self._closed:
            return
        room, delay = self._has_room(), self._delay()
        if room and delay > 0 and self._timer is None:
            self._timer = self._clock.callLater(delay, self._look_again)
        accepting = room and delay == 0 and not self._waiting
        if accepting == self._accepting:
            return
        self._accepting = accepting
        if not room:
            self._tell()
        port = self.port
        if port is not None and port.connected:
            if accepting:
                port.startReading()
            else:
                port.stopReading()

    def open(self, port: Any) -> None:
        """Begin to accept the connections of a port."""
        self.port = port
        port.numberAccepts = _AT_ONCE
        if self._accepting:
            port.startReading()

    def close(self) -> None:
        """Stop accepting, since the port is closed."""
        self.port = None
        self._closed = True
        for call in (self._timer, self._slowing):
            if call is not None:
                call.cancel()
        self._timer = self._slowing = None

    def _accept_few(self) -> None:
        """Undo what Twisted does after each turn with many new connections: it lets the port accept more at once."""
        self._slowing = None
        if self.port is not None:
            self.port.numberAccepts = _AT_ONCE

    def _look_again(self) -> None:
        self._timer = None
        self._quotas.serve()

    def _tell(self) -> None:
        """Log that the listener is full, unless that was logged recently."""
        now, own = self._clock.seconds(), self._limits()[0]
        if now - self._told_at < _LOG_SECONDS:
            return
        self._told_at = now
        limit = f"max.connections={self._quotas.limits.connections}"
        if len(self.taken) >= own:
            limit = f"listener.name.{self._name.lower()}.max.connections={own}"
        log.warn("New connections to listener {name} wait until others end: {limit} is reached",
                 name=self._name, limit=limit)  # fmt: skip
