"""Measure how long the reactor works for each connection of a broker, while a quota of request time is set.

Strategy: whatever is done for a connection when its socket can be read or written happens in the transport's `doRead`
and `doWrite`: receiving, decrypting, parsing, handling, encoding, encrypting, sending. A `WorkMeter` replaces both on
each transport, so nothing is measured, or costs anything, while it is off. The time of handlers, which is charged by
itself, is left out. What is read ahead from the disk in a thread to be sent is added (`pylogd.clock.timed`).

Must not know: quotas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from twisted.protocols.policies import ProtocolWrapper

from pylogd.clock import WorkTime

_STEPS = ("doRead", "doWrite")


class Metered(Protocol):
    """A connection that is served."""

    transport: Any


class WorkMeter:
    """The work for connections that is measured. record: told of a connection and so many seconds."""

    def __init__(
        self, clock: Callable[[], float], handled: Callable[[], float], record: Callable[[Any, float], object]
    ) -> None:
        """`clock`: a monotonic clock, in seconds. `handled`: returns for how many seconds all handlers have worked."""
        self._clock = clock
        self._handled = handled
        self._record = record
        self._transports: dict[Metered, tuple[Any, dict[str, Any]]] = {}  # with steps of their own: `direct_reads`

    def add(self, connection: Metered) -> None:
        """Measure a connection, until `remove`."""
        transport = connection.transport
        while isinstance(transport, ProtocolWrapper):
            transport = transport.transport
        if transport is None or connection in self._transports:
            return
        own = {step: vars(transport)[step] for step in _STEPS if step in vars(transport)}
        self._transports[connection] = transport, own
        work = WorkTime(self._clock)
        for step in _STEPS:
            setattr(transport, step, partial(self._measure, connection, work, getattr(transport, step)))

    def remove(self, connection: Metered) -> None:
        """Measure a connection no more. Do nothing if it is not measured."""
        found = self._transports.pop(connection, None)
        if found is not None:
            transport, own = found
            for step in _STEPS:
                delattr(transport, step)
            vars(transport).update(own)

    def _measure(self, connection: Metered, work: WorkTime, step: Callable[[], Any]) -> Any:
        before = self._handled()
        try:
            return work.begin(step)
        finally:
            self._record(connection, max(work.take() - (self._handled() - before), 0.0))
