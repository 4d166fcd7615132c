"""The administrator's operations on access control lists, for all faces (see `operations`).

ACLs are values with Kafka's names as texts, such as `Acl("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ",
"ALLOW")`. Any broker carries out a change. A request without an answer is repeated: it does no harm to create or delete
an ACL twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pylogd.base.errors import KafkaError, error_for
from pylogd.client.core.admin.calls import Calls, ask
from pylogd.client.core.admin.visibility import Probe, tells, until_shown
from pylogd.client.core.errors import InvalidReply
from pylogd.client.core.metadata import check
from pylogd.wire.messages import create_acls, delete_acls, describe_acls

#: The codes of the protocol, by their names.
RESOURCES: Mapping[str, int] = {
    "ANY": 1, "TOPIC": 2, "GROUP": 3, "CLUSTER": 4, "TRANSACTIONAL_ID": 5, "DELEGATION_TOKEN": 6, "USER": 7,
}  # fmt: skip
PATTERNS: Mapping[str, int] = {"ANY": 1, "MATCH": 2, "LITERAL": 3, "PREFIXED": 4}
OPERATIONS: Mapping[str, int] = {
    "ANY": 1, "ALL": 2, "READ": 3, "WRITE": 4, "CREATE": 5, "DELETE": 6, "ALTER": 7, "DESCRIBE": 8,
    "CLUSTER_ACTION": 9, "DESCRIBE_CONFIGS": 10, "ALTER_CONFIGS": 11, "IDEMPOTENT_WRITE": 12, "CREATE_TOKENS": 13,
    "DESCRIBE_TOKENS": 14, "TWO_PHASE_COMMIT": 15,
}  # fmt: skip
PERMISSIONS: Mapping[str, int] = {"ANY": 1, "DENY": 2, "ALLOW": 3}
#: The name of the one resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"


class Acl(NamedTuple):
    """An entry of an access control list.

    pattern: LITERAL (`name` is a resource's name, or `*` for all resources) or PREFIXED.
    principal: `User:alice`, or `User:*` for everybody.
    host: an address, a network such as `10.0.0.0/8`, or `*`.
    permission: ALLOW or DENY.
    """

    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str


class AclFilter(NamedTuple):
    """Select ACLs. None and ANY match every value.

    pattern: MATCH selects all ACLs that apply to the resource `name`: by its name, a prefix of it, or `*`.
    """

    resource: str = "ANY"
    name: str | None = None
    pattern: str = "ANY"
    principal: str | None = None
    host: str | None = None
    operation: str = "ANY"
    permission: str = "ANY"


class AclOperations:
    """Operations that list, create and delete ACLs."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def list_acls(self, wanted: AclFilter = AclFilter()) -> list[Acl]:  # noqa: B008 - a filter is immutable
        """Return the ACLs that a filter selects, by default all.

        Raises KafkaError; its code is SECURITY_DISABLED if the brokers have no authorizer."""
        request = describe_acls.DescribeAclsRequest(*_codes(wanted))
        response = await ask(self._calls, request)
        check(response.error_code, response.error_message)
        return _listed(response)

    async def create_acls(self, acls: Sequence[Acl]) -> dict[Acl, KafkaError | None]:
        """Create ACLs. An ACL that exists already counts as created."""
        request = create_acls.CreateAclsRequest([create_acls.AclCreation(*_codes(acl)) for acl in acls])
        response = await ask(self._calls, request)
        if len(response.results) != len(acls):
            raise InvalidReply("the broker did not answer for every ACL")
        outcome = {
            acl: _error(result.error_code, result.error_message)
            for acl, result in zip(acls, response.results, strict=True)
        }
        await self._until_listed([acl for acl, error in outcome.items() if error is None], exist=True)
        return outcome

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[Acl]:
        """Delete the ACLs that any of the filters selects.

        Return the deleted ACLs. Raises KafkaError for an invalid filter.
        """
        request = delete_acls.DeleteAclsRequest([delete_acls.DeleteAclsFilter(*_codes(one)) for one in filters])
        response = await ask(self._calls, request)
        deleted = []
        for result in response.filter_results:
            check(result.error_code, result.error_message)
            for acl in result.matching_acls:
                check(acl.error_code, acl.error_message)
                deleted.append(_acl(acl, acl.principal, acl.host, acl.operation, acl.permission_type))
        await self._until_listed(deleted, exist=False)
        return sorted(deleted)

    async def _until_listed(self, acls: Sequence[Acl], *, exist: bool) -> None:
        """Return when all brokers have these ACLs, or none of them.

        Hosts are compared between brokers, but not with the given hosts, because a broker may write an address
        differently.
        """
        if not acls:
            return
        request = describe_acls.DescribeAclsRequest(*_codes(_common(acls)))
        wanted = {_any_host(acl) for acl in acls}

        def read(response: describe_acls.DescribeAclsResponse) -> frozenset[Acl] | None:
            if not tells(response.error_code):
                return None
            return frozenset(acl for acl in _listed(response) if _any_host(acl) in wanted)

        def expected(found: frozenset[Acl]) -> bool:
            return {_any_host(acl) for acl in found} == wanted if exist else not found.intersection(acls)

        await until_shown(self._calls, Probe(describe_acls.DescribeAclsRequest, lambda _: request, read, expected))


def _listed(response: describe_acls.DescribeAclsResponse) -> list[Acl]:
    return [
        _acl(resource, acl.principal, acl.host, acl.operation, acl.permission_type)
        for resource in response.resources
        for acl in resource.acls
    ]


def _common(acls: Sequence[Acl]) -> AclFilter:
    """Return a filter that selects these ACLs, and few other ACLs."""
    columns = zip(zip(*map(_any_host, acls), strict=True), AclFilter(), strict=True)
    common = AclFilter._make(column[0] if len(set(column)) == 1 else default for column, default in columns)
    return common._replace(host=None)


def _any_host(acl: Acl) -> Acl:
    """Return an ACL with the protocol's names, and without its host."""
    return acl._replace(
        resource=acl.resource.upper(), pattern=acl.pattern.upper(), operation=acl.operation.upper(),
        permission=acl.permission.upper(), host="",
    )  # fmt: skip


def _codes(acl: Acl | AclFilter) -> tuple[Any, ...]:
    return (
        _code(RESOURCES, acl.resource), acl.name, _code(PATTERNS, acl.pattern), acl.principal, acl.host,
        _code(OPERATIONS, acl.operation), _code(PERMISSIONS, acl.permission),
    )  # fmt: skip


def _code(codes: Mapping[str, int], name: str) -> int:
    found = codes.get(name.upper())
    if found is None:
        raise ValueError(f"{name!r} is not one of {', '.join(codes)}")
    return found


def _name(codes: Mapping[str, int], code: int) -> str:
    return next((name for name, known in codes.items() if known == code), str(code))


def _acl(resource: Any, principal: str, host: str, operation: int, permission: int) -> Acl:
    return Acl(
        _name(RESOURCES, resource.resource_type), resource.resource_name, _name(PATTERNS, resource.pattern_type),
        principal, host, _name(OPERATIONS, operation), _name(PERMISSIONS, permission),
    )  # fmt: skip


def _error(code: int, message: str | None) -> KafkaError | None:
    return KafkaError(error_for(code), message or None) if code else None
