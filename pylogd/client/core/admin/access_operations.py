"""The administrator's operations on what clients may do, for all faces (see `operations`): ACLs, quotas, SCRAM users.

ACLs are values with Kafka's names as texts, such as `Acl("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ",
"ALLOW")`. Any broker carries out a change. A request without an answer is repeated: it does no harm to create or delete
an ACL twice.

A password stays in this process: a broker gets a salted hash of it. Hashing takes some milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pylogd.base.errors import KafkaError, error_for
from pylogd.client.core.admin.calls import Calls, ask, once
from pylogd.client.core.admin.visibility import Probe, tells, until_shown
from pylogd.client.core.errors import InvalidReply
from pylogd.client.core.metadata import check
from pylogd.credentials.scram import MIN_ITERATIONS, SCRAM_CODES, SCRAM_MECHANISMS, new_salt, salted_password
from pylogd.wire.messages import alter_client_quotas as alter_quotas
from pylogd.wire.messages import alter_user_scram_credentials as alter_users
from pylogd.wire.messages import create_acls, delete_acls, describe_acls
from pylogd.wire.messages import describe_client_quotas as describe_quotas
from pylogd.wire.messages import describe_user_scram_credentials as describe_users

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


#: In a `QuotaEntity`: the default for all names without a quota of their own.
DEFAULT_ENTITY: Final = ""
_PARTS: Final = ("user", "client-id", "ip")
_EXACT, _DEFAULT = 0, 1


class QuotaEntity(NamedTuple):
    """The entity with a quota: a user, a client id, both together, or an IP address. None: not part of the entity."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


#: An entity without parts; every entity matches it.
ANY_ENTITY: Final = QuotaEntity()
_RESOURCE_NOT_FOUND = 91


class UserCredential(NamedTuple):
    """A user's credential: the mechanism, such as SCRAM-SHA-512, and the number of iterations of the hash."""

    user: str
    mechanism: str
    iterations: int


