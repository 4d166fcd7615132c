"""ExpireDelegationToken (40), versions 1 and 2: have it expire earlier or at once (KIP-48).

Behaviour: for the token's owner and its renewers; others, also who asked for it in the owner's name, get
DELEGATION_TOKEN_OWNER_MISMATCH. A negative period deletes the token at once.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.api.context import RequestContext
from pylogd.api.delegation_tokens import check_may_manage
from pylogd.api.errors import explain
from pylogd.api.registry import handles
from pylogd.errors import PylogdError
from pylogd.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse


@handles(ExpireDelegationTokenRequest, 1, 2)
def expire_delegation_token(
    context: RequestContext, request: ExpireDelegationTokenRequest
) -> Deferred[ExpireDelegationTokenResponse]:
    """End a token."""
    return Deferred.fromCoroutine(_expire(context, request))


async def _expire(context: RequestContext, request: ExpireDelegationTokenRequest) -> ExpireDelegationTokenResponse:
    try:
        check_may_manage(context)
        expires_ms = await context.broker.delegation_tokens.expire(
            context.principal, bytes(request.hmac), request.expiry_time_period_ms
        )
    except PylogdError as error:
        return ExpireDelegationTokenResponse(explain(error)[0])
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expires_ms)
