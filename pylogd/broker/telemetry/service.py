"""The telemetry service: for the handlers of GetTelemetrySubscriptions and PushTelemetry, and for the metrics page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.base.limits.shares import Crowded, FairWork
from pylogd.broker.metadata.named_configs import ClientMetricsConfigs
from pylogd.broker.telemetry import otlp
from pylogd.broker.telemetry.instances import Instance, Instances, new_instance_id
from pylogd.broker.telemetry.subscriptions import DEFAULT_INTERVAL_MS, ClientIdentity, Wanted, wanted_of
from pylogd.broker.telemetry.values import PushedValues
from pylogd.config import Settings
from pylogd.wire.compression import CompressionType

#: The most pushes that may wait while another one is read: of principals, and of other clients.
MOST_WAITING: Final = 100
#: The client instance id of a client without one, and an id that no client may have.
_RESERVED: Final = (bytes(16), bytes(15) + b"\1")
_NOTHING: Final = Wanted((), DEFAULT_INTERVAL_MS)


class Telemetry:
    """See the module. Clients are asked for metrics while `active`.

    instances: the clients.
    values: the pushed values.
    pushes: the number of answered pushes, by error code.
    """

    def __init__(
        self,
        configs: ClientMetricsConfigs,
        settings: Settings,
        seconds: Callable[[], float],
        in_thread: Callable[..., Deferred[Any]],
    ) -> None:
        """`seconds` is a monotonic clock. `in_thread` calls a function in a thread."""
        self._configs = configs
        self._settings = settings
        self._seconds = seconds
        self._reading = FairWork(in_thread, 1, MOST_WAITING)
        self.active = False
        self.values = PushedValues(lambda: settings.integer("metrics.clients.max"))
        self.instances = Instances(self.values.forget)
        self.pushes: Counter[ErrorCode] = Counter()

    @property
    def max_bytes(self) -> int:
        """The most bytes of a push, both compressed and decompressed. Larger pushes are refused."""
        return self._settings.integer("telemetry.max.bytes")

    def ask(self, client: ClientIdentity) -> Instance:
        """Return the metrics that a client should push. Its instance id may be zero. Raises KafkaError if it asks too
        early.
        """
        if client.instance == bytes(16):
            client = client._replace(instance=new_instance_id())
        found = self._find(client)
        found.check_asking(self._seconds())
        return found

    def push(self, client: ClientIdentity, subscription_id: int, codec: int, data: bytes, ends: bool) -> Deferred[None]:
        """Store the metrics that a client pushes. Fails with KafkaError.

        ends: whether this is the client's last push.
        """
        pushing = Deferred.fromCoroutine(self._push(client, subscription_id, codec, data, ends))
        return pushing.addCallbacks(self._taken, self._refused, errbackArgs=(client,))

    async def _push(self, client: ClientIdentity, subscription_id: int, codec: int, data: bytes, ends: bool) -> None:
        if client.instance in _RESERVED:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a push needs a client instance id")
        found = self._find(client)
        found.check_pushing(self._seconds(), subscription_id, ends)
        if codec not in CompressionType.__members__.values():
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no codec {codec}")
        max_bytes = self.max_bytes
        if len(data) > max_bytes:
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, f"more than {max_bytes} bytes (telemetry.max.bytes)")
        if not data or not self.active:
            return
        if client.share.known:
            self._reading.known.add(client.share.name)
        try:
            pushed = await self._reading.run(client.share.name, otlp.read, codec, data, max_bytes)
        except Crowded:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many clients push at once") from None
        except otlp.TelemetryTooLarge as error:
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, str(error)) from error
        except otlp.InvalidTelemetry as error:
            raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from error
        if ends:
            pushed.gauges.clear()
        self.values.put(found.client.instance, found.client.client_id, pushed, found.client.share)

    def sweep(self) -> None:
        """Forget clients that have ended."""
        self.instances.sweep(self._seconds())

    def _find(self, client: ClientIdentity) -> Instance:
        return self.instances.find(client, self._seconds(), self._version, self._wanted)

    @property
    def _version(self) -> int:
        return self._configs.version if self.active else -1

    def _wanted(self, client: ClientIdentity) -> Wanted:
        return wanted_of(self._configs, client) if self.active else _NOTHING

    def _taken(self, _: None) -> None:
        self.pushes[ErrorCode.NONE] += 1

    def _refused(self, failure: Any, client: ClientIdentity) -> Any:
        failure.trap(KafkaError)
        code = failure.value.code
        self.pushes[code] += 1
        self.instances.refused(client.instance, code)
        return failure
