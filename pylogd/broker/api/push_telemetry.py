"""PushTelemetry (72), version 0: take metrics that a client pushes (KIP-714).

Behaviour: pushed metrics are decompressed and read in a thread, one push at a time, and kept for `/metrics`. As in
Kafka, no permission is needed.
Errors:
- UNKNOWN_SUBSCRIPTION_ID: the client should ask again what to push;
- THROTTLING_QUOTA_EXCEEDED: the client pushes before its interval is over, or too many clients push at once;
- TELEMETRY_TOO_LARGE: more than `telemetry.max.bytes` (even after decompression), or too many metrics;
- UNSUPPORTED_COMPRESSION_TYPE: an unknown codec;
- INVALID_RECORD: metrics that can't be read;
- INVALID_REQUEST: no client instance id, or a push after the client's last one.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogd.base.errors import KafkaError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.get_telemetry_subscriptions import identity_of
from pylogd.broker.api.registry import handles
from pylogd.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse


@handles(PushTelemetryRequest, 0, 0)
def push_telemetry(context: RequestContext, request: PushTelemetryRequest) -> Deferred[PushTelemetryResponse]:
    """Store the metrics that a client pushes, and answer with an error code."""
    pushed = context.broker.telemetry.push(
        identity_of(context, request.client_instance_id), request.subscription_id, request.compression_type,
        bytes(request.metrics), request.terminating,
    )  # fmt: skip
    return pushed.addCallbacks(lambda _: PushTelemetryResponse(), _refused)


def _refused(failure: Failure) -> PushTelemetryResponse:
    failure.trap(KafkaError)
    error: KafkaError = failure.value  # type: ignore[assignment]
    return PushTelemetryResponse(error_code=error.code)
