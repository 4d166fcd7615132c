"""Floods of consumer groups whose members never come again."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from twisted.logger import Logger, formatEvent

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.log_lines import COUNTS, MOST_LINES, LimitedLog
from pylogd.broker.groups.consumer import removals
from pylogd.broker.groups.consumer.active_group import ActiveGroup
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.heartbeats import Heartbeat
from pylogd.broker.groups.consumer.removals import AT_ONCE
from tests.unit.broker.groups.consumer.test_service import SESSION, TOPICS, World, no_topics


def test_a_flood_of_groups_whose_members_never_come_again_writes_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    lines: list[str] = []

    def note(event: Any) -> None:
        lines.append(formatEvent(event))

    monkeypatch.setattr(removals, "limited", LimitedLog(Logger(observer=note), clock=world.clock.seconds))  # type: ignore[arg-type]
    before = COUNTS["groups with late members"]
    for at in range(3 * MOST_LINES):
        beat = Heartbeat("a", 0, rebalance_ms=10_000, topics=frozenset(TOPICS), owned=frozenset())
        world.groups.heartbeat(f"group-{at}", beat, no_topics)
    world.clock.advance(SESSION)
    assert len(lines) == MOST_LINES and "removing 1 members" in lines[0]
    assert COUNTS["groups with late members"] - before == 3 * MOST_LINES


def test_groups_with_late_members_take_turns_while_appends_are_refused() -> None:
    """A slow disk refuses most appends of a flood. To try all again each second took minutes of processor time."""
    world = World()
    for at in range(4 * AT_ONCE):
        beat = Heartbeat("a", 0, rebalance_ms=10_000, topics=frozenset(TOPICS), owned=frozenset())
        world.groups.heartbeat(f"group-{at}", beat, no_topics)
    tried: list[str] = []

    def refuse(group_id: str, *_: object) -> ErrorCode:
        tried.append(group_id)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    world.groups._append = refuse
    world.clock.advance(SESSION)
    assert len(tried) == AT_ONCE
    for seconds in range(1, 11):
        world.clock.advance(1)
        assert len(tried) == AT_ONCE * (seconds + 1)
    assert len(set(tried)) == 4 * AT_ONCE
    world.groups._append = world.log.append
    world.clock.pump([1.0] * 10)
    assert not [group for group in world.groups.groups() if group.members]
    assert not world.clock.getDelayedCalls()


def test_a_flood_from_one_address_does_not_delay_the_groups_of_another() -> None:
    world = World()
    for at in range(4 * AT_ONCE + 1):
        host = "/10.0.0.2" if at == 4 * AT_ONCE else "/10.0.0.1"
        beat = Heartbeat("a", 0, rebalance_ms=10_000, topics=frozenset(TOPICS), owned=frozenset(), client_host=host)
        world.groups.heartbeat(f"group-{at}", beat, no_topics)
    tried: list[str] = []

    def refuse(group_id: str, *_: object) -> ErrorCode:
        tried.append(group_id)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    world.groups._append = refuse
    world.clock.advance(SESSION)
    world.clock.advance(1)
    assert f"group-{4 * AT_ONCE}" in tried[: AT_ONCE + 2]


def test_the_memory_of_an_expired_group_is_given_back_without_the_garbage_collector() -> None:
    """It searches all objects every two minutes at most."""

    def groups() -> int:
        return sum(isinstance(each, ActiveGroup | ConsumerGroup) for each in gc.get_objects())

    world = World()
    gc.collect()
    gc.disable()
    before = groups()
    try:
        world.join("a")
        world.clock.advance(SESSION)
        assert world.groups.delete("g") == ErrorCode.NONE
        assert groups() == before
    finally:
        gc.enable()
