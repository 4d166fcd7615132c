"""Measure how long the reactor works for each connection of a broker, while a quota of request time is set.

Strategy: the work for a connection whose socket can be read or written is done in the transport's `doRead` and
`doWrite`: receiving, decrypting, parsing, handling, encoding, encrypting, sending. A `WorkMeter` replaces both on each
transport, so it costs nothing while it is off. The time of handlers, which is charged separately, is subtracted. The
time of threads that read ahead from the disk for sending is added (`pylogd.base.clock.timed`).

Must not know: quotas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from twisted.protocols.policies import ProtocolWrapper

from pylogd.base.clock import WorkTime

_STEPS = ("doRead", "doWrite")


class Metered(Protocol):
    """A connection that is served."""

    transport: Any


class WorkMeter:
    """Measures the work for connections.

    record: called with a connection and the seconds of work.
    """

    def __init__(
        self, clock: Callable[[], float], handled: Callable[[], float], record: Callable[[Any, float], object]
    ) -> None:
        """clock: a monotonic clock, in seconds.

        handled: returns for how many seconds all handlers have worked.
        """
        self._clock = clock
        self._handled = handled
        self._record = record
        self._transports: dict[Metered, tuple[Any, dict[str, Any]]] = {}  # each with the steps that were replaced

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
        """Stop measuring a connection. Do nothing if it is not measured."""
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
