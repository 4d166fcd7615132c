"""Access control lists as values: resource patterns, entries, bindings, and the filters that select them.

A *binding* is a pattern and an entry: "for topics whose names begin with `web-`: allow User:alice to read, from any
address". Everything here is immutable; the codes are those of the protocol (KIP-11, KIP-290).

Hosts are matched by address: `*`, an IPv4 or IPv6 address, or a network in CIDR notation such as `10.1.0.0/16`
(particular to pylogd; Kafka knows single addresses only).
Must not know: where ACLs are stored, decisions by ACLs.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple, TypeAlias

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.broker.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from pylogd.credentials.principal import USER, Principal, parse_principal

#: As the name of a literal pattern it means every resource of the type, as a host every address.
WILDCARD: Final = "*"
#: In an entry it means every principal, whatever its type.
EVERYONE: Final = Principal(USER, "*")

_MAPPED_BITS: Final = 96  # the bits of an IPv6 address before the IPv4 address in it

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network


class PatternType(IntEnum):
    """How a pattern's name selects resources. ANY and MATCH occur only in filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Whether an ACL allows or denies. ANY occurs only in filters, where it matches both."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class ResourcePattern(NamedTuple):
    """The resources that an entry is about: a resource with the name, all whose names begin with it, or all (`*`)."""

    resource: ResourceType
    name: str
    pattern: PatternType

    def covers(self, name: str) -> bool:
        """Return whether the pattern selects the resource `name`."""
        if self.pattern is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


class AclEntry(NamedTuple):
    """A rule that allows or denies an operation to a principal that is connected from a host."""

    principal: Principal
    host: str
    operation: AclOperation
    permission: Permission


class AclBinding(NamedTuple):
    """An entry, and the resources that it is about."""

    pattern: ResourcePattern
    entry: AclEntry


class AclFilter(NamedTuple):
    """Selects bindings. A field that is None or ANY selects every value.

    pattern: MATCH selects the patterns that cover the resource `name`; the other types compare names.
    principal: a text, which need not be a valid principal.
    """

    resource: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: Permission = Permission.ANY

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        """Return whether bindings with this pattern may match."""
        if self.resource not in (ResourceType.ANY, pattern.resource):
            return False
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, pattern.pattern):
            return False
        if self.name is None:
            return True
        return pattern.covers(self.name) if self.pattern is PatternType.MATCH else pattern.name == self.name

    def matches_entry(self, entry: AclEntry) -> bool:
        """Return whether bindings with this entry may match."""
        return (
            self.principal in (None, str(entry.principal))
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )

    def matches(self, binding: AclBinding) -> bool:
        """Return whether the filter selects a binding."""
        return self.matches_pattern(binding.pattern) and self.matches_entry(binding.entry)


@lru_cache(4096)
def parse_network(host: str) -> Network | None:
    """Return the addresses that an entry's host means; None for `*`. Raises ValueError for other texts."""
    if host == WILDCARD:
        return None
    found = ip_network(host, strict=False)
    if isinstance(found, IPv6Network) and found.prefixlen >= _MAPPED_BITS:
        mapped = found.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, found.prefixlen - _MAPPED_BITS))
    return found


@lru_cache(4096)
def parse_address(host: str) -> Address | None:
    """Return a client's address, as IPv4 even if it came in as IPv6 (`::ffff:10.0.0.1`); None without an address."""
    try:
        found = ip_address(host)
    except ValueError:
        return None  # it is a Unix socket
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def make_binding(
    resource: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int
) -> AclBinding:
    """Return a binding from the codes and texts of a request.

    Raises KafkaError(INVALID_REQUEST) for a binding that Kafka would refuse too, and for a host that no client's
    address can match.
    """
    try:
        kind, pattern_type = ResourceType(resource), PatternType(pattern)
        what, effect = AclOperation(operation), Permission(permission)
        whose = parse_principal(principal)
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The ACL can't be created: {error}.") from None
    if kind is ResourceType.ANY or pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The ACL needs one resource type, and LITERAL or PREFIXED.")
    if what is AclOperation.ANY or effect is Permission.ANY:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The ACL needs one operation or ALL, and ALLOW or DENY.")
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The resource name is empty.")
    if kind is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The only resource of type CLUSTER is called {CLUSTER_NAME}.")
    try:
        parse_network(host)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f'"{host[:100]}" is neither an address, nor a network, nor *.'
        ) from None
    return AclBinding(ResourcePattern(kind, name, pattern_type), AclEntry(whose, host, what, effect))


def make_filter(
    resource: int,
    name: str | None,
    pattern: int,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> AclFilter:
    """Return a filter from the codes and texts of a request. Raises KafkaError(INVALID_REQUEST) for unknown codes."""
    try:
        return AclFilter(
            ResourceType(resource), name, PatternType(pattern), principal, host,
            AclOperation(operation), Permission(permission),
        )  # fmt: skip
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The filter can't be used: {error}.") from None
