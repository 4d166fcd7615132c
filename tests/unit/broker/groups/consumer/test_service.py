"""Consumer groups over time: sessions, late revocations, changes that wait for the log or for its replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer import service
from pylogd.broker.groups.consumer.answers import HeartbeatAnswer
from pylogd.broker.groups.consumer.group import ConsumerGroup, ConsumerGroupState, replay
from pylogd.broker.groups.consumer.heartbeats import Heartbeat
from pylogd.broker.groups.consumer.members import LEAVING, LEAVING_FOR_A_WHILE
from pylogd.broker.groups.consumer.records import decode
from pylogd.broker.groups.consumer.service import ConsumerGroups
from pylogd.broker.metadata.image import Topic
from pylogd.broker.replica.internal_topic import KeyValue
from pylogd.config import Settings
from tests.fakes.indexes import check_held_group
from tests.unit.broker.groups.consumer.test_heartbeats import topic

SESSION = 45
TOPICS = {"t": topic("t", 4)}


def no_topics(expression: str) -> frozenset[str]:
    return frozenset()


class Log:
    """The offsets topic: appends at once, or, while `waits`, when it is told to."""

    def __init__(self) -> None:
        self.records: list[KeyValue] = []
        self.waits = False
        self.error = ErrorCode.NONE
        self.commits_later = False
        self.uncommitted: list[Deferred[ErrorCode]] = []
        self.waiting: list[tuple[Sequence[KeyValue], Callable[[], object], Deferred[ErrorCode]]] = []

    def append(
        self, group_id: str, records: Sequence[KeyValue], appended: Callable[[], object]
    ) -> ErrorCode | Deferred[ErrorCode]:
        if self.waits:
            result: Deferred[ErrorCode] = Deferred()
            self.waiting.append((records, appended, result))
            return result
        if not self.error:
            self.records += records
            appended()
        if self.commits_later:
            self.uncommitted.append(Deferred())
            return self.uncommitted[-1]
        return self.error

    def log_it(self) -> Deferred[ErrorCode]:
        records, appended, result = self.waiting.pop(0)
        self.records += records
        appended()
        return result


class Threads:
    """Calls in threads: made at once, or, while `wait`, when they are told to."""

    def __init__(self) -> None:
        self.wait = False
        self.calls = 0
        self.waiting: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def defer(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        self.calls += 1
        if not self.wait:
            return maybeDeferred(function, *args)
        result: Deferred[Any] = Deferred()
        self.waiting.append((partial(function, *args), result))
        return result

    def call(self) -> None:
        """Make the call that has waited longest."""
        function, result = self.waiting.pop(0)
        maybeDeferred(function).chainDeferred(result)


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.log = Log()
        self.threads = Threads()
        self.looked_up: list[str] = []
        self.uncommitted = ErrorCode.NONE
        self.groups = self.make(Settings({}))
        self.answers: list[HeartbeatAnswer] = []

    def make(self, settings: Settings) -> ConsumerGroups:
        return ConsumerGroups(
            self.clock, lambda: 7, self.log.append, self.find, settings,
            all_committed=lambda group_id: self.uncommitted, in_thread=self.threads.defer,
        )  # fmt: skip

    def find(self, name: str) -> Topic | None:
        self.looked_up.append(name)
        return TOPICS.get(name)

    def send(self, member_id: str, epoch: int, **fields: Any) -> HeartbeatAnswer | None:
        """Send a heartbeat, and return the answer if it is there at once."""
        handle = partial(self.groups.heartbeat, "g", Heartbeat(member_id, epoch, **fields), no_topics)
        result = self.groups.in_line("g", handle, HeartbeatAnswer(ErrorCode.NOT_COORDINATOR)) or handle()
        if isinstance(result, HeartbeatAnswer):
            return result
        answers: list[HeartbeatAnswer] = []
        result.addCallback(answers.append)
        if answers:
            return answers[0]  # it was made in a thread that had time at once
        result.addCallback(lambda _: self.answers.append(answers[0]))
        return None

    def join(self, member_id: str, **fields: Any) -> HeartbeatAnswer | None:
        names = frozenset(TOPICS)
        return self.send(member_id, 0, rebalance_ms=10_000, topics=names, owned=frozenset(), **fields)

    @property
    def group(self) -> ConsumerGroup:
        found = self.groups.get("g")
        assert found is not None
        check_held_group(self.groups._held["g"])
        loaded = replay(record for key, value in self.log.records if (record := decode(key, value)) is not None)
        for name in ConsumerGroup.__slots__[1:]:
            assert getattr(found, name) == getattr(loaded["g"], name), name
        return found


@pytest.fixture(params=["at once", "in a thread"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    if request.param == "in a thread":
        monkeypatch.setattr(service, "MUCH_WORK", -1)
    return World()


@pytest.fixture
def busy_world(monkeypatch: pytest.MonkeyPatch) -> World:
    """One where every change is much work, and threads wait until they are told to go on."""
    monkeypatch.setattr(service, "MUCH_WORK", -1)
    made = World()
    made.threads.wait = True
    return made


def test_a_member_joins_stays_and_leaves(world: World) -> None:
    joined = world.join("a")
    assert joined is not None
    assert (joined.error, joined.epoch, joined.interval_ms, len(joined.assignment or ())) == (0, 1, 5000, 4)
    assert world.send("a", 1) == HeartbeatAnswer(ErrorCode.NONE, None, "a", 1, 5000, None)
    assert world.send("a", LEAVING) == HeartbeatAnswer(ErrorCode.NONE, None, "a", LEAVING)
    assert world.group.state is ConsumerGroupState.EMPTY
    world.clock.advance(SESSION)
    assert not world.clock.getDelayedCalls()
    assert world.groups.delete("g") == ErrorCode.NONE
    assert world.groups.get("g") is None
    assert replay(record for k, v in world.log.records if (record := decode(k, v)) is not None) == {}


def test_a_group_that_is_not_there(world: World) -> None:
    answer = world.send("a", 3)
    assert answer is not None and answer.error == ErrorCode.GROUP_ID_NOT_FOUND
    refused = world.join("a", instance_id="i") and world.send("b", 3)
    assert refused is not None and refused.error == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_ends(world: World) -> None:
    world.join("a")
    world.join("b")
    world.clock.advance(SESSION - 1)
    world.send("b", 2)
    assert set(world.group.members) == {"a", "b"}
    world.clock.advance(1)
    assert set(world.group.members) == {"b"}
    answer = world.send("b", 2)
    assert answer is not None and len(answer.assignment or ()) == 4
    world.clock.advance(SESSION)
    assert not world.group.members and not world.clock.getDelayedCalls()


def test_a_static_member_that_does_not_come_back(world: World) -> None:
    world.join("a", instance_id="i")
    world.send("a", LEAVING_FOR_A_WHILE, instance_id="i")
    assert world.group.members["a"].has_left_for_a_while
    world.clock.advance(SESSION)
    assert not world.group.members


def test_a_member_that_does_not_give_up_its_partitions(world: World) -> None:
    world.join("a")
    world.join("b")
    world.send("a", 1)
    for _ in range(3):
        world.clock.advance(3)
        world.send("a", 1)
    assert "a" in world.group.members
    world.clock.advance(1)
    assert "a" not in world.group.members
    answer = world.send("b", 2)
    assert answer is not None and len(answer.assignment or ()) == 4


def test_a_member_that_gives_them_up_in_time(world: World) -> None:
    joined = world.join("a")
    world.join("b")
    told = world.send("a", 1)
    assert told is not None and joined is not None
    world.send("a", 1, owned=told.assignment)
    world.clock.advance(11)
    assert "a" in world.group.members


def test_heartbeats_wait_for_a_change_to_be_in_the_log(world: World) -> None:
    world.log.waits = True
    assert world.join("a") is None and world.join("b") is None
    assert len(world.log.waiting) == 1, "one change at a time"
    first = world.log.log_it()
    assert len(world.log.waiting) == 1 and not world.answers
    second = world.log.log_it()
    assert set(world.group.members) == {"a", "b"}
    assert world.send("b", 2) is None, "what it would be told may be lost"
    first.callback(ErrorCode.NONE)
    assert [answer.member_id for answer in world.answers] == ["a"]
    second.callback(ErrorCode.NONE)
    assert [(answer.member_id, answer.epoch) for answer in world.answers[1:]] == [("b", 2), ("b", 2)]
    assert world.send("b", 2) is not None


def test_a_change_in_line_is_the_last_one_that_is_waited_for(busy_world: World) -> None:
    """The second change is made as soon as the first is in the log, before anybody knows when that is committed."""
    world = busy_world
    world.log.commits_later = True
    assert world.join("a") is None and world.join("b") is None
    world.threads.wait = False
    world.threads.call()
    first, second = world.log.uncommitted
    first.callback(ErrorCode.NONE)
    assert [answer.member_id for answer in world.answers] == ["a"]
    assert world.send("b", 2) is None, "what it would be told may be lost"
    second.callback(ErrorCode.NONE)
    assert [(answer.member_id, answer.epoch) for answer in world.answers[1:]] == [("b", 2), ("b", 2)]


def test_a_change_that_is_refused_changes_nothing(world: World) -> None:
    world.join("a")
    world.log.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    answer = world.join("b")
    assert answer is not None and answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert set(world.group.members) == {"a"}
    world.log.waits, world.log.error = True, ErrorCode.NONE
    world.join("b")
    world.log.waiting.pop()[2].callback(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert world.answers[0].error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert set(world.group.members) == {"a"}


def test_a_change_that_is_late_is_in_force(world: World) -> None:
    world.log.waits = True
    world.join("a")
    world.log.log_it().callback(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert world.answers[0].error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert set(world.group.members) == {"a"}, "it is in the log and may be committed yet"
    world.log.waits = False
    world.uncommitted = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.log.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.join("b")
    world.log.error = ErrorCode.NONE
    assert world.send("a", 1) == HeartbeatAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, None, "a"), "it may be lost yet"
    world.uncommitted = ErrorCode.NONE
    for _ in range(2):
        answer = world.send("a", 1)
        assert answer is not None and not answer.error
        world.uncommitted = ErrorCode.COORDINATOR_NOT_AVAILABLE  # which is not asked for any more


def test_unloading(world: World) -> None:
    world.log.waits = True
    world.join("a")
    world.join("b")
    world.groups.unload(lambda group_id: group_id == "g")
    assert [answer.error for answer in world.answers] == [ErrorCode.NOT_COORDINATOR]
    world.log.log_it().callback(ErrorCode.NOT_COORDINATOR)
    assert world.groups.get("g") is None and not world.groups.groups()
    assert all(not call.active() for call in world.clock.getDelayedCalls())


def test_members_of_a_group_that_is_loaded_have_a_session(world: World) -> None:
    world.join("a")
    world.groups.unload(lambda group_id: True)
    world.groups.load(replay(r for key, value in world.log.records if (r := decode(key, value)) is not None).values())
    answer = world.send("a", 1)
    assert answer is not None and answer.error == ErrorCode.NONE
    world.clock.advance(SESSION)
    assert not world.group.members


def test_the_largest_group(world: World) -> None:
    world.groups = world.make(Settings({"group.consumer.max.size": 1}))
    world.join("a", instance_id="i")
    full = world.join("b")
    assert full is not None and full.error == ErrorCode.GROUP_MAX_SIZE_REACHED
    world.send("a", LEAVING_FOR_A_WHILE, instance_id="i")
    back = world.join("c", instance_id="i")
    assert back is not None and back.error == ErrorCode.NONE


def test_topics_that_change(world: World) -> None:
    world.join("a")
    before = TOPICS["t"]
    TOPICS["t"] = topic("t", 6)
    try:
        unchanged = world.send("a", 1)
        world.groups.topics_changed()
        changed = world.send("a", 1)
    finally:
        TOPICS["t"] = before
    assert unchanged is not None and unchanged.assignment is None
    assert changed is not None and (changed.epoch, len(changed.assignment or ())) == (2, 6)


def test_members_cannot_fill_the_memory_with_topic_names(world: World) -> None:
    world.groups = world.make(Settings({"group.metadata.max.bytes": 1 << 20}))
    errors = []
    for number in range(70):
        names = frozenset(f"{number:03}" + str(at) * 200 for at in range(100))
        answer = world.send(f"m{number}", 0, rebalance_ms=1, topics=names, owned=frozenset())
        assert answer is not None
        errors.append(answer.error)
    assert errors[:20] == [ErrorCode.NONE] * 20 and errors[-1] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.join("small") is not None


# -- changes that are made in a thread


def test_requests_of_a_group_wait_while_a_change_is_made(busy_world: World) -> None:
    world = busy_world
    assert world.join("a") is None
    assert "g" in world.groups and world.groups.get("g") is None
    assert world.join("b") is None
    assert len(world.threads.waiting) == 1 and not world.log.records
    world.threads.call()
    assert [answer.member_id for answer in world.answers] == ["a"]
    world.threads.call()
    assert [answer.member_id for answer in world.answers] == ["a", "b"]
    assert set(world.group.members) == {"a", "b"}
    world.clock.advance(SESSION)
    assert not world.group.members


def test_a_group_that_is_unloaded_while_a_change_is_made(busy_world: World) -> None:
    world = busy_world
    world.join("a")
    world.join("b")
    world.groups.unload(lambda group_id: True)
    again = ConsumerGroup("g")
    again.epoch = 5
    world.groups.load([again])
    world.threads.call()
    assert {answer.error for answer in world.answers} == {ErrorCode.NOT_COORDINATOR} and len(world.answers) == 2
    assert not world.log.records
    found = world.groups.get("g")
    assert found is again and not found.members


def test_topics_that_change_while_a_change_is_made_are_looked_at_again(busy_world: World) -> None:
    world = busy_world
    world.join("a")
    world.groups.topics_changed()
    world.threads.call()
    assert world.groups._held["g"].stale
    world.send("a", 1)
    world.threads.call()
    assert not world.groups._held["g"].stale


def test_a_change_that_fails_leaves_the_group_as_it_was(busy_world: World) -> None:
    world = busy_world
    errors: list[Failure] = []
    broken: Any = partial(world.groups.heartbeat, "g", Heartbeat("a", 0, rebalance_ms=1, topics=frozenset("t")))
    broken(no_topics).addErrback(errors.append)
    world.join("b")
    _, result = world.threads.waiting[0]
    world.threads.waiting[0] = partial(int, "no number"), result
    world.threads.call()
    assert [error.type for error in errors] == [ValueError]
    world.threads.call()
    assert set(world.group.members) == {"b"}


def test_a_request_in_line_that_fails_does_not_keep_those_behind_it(busy_world: World) -> None:
    world, outcomes = busy_world, list[object]()
    world.join("a")
    for result in ("fails", "first", "second"):
        waiting = world.groups.in_line("g", partial(int, "no number") if result == "fails" else lambda: 1, 0)
        assert waiting is not None
        waiting.addBoth(outcomes.append)
    world.threads.call()
    assert [outcome.type if isinstance(outcome, Failure) else outcome for outcome in outcomes] == [ValueError, 1, 1]


def test_a_refusal_in_a_thread_forgets_nothing(busy_world: World) -> None:
    world = busy_world
    world.join("a")
    world.threads.call()
    world.groups.topics_changed()
    world.send("stranger", 3, topics=frozenset("t"))
    world.threads.call()
    assert world.answers[-1].error == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.groups._held["g"].stale  # the next heartbeat looks at the topics


def test_a_group_is_not_deleted_while_its_first_member_joins(busy_world: World) -> None:
    world = busy_world
    world.join("a")
    world.threads.call()
    world.send("a", LEAVING)
    world.join("b")
    assert world.groups.delete("g") == ErrorCode.NON_EMPTY_GROUP
    world.threads.call()
    assert set(world.group.members) == {"b"}


def test_a_group_that_always_changes_loses_its_late_members(busy_world: World) -> None:
    world = busy_world
    for name in "ab":
        world.join(name)
        world.threads.call()
    for _ in range(SESSION + 1):
        world.send("a", world.group.members["a"].epoch, topics=frozenset("t"), owned=frozenset())
        world.send("a", world.group.members["a"].epoch, topics=frozenset("t"), owned=frozenset())
        world.clock.advance(1)
        world.threads.call()
        world.threads.call()
    assert set(world.group.members) == {"a"}


def test_what_is_little_work_is_made_at_once() -> None:
    world = World()
    world.join("a")
    world.send("a", 1)
    assert not world.threads.calls


def test_a_heartbeat_of_a_member_that_has_what_it_is_to_have_looks_at_no_topic(world: World) -> None:
    world.join("a")
    found = len(world.looked_up)
    world.send("a", 1)
    assert len(world.looked_up) == found
    world.groups.topics_changed()
    world.send("a", 1)
    assert len(world.looked_up) > found


def test_members_are_not_late_while_their_group_waits_for_the_changes_of_others(busy_world: World) -> None:
    world = busy_world
    world.join("a")
    world.threads.call()
    others = world.groups._work
    assert others is not None
    others.run("stranger", len, "")
    world.send("a", world.group.members["a"].epoch, topics=frozenset("t"), owned=frozenset())
    world.clock.advance(10 * SESSION)
    world.threads.call()  # of the stranger
    world.threads.call()
    assert set(world.group.members) == {"a"}
    world.clock.advance(SESSION + 1)
    assert not world.group.members
