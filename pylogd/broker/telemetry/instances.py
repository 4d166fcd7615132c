"""The clients that have asked which metrics to push, and when each may ask and push again (KIP-714).

Strategy: at most `MOST_INSTANCES` are kept. If there are more, the principal (or address) with most clients loses the
one that has been silent longest, addresses before principals (`limits.shares`). An unknown client, which this broker
has forgotten or which comes from another broker, is taken as new. A client that is silent for three of its intervals is
forgotten.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final
from uuid import uuid4

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.base.limits.shares import Places
from pylogd.broker.telemetry.subscriptions import ClientIdentity, Wanted
from pylogd.wire.crc import crc32c

MOST_INSTANCES: Final = 5000
_LEAST_KEPT_SECONDS: Final = 60.0
_RETRIED: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


class Instance:
    """A client.

    subscription_id: identifies its subscription.
    version: the version of the subscriptions that `wanted` follows.

    heard: the time of its last request, in seconds.
    """

    __slots__ = (
        "asked",
        "client",
        "ended",
        "error",
        "heard",
        "invited",
        "pushed",
        "subscription_id",
        "version",
        "wanted",
    )

    def __init__(self, client: ClientIdentity, wanted: Wanted, version: int) -> None:
        self.client = client
        self.heard = self.asked = self.pushed = -math.inf
        self.error = ErrorCode.NONE
        self.ended = False
        self.follow(wanted, version)

    def follow(self, wanted: Wanted, version: int) -> None:
        """Change the client's subscription. If it differs, the client may fetch it and push at once."""
        text = f"{wanted.interval_ms} {' '.join(wanted.metrics)}".encode()
        number = crc32c(self.client.instance + text)
        self.version, self.wanted = version, wanted
        self.subscription_id = number - (1 << 32) if number >= 1 << 31 else number
        self.asked = self.pushed = -math.inf
        self.invited = False  # whether it may push at once, since it has asked

    @property
    def interval(self) -> float:
        """How often it may push, in seconds."""
        return self.wanted.interval_ms / 1000

    @property
    def kept(self) -> float:
        """The seconds for which a silent instance is kept."""
        return max(3 * self.interval, _LEAST_KEPT_SECONDS)

    def check_asking(self, now: float) -> None:
        """Record that the client asks which metrics to push. Raises KafkaError if it asks too early."""
        if now - max(self.asked, self.pushed) < self.interval and self.error not in _RETRIED:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "asked before the next interval")
        self.asked, self.error, self.invited = now, ErrorCode.NONE, True

    def check_pushing(self, now: float, subscription_id: int, terminating: bool) -> None:
        """Record a push of the client. Raises KafkaError if it is too early, or if its subscription has changed."""
        if self.ended:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the client has said that it ends")
        self.ended = terminating
        early = not self.invited and now - self.pushed < self.interval
        if early and not terminating:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "pushed before the next interval")
        if not early:
            self.pushed, self.invited = now, False
        if subscription_id != self.subscription_id:
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the subscriptions have changed")


class Instances:
    """See the module. Times are in seconds of one monotonic clock."""

    def __init__(self, forget: Callable[[bytes], object], most: int = MOST_INSTANCES) -> None:
        """`forget` is called with the id of each client that is dropped."""
        self._known: OrderedDict[bytes, Instance] = OrderedDict()
        self._forget = forget
        self._most = most
        self._places: Places[bytes] = Places()

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._known.values())

    def find(
        self, client: ClientIdentity, now: float, version: int, wanted: Callable[[ClientIdentity], Wanted]
    ) -> Instance:
        """Return a client by its id. The client is kept from now on.

        wanted: the client's subscription in this version.
        """
        found = self._known.get(client.instance)
        if found is None:
            found = self._known[client.instance] = Instance(client, wanted(client), version)
        elif found.version != version:
            changed = wanted(found.client)
            if changed == found.wanted:
                found.version = version
            else:
                found.follow(changed, version)
        found.heard = now
        self._places.leave(client.instance)  # from now on it is the last one in its share
        share = found.client.share
        self._places.enter(client.instance, share.name, known=share.known)
        while len(self._known) > self._most:
            self._drop(self._places.gives_way())
        return found

    def refused(self, instance: bytes, code: ErrorCode) -> None:
        """Record the error that was sent to the client."""
        if instance in self._known:
            self._known[instance].error = code

    def sweep(self, now: float) -> None:
        """Forget the clients that have not pushed for `kept` seconds."""
        for key in [key for key, one in self._known.items() if now - one.heard > one.kept]:
            self._drop(key)

    def _drop(self, instance: bytes) -> None:
        del self._known[instance]
        self._places.leave(instance)
        self._forget(instance)


def new_instance_id() -> bytes:
    """Return a random id, 16 bytes."""
    return uuid4().bytes
