"""SaslAuthenticate (36), versions 0 to 2: one message of a SASL mechanism, and the broker's next one (KIP-152).

Behaviour: this request follows SaslHandshake. A refused client gets SASL_AUTHENTICATION_FAILED after
`connection.failed.authentication.delay.ms`, with the same text for every cause; then the connection is closed. From
version 1 on the last answer says when the session ends (KIP-368). With version 0 the client is not told this, but its
session ends as well.
"""

from __future__ import annotations

from functools import partial

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.security.authentication import Answer, Authentication
from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


@handles(SaslAuthenticateRequest, 0, 2)
def sasl_authenticate(
    context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse | Deferred[SaslAuthenticateResponse]:
    """Give a message to the mechanism."""
    authentication = context.connection.authentication
    if authentication is None:
        return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, ErrorCode.ILLEGAL_SASL_STATE.text)
    answer = authentication.step(bytes(request.auth_bytes))
    if isinstance(answer, Deferred):
        return answer.addCallback(partial(_respond, context, authentication))
    return _respond(context, authentication, answer)


def _respond(context: RequestContext, authentication: Authentication, answer: Answer) -> SaslAuthenticateResponse:
    if authentication.refused:
        context.connection.finish()
    return SaslAuthenticateResponse(answer.error, answer.text, answer.message, answer.session_lifetime_ms)
