"""One or two coordinators on a simulated ZooKeeper: events, writes, and the cost of a slow neighbour."""

from __future__ import annotations

import random
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.machine import UnexpectedEvent
from pylogd.client.core.model import TopicPartition
from pylogd.client.zookeeper.claims import Claims
from pylogd.client.zookeeper.coordinator import Coordinator, GroupSettings
from pylogd.client.zookeeper.errors import NotOwner, RebalanceFailed, ZooKeeperUnavailable
from pylogd.client.zookeeper.events import Assigned, Revoked
from pylogd.client.zookeeper.lease import HEARTBEAT, LEASE, Lease
from pylogd.client.zookeeper.registries import GroupPaths, Subscription
from pylogd.client.zookeeper.states import COORDINATOR, CoordinatorState, Event
from pylogd.store.errors import SessionExpired
from tests.fakes.metadata import result_of
from tests.fakes.simulation import SimulatedTime
from tests.fakes.zookeeper import FakeZooKeeper

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
SETTINGS = GroupSettings(session_timeout=6.0, commit_interval=5.0, max_retries=4, backoff=0.5)


class Caller:
    """A consumer that records its events, and stops reading when it is told to."""

    def __init__(self, world: World, name: str, settings: GroupSettings = SETTINGS) -> None:
        self.heard: list[Assigned | Revoked] = []
        self.failures: list[BaseException] = []
        self.committed: list[dict[TopicPartition, int]] = []
        self.stopping: Deferred[None] | None = None
        self.store = world.zookeeper.store()
        self.store.patient = False
        self.store.start()
        world.time.run(0.1)
        names = iter(f"{name}-{number}" for number in range(1, 100))
        self.coordinator = Coordinator(
            self.store, world.time, "g", Subscription.of("t"), self, settings, on_commit=self.committed.append,
            new_name=lambda: next(names), rng=random.Random(name),
        )  # fmt: skip
        self.joined = self.coordinator.start()

    def on_assigned(self, event: Assigned) -> None:
        self.heard.append(event)

    def on_revoked(self, event: Revoked) -> Deferred[None] | None:
        self.heard.append(event)
        return self.stopping

    def on_failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def last_assigned(self) -> dict[TopicPartition, int | None]:
        event = self.heard[-1]
        assert isinstance(event, Assigned)
        return dict(event.offsets)


class World:
    def __init__(self) -> None:
        self.time = SimulatedTime()
        self.zookeeper = FakeZooKeeper(self.time, random.Random(1))
        self.zookeeper.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1],"1":[1]}}')

    def data(self, path: str) -> bytes | None:
        node = self.zookeeper.leader.tree.nodes.get(path)
        return None if node is None else node.data

    def until(self, caller: Caller, state: CoordinatorState) -> None:
        """Let time pass until a caller, which tries again every half second, is in this state."""
        for _ in range(200):
            if caller.coordinator.state is state:
                return
            self.time.run(0.01)
        raise AssertionError(f"{caller.coordinator.state.name} for two seconds, not {state.name}")

    def wait(self, deferred: Deferred[Any], seconds: float = 0.5) -> Any:
        self.time.run(seconds)
        return result_of(deferred)


@pytest.fixture
def world() -> World:
    return World()


def test_a_consumer_alone_gets_everything(world: World) -> None:
    caller = Caller(world, "a")
    world.wait(caller.joined)
    assert caller.last_assigned() == {P0: None, P1: None}
    assert caller.coordinator.state is CoordinatorState.OWNING
    assert caller.coordinator.may_fetch
    assert world.data("/consumers/g/owners/t/1") == b"a-1-0"
    assert world.data("/consumers/g/offsets/t/1") is None


def test_offsets_are_committed_now_and_then_and_with_the_release(world: World) -> None:
    caller = Caller(world, "a")
    world.wait(caller.joined)
    world.wait(caller.coordinator.commit({P0: 7}))
    assert world.data("/consumers/g/offsets/t/0") == b"7"
    caller.coordinator.store_offsets({P1: 3, TopicPartition("t", 9): 1})
    world.time.run(5.1)
    assert world.data("/consumers/g/offsets/t/1") == b"3"
    caller.coordinator.store_offsets({P1: 4})
    world.wait(caller.coordinator.close())
    assert world.data("/consumers/g/offsets/t/1") == b"4"
    assert world.data("/consumers/g/offsets/t/9") is None
    assert world.data("/consumers/g/owners/t/1") is None
    assert world.data("/consumers/g/ids/a-1") is None
    assert not caller.coordinator.may_fetch
    assert isinstance(caller.heard[-1], Revoked)
    assert caller.committed == [{P0: 7}, {P1: 3}, {P1: 4}], "each commit is reported, that of the release too"
    again = Caller(world, "b")
    world.wait(again.joined)
    assert again.last_assigned() == {P0: 7, P1: 4}


def test_a_commit_goes_before_what_was_stored_earlier(world: World) -> None:
    caller = Caller(world, "a")
    world.wait(caller.joined)
    caller.coordinator.store_offsets({P0: 10})
    world.wait(caller.coordinator.commit({P0: 12}))
    world.wait(caller.coordinator.close())
    assert world.data("/consumers/g/offsets/t/0") == b"12"


