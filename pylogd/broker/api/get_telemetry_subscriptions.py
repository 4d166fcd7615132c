"""GetTelemetrySubscriptions (71), version 0: which metrics a client should push, and how often (KIP-714).

Behaviour: a client without an id gets a random one. The subscriptions that match it are combined: all their metrics,
and the shortest of their intervals. A client that no subscription matches pushes nothing, and asks again after 5
minutes. So does any client while this broker serves no metrics (`metrics.listener`). A client that asks before its
interval is over gets THROTTLING_QUOTA_EXCEEDED. As in Kafka, no permission is needed.
"""

from __future__ import annotations

from typing import Final

from pylogd.base.errors import KafkaError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.telemetry.subscriptions import ClientIdentity
from pylogd.wire.compression import CompressionType
from pylogd.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)

#: The preferred codec first.
_CODECS: Final = [CompressionType.ZSTD, CompressionType.LZ4, CompressionType.GZIP, CompressionType.SNAPPY]


@handles(GetTelemetrySubscriptionsRequest, 0, 0)
def get_telemetry_subscriptions(
    context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Return the metrics that the client should push."""
    telemetry = context.broker.telemetry
    try:
        found = telemetry.ask(identity_of(context, request.client_instance_id))
    except KafkaError as error:
        return GetTelemetrySubscriptionsResponse(
            error_code=error.code, client_instance_id=request.client_instance_id, requested_metrics=[]
        )
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=found.client.instance,
        subscription_id=found.subscription_id,
        accepted_compression_types=[int(codec) for codec in _CODECS],
        push_interval_ms=found.wanted.interval_ms,
        telemetry_max_bytes=telemetry.max_bytes,
        delta_temporality=True,
        requested_metrics=list(found.wanted.metrics),
    )


def identity_of(context: RequestContext, instance: bytes) -> ClientIdentity:
    """Return the client of a request in the form that subscriptions match.

    instance: the client's instance id.
    """
    connection = context.connection
    return ClientIdentity(
        bytes(instance), context.client_id or "", connection.software, connection.host, connection.port, context.share
    )
