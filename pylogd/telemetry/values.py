"""The values that clients pushed last, by client id and name of the metric; their number is limited.

Strategy: the first `most_clients` client ids have values of their own as long as a client of that id lives, all others
share `REST`. Of each client id the first `MOST_NAMES` names of metrics are kept; others are ignored, and counted. Sums
are added up by client id, so they do not go back when a client ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from pylogd.telemetry.otlp import Gauge, Pushed

#: In place of a client id: all that have no values of their own.
REST: Final = "(other)"
MOST_NAMES: Final = 300


class _Client:
    """The values that one client pushed last. label: its client id, or `REST`."""

    __slots__ = ("gauges", "label", "totals")

    def __init__(self, label: str) -> None:
        self.label = label
        self.gauges: dict[str, Gauge] = {}
        self.totals: dict[str, float] = {}


class PushedValues:
    """See the module. sums: by client id, then by name. ignored: metrics that were left out."""

    def __init__(self, most_clients: Callable[[], int]) -> None:
        self._most_clients = most_clients
        self._clients: dict[bytes, _Client] = {}
        self._labels: Counter[str] = Counter()
        self._names: dict[str, set[str]] = {}
        self.sums: dict[str, dict[str, float]] = {}
        self.ignored = 0

    def put(self, instance: bytes, client_id: str, pushed: Pushed) -> None:
        """Note what a client has pushed."""
        client = self._clients.get(instance)
        if client is None:
            client = self._clients[instance] = _Client(self._label(client_id))
            self._labels[client.label] += 1
        self.ignored += pushed.ignored
        client.gauges = {name: gauge for name, gauge in pushed.gauges.items() if self._keeps(client.label, name)}
        totals = {name: value for name, value in pushed.totals.items() if self._keeps(client.label, name)}
        for name, value in totals.items():
            self._count(client.label, name, max(value - client.totals.get(name, 0.0), 0.0))
        client.totals = totals
        for name, value in pushed.deltas.items():
            if self._keeps(client.label, name):
                self._count(client.label, name, value)

    def forget(self, instance: bytes) -> None:
        """Drop the gauges of a client that has ended; and the sums of its id, if it was the last one."""
        client = self._clients.pop(instance, None)
        if client is None:
            return
        self._labels[client.label] -= 1
        if not self._labels[client.label]:
            del self._labels[client.label]
            self._names.pop(client.label, None)
            if client.label != REST:
                self.sums.pop(client.label, None)

    def walk(self, gauges: dict[tuple[str, str], Gauge]) -> Iterator[None]:
        """Add the gauges of all clients by client id and name. May be interrupted after each client."""
        for client in list(self._clients.values()):
            for name, gauge in client.gauges.items():
                key = client.label, name
                before = gauges.get(key)
                gauges[key] = gauge if before is None else Gauge(
                    max(before.largest, gauge.largest), before.sum + gauge.sum
                )  # fmt: skip
            yield

    def _label(self, client_id: str) -> str:
        known = client_id in self._labels
        own = known or len(self._labels) - (REST in self._labels) < self._most_clients()
        return client_id if own else REST

    def _keeps(self, label: str, name: str) -> bool:
        names = self._names.setdefault(label, set())
        if name not in names:
            if len(names) >= MOST_NAMES:
                self.ignored += 1
                return False
            names.add(name)
        return True

    def _count(self, label: str, name: str, value: float) -> None:
        sums = self.sums.setdefault(label, {})
        sums[name] = sums.get(name, 0.0) + value