def test_offsets_of_partitions_that_are_not_owned_are_not_committed(world: World) -> None:
    caller = Caller(world, "a")
    world.wait(caller.joined)
    with pytest.raises(NotOwner):
        world.wait(caller.coordinator.commit({P0: 1, TopicPartition("t", 5): 1}))
    assert world.data("/consumers/g/offsets/t/0") is None


def test_nothing_is_released_before_the_caller_has_stopped(world: World) -> None:
    first = Caller(world, "a")
    world.wait(first.joined)
    first.stopping = Deferred()
    second = Caller(world, "b")
    world.time.run(3.0)
    assert first.coordinator.state is CoordinatorState.RELEASING
    world.until(second, CoordinatorState.WAITING)
    assert not second.heard
    assert world.data("/consumers/g/owners/t/1") == b"a-1-0"
    world.wait(first.coordinator.commit({P1: 5}))
    first.stopping.callback(None)
    world.time.run(0.5)
    assert second.last_assigned() == {P1: 5}
    assert first.coordinator.assigned == {P0}  # partitions that it keeps are not revoked
    assert [type(event) for event in first.heard] == [Assigned, Revoked]


def test_a_rebalance_that_fails_is_reported_and_retried(world: World) -> None:
    first = Caller(world, "a")
    world.wait(first.joined)
    first.stopping = Deferred()
    second = Caller(world, "b")
    world.time.run(10.0)
    assert second.failures
    assert isinstance(second.failures[0], RebalanceFailed)
    first.stopping.callback(None)
    world.time.run(1.0)
    assert second.coordinator.state is CoordinatorState.OWNING


def test_a_lost_session_is_reported_and_replaced(world: World) -> None:
    caller = Caller(world, "a")
    world.wait(caller.joined)
    world.wait(caller.coordinator.commit({P0: 7}))
    caller.store.cut(0.1)
    world.time.run(1.0)
    assert caller.coordinator.may_fetch  # the session may be alive: the claimed partitions are still fetched
    with pytest.raises(ZooKeeperUnavailable):
        world.wait(caller.coordinator.commit({P0: 9}))
    world.time.run(6.0)
    assert not caller.coordinator.may_fetch
    caller.stopping = Deferred()
    caller.store.heal()
    world.time.run(1.0)
    assert caller.heard[-1].lost
    assert caller.coordinator.state is CoordinatorState.SURRENDERING
    with pytest.raises(NotOwner):
        world.wait(caller.coordinator.commit({P0: 8}))
    caller.stopping.callback(None)
    world.time.run(1.0)
    assert caller.last_assigned() == {P0: 7, P1: None}
    assert world.data("/consumers/g/owners/t/1") == b"a-2-0"


def test_a_short_cut_goes_unnoticed(world: World) -> None:
    caller = Caller(world, "a")
    world.wait(caller.joined)
    caller.store.cut(0.1)
    world.time.run(2.0)
    caller.store.heal()
    world.time.run(3.0)
    assert caller.coordinator.may_fetch
    assert len(caller.heard) == 1


def test_a_deleted_registration_is_made_again(world: World) -> None:
    caller = Caller(world, "a")
    world.wait(caller.joined)
    other = world.zookeeper.store()
    world.wait(other.start())
    world.wait(other.delete("/consumers/g/ids/a-1"))
    world.time.run(3.0)
    assert world.data("/consumers/g/ids/a-2") is not None
    assert world.data("/consumers/g/owners/t/0") == b"a-2-0"


def test_a_registration_that_outlives_its_session_is_no_member_for_long(world: World) -> None:
    store = world.zookeeper.store()
    store.patient = True
    world.wait(store.start())
    names = iter(["a-1", "a-2", "a-3"])
    claims = Claims(store, world.time, GroupPaths("g"), Lease(world.time, 6.0), lambda: next(names))
    world.wait(claims.register(Subscription.of("t"), 0))
    claims.unregistered()
    store.cut(0.0)
    world.time.run(0.1)
    late = claims.register(Subscription.of("t"), 0)  # waits for a connection
    world.time.run(10.0)
    claims.forget()
    store.heal()
    with pytest.raises(SessionExpired):
        world.wait(late)
    assert world.data("/consumers/g/ids/a-2") is not None
    world.wait(claims.register(Subscription.of("t"), 0))
    assert world.data("/consumers/g/ids/a-2") is None
    assert world.data("/consumers/g/ids/a-3") is not None


def test_a_topic_may_come_later_and_grow(world: World) -> None:
    world.zookeeper.put("/brokers/topics/t", b'{"version":1,"partitions":{}}')
    caller = Caller(world, "a")
    world.wait(caller.joined)
    assert not caller.heard
    world.zookeeper.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1]}}')
    world.time.run(0.5)
    assert caller.last_assigned() == {P0: None}
    world.zookeeper.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
    world.time.run(0.5)
    assert caller.last_assigned() == {P1: None}


