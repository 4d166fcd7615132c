"""SaslHandshake (17), versions 0 and 1: the client chooses a SASL mechanism (KIP-43, KIP-152).

Behaviour: allowed first on a connection of a SASL listener (ApiVersions may come before), and again on one whose
session has an end, with the same mechanism (KIP-368). An unknown mechanism is UNSUPPORTED_SASL_MECHANISM with the list
of those that are enabled, and closes the connection. Elsewhere it is ILLEGAL_SASL_STATE. After version 1 the messages
of the mechanism come by SaslAuthenticate, after version 0 (clients before Kafka 1.0) in bare frames; such a client
can't authenticate again, and is cut off when its session ends.
"""

from __future__ import annotations

from functools import partial

from twisted.internet.defer import Deferred

from pylogd.api.context import RequestContext
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode
from pylogd.security.authentication import Answer, Authentication, AuthenticationState
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

_FIRST_WITH_REQUESTS = 1  # for the messages of the mechanism; bare frames before


@handles(SaslHandshakeRequest, 0, 1)
def sasl_handshake(
    context: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse | Deferred[SaslHandshakeResponse]:
    """Begin to authenticate."""
    authentication = context.connection.authentication
    if authentication is None:
        return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, [])
    if context.version < _FIRST_WITH_REQUESTS and authentication.state is AuthenticationState.AUTHENTICATED:
        return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, authentication.offered)
    answer = authentication.choose(request.mechanism)
    if isinstance(answer, Deferred):
        return answer.addCallback(partial(_respond, context, authentication))
    return _respond(context, authentication, answer)


def _respond(context: RequestContext, authentication: Authentication, answer: Answer) -> SaslHandshakeResponse:
    if authentication.refused:
        context.connection.finish()
    elif context.version < _FIRST_WITH_REQUESTS and not answer.error:
        context.connection.receive_tokens(authentication.step)
    return SaslHandshakeResponse(answer.error, authentication.offered)
