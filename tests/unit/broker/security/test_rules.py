"""Decisions by ACLs: cases that the random sets of tests/property/test_acl_rules.py do not cover."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.broker.security import rules
from pylogd.broker.security.acls import AclEntry, PatternType, Permission, ResourcePattern, make_binding, make_filter
from pylogd.broker.security.authorizer import AclOperation as Op
from pylogd.broker.security.authorizer import ResourceType as Kind
from pylogd.broker.security.rules import AclAuthorizer, AclIndex
from pylogd.credentials.principal import Principal

ALICE = Principal("User", "alice")


def allowing(*hosts: str, permission: Permission = Permission.ALLOW) -> AclAuthorizer:
    index = AclIndex()
    pattern = ResourcePattern(Kind.TOPIC, "t", PatternType.LITERAL)
    index.put(pattern, [AclEntry(ALICE, host, Op.READ, permission) for host in hosts])
    return AclAuthorizer(index)


@pytest.mark.parametrize(
    ("host", "client", "matches"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.0/104", "10.255.0.1", True),
        ("10.0.0.0/8", "10.255.0.1", True),
        ("10.0.0.7/8", "10.255.0.1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("2001:db8::/32", "2001:db8:0::1", True),
        ("2001:0db8:0:0:0:0:0:1", "2001:db8::1", True),
        ("0.0.0.0/0", "2001:db8::1", False),
        ("0.0.0.0/0", "", False),
        ("*", "", True),
        ("example.com", "10.0.0.1", False),
    ],
)
def test_hosts_are_matched_by_address(host: str, client: str, matches: bool) -> None:
    assert allowing(host).authorize(ALICE, client, Op.READ, Kind.TOPIC, "t") is matches


def test_decisions_are_kept_until_something_changes() -> None:
    authorizer = allowing("*")
    assert authorizer.authorize(ALICE, "h", Op.READ, Kind.TOPIC, "t")
    authorizer.index.put(ResourcePattern(Kind.TOPIC, "t", PatternType.LITERAL), [])
    assert authorizer.authorize(ALICE, "h", Op.READ, Kind.TOPIC, "t"), "nobody has said that something changed"
    version = authorizer.version
    authorizer.changed()
    assert not authorizer.authorize(ALICE, "h", Op.READ, Kind.TOPIC, "t")
    assert authorizer.version != version


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MOST_CLIENTS", 5)
    monkeypatch.setattr(rules, "MOST_DECISIONS", 7)
    authorizer = allowing("*")
    for number in range(100):
        assert not authorizer.authorize(ALICE, "h", Op.READ, Kind.TOPIC, f"x{number}")
        assert not authorizer.authorize(Principal("User", f"u{number}"), "h", Op.READ, Kind.TOPIC, "t")
        assert authorizer.authorize(ALICE, "h", Op.READ, Kind.TOPIC, "t")
        assert len(authorizer._decisions) <= 5
        assert all(len(kept) <= 7 for kept in authorizer._decisions.values())


def kept_characters(authorizer: AclAuthorizer) -> int:
    return sum(len(name) for kept in authorizer._decisions.values() for _, _, name in kept)


def test_decisions_about_very_long_names_are_not_kept() -> None:
    authorizer = allowing("*")
    for number in range(10):
        assert not authorizer.authorize(ALICE, "h", Op.DESCRIBE, Kind.TOPIC, f"{number}" * 32_000)
    assert kept_characters(authorizer) == 0
    assert authorizer.authorize(ALICE, "h", Op.READ, Kind.TOPIC, "t")
    assert kept_characters(authorizer) == 1


def test_many_addresses_of_a_client_can_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MOST_BYTES", 100_000)
    authorizer = allowing("*")
    for number in range(5_000):
        host = f"2001:db8::{number:x}"
        assert authorizer.authorize(ALICE, host, Op.READ, Kind.TOPIC, "t")
        assert not authorizer.authorize(ALICE, host, Op.READ, Kind.TOPIC, "x" * 1000)
        assert kept_characters(authorizer) <= 100_000


@pytest.mark.parametrize(
    "change",
    [
        {"resource": 0}, {"resource": 1}, {"resource": 99}, {"name": ""}, {"pattern": 0}, {"pattern": 1},
        {"pattern": 2}, {"principal": "alice"}, {"principal": "User:"}, {"host": "example.com"}, {"host": ""},
        {"host": "10.0.0.0/33"}, {"operation": 0}, {"operation": 1}, {"operation": 99}, {"permission": 1},
        {"permission": 0}, {"resource": 4},
    ],
    ids=str,
)  # fmt: skip
def test_bindings_that_make_no_sense_are_refused(change: dict[str, int | str]) -> None:
    good = {
        "resource": 2, "name": "t", "pattern": 3, "principal": "User:alice", "host": "*", "operation": 3,
        "permission": 3,
    }  # fmt: skip
    make_binding(**good)  # type: ignore[arg-type]
    with pytest.raises(KafkaError) as refused:
        make_binding(**(good | change))  # type: ignore[arg-type]
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_filter_with_unknown_codes_is_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        make_filter(2, None, 0, None, None, 1, 1)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_whether_anything_is_allowed_looks_at_a_principal_s_patterns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    authorizer = allowing("*")
    others = [AclEntry(Principal("User", "bob"), "*", Op.READ, Permission.ALLOW)]
    for number in range(100):
        authorizer.index.put(ResourcePattern(Kind.TOPIC, f"other-{number}", PatternType.LITERAL), others)
    looked: list[ResourcePattern] = []
    effects = AclAuthorizer._effects

    def counted(self: AclAuthorizer, pattern: ResourcePattern, *rest: Any) -> Any:
        looked.append(pattern)
        return effects(self, pattern, *rest)

    monkeypatch.setattr(AclAuthorizer, "_effects", counted)
    assert all(authorizer.authorize_any(ALICE, "h", Op.READ, Kind.TOPIC) for _ in range(3))
    assert len(looked) == 1
    authorizer.index.put(ResourcePattern(Kind.TOPIC, "t", PatternType.LITERAL), [])
    authorizer.changed()
    assert not authorizer.authorize_any(ALICE, "h", Op.READ, Kind.TOPIC) and len(looked) == 1
