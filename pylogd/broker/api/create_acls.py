"""CreateAcls (30), versions 1 to 3: create ACLs.

Behaviour: each ACL is created or refused separately; an ACL that exists counts as created. New ACLs are in force on
this broker when it answers, and on the others as soon as they learn of them, even for open connections. A host is `*`,
an address, or a network such as `10.1.0.0/16` (particular to pylogd). Any other host could never match and gets
INVALID_REQUEST (Kafka stores it). A client needs ALTER on the cluster. SECURITY_DISABLED is the error if the broker has
no ACLs.
Gaps: those of DescribeAcls.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.broker.api.acls import acls_for, each_or_error
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace
from pylogd.broker.security.acl_store import AclStore
from pylogd.broker.security.acls import AclBinding, make_binding
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


@handles(CreateAclsRequest, 1, 3)
def create_acls(
    context: RequestContext, request: CreateAclsRequest
) -> CreateAclsResponse | Deferred[CreateAclsResponse]:
    """Create every ACL of the request."""
    try:
        acls = acls_for(context, AclOperation.ALTER)
    except KafkaError as error:
        return _same_for_all(request, error.code, error.message)
    return Deferred.fromCoroutine(_create(context, acls, request))


async def _create(context: RequestContext, acls: AclStore, request: CreateAclsRequest) -> CreateAclsResponse:
    pace = Pace(context)
    bindings = await each_or_error(pace, request.creations, _binding)
    valid = [binding for binding in bindings if isinstance(binding, AclBinding)]
    try:
        failed = await acls.create(valid, pace.step)
    except PylogdError as error:  # the metadata store could not be reached
        return _same_for_all(request, *explain(error))
    results = []
    for binding in bindings:
        await pace.step()
        why = failed[binding] if isinstance(binding, AclBinding) else binding
        code, message = (ErrorCode.NONE, None) if why is None else explain(why)
        results.append(AclCreationResult(code, message))
    return CreateAclsResponse(results=results)


def _binding(creation: AclCreation) -> AclBinding:
    return make_binding(
        creation.resource_type, creation.resource_name, creation.resource_pattern_type, creation.principal,
        creation.host, creation.operation, creation.permission_type,
    )  # fmt: skip


def _same_for_all(request: CreateAclsRequest, code: ErrorCode, message: str) -> CreateAclsResponse:
    return CreateAclsResponse(results=[AclCreationResult(code, message) for _ in request.creations])
