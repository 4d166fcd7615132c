"""SaslHandshake (17), versions 0 and 1: the client chooses a SASL mechanism (KIP-43, KIP-152).

Behaviour: this is the first request on a connection of a SASL listener, except for ApiVersions. It is allowed again if
the session has an end, with the same mechanism (KIP-368). An unknown mechanism gets UNSUPPORTED_SASL_MECHANISM with a
list of the enabled ones, and the connection is closed. In all other cases the answer is ILLEGAL_SASL_STATE. After
version 1 the messages of the mechanism come by SaslAuthenticate, after version 0 (clients before Kafka 1.0) in frames
without headers. Such a client can't authenticate again, and is disconnected when its session ends.
"""

from __future__ import annotations

from functools import partial

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.security.authentication import Answer, Authentication, AuthenticationState
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

#: The first version after which the mechanism's messages come as requests, and not in frames without headers.
_FIRST_WITH_REQUESTS = 1


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
