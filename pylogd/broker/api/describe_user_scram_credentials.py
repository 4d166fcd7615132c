"""DescribeUserScramCredentials (50), version 0: list which SCRAM credentials users have (KIP-554).

Behaviour: the answer has mechanisms and iterations only; neither salts nor keys leave the broker. Null or no users
means all. A user without a credential gets RESOURCE_NOT_FOUND, a user that is named twice DUPLICATE_RESOURCE. A client
needs DESCRIBE on the cluster.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import fill, in_slices
from pylogd.broker.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from pylogd.credentials.scram import SCRAM_MECHANISMS
from pylogd.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

_USER_WORK = 80  # the work for a user, as bytes of an answer whose encoding takes as long


@handles(DescribeUserScramCredentialsRequest, 0, 0)
def describe_user_scram_credentials(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse | Deferred[Any]:
    """Return the credentials of every user of the request."""
    if not context.may(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        names = dict.fromkeys(user.name for user in request.users or ())
        results = [DescribeUserScramCredentialsResult(name, refused, refused.text, []) for name in names]
        return DescribeUserScramCredentialsResponse(error_code=refused, error_message=refused.text, results=results)
    known = context.broker.security.scram_users.users
    named = Counter(user.name for user in request.users) if request.users else Counter(sorted(known))
    response = DescribeUserScramCredentialsResponse(error_message=None)
    steps = fill(response.results, named.items(), lambda one: _result(context, *one), _USER_WORK)
    return in_slices(context, request.API_KEY, steps, response)


def _result(context: RequestContext, name: str, count: int) -> DescribeUserScramCredentialsResult:
    credentials = context.broker.security.scram_users.users.get(name)
    if count > 1:
        error, text = ErrorCode.DUPLICATE_RESOURCE, "The request names the user more than once."
    elif credentials is None:
        error, text = ErrorCode.RESOURCE_NOT_FOUND, "The user has no SCRAM credentials."
    else:
        infos = [
            CredentialInfo(SCRAM_MECHANISMS[mechanism].code, credential.iterations)
            for mechanism, credential in sorted(credentials.items())
        ]
        return DescribeUserScramCredentialsResult(name, error_message=None, credential_infos=infos)
    return DescribeUserScramCredentialsResult(name, error, text, [])
