"""Compare decisions by ACLs with an oracle that looks at every binding in turn, following the wording of KIP-11.

`make acls` compares 100,000 random sets of ACLs; `make test` compares a few hundred.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random

import pytest

from pylogd.broker.security.acls import AclBinding, AclEntry, AclFilter, PatternType, Permission, ResourcePattern
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.broker.security.rules import AclAuthorizer, AclIndex, select
from pylogd.credentials.principal import Principal

SETS = int(os.environ.get("PYLOGD_ACL_SETS", "600"))
QUESTIONS = 25

NAMES = ("*", "a", "ab", "abc", "abcd", "b", "ba", "hardcode", "h", "*x")
USERS = tuple(Principal(kind, name) for kind, name in
              (("User", "alice"), ("User", "bob"), ("User", "*"), ("Team", "alice"), ("User", "root")))  # fmt: skip
HOSTS = ("10.0.0.1", "10.0.0.2", "192.168.7.7", "::1", "")
ENTRY_HOSTS = ("*", "*", "10.0.0.1", "10.0.0.2", "10.0.0.0/30", "192.168.0.0/16", "::1", "localhost")
#: For each host of an entry, the addresses of HOSTS that it covers, written by hand.
MEANS = {
    "*": set(HOSTS),
    "10.0.0.1": {"10.0.0.1"},
    "10.0.0.2": {"10.0.0.2"},
    "10.0.0.0/30": {"10.0.0.1", "10.0.0.2"},
    "192.168.0.0/16": {"192.168.7.7"},
    "::1": {"::1"},
    "localhost": set(),
}
KINDS = (ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP)
OPERATIONS = tuple(operation for operation in AclOperation if operation is not AclOperation.ANY)
ALSO_ALLOWED = {
    "READ": {"DESCRIBE"}, "WRITE": {"DESCRIBE"}, "DELETE": {"DESCRIBE"}, "ALTER": {"DESCRIBE"},
    "ALTER_CONFIGS": {"DESCRIBE_CONFIGS"},
}  # fmt: skip


def random_binding(random: Random) -> AclBinding:
    pattern = ResourcePattern(
        random.choice(KINDS), random.choice(NAMES), random.choice((PatternType.LITERAL, PatternType.PREFIXED))
    )
    permission = Permission.ALLOW if random.random() < 0.7 else Permission.DENY
    return AclBinding(
        pattern,
        AclEntry(random.choice(USERS[:4]), random.choice(ENTRY_HOSTS), random.choice(OPERATIONS), permission),
    )


def about(binding: AclBinding, user: Principal, host: str, kind: ResourceType, name: str) -> bool:
    pattern, entry = binding
    if pattern.resource != kind or not covers(pattern, name):
        return False
    return str(entry.principal) in ("User:*", str(user)) and host in MEANS[entry.host]


def covers(pattern: ResourcePattern, name: str) -> bool:
    if pattern.pattern == PatternType.PREFIXED:
        return name[: len(pattern.name)] == pattern.name
    return pattern.name in ("*", name)


def oracle(
    acls: Sequence[AclBinding],
    everyone: bool,
    user: Principal,
    host: str,
    operation: AclOperation,
    kind: ResourceType,
    name: str,
) -> bool:
    """Decide by KIP-11, with one statement for each of its rules."""
    if str(user) == "User:root":
        return True
    if not any(acl.pattern.resource == kind and covers(acl.pattern, name) for acl in acls):
        return everyone
    mine = [acl.entry for acl in acls if about(acl, user, host, kind, name)]
    for entry in mine:
        if entry.permission == Permission.DENY and entry.operation.name in ("ALL", operation.name):
            return False
    return any(
        entry.permission == Permission.ALLOW
        and (
            entry.operation.name in ("ALL", operation.name)
            or operation.name in ALSO_ALLOWED.get(entry.operation.name, ())
        )
        for entry in mine
    )


def oracle_any(
    acls: Sequence[AclBinding], user: Principal, host: str, operation: AclOperation, kind: ResourceType
) -> bool:
    """Return whether a name is allowed; an allowed pattern or prefix stands for all names that it covers."""
    names = [*NAMES, *(name + "-other" for name in NAMES), "other"]
    return any(oracle(acls, False, user, host, operation, kind, name) for name in names)


def fill(index: AclIndex, acls: Sequence[AclBinding]) -> None:
    """Make the index equal to the given bindings: add those that it lacks and remove the others."""
    for pattern in {*index.patterns(), *(acl.pattern for acl in acls)}:
        index.put(pattern, sorted({acl.entry for acl in acls if acl.pattern == pattern}))


def compare(random: Random) -> None:
    everyone = random.random() < 0.3
    authorizer = AclAuthorizer(AclIndex(), [USERS[4]], everyone)
    acls: list[AclBinding] = []
    for _ in range(2):  # the second time with other ACLs, when some decisions are cached
        acls = [acl for acl in acls if random.random() < 0.5]
        acls += [random_binding(random) for _ in range(random.randrange(9))]
        fill(authorizer.index, acls)
        authorizer.changed()
        assert len(authorizer.index) == len(set(acls))
        for _ in range(QUESTIONS):
            question = (
                random.choice(USERS), random.choice(HOSTS), random.choice(OPERATIONS[1:]),
                random.choice(KINDS), random.choice((*NAMES, "zzz")),
            )  # fmt: skip
            expected = oracle(acls, everyone, *question)
            assert authorizer.authorize(*question) is expected, (acls, everyone, question)
            assert authorizer.authorize(*question) is expected, "the decision that was kept is another"
        if not everyone:
            user, host, kind = random.choice(USERS), random.choice(HOSTS), random.choice(KINDS)
            found = authorizer.authorize_any(user, host, AclOperation.WRITE, kind)
            assert found is oracle_any(acls, user, host, AclOperation.WRITE, kind), (acls, user, host, kind)


@pytest.mark.parametrize("part", range(4))
def test_decisions_are_those_of_the_oracle(part: int) -> None:
    for number in range(part, SETS, 4):
        compare(Random(number))


def test_filters_select_what_they_say() -> None:
    random = Random(7)
    for _ in range(200):
        acls = sorted({random_binding(random) for _ in range(12)})
        index = AclIndex()
        fill(index, acls)
        wanted = AclFilter(
            random.choice((ResourceType.ANY, *KINDS)),
            random.choice((None, *NAMES)),
            random.choice(tuple(PatternType)),
            random.choice((None, "User:alice", "User:*")),
            random.choice((None, "*", "10.0.0.1")),
            random.choice((AclOperation.ANY, *OPERATIONS)),
            random.choice(tuple(Permission)),
        )
        expected = [acl for acl in acls if plainly_selected(wanted, acl)]
        assert select(index.items(), wanted) == expected, wanted


def plainly_selected(wanted: AclFilter, acl: AclBinding) -> bool:
    pattern, entry = acl
    names = {
        PatternType.ANY: pattern.name == wanted.name,
        PatternType.MATCH: wanted.name is not None and covers(pattern, wanted.name),
        PatternType.LITERAL: pattern.pattern == PatternType.LITERAL and pattern.name == wanted.name,
        PatternType.PREFIXED: pattern.pattern == PatternType.PREFIXED and pattern.name == wanted.name,
    }
    kinds = wanted.pattern in (PatternType.ANY, PatternType.MATCH, pattern.pattern)
    return (
        wanted.resource in (ResourceType.ANY, pattern.resource)
        and (names[wanted.pattern] if wanted.name is not None else kinds)
        and wanted.principal in (None, str(entry.principal))
        and wanted.host in (None, entry.host)
        and wanted.operation in (AclOperation.ANY, entry.operation)
        and wanted.permission in (Permission.ANY, entry.permission)
    )
