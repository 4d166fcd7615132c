"""DeleteAcls (31), versions 1 to 3: delete the ACLs that filters select.

Behaviour: each filter is answered with the ACLs that it selected and that are deleted. An ACL that several filters
select is named with the first of them. A filter that selects none gets no error. Filters are those of DescribeAcls. At
most 100 of them may have the pattern type MATCH and a name; more get INVALID_REQUEST (particular to pylogd). A client
needs ALTER on the cluster. SECURITY_DISABLED is the error if the broker has no ACLs.
Gaps: those of DescribeAcls.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.base.limits.elements import AT_ONCE
from pylogd.broker.api.acls import acls_for, each_or_error
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace, encode_in_thread
from pylogd.broker.security.acl_store import AclStore
from pylogd.broker.security.acls import AclBinding, AclFilter, make_filter
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


@handles(DeleteAclsRequest, 1, 3)
def delete_acls(
    context: RequestContext, request: DeleteAclsRequest
) -> DeleteAclsResponse | Deferred[DeleteAclsResponse | bytes]:
    """Delete the ACLs that the filters of the request select."""
    try:
        acls = acls_for(context, AclOperation.ALTER)
    except KafkaError as error:
        return _same_for_all(request, error.code, error.message)
    return Deferred.fromCoroutine(_delete(context, acls, request))


async def _delete(context: RequestContext, acls: AclStore, request: DeleteAclsRequest) -> DeleteAclsResponse | bytes:
    pace = Pace(context)
    filters = await each_or_error(pace, request.filters, _filter)
    valid = [wanted for wanted in filters if isinstance(wanted, AclFilter)]
    try:
        deleted = iter(await acls.delete(valid, pace.step))
    # The metadata store could not be reached, some ACLs can't be read, or too many filters match.
    except PylogdError as error:
        return _same_for_all(request, *explain(error))
    results = []
    for wanted in filters:
        await pace.step()
        if isinstance(wanted, AclFilter):
            matching = []
            for binding in next(deleted):
                await pace.step()
                matching.append(_matching(binding))
            results.append(DeleteAclsFilterResult(error_message=None, matching_acls=matching))
        else:
            results.append(DeleteAclsFilterResult(*explain(wanted)))
    response = DeleteAclsResponse(filter_results=results)
    if pace.steps <= AT_ONCE:
        return response
    return await encode_in_thread(context, request.API_KEY, response)


def _filter(wanted: DeleteAclsFilter) -> AclFilter:
    return make_filter(
        wanted.resource_type_filter, wanted.resource_name_filter, wanted.pattern_type_filter,
        wanted.principal_filter, wanted.host_filter, wanted.operation, wanted.permission_type,
    )  # fmt: skip


def _matching(binding: AclBinding) -> DeleteAclsMatchingAcl:
    pattern, entry = binding
    return DeleteAclsMatchingAcl(
        0, None, pattern.resource, pattern.name, pattern.pattern,
        str(entry.principal), entry.host, entry.operation, entry.permission,
    )  # fmt: skip


def _same_for_all(request: DeleteAclsRequest, code: ErrorCode, message: str) -> DeleteAclsResponse:
    return DeleteAclsResponse(filter_results=[DeleteAclsFilterResult(code, message) for _ in request.filters])
