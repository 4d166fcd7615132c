"""DescribeAcls (29), versions 1 to 3: list the ACLs that a filter selects.

Behaviour: the ACLs are grouped by resource pattern, in order. A filter with pattern type MATCH (2) and a name selects
the patterns that cover that resource: literal ones, prefixes, and `*`. A client needs DESCRIBE on the cluster.
SECURITY_DISABLED is the error if the broker has no ACLs. INVALID_REQUEST is the error for unknown codes (Kafka closes
the connection), and if the answer would have more than `response.max.bytes` (particular to pylogd).
Gaps: version 0, which has no pattern types, is not served; Kafka 4 has dropped it too.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.base.limits.answers import AnswerBudget
from pylogd.broker.api.acls import acls_for
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import answer_budget, encode_in_thread
from pylogd.broker.security.acls import AclEntry, AclFilter, ResourcePattern, make_filter
from pylogd.broker.security.authorizer import AclOperation
from pylogd.broker.security.rules import select
from pylogd.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

_MANY = 500  # so many ACLs take some milliseconds, so a thread looks at them
_ACL_BYTES = 8  # the size of an ACL in the answer, without its texts

_Items = Sequence[tuple[ResourcePattern, Sequence[AclEntry]]]


@handles(DescribeAclsRequest, 1, 3)
def describe_acls(
    context: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse | Deferred[DescribeAclsResponse | bytes]:
    """Return the ACLs."""
    try:
        acls = acls_for(context, AclOperation.DESCRIBE)
        wanted = make_filter(
            request.resource_type_filter, request.resource_name_filter, request.pattern_type_filter,
            request.principal_filter, request.host_filter, request.operation, request.permission_type,
        )  # fmt: skip
    except KafkaError as error:
        codes = request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type
        if error.code is ErrorCode.INVALID_REQUEST and all(codes):
            return DescribeAclsResponse(error_message=None)  # the code is of a later Kafka, and no ACL here has it
        return DescribeAclsResponse(error_code=error.code, error_message=error.message)
    items, budget = acls.items(), answer_budget(context)
    if sum(len(entries) for _, entries in items) <= _MANY:
        return _describe(items, wanted, budget)
    return Deferred.fromCoroutine(_describe_many(context, request.API_KEY, items, wanted, budget))


async def _describe_many(
    context: RequestContext, api_key: int, items: _Items, wanted: AclFilter, budget: AnswerBudget
) -> bytes:
    response = await context.broker.in_thread(_describe, items, wanted, budget)
    return await encode_in_thread(context, api_key, response)


def _describe(items: _Items, wanted: AclFilter, budget: AnswerBudget) -> DescribeAclsResponse:
    """Return the response. May run in a thread."""
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for pattern, entry in select(items, wanted):
        found = resources.setdefault(pattern, DescribeAclsResource(*pattern))
        acl = AclDescription(str(entry.principal), entry.host, entry.operation, entry.permission)
        size = _ACL_BYTES + len(acl.principal) + len(acl.host) + (0 if found.acls else len(pattern.name))
        if not budget.take(size):
            return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=budget.refusal)
        found.acls.append(acl)
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))