class AccessOperations:
    """Operations on ACLs, on client quotas, and on SCRAM credentials of users."""

    _calls: Calls

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

    async def client_quotas(
        self, matching: QuotaEntity = ANY_ENTITY, *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of all entities that match `matching`, by name.

        strict: leave out entities that have further components.

        Raises KafkaError.
        """
        request = describe_quotas.DescribeClientQuotasRequest(_components(matching), strict)
        response: describe_quotas.DescribeClientQuotasResponse = await ask(self._calls, request)
        check(response.error_code, response.error_message)
        found = {}
        for entry in response.entries or ():
            names = {part.entity_type: part.entity_name or DEFAULT_ENTITY for part in entry.entity}
            entity = QuotaEntity(*(names.get(part) for part in _PARTS))
            found[entity] = {value.key: value.value for value in entry.values}
        return found

    async def alter_client_quotas(
        self, entity: QuotaEntity, changes: Mapping[str, float | None], *, validate_only: bool = False
    ) -> None:
        """Set quotas of an entity by name; a value of None removes the quota. Other quotas are unchanged.

        Raises KafkaError.
        """
        parts = [
            alter_quotas.EntityData(part, name or None)
            for part, name in zip(_PARTS, entity, strict=True)
            if name is not None
        ]
        operations = [alter_quotas.OpData(name, value or 0.0, value is None) for name, value in changes.items()]
        request = alter_quotas.AlterClientQuotasRequest([alter_quotas.EntryData(parts, operations)], validate_only)
        response: alter_quotas.AlterClientQuotasResponse = await ask(self._calls, request)
        for result in response.entries:
            check(result.error_code, result.error_message)
        if not validate_only:
            await until_shown(self._calls, _quotas(entity, changes))

    async def list_users(self, names: Sequence[str] = ()) -> list[UserCredential]:
        """Return the SCRAM credentials of users, by default of all. Users without credentials are left out.

        Raises KafkaError."""
        wanted = [describe_users.UserName(name) for name in dict.fromkeys(names)] or None
        response = await ask(self._calls, describe_users.DescribeUserScramCredentialsRequest(wanted))
        check(response.error_code, response.error_message)
        found = []
        for result in response.results:
            if result.error_code != _RESOURCE_NOT_FOUND:
                check(result.error_code, result.error_message)
            for info in result.credential_infos:
                known = SCRAM_CODES.get(info.mechanism)
                name = str(info.mechanism) if known is None else known.mechanism
                found.append(UserCredential(result.user, name, info.iterations))
        return sorted(found)

    async def set_password(
        self,
        user: str,
        password: str,
        mechanisms: Sequence[str] = tuple(SCRAM_MECHANISMS),
        iterations: int = MIN_ITERATIONS,
    ) -> None:
        """Set a user's password for SCRAM mechanisms, by default for all of them. Raises KafkaError."""
        upsertions = []
        for mechanism in mechanisms:
            algorithm, salt = SCRAM_MECHANISMS[mechanism], new_salt()
            salted = salted_password(algorithm, password, salt, iterations)
            upsertions.append(alter_users.ScramCredentialUpsertion(user, algorithm.code, iterations, salt, salted))
        response = await ask(self._calls, alter_users.AlterUserScramCredentialsRequest(upsertions=upsertions))
        for result in response.results:
            check(result.error_code, result.error_message)
        given = {SCRAM_MECHANISMS[mechanism].code: iterations for mechanism in mechanisms}
        await until_shown(self._calls, _credentials([user], lambda found: given.items() <= found[user].items()))

    async def delete_credentials(self, credentials: Sequence[UserCredential]) -> Mapping[str, KafkaError | None]:
        """Delete SCRAM credentials of users. Return the outcome by user."""
        deletions = [
            alter_users.ScramCredentialDeletion(one.user, SCRAM_MECHANISMS[one.mechanism].code) for one in credentials
        ]
        response = await once(self._calls, alter_users.AlterUserScramCredentialsRequest(deletions=deletions))
        gone: dict[str, set[int]] = {result.user: set() for result in response.results if not result.error_code}
        for one in deletions:
            if one.name in gone:
                gone[one.name].add(one.mechanism)
        if gone:
            await until_shown(
                self._calls,
                _credentials(gone, lambda found: not any(gone[user] & found[user].keys() for user in gone)),
            )
        return {result.user: _error(result.error_code, result.error_message) for result in response.results}


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


def _quotas(entity: QuotaEntity, changes: Mapping[str, float | None]) -> Probe:
    """Return the probe that shows changed quotas of an entity."""
    request = describe_quotas.DescribeClientQuotasRequest(_components(entity), True)

    def read(response: describe_quotas.DescribeClientQuotasResponse) -> dict[str, float] | None:
        if not tells(response.error_code):
            return None
        return {value.key: value.value for entry in response.entries or () for value in entry.values}

    def expected(found: dict[str, float]) -> bool:
        if entity.ip:  # the broker may write the address differently
            return True
        return all((value is None) == (name not in found) for name, value in changes.items())

    return Probe(describe_quotas.DescribeClientQuotasRequest, lambda _: request, read, expected)


def _components(matching: QuotaEntity) -> list[describe_quotas.ComponentData]:
    return [
        describe_quotas.ComponentData(part, _EXACT if name else _DEFAULT, name or None)
        for part, name in zip(_PARTS, matching, strict=True)
        if name is not None
    ]


def _credentials(users: Iterable[str], expected: Callable[[dict[str, dict[int, int]]], bool]) -> Probe:
    """Return the probe that shows the credentials of users: the iterations by mechanism.

    It does not show a new password if mechanism and iterations stay the same.
    """
    names = list(users)
    request = describe_users.DescribeUserScramCredentialsRequest([describe_users.UserName(name) for name in names])

    def read(response: describe_users.DescribeUserScramCredentialsResponse) -> dict[str, dict[int, int]] | None:
        found: dict[str, dict[int, int]] = {name: {} for name in names}
        for code in (response.error_code, *(result.error_code for result in response.results)):
            if code != _RESOURCE_NOT_FOUND and not tells(code):
                return None
        for result in response.results:
            found[result.user] = {info.mechanism: info.iterations for info in result.credential_infos}
        return found

    return Probe(describe_users.DescribeUserScramCredentialsRequest, lambda _: request, read, expected)
