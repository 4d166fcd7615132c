"""SaslHandshake (17), version 1: the client chooses a SASL mechanism (KIP-43, KIP-152).

Behaviour: allowed first on a connection of a SASL listener (ApiVersions may come before), and again on one whose
session has an end, with the same mechanism (KIP-368). An unknown mechanism is UNSUPPORTED_SASL_MECHANISM with the list
of those that are enabled, and closes the connection. Elsewhere it is ILLEGAL_SASL_STATE.
Gaps: version 0, after which messages of the mechanism come as bare frames, is not served; every client since Kafka 1.0
uses version 1. It is advertised all the same, because librdkafka takes its absence for a broker without SASL.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.api.context import RequestContext
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode
from pylogd.security.authentication import Authentication
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@handles(SaslHandshakeRequest, 1, 1, advertise_from=0)
def sasl_handshake(
    context: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse | Deferred[SaslHandshakeResponse]:
    """Begin to authenticate."""
    authentication = context.connection.authentication
    if authentication is None:
        return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, [])
    return Deferred.fromCoroutine(_choose(context, authentication, request.mechanism))


async def _choose(context: RequestContext, authentication: Authentication, mechanism: str) -> SaslHandshakeResponse:
    answer = await authentication.choose(mechanism)
    if authentication.refused:
        context.connection.finish()
    return SaslHandshakeResponse(answer.error, authentication.offered)
