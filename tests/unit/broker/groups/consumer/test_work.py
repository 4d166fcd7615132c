"""How much work a change is: small for what changes nothing, and as large as what is looked at."""

from __future__ import annotations

from functools import partial

from pylogd.broker.groups.consumer.active_group import Made
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.heartbeats import Change, FindTopic, Heartbeat, HeartbeatRefused, beat, leave
from pylogd.broker.groups.consumer.members import LEAVING_FOR_A_WHILE
from pylogd.broker.groups.consumer.records import GroupEpoch, encode
from pylogd.broker.groups.consumer.work import MUCH_WORK, make_change, matched, work
from tests.unit.broker.groups.consumer.test_heartbeats import topic

TOPICS = {"small": topic("small", 2), "large": topic("large", 5000)}


def join(group: ConsumerGroup, member_id: str, *names: str, regex: str | None = None) -> ConsumerGroup:
    request = Heartbeat(member_id, 0, rebalance_ms=1, topics=frozenset(names), regex=regex, owned=frozenset())
    return beat(group, request, TOPICS.get, lambda _: frozenset(TOPICS), 0).group


def how_much(group: ConsumerGroup, member_id: str, *names: str, topics_changed: bool = False) -> int:
    return work(group, member_id, frozenset(names) or None, TOPICS.get, topics_changed=topics_changed)


def test_a_join_looks_at_all_partitions_of_all_members() -> None:
    group = ConsumerGroup("g")
    assert how_much(group, "a", "small", "missing") == 2 + 2  # two names and two partitions
    assert how_much(group, "a", "large") > MUCH_WORK
    group = join(group, "a", "large")
    assert how_much(group, "b", "small") > MUCH_WORK


def test_a_heartbeat_that_changes_nothing_is_no_work_unless_topics_changed() -> None:
    group = join(ConsumerGroup("g"), "a", "large")
    assert how_much(group, "a") == 0
    assert how_much(group, "a", topics_changed=True) > MUCH_WORK


def test_the_next_step_of_a_member_looks_at_its_own_partitions() -> None:
    group = join(join(ConsumerGroup("g"), "a", "large"), "b", "large")
    assert how_much(group, "a") == 2500 + 1
    assert how_much(group, "unknown") > MUCH_WORK


def test_a_heartbeat_that_assigns_looks_at_everything() -> None:
    group = join(ConsumerGroup("g"), "a", "large")
    due = group.with_records([GroupEpoch("g", group.epoch + 1, group.metadata_hash)])
    assert how_much(due, "a") > MUCH_WORK


def test_members_that_are_alike_are_looked_at_once() -> None:
    group = ConsumerGroup("g")
    for number in range(50):
        group = join(group, f"m{number}", "small", regex="all")
    assert how_much(group, "new", "small") == 50 + 1 + 2 + 5002


def test_an_expression_is_matched_before_if_it_is_new_or_topics_changed() -> None:
    asked: list[str] = []

    def match(expression: str) -> frozenset[str]:
        asked.append(expression)
        return frozenset({"small"})

    group = join(ConsumerGroup("g"), "a", regex="known")
    assert matched(group, Heartbeat("a", 1), match, topics_changed=False) == {}
    assert matched(group, Heartbeat("a", 1), match, topics_changed=True) == {"known": {"small"}}
    assert matched(group, Heartbeat("a", 1, regex="new"), match, topics_changed=False) == {"new": {"small"}}
    assert matched(group, Heartbeat("a", 1, regex=""), match, topics_changed=True) == {}
    assert matched(group, Heartbeat("b", 0), match, topics_changed=True) == {}
    assert asked == ["known", "new"]


def test_a_static_member_that_comes_back_has_the_expression_of_before() -> None:
    request = Heartbeat("a", 0, "i", rebalance_ms=1, topics=frozenset(), regex="known", owned=frozenset())
    group = beat(ConsumerGroup("g"), request, TOPICS.get, lambda _: frozenset(), 0).group
    group = leave(group, Heartbeat("a", LEAVING_FOR_A_WHILE, "i")).group
    back = Heartbeat("b", 0, "i", rebalance_ms=1, topics=frozenset({"small"}), owned=frozenset())
    matches = matched(group, back, lambda _: frozenset({"large"}), topics_changed=True)
    assert matches == {"known": {"large"}}
    after = beat(group, back, TOPICS.get, matches.__getitem__, 0, topics_changed=True).group
    assert after.matched["known"].topics == {"large"}


def change(member_id: str, epoch: int, *, find: FindTopic, topics_changed: bool) -> Change:
    request = Heartbeat(member_id, epoch, rebalance_ms=1, topics=frozenset({"small"}), owned=frozenset())
    return beat(ConsumerGroup("g"), request, find, lambda _: frozenset(), 0, topics_changed=topics_changed)


def test_a_change_comes_with_its_records_as_they_are_stored() -> None:
    made = make_change(partial(change, "a", 0), TOPICS.get, True)
    assert isinstance(made, Made) and made.change.records
    assert made.records == [encode(record) for record in made.change.records]


def test_a_refusal_is_returned() -> None:
    assert isinstance(make_change(partial(change, "a", 3), TOPICS.get, False), HeartbeatRefused)
