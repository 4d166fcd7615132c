"""GetTelemetrySubscriptions, API key 71, versions 0. Asks which of its metrics a client should push, and how often.

Generated from protocol/apis/get_telemetry_subscriptions.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, ZERO_UUID, Message


class GetTelemetrySubscriptionsRequest(Message):
    """The request of GetTelemetrySubscriptions."""

    __slots__ = ("client_instance_id",)

    API_KEY: ClassVar[int] = 71
    API_NAME: ClassVar[str] = "GetTelemetrySubscriptions"

    #: The id of this client; zero in its first request, to be given one.
    client_instance_id: bytes

    def __init__(self, client_instance_id: bytes = ZERO_UUID) -> None:
        self.client_instance_id = client_instance_id


class GetTelemetrySubscriptionsResponse(Message):
    """The response of GetTelemetrySubscriptions."""

    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "client_instance_id",
        "subscription_id",
        "accepted_compression_types",
        "push_interval_ms",
        "telemetry_max_bytes",
        "delta_temporality",
        "requested_metrics",
    )

    API_KEY: ClassVar[int] = 71
    API_NAME: ClassVar[str] = "GetTelemetrySubscriptions"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The id of the client: its own, or a new one.
    client_instance_id: bytes
    #: Stands for what the client is asked for; the client sends it with what it pushes.
    subscription_id: int
    #: The codecs that may compress what is pushed, the preferred one first, numbered as in record batches.
    accepted_compression_types: list[int]
    #: How often the client should push; if it is asked for nothing, when it should ask again.
    push_interval_ms: int
    #: Most bytes of what is pushed at once, also decompressed.
    telemetry_max_bytes: int
    #: Whether sums should be those since the last push; otherwise those since the client's start.
    delta_temporality: bool
    #: Prefixes of the names of the metrics to push; '*' for all. None: push nothing.
    requested_metrics: list[str]

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        client_instance_id: bytes = ZERO_UUID,
        subscription_id: int = 0,
        accepted_compression_types: list[int] = UNSET,
        push_interval_ms: int = 0,
        telemetry_max_bytes: int = 0,
        delta_temporality: bool = False,
        requested_metrics: list[str] = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.client_instance_id = client_instance_id
        self.subscription_id = subscription_id
        self.accepted_compression_types = [] if accepted_compression_types is UNSET else accepted_compression_types
        self.push_interval_ms = push_interval_ms
        self.telemetry_max_bytes = telemetry_max_bytes
        self.delta_temporality = delta_temporality
        self.requested_metrics = [] if requested_metrics is UNSET else requested_metrics
