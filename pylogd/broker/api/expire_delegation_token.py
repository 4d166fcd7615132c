"""ExpireDelegationToken (40), versions 1 and 2: make a delegation token expire earlier or at once (KIP-48).

Behaviour: the token's owner and its renewers may do this. Others, including a client that asked for the token in the
owner's name, get DELEGATION_TOKEN_OWNER_MISMATCH. A negative period deletes the token at once.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.delegation_tokens import change_expiry
from pylogd.broker.api.registry import handles
from pylogd.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse


@handles(ExpireDelegationTokenRequest, 1, 2)
def expire_delegation_token(
    context: RequestContext, request: ExpireDelegationTokenRequest
) -> Deferred[ExpireDelegationTokenResponse]:
    """End a token."""
    tokens, principal, secret = context.broker.security.delegation_tokens, context.principal, bytes(request.hmac)
    changed = change_expiry(context, lambda: tokens.expire(principal, secret, request.expiry_time_period_ms))
    return Deferred.fromCoroutine(changed).addCallback(lambda found: ExpireDelegationTokenResponse(*found))
