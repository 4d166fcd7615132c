"""The last pushed values of clients, by client id and metric name. Their number is limited.

Strategy: the first `most_clients` client ids have their own values as long as a client with the id lives; all others
share `REST`. When there are so many, the principal (or address) with most ids loses its oldest id to one with fewer,
addresses before principals (`limits.shares`); from then on the clients with this id are in `REST`. The first
`MOST_NAMES` metric names of each client id are kept; others are ignored, and counted. Sums are added up by client id,
so they do not decrease when a client ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from pylogd.base.limits.shares import NOBODY, Places, Share
from pylogd.broker.telemetry.otlp import Gauge, Pushed

#: The label in place of a client id, for all ids without their own values.
REST: Final = "(other)"
MOST_NAMES: Final = 300


class _Client:
    """The last pushed values of one client.

    label: its client id, or `REST`.
    """

    __slots__ = ("gauges", "label", "totals")

    def __init__(self, label: str) -> None:
        self.label = label
        self.gauges: dict[str, Gauge] = {}
        self.totals: dict[str, float] = {}


class PushedValues:
    """See the module.

    sums: the sums by client id, then by name.
    ignored: the number of metrics that were left out.
    """

    def __init__(self, most_clients: Callable[[], int]) -> None:
        self._most_clients = most_clients
        self._clients: dict[bytes, _Client] = {}
        self._labels: Counter[str] = Counter()
        self._places: Places[str] = Places()  # the labels except `REST`, in the share of their first client
        self._names: dict[str, set[str]] = {}
        self.sums: dict[str, dict[str, float]] = {}
        self.ignored = 0

    def put(self, instance: bytes, client_id: str, pushed: Pushed, share: Share = NOBODY) -> None:
        """Store the metrics that a client has pushed.

        share: the share in which the client id counts if it is new.
        """
        client = self._clients.get(instance)
        if client is None:
            client = self._clients[instance] = _Client(self._label(client_id, share))
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
        """Drop the gauges of a client that has ended, and the sums of its id if it was the id's last client."""
        client = self._clients.pop(instance, None)
        if client is None:
            return
        self._labels[client.label] -= 1
        if not self._labels[client.label]:
            del self._labels[client.label]
            self._names.pop(client.label, None)
            if client.label != REST:
                self.sums.pop(client.label, None)
                self._places.leave(client.label)

    def walk(self, gauges: dict[tuple[str, str], Gauge]) -> Iterator[None]:
        """Add up the gauges of all clients by client id and name. The caller may pause after each client."""
        for client in list(self._clients.values()):
            for name, gauge in client.gauges.items():
                key = client.label, name
                before = gauges.get(key)
                gauges[key] = gauge if before is None else Gauge(
                    max(before.largest, gauge.largest), before.sum + gauge.sum
                )  # fmt: skip
            yield

    def _label(self, client_id: str, share: Share) -> str:
        if client_id in self._labels:
            return client_id
        if client_id == REST:
            return REST
        most = self._most_clients()
        if len(self._places) >= most:
            gives_way = self._places.share_that_gives_way(share) if most else None
            if gives_way is None:
                return REST
            self._give_up(next(self._places.of(gives_way)))
        self._places.enter(client_id, share.name, known=share.known)
        return client_id

    def _give_up(self, label: str) -> None:
        """Move the clients of an id to `REST`."""
        self._places.leave(label)
        self._labels[REST] += self._labels.pop(label)
        self._names.pop(label, None)
        self.sums.pop(label, None)
        for client in self._clients.values():
            if client.label == label:
                client.label = REST
                client.gauges = {name: gauge for name, gauge in client.gauges.items() if self._keeps(REST, name)}

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
