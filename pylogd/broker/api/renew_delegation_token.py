"""RenewDelegationToken (39), versions 1 and 2: make a delegation token expire later (KIP-48).

Behaviour: the token's owner and its renewers may do this. Others, including a client that asked for the token in the
owner's name, get DELEGATION_TOKEN_OWNER_MISMATCH. The period -1 means `delegation.token.expiry.time.ms`. A token never
expires later than the time up to which it can be renewed.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.delegation_tokens import change_expiry
from pylogd.broker.api.registry import handles
from pylogd.wire.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse


@handles(RenewDelegationTokenRequest, 1, 2)
def renew_delegation_token(
    context: RequestContext, request: RenewDelegationTokenRequest
) -> Deferred[RenewDelegationTokenResponse]:
    """Renew a token."""
    tokens, principal, secret = context.broker.security.delegation_tokens, context.principal, bytes(request.hmac)
    changed = change_expiry(context, lambda: tokens.renew(principal, secret, request.renew_period_ms))
    return Deferred.fromCoroutine(changed).addCallback(lambda found: RenewDelegationTokenResponse(*found))
