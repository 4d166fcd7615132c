"""Which of many filters selects an ACL, compared with asking each of them."""

from __future__ import annotations

from random import Random

import pytest

from pylogd.base.errors import KafkaError
from pylogd.broker.security.acl_filters import MOST_MATCHING, FilterTable
from pylogd.broker.security.acls import AclBinding, AclEntry, AclFilter, PatternType, Permission, ResourcePattern
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.credentials.principal import Principal

NAMES = ("a", "ab", "abc", "*", "x")
RESOURCES = (ResourceType.TOPIC, ResourceType.GROUP)
OPERATIONS = (AclOperation.READ, AclOperation.ALL)
USERS = ("User:a", "User:*")
HOSTS = ("*", "10.0.0.1")


def any_filter(rng: Random) -> AclFilter:
    return AclFilter(
        rng.choice((ResourceType.ANY, *RESOURCES)), rng.choice((None, *NAMES)), rng.choice(list(PatternType)),
        rng.choice((None, *USERS)), rng.choice((None, *HOSTS)), rng.choice((AclOperation.ANY, *OPERATIONS)),
        rng.choice(list(Permission)),
    )  # fmt: skip


def any_binding(rng: Random) -> AclBinding:
    pattern_type = rng.choice((PatternType.LITERAL, PatternType.PREFIXED))
    user = Principal("User", rng.choice(USERS).removeprefix("User:"))
    entry = AclEntry(user, rng.choice(HOSTS), rng.choice(OPERATIONS), rng.choice((Permission.ALLOW, Permission.DENY)))
    return AclBinding(ResourcePattern(rng.choice(RESOURCES), rng.choice(NAMES), pattern_type), entry)


@pytest.mark.parametrize("seed", range(300))
def test_the_first_filter_that_selects_is_found(seed: int) -> None:
    rng = Random(seed)
    filters = [any_filter(rng) for _ in range(rng.randint(0, 30))]
    table = FilterTable(filters)
    for _ in range(30):
        binding = any_binding(rng)
        selecting = [place for place, one in enumerate(filters) if one.matches(binding)]
        assert table.first(*binding) == (selecting[0] if selecting else None), (filters, binding)
        assert table.may_select(binding.pattern) == any(one.matches_pattern(binding.pattern) for one in filters)


def test_filters_that_are_compared_one_by_one_are_few() -> None:
    def matching(count: int) -> list[AclFilter]:
        return [AclFilter(name=f"t-{number}", pattern=PatternType.MATCH) for number in range(count)]

    FilterTable(matching(MOST_MATCHING) * 2)  # named twice, compared once
    with pytest.raises(KafkaError, match="at most 100 filters"):
        FilterTable(matching(MOST_MATCHING + 1))


def test_many_filters_take_one_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of 20,000 filters is compared with the ACL by itself."""
    filters = [AclFilter(ResourceType.TOPIC, f"t-{number}", PatternType.LITERAL) for number in range(20_000)]
    filters += [AclFilter(principal=f"User:{number}") for number in range(20_000)]
    table = FilterTable(filters)
    monkeypatch.delattr(AclFilter, "matches")
    monkeypatch.delattr(AclFilter, "matches_pattern")
    entry = AclEntry(Principal("User", "7"), "*", AclOperation.READ, Permission.ALLOW)
    assert table.first(ResourcePattern(ResourceType.TOPIC, "t-5", PatternType.LITERAL), entry) == 5
    assert table.first(ResourcePattern(ResourceType.GROUP, "t-5", PatternType.LITERAL), entry) == 20_007
