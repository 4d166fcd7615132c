"""How many member ids are kept for clients that have not joined with them."""

from __future__ import annotations

from pylogd.base.limits.shares import Share
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.pending import PendingIds

ALICE, BOB, STRANGER = Share("User:alice", True), Share("User:bob", True), Share("10.0.0.9", False)
MOST = 10


def test_the_client_with_most_ids_loses_its_oldest_and_nobody_else_does() -> None:
    pending, one, other = PendingIds(MOST), ClassicGroup("one", 0, 0), ClassicGroup("other", 0, 0)
    pending.add(other, "bob's", 10.0, BOB)
    for number in range(3 * MOST):
        pending.add(one, f"alice's {number}", 10.0, ALICE)
    assert len(pending) == MOST == len(one.pending) + 1
    assert list(other.pending) == ["bob's"]
    assert f"alice's {3 * MOST - 1}" in one.pending and "alice's 0" not in one.pending


def test_strangers_lose_theirs_before_known_clients() -> None:
    pending, group = PendingIds(MOST), ClassicGroup("one", 0, 0)
    for number in range(MOST // 2):
        pending.add(group, f"alice's {number}", 10.0, ALICE)
    for number in range(3 * MOST):
        pending.add(group, f"a stranger's {number}", 10.0, Share(f"10.0.0.{number}", False))
    assert sum(name.startswith("alice") for name in group.pending) == MOST // 2


def test_nothing_is_left_of_ids_that_were_used_or_have_expired() -> None:
    pending, group = PendingIds(MOST), ClassicGroup("one", 0, 0)
    pending.add(group, "used", 10.0, STRANGER)
    pending.add(group, "late", 10.0, STRANGER)
    pending.add(group, "early", 20.0, STRANGER)
    assert pending.take(group, "used") and not pending.take(group, "used")
    pending.expire(group, 10.0)
    assert list(group.pending) == ["early"] and len(pending) == 1
    pending.expire(group, float("inf"))
    assert not group.pending and not len(pending)
