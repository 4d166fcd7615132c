"""PushTelemetry, API key 72, versions 0. Pushes metrics of a client to the broker.

Generated from protocol/apis/push_telemetry.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import ZERO_UUID, Message


class PushTelemetryRequest(Message):
    """The request of PushTelemetry."""

    __slots__ = ("client_instance_id", "subscription_id", "terminating", "compression_type", "metrics")

    API_KEY: ClassVar[int] = 72
    API_NAME: ClassVar[str] = "PushTelemetry"

    #: The id of this client, from GetTelemetrySubscriptions.
    client_instance_id: bytes
    #: What the client was asked for, from GetTelemetrySubscriptions.
    subscription_id: int
    #: Whether the client ends, and this is its last push.
    terminating: bool
    #: The codec that has compressed the metrics, numbered as in record batches; 0 for none.
    compression_type: int
    #: The metrics: OpenTelemetry's MetricsData, version 1, in Protobuf.
    metrics: bytes

    def __init__(
        self,
        client_instance_id: bytes = ZERO_UUID,
        subscription_id: int = 0,
        terminating: bool = False,
        compression_type: int = 0,
        metrics: bytes = b"",
    ) -> None:
        self.client_instance_id = client_instance_id
        self.subscription_id = subscription_id
        self.terminating = terminating
        self.compression_type = compression_type
        self.metrics = metrics


class PushTelemetryResponse(Message):
    """The response of PushTelemetry."""

    __slots__ = ("throttle_time_ms", "error_code")

    API_KEY: ClassVar[int] = 72
    API_NAME: ClassVar[str] = "PushTelemetry"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int

    def __init__(self, throttle_time_ms: int = 0, error_code: int = 0) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
