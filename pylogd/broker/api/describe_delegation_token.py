"""DescribeDelegationToken (41), versions 1 to 3: list delegation tokens, with their secrets (KIP-48, KIP-373).

Behaviour: a client sees tokens that it owns, asked for or may renew. It sees other tokens only with DESCRIBE on the
token, or DESCRIBE_TOKENS on its owner, and never without an authorizer (where Kafka shows all). As in Kafka, `owners`
selects the tokens that these users own, asked for or may renew. Null means all tokens, an empty list none.
"""

from __future__ import annotations

from pylogd.base.errors import PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.delegation_tokens import check_may_manage
from pylogd.broker.api.errors import explain
from pylogd.broker.api.registry import handles
from pylogd.broker.metadata.delegation_tokens import DelegationToken
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.credentials.principal import parse_principal
from pylogd.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)


@handles(DescribeDelegationTokenRequest, 1, 3)
def describe_delegation_token(
    context: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """Return the tokens that the client may see."""
    owners = request.owners
    wanted = None if owners is None else {f"{owner.principal_type}:{owner.principal_name}" for owner in owners}
    try:
        check_may_manage(context)
        found = context.broker.security.delegation_tokens.all()
    except PylogdError as error:
        return DescribeDelegationTokenResponse(explain(error)[0], [])
    return DescribeDelegationTokenResponse(
        tokens=[
            _described(context, token)
            for token in found
            if (wanted is None or wanted & _users(token)) and _may_see(context, token)
        ]
    )


def _users(token: DelegationToken) -> set[str]:
    return {token.owner, token.requester, *token.renewers}


def _may_see(context: RequestContext, token: DelegationToken) -> bool:
    if str(context.principal) in _users(token):
        return True
    if context.broker.authorizer is None:
        return False  # the answer has secrets, which are as good as the owner's password
    # A list in which some tokens are left out is no denial.
    return context.may(
        AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id, audited=False
    ) or context.may(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner, audited=False)


def _described(context: RequestContext, token: DelegationToken) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        *parse_principal(token.owner),
        *parse_principal(token.requester),
        token.issued_ms,
        token.expires_ms,
        token.max_ms,
        token.token_id,
        context.broker.security.delegation_tokens.secret(token.token_id),
        [DescribedDelegationTokenRenewer(*parse_principal(renewer)) for renewer in token.renewers],
    )
