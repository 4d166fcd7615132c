"""How long partitions are out of use after a fault: until each is led again, and until a write to it is acknowledged.

Strategy: a broker that has no fault is asked for all metadata, over and over. As soon as it names a new leader of a
partition whose leader had the fault, a record is written there with acks=all, by a client that knows no earlier leader.
Partitions with a follower that had the fault get their record at once: it is acknowledged when the in-sync set is
without that follower.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pylogd.base.errors import PylogdError
from pylogd.client import Producer
from pylogd.client.blocking.producer import Delivery
from pylogd.client.core.model import Partition
from tests.fleet.cluster import Fleet, Place

#: How long it is waited for everything to be in use again.
LONGEST_SECONDS: Final = 90.0
_POLL_SECONDS: Final = 0.05
#: Longer than a fail-over may take, since a request that is cut off is sent anew and waits from then on.
_REQUEST_SECONDS: Final = 30.0


@dataclass(slots=True)
class Outage:
    """Seconds from the fault on. led: until a partition, whose leader had the fault, had another. written: until a
    write to it was acknowledged. followed: the same for partitions, one of whose followers had the fault.

    missing: partitions that were not in use when the wait ended.
    """

    led: dict[Place, float] = field(default_factory=dict)
    written: dict[Place, float] = field(default_factory=dict)
    followed: dict[Place, float] = field(default_factory=dict)
    missing: list[Place] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """The longest of all; infinite if something is missing."""
        return float("inf") if self.missing else max([*self.written.values(), *self.followed.values()], default=0.0)


class Probes:
    """Records that are written once each. acked: by partition, values by offset. times: when, by partition."""

    def __init__(self, number: int) -> None:
        """number: of the fault; the records have it in their values."""
        self.acked: dict[Place, dict[int, bytes]] = {}
        self.times: dict[Place, float] = {}
        self.errors: list[str] = []
        self._number = number
        self._producers: list[Producer] = []

    def write(self, bootstrap: str, places: Iterable[Place]) -> None:
        """Write a record to each partition, by a new client."""
        producer = Producer(
            bootstrap, acks="all", linger_ms=0.0, request_timeout=_REQUEST_SECONDS, delivery_timeout=LONGEST_SECONDS
        )
        self._producers.append(producer)
        for place in places:
            value = b"probe:%d" % self._number
            producer.send(place[0], value, partition=place[1], on_delivery=partial(self._delivered, place, value))

    def _delivered(self, place: Place, value: bytes, delivery: Delivery) -> None:
        now = time.monotonic()
        try:
            offset = delivery.result(0)
        except PylogdError as error:
            self.errors.append(f"a probe of {place}: {error}")
            return
        self.acked.setdefault(place, {})[offset] = value
        self.times[place] = now

    def close(self) -> None:
        """Close the clients. What they have not delivered counts as not acknowledged."""
        for producer in self._producers:
            with contextlib.suppress(PylogdError):
                producer.close(0.1)


def measure(
    fleet: Fleet, victims: Sequence[int], before: Mapping[Place, Partition], began: float, probes: Probes
) -> Outage:
    """Wait until all partitions of `before` with replicas on victims are in use again, and return how long it took."""
    (witness, *_) = [node for node in sorted(fleet.brokers) if node not in victims]
    outage = Outage()
    away = {place for place, one in before.items() if one.leader in victims}
    followed = {place for place, one in before.items() if set(one.replicas) & set(victims)} - away
    probes.write(fleet.address(witness), sorted(followed))
    wanted = away | followed
    deadline = began + LONGEST_SECONDS
    while time.monotonic() < deadline and len(probes.times) < len(wanted):
        time.sleep(_POLL_SECONDS)
        if len(outage.led) == len(away):
            continue
        try:
            seen = fleet.places(witness)
        except (PylogdError, OSError):
            continue
        now = time.monotonic() - began
        new = sorted(
            place for place in away - outage.led.keys() if seen[place].leader >= 0 and seen[place].leader not in victims
        )
        outage.led.update(dict.fromkeys(new, now))
        if new:
            probes.write(fleet.address(witness), new)
    times = {place: at - began for place, at in probes.times.items()}
    outage.written = {place: times[place] for place in sorted(away) if place in times}
    outage.followed = {place: times[place] for place in sorted(followed) if place in times}
    outage.missing = sorted(wanted - times.keys())
    return outage
