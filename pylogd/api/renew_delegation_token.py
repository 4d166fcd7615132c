"""RenewDelegationToken (39), versions 1 and 2: have it expire later (KIP-48).

Behaviour: for the token's owner and its renewers; others, also who asked for it in the owner's name, get
DELEGATION_TOKEN_OWNER_MISMATCH. -1 means `delegation.token.expiry.time.ms`; never beyond the time up to which the
token can be renewed.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.api.context import RequestContext
from pylogd.api.delegation_tokens import check_may_manage
from pylogd.api.errors import explain
from pylogd.api.registry import handles
from pylogd.errors import PylogdError
from pylogd.wire.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse


@handles(RenewDelegationTokenRequest, 1, 2)
def renew_delegation_token(
    context: RequestContext, request: RenewDelegationTokenRequest
) -> Deferred[RenewDelegationTokenResponse]:
    """Renew a token."""
    return Deferred.fromCoroutine(_renew(context, request))


async def _renew(context: RequestContext, request: RenewDelegationTokenRequest) -> RenewDelegationTokenResponse:
    try:
        check_may_manage(context)
        expires_ms = await context.broker.delegation_tokens.renew(
            context.principal, bytes(request.hmac), request.renew_period_ms
        )
    except PylogdError as error:
        return RenewDelegationTokenResponse(explain(error)[0])
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expires_ms)
