"""ApiVersions (18), versions 0 to 4: list the APIs and versions that this broker serves.

Behaviour: generated from what the handlers registered. A version that is not served is answered in version 0 with
UNSUPPORTED_VERSION and the list, so that the client can choose again (KIP-511). From version 3 on the client sends its
software's name and version; malformed ones are INVALID_REQUEST. Those of another broker prove that it is one
(`security.peers`).
Gaps: no features are advertised, as there is no feature level to agree on.
"""

from __future__ import annotations

import re
from functools import cache

from pylogd.api.context import RequestContext
from pylogd.api.registry import REGISTRATIONS, handles
from pylogd.errors import ErrorCode
from pylogd.security.peers import read_claim
from pylogd.wire import schema
from pylogd.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_FIRST_WITH_SOFTWARE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


@handles(ApiVersionsRequest, 0, 4)
def api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse | bytes:
    """Return what is served, or INVALID_REQUEST for a malformed software name or version."""
    if context.version >= _FIRST_WITH_SOFTWARE:
        name, version = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.connection.claim = claim = read_claim(name, version)
        if claim is not None and context.broker.peers.is_peer(claim):
            context.connection.lift_element_bounds()  # a follower may fetch all partitions of a large cluster at once
    return _encoded(context.version)


def unsupported_api_versions() -> ApiVersionsResponse:
    """Return the response, in version 0, to ApiVersions at a version that is not served."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_served())


@cache
def _encoded(version: int) -> bytes:
    """Return the response, encoded: each connection begins with this request."""
    (encoded,) = schema.response_codec(ApiVersionsRequest.API_KEY, version).encode(
        ApiVersionsResponse(api_keys=_served())
    )
    assert isinstance(encoded, bytes)
    return encoded


@cache
def _served() -> list[ApiVersion]:
    """Return what is served. All handlers are registered before the first request."""
    return [ApiVersion(key, found.advertise_from, found.last) for key, found in sorted(REGISTRATIONS.items())]