def test_an_unreadable_offset_is_not_used(world: World) -> None:
    world.zookeeper.put("/consumers/g/offsets/t/0", b"rubbish")
    caller = Caller(world, "a", GroupSettings(max_retries=2))
    world.time.run(10.0)
    assert not caller.heard
    assert "offsets/t/0" in str(caller.failures[0])


def test_a_caller_that_fails_to_stop_is_not_waited_for(world: World) -> None:
    first = Caller(world, "a")
    world.wait(first.joined)
    first.stopping = Deferred()
    first.stopping.errback(RuntimeError("the caller's own fault"))
    second = Caller(world, "b")
    world.time.run(1.0)
    assert second.last_assigned() == {P1: None}


def test_a_lease_ends_before_a_session_may() -> None:
    time = SimulatedTime()
    lease = Lease(time, 10.0)
    assert not lease.holds
    lease.proven(time.seconds())
    time.run(10.0 * LEASE - 0.01)
    assert lease.holds
    time.run(0.02)
    assert not lease.holds
    assert LEASE + HEARTBEAT < 1


def test_the_table_of_states() -> None:
    """`MachineTable` checks itself when it is created; this test covers what only the table defines."""
    assert COORDINATOR.next(CoordinatorState.OWNING, Event.EXPIRED) is CoordinatorState.SURRENDERING
    with pytest.raises(UnexpectedEvent):
        COORDINATOR.next(CoordinatorState.LEAVING, Event.EXPIRED)
    with pytest.raises(UnexpectedEvent):
        COORDINATOR.next(CoordinatorState.OWNING, Event.REGISTERED)


TOPIC, TWO = "/brokers/topics/t", b'{"version":1,"partitions":{"0":[1],"1":[1]}}'


class TestDeletedTopics:
    """The offset nodes are named by topic, and outlive it."""

    def commits(self, world: World, offset: int = 1000) -> Caller:
        caller = Caller(world, "a")
        world.wait(caller.joined)
        world.wait(caller.coordinator.commit({P0: offset}))
        return caller

    def test_a_later_topic_of_that_name_has_no_offsets(self, world: World) -> None:
        caller = self.commits(world)
        world.wait(caller.coordinator.close())
        world.zookeeper.remove(TOPIC)
        world.zookeeper.put(TOPIC, TWO)
        assert world.data("/consumers/g/offsets/t/0") == b"1000"
        other = Caller(world, "b")
        world.wait(other.joined)
        assert other.last_assigned() == {P0: None, P1: None}
        assert world.wait(other.coordinator.committed([P0])) == {P0: None}
        world.wait(other.coordinator.commit({P0: 5}))
        world.wait(other.coordinator.close())
        third = Caller(world, "c")
        world.wait(third.joined)
        assert third.last_assigned() == {P0: 5, P1: None}

    def test_a_topic_that_is_there_as_before_keeps_them(self, world: World) -> None:
        world.wait(self.commits(world).coordinator.close())
        world.zookeeper.put(TOPIC, TWO)  # a write of its node is not a new topic
        other = Caller(world, "b")
        world.wait(other.joined)
        assert other.last_assigned() == {P0: 1000, P1: None}

    def test_a_consumer_that_reads_it_begins_anew(self, world: World) -> None:
        caller = self.commits(world)
        caller.coordinator.store_offsets({P0: 1001, P1: 7})
        world.zookeeper.remove(TOPIC)
        world.zookeeper.put(TOPIC, TWO)  # before the consumer has heard of the deletion
        late = caller.coordinator.commit({P0: 1002})  # newer than the topic's node
        world.time.run(1)
        assert result_of(late) is None
        revoked = caller.heard[-2]
        assert isinstance(revoked, Revoked)
        assert revoked.partitions == (P0, P1)
        assert caller.last_assigned() == {P0: None, P1: None}
        assert world.data("/consumers/g/offsets/t/0") is world.data("/consumers/g/offsets/t/1") is None
        world.wait(caller.coordinator.commit({P0: 3}))
        assert world.wait(caller.coordinator.committed([P0, P1])) == {P0: 3, P1: None}

    def test_offsets_of_a_deleted_topic_are_deleted(self, world: World) -> None:
        caller = self.commits(world)
        caller.coordinator.store_offsets({P0: 1001})
        world.zookeeper.remove(TOPIC)
        world.time.run(1)
        assert isinstance(caller.heard[-1], Revoked)
        assert caller.heard[-1].partitions == (P0, P1)
        assert world.data("/consumers/g/offsets/t/0") is None
        world.zookeeper.put(TOPIC, TWO)
        world.time.run(1)
        assert caller.last_assigned() == {P0: None, P1: None}

    def test_a_consumer_that_leaves_commits_nothing_for_another_topic(self, world: World) -> None:
        caller = self.commits(world)
        caller.coordinator.store_offsets({P0: 1001})
        world.zookeeper.remove(TOPIC)
        world.zookeeper.put(TOPIC, TWO)
        world.time.run(0.004)  # it has heard of it
        world.wait(caller.coordinator.close())
        assert world.data("/consumers/g/offsets/t/0") is None
