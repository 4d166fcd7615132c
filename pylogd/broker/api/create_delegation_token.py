"""CreateDelegationToken (38), versions 1 to 3: make a delegation token (KIP-48, KIP-373).

Behaviour: a client must be authenticated, and not by a delegation token. A token for another owner needs CREATE_TOKENS
on that user, and an authorizer. (Without an authorizer Kafka lets everybody become anybody.) Without
`delegation.token.secret.key` the request is refused with DELEGATION_TOKEN_AUTH_DISABLED.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.delegation_tokens import check_may_manage
from pylogd.broker.api.errors import explain
from pylogd.broker.api.registry import handles
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.credentials.principal import Principal
from pylogd.wire.messages.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse


@handles(CreateDelegationTokenRequest, 1, 3)
def create_delegation_token(
    context: RequestContext, request: CreateDelegationTokenRequest
) -> Deferred[CreateDelegationTokenResponse]:
    """Make a token."""
    return Deferred.fromCoroutine(_create(context, request))


async def _create(context: RequestContext, request: CreateDelegationTokenRequest) -> CreateDelegationTokenResponse:
    requester = owner = context.principal
    if request.owner_principal_type and request.owner_principal_name:
        owner = Principal(request.owner_principal_type, request.owner_principal_name)
    response = CreateDelegationTokenResponse(ErrorCode.NONE, *owner, *requester)
    tokens = context.broker.security.delegation_tokens
    try:
        check_may_manage(context)
        if owner != requester and not _may_speak_for(context, owner):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
        renewers = [Principal(renewer.principal_type, renewer.principal_name) for renewer in request.renewers]
        token = await tokens.create(owner, requester, renewers, request.max_lifetime_ms)
    except PylogdError as error:
        response.error_code, _ = explain(error)
        return response
    response.issue_timestamp_ms = token.issued_ms
    response.expiry_timestamp_ms = token.expires_ms
    response.max_timestamp_ms = token.max_ms
    response.token_id = token.token_id
    response.hmac = tokens.secret(token.token_id)
    return response


def _may_speak_for(context: RequestContext, owner: Principal) -> bool:
    return context.broker.authorizer is not None and context.may(
        AclOperation.CREATE_TOKENS, ResourceType.USER, str(owner)
    )
