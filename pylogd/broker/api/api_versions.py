"""ApiVersions (18), versions 0 to 4: list the APIs and versions that this broker serves.

Behaviour: the list is made from the registrations of the handlers. A request in a version that is not served is
answered in version 0 with UNSUPPORTED_VERSION, and with the versions of this API only, so that the client asks again
with one of them (KIP-511). With a list of all APIs it would not ask again, and miss the features.
From version 3 on the client sends the name and version of its software; malformed ones get INVALID_REQUEST. Another
broker proves by them that it is a broker (`security.peers`). From version 3 on the answer has the features that this
broker knows, and the levels that the cluster uses (`metadata.features`). Before version 4 a lowest level of 0 is sent
as 1, which older clients can read (KAFKA-17011).
As in Kafka, the APIs by which clients push metrics are listed only if this broker serves metrics.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import REGISTRATIONS, handles
from pylogd.broker.metadata.feature_levels import SUPPORTED
from pylogd.broker.security.peers import read_claim
from pylogd.config.listeners import METRICS_LISTENER
from pylogd.wire import schema
from pylogd.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from pylogd.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from pylogd.wire.messages.push_telemetry import PushTelemetryRequest

#: The APIs of KIP-714.
_TELEMETRY = (GetTelemetrySubscriptionsRequest.API_KEY, PushTelemetryRequest.API_KEY)
_FIRST_WITH_SOFTWARE = 3
_FIRST_WITH_LEVEL_0 = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


@handles(ApiVersionsRequest, 0, 4)
def api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse | bytes:
    """Return the supported APIs, or INVALID_REQUEST for a malformed software name or version."""
    if context.version >= _FIRST_WITH_SOFTWARE:
        name, version = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.connection.claim = claim = read_claim(name, version)
        context.connection.software = _software(name, version)
        if claim is not None and context.broker.security.peers.is_peer(claim):
            context.connection.lift_element_bounds()  # a follower may fetch all partitions of a large cluster at once
    features = context.broker.metadata.features
    pushed = context.broker.settings.text(METRICS_LISTENER) is not None
    return _encoded(context.version, features.epoch, tuple(sorted(features.levels.items())), pushed)


@lru_cache(maxsize=1024)
def _software(name: str, version: str) -> tuple[str, str]:
    """Return name and version as one object, which the connections of all such clients share."""
    return name, version


def unsupported_api_versions() -> ApiVersionsResponse:
    """Return the response, in version 0, to ApiVersions at a version that is not served."""
    own = [one for one in _served(True) if one.api_key == ApiVersionsRequest.API_KEY]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)


@lru_cache(maxsize=32)
def _encoded(version: int, epoch: int, levels: tuple[tuple[str, int], ...], pushed: bool) -> bytes:
    """Return the encoded response. Each connection begins with this request.

    epoch, levels: the epoch and the levels of the features that the cluster uses.
    pushed: whether clients may push metrics.
    """
    least = 1 if version < _FIRST_WITH_LEVEL_0 else 0
    supported = [SupportedFeatureKey(name, max(one.lowest, least), one.highest) for name, one in SUPPORTED.items()]
    finalized = [FinalizedFeatureKey(name, level, level) for name, level in levels]
    (encoded,) = schema.response_codec(ApiVersionsRequest.API_KEY, version).encode(
        ApiVersionsResponse(
            api_keys=_served(pushed), supported_features=supported, finalized_features_epoch=epoch,
            finalized_features=finalized,
        )
    )  # fmt: skip
    assert isinstance(encoded, bytes)
    return encoded


@cache
def _served(pushed: bool) -> list[ApiVersion]:
    """Return the supported APIs. All handlers must be registered before the first request."""
    found = [ApiVersion(key, found.advertise_from, found.last) for key, found in sorted(REGISTRATIONS.items())]
    return found if pushed else [one for one in found if one.api_key not in _TELEMETRY]
