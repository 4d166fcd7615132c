"""Decide by access control lists, with the semantics of Kafka's StandardAuthorizer.

An entry applies to a request if its pattern covers the resource, and its principal, host and operation match. If a DENY
entry applies, the request is refused. Otherwise, if an ALLOW entry applies, it is allowed. Otherwise it is refused.
`allow.everyone.if.no.acl.found` decides only if no pattern covers the resource at all, and never for users and
delegation tokens, since another user's token is as good as its password. READ, WRITE, DELETE and ALTER allow DESCRIBE
too, and ALTER_CONFIGS allows DESCRIBE_CONFIGS; they don't deny it. Super users may do everything.

Strategy: patterns are found by name: one look-up for the literal one, one for `*`, and one for each length that a
prefix of this resource type has. The entries of a pattern are found by principal. Decisions are kept, by client, until
something changes; a known decision costs two look-ups. The number and the size of kept decisions are bounded, for each
client and for all together, so that clients that ask for many new or very long names can't fill the memory.

Must not know: stores, requests, clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pylogd.broker.security.acls import (
    EVERYONE,
    WILDCARD,
    AclBinding,
    AclEntry,
    AclFilter,
    Address,
    PatternType,
    Permission,
    ResourcePattern,
    parse_address,
    parse_network,
)
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.credentials.principal import Principal

#: The most clients (pairs of principal and address) whose decisions are kept, and the most decisions of each client.
MOST_CLIENTS = 4096
MOST_DECISIONS = 16_384
#: About how many bytes the decisions of all clients may take. When they take more, all are forgotten.
MOST_BYTES = 1 << 26
#: Decisions about longer names are not kept. No topic and no group has a longer name, but the protocol allows 32 KB.
LONGEST_NAME = 1024
#: About how many bytes a decision takes, without the resource's name.
_DECISION_BYTES = 256

#: An allowed operation on the left also allows the operations on the right.
_IMPLIED: Mapping[AclOperation, frozenset[AclOperation]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS}),
}

#: Resource types that are refused if no ACL covers them, whatever `allow.everyone.if.no.acl.found` says (particular to
#: pylogd).
_PRIVATE = frozenset({ResourceType.USER, ResourceType.DELEGATION_TOKEN})

Decisions = dict[tuple[AclOperation, ResourceType, str], bool]


def comes_from(host: str, address: Address | None) -> bool:
    """Return whether an entry's host matches a client's address, which may be None."""
    try:
        network = parse_network(host)
    except ValueError:
        return False  # it is a name, which Kafka stores but does not match either
    return network is None or (address is not None and address in network)


class _PatternRules:
    """The entries of one pattern, by principal."""

    __slots__ = ("by_principal", "entries")

    def __init__(self, entries: Sequence[AclEntry]) -> None:
        self.entries = entries
        self.by_principal: dict[Principal, list[AclEntry]] = {}
        for entry in entries:
            self.by_principal.setdefault(entry.principal, []).append(entry)

    def entries_for(self, principal: Principal) -> Iterator[AclEntry]:
        yield from self.by_principal.get(principal, ())
        if principal != EVERYONE:
            yield from self.by_principal.get(EVERYONE, ())


class AclIndex:
    """All bindings, in the form that decisions need."""

    def __init__(self) -> None:
        self._rules: dict[ResourcePattern, _PatternRules] = {}
        self._lengths: dict[ResourceType, Counter[int]] = {kind: Counter() for kind in ResourceType}
        self._naming: dict[tuple[ResourceType, Principal], dict[ResourcePattern, None]] = {}

    def __len__(self) -> int:
        return sum(len(rules.entries) for rules in self._rules.values())

    def put(self, pattern: ResourcePattern, entries: Sequence[AclEntry]) -> None:
        """Replace the entries of a pattern; without entries, forget the pattern."""
        prefixed = pattern.pattern is PatternType.PREFIXED
        lengths = self._lengths[pattern.resource]
        former = self._rules.pop(pattern, None)
        for principal in () if former is None else former.by_principal:
            self._forget_naming((pattern.resource, principal), pattern)
        if former is not None and prefixed:
            lengths[len(pattern.name)] -= 1
            if not lengths[len(pattern.name)]:
                del lengths[len(pattern.name)]
        if entries:
            rules = self._rules[pattern] = _PatternRules(entries)
            for principal in rules.by_principal:
                self._naming.setdefault((pattern.resource, principal), {})[pattern] = None
            if prefixed:
                lengths[len(pattern.name)] += 1

    def _forget_naming(self, key: tuple[ResourceType, Principal], pattern: ResourcePattern) -> None:
        naming = self._naming[key]
        del naming[pattern]
        if not naming:
            del self._naming[key]

    def naming(self, resource: ResourceType, principal: Principal) -> Iterable[ResourcePattern]:
        """Return the patterns of a resource type with entries for a principal, or for everyone."""
        own, all_of_them = (self._naming.get((resource, who), {}) for who in (principal, EVERYONE))
        return own.keys() | all_of_them.keys()

    def entries(self, pattern: ResourcePattern) -> Sequence[AclEntry]:
        """Return the entries of a pattern."""
        found = self._rules.get(pattern)
        return () if found is None else found.entries

    def patterns(self) -> Iterable[ResourcePattern]:
        """Return every pattern that has entries."""
        return self._rules.keys()

    def items(self) -> list[tuple[ResourcePattern, Sequence[AclEntry]]]:
        """Return every pattern with its entries, as they are now."""
        return [(pattern, rules.entries) for pattern, rules in self._rules.items()]

    def covering(self, resource: ResourceType, name: str) -> Iterator[_PatternRules]:
        """Yield the rules of every pattern that covers a resource."""
        rules = self._rules
        literals = (name,) if name == WILDCARD else (name, WILDCARD)
        for literal in literals:
            found = rules.get(ResourcePattern(resource, literal, PatternType.LITERAL))
            if found is not None:
                yield found
        for length in self._lengths[resource]:
            if length <= len(name):
                found = rules.get(ResourcePattern(resource, name[:length], PatternType.PREFIXED))
                if found is not None:
                    yield found


def select(items: Iterable[tuple[ResourcePattern, Sequence[AclEntry]]], wanted: AclFilter) -> list[AclBinding]:
    """Return the bindings among `items` that a filter selects, in order."""
    return sorted(
        AclBinding(pattern, entry)
        for pattern, entries in items
        if wanted.matches_pattern(pattern)
        for entry in entries
        if wanted.matches_entry(entry)
    )


class AclAuthorizer:
    """Decides by an index of bindings. Call `changed` after each change of the index."""

    def __init__(self, index: AclIndex, super_users: Iterable[Principal] = (), allow_if_no_acl: bool = False) -> None:
        """super_users: principals who may do everything, whatever the ACLs say.

        allow_if_no_acl: whether everyone may use a resource without an ACL (`allow.everyone.if.no.acl.found`).
        """
        self.index = index
        self.super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._decisions: dict[tuple[Principal, str], Decisions] = {}
        self._any: dict[tuple[Principal, str, AclOperation, ResourceType], bool] = {}
        self._kept_bytes = 0  # the bytes of decisions since all were forgotten
        self._version = 0

    @property
    def version(self) -> int:
        """How often something changed."""
        return self._version

    def changed(self) -> None:
        """Forget all decisions."""
        self._version += 1
        self._forget()

    def authorize(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType, name: str
    ) -> bool:
        """See `Authorizer`."""
        client = self._decisions.get((principal, host))
        if client is None:
            client = self._remember_client(principal, host)
        key = operation, resource, name
        decision = client.get(key)
        if decision is None:
            decision = self._decide(principal, host, operation, resource, name)
            if len(name) <= LONGEST_NAME:
                self._make_room(client, len(name))
                client[key] = decision
        return decision

    def authorize_any(self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        """See `Authorizer`. The rules are those of Kafka's `Authorizer.authorizeByResourceType`.

        An entry for the operation or for ALL counts, but not one for an operation that implies it. A pattern that
        allows counts unless a denied pattern covers at least as much.
        """
        key = principal, host, operation, resource
        decision = self._any.get(key)
        if decision is None:
            decision = self._decide_any(principal, host, operation, resource)
            if len(self._any) >= MOST_CLIENTS:
                self._any.clear()
            self._any[key] = decision
        return decision

    def _decide_any(self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        if self.authorize(principal, host, operation, resource, "hardcode"):  # Kafka asks for a topic with this name
            return True
        address = parse_address(host)
        allowed: list[ResourcePattern] = []
        denied: set[ResourcePattern] = set()
        for pattern in self.index.naming(resource, principal):
            effects = self._effects(pattern, principal, address, operation)
            if Permission.DENY in effects:
                denied.add(pattern)
            if Permission.ALLOW in effects:
                allowed.append(pattern)
        everything = ResourcePattern(resource, WILDCARD, PatternType.LITERAL)
        if everything in denied:
            return False
        return any(pattern == everything or not _is_dominated(pattern, denied) for pattern in allowed)

    def _effects(
        self, pattern: ResourcePattern, principal: Principal, address: Address | None, operation: AclOperation
    ) -> set[Permission]:
        return {
            entry.permission
            for entry in self.index.entries(pattern)
            if entry.principal in (principal, EVERYONE)
            and entry.operation in (operation, AclOperation.ALL)
            and comes_from(entry.host, address)
        }

    def _make_room(self, client: Decisions, length: int) -> None:
        """Make space for one more decision of a client, about a name of `length` characters."""
        if len(client) >= MOST_DECISIONS:
            client.clear()
        if self._kept_bytes >= MOST_BYTES:
            self._forget()
        self._kept_bytes += _DECISION_BYTES + length

    def _forget(self) -> None:
        self._decisions = {}
        self._any.clear()
        self._kept_bytes = 0

    def _remember_client(self, principal: Principal, host: str) -> Decisions:
        if len(self._decisions) >= MOST_CLIENTS:
            self._decisions.clear()
        found = self._decisions[principal, host] = {}
        return found

    def _decide(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType, name: str
    ) -> bool:
        if principal in self.super_users:
            return True
        address = parse_address(host)
        implying = _IMPLIED.get(operation, (operation,))
        allowed, none = False, True
        for rules in self.index.covering(resource, name):
            none = False
            for entry in rules.entries_for(principal):
                if entry.permission is Permission.DENY:
                    if entry.operation in (operation, AclOperation.ALL) and comes_from(entry.host, address):
                        return False
                elif not allowed:
                    applies = entry.operation is AclOperation.ALL or entry.operation in implying
                    allowed = applies and comes_from(entry.host, address)
        return allowed or (none and self._allow_if_no_acl and resource not in _PRIVATE)


def _is_dominated(pattern: ResourcePattern, denied: set[ResourcePattern]) -> bool:
    """Return whether a denied pattern covers everything that `pattern` covers."""
    if pattern.pattern is PatternType.LITERAL and pattern in denied:
        return True
    return any(
        ResourcePattern(pattern.resource, pattern.name[:length], PatternType.PREFIXED) in denied
        for length in range(1, len(pattern.name) + 1)
    )
