"""Whatever happens to a group of consumers: no partition is read by two of them, nothing is lost, it becomes stable.

The members, networks and ZooKeeper of the group are simulated, with late and reordered events, stale reads, processes
that pause or stop for ever, connections that break during a write, and sessions that end without notice.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylogd.client.core.model import TopicPartition
from pylogd.client.zookeeper.assignment import cut, share_of, stream_name
from pylogd.client.zookeeper.coordinator import GroupSettings
from pylogd.client.zookeeper.registries import Subscription
from tests.fakes.consumers import Pace, SimulatedConsumer, SimulatedGroup

#: Seconds of simulated time within which a group is stable after the last fault: the session of a lost member
#: must end (6 s), and then a few rounds of at most half a second a message follow (25 s at most in 4,000 runs).
SETTLES_WITHIN = 60.0

SUBSCRIPTIONS = [
    Subscription.of("a"),
    Subscription.of({"a": 2}),
    Subscription.of({"a": 1, "b": 2}),
    Subscription.of(re.compile("[ab]")),
]

HAPPENINGS = st.one_of(
    st.tuples(st.just("join"), st.sampled_from(SUBSCRIPTIONS)),
    st.tuples(st.just("leave"), st.integers(0, 50)),
    st.tuples(st.just("crash"), st.integers(0, 50)),
    st.tuples(st.just("freeze"), st.integers(0, 50)),
    st.tuples(st.just("cut"), st.integers(0, 50), st.floats(0.0, 5.0)),
    st.tuples(st.just("expire"), st.integers(0, 50)),
    st.tuples(st.just("heal"), st.integers(0, 50)),
    st.tuples(st.just("grow"), st.sampled_from("ab"), st.integers(1, 5)),
    st.tuples(st.just("brokers")),
    st.tuples(st.just("wait"), st.floats(0.0, 8.0)),
    st.tuples(st.just("wait"), st.floats(0.0, 0.3)),
)


def happen(group: SimulatedGroup, what: str, *details: Any) -> None:
    """Run one of HAPPENINGS."""
    if what == "join":
        group.join(details[0])
    elif what == "grow":
        group.set_partitions(details[0], group.topics.get(details[0], 0) + details[1])
    elif what == "brokers":
        group.change_brokers()
    elif what == "wait":
        group.time.run(details[0])
    elif group.living:
        consumer = group.living[details[0] % len(group.living)]
        if what == "leave":
            consumer.leave()
        elif what == "crash":
            consumer.store.crash()
        elif what == "freeze":
            consumer.process.freeze()
            consumer.store.cut(0.0)
        elif what == "cut":
            consumer.store.cut(details[1])
        elif what == "expire":
            consumer.store.expire()
        else:
            consumer.process.thaw()
            consumer.store.heal()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), happenings=st.lists(HAPPENINGS, min_size=5, max_size=40))
def test_no_two_fetch_the_same_and_it_settles(seed: int, happenings: list[tuple[Any, ...]]) -> None:
    rng = random.Random(seed)
    pace = Pace(hop=rng.choice([0.002, 0.05, 0.5]), lag=rng.choice([0.0, 0.5, 2.0]), stopping=rng.choice([0.0, 0.3, 3]))
    group = SimulatedGroup(rng, pace)
    group.set_partitions("a", 7)
    for subscription in SUBSCRIPTIONS[:2]:
        group.join(subscription)
    for what, *details in happenings:
        happen(group, what, *details)
        group.time.run(rng.uniform(0, 0.5))
        group.check()
    group.heal()
    group.run_until(group.settled, SETTLES_WITHIN)
    group.time.run(5.0)  # for messages that are still late
    group.run_until(group.settled, 5.0)
    group.check()


@given(st.sets(st.integers(0, 300), max_size=100), st.sets(st.text(max_size=3), max_size=30))
def test_shares_are_disjoint_complete_and_even(partitions: set[int], streams: set[str]) -> None:
    shares = cut(partitions, streams)
    assert set(shares) == streams
    everything = [partition for share in shares.values() for partition in share]
    assert sorted(everything) == (sorted(partitions) if streams else [])
    sizes = [len(share) for share in shares.values()]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert everything == [partition for stream in sorted(streams) for partition in shares[stream]]


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 20)),
    st.dictionaries(st.text("xy", min_size=1), st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3)), max_size=9),
)
def test_consumers_divide_what_they_subscribe_to(topics: dict[str, int], members: dict[str, dict[str, int]]) -> None:
    partitions = {topic: range(count) for topic, count in topics.items()}
    shares = {name: share_of(name, partitions, members) for name in members}
    owned = [partition for share in shares.values() for partition in share]
    wanted = {topic for subscribed in members.values() for topic in subscribed} & topics.keys()
    assert len(owned) == len(set(owned))
    assert set(owned) == {TopicPartition(topic, index) for topic in wanted for index in partitions[topic]}
    for name, share in shares.items():
        assert all(0 <= stream < members[name][p.topic] for p, stream in share.items())
        assert len({stream_name(name, stream) for stream in share.values()}) <= sum(members[name].values())


def test_a_hundred_consumers_of_a_thousand_partitions_settle_within_two_seconds() -> None:
    rng = random.Random(20261121)
    group = SimulatedGroup(rng, Pace(hop=0.02, lag=0.1, stopping=0.1, work=5.0), GroupSettings())
    group.set_partitions("a", 1000)

    def leave(consumers: list[SimulatedConsumer]) -> None:
        for consumer in consumers:
            consumer.leave()

    changes: dict[str, Callable[[], object]] = {
        "100 join": lambda: [group.join(SUBSCRIPTIONS[0]) for _ in range(100)],
        "one joins": lambda: group.join(SUBSCRIPTIONS[0]),
        "one leaves": lambda: leave(group.living[50:51]),
        "ten leave": lambda: leave(group.living[10:60:5]),
        "200 partitions more": lambda: group.set_partitions("a", 1200),
    }
    for name, change in changes.items():
        before = group.zookeeper.operations
        change()
        took = group.run_until(group.settled, 2.0)
        print(f"{name}: settled after {took:.2f} s, {group.zookeeper.operations - before} operations")
    for consumer in group.living[:5]:
        consumer.store.crash()
    sessions = [consumer.store.session_id for consumer in group.consumers if consumer.process.dead]
    group.run_until(lambda: not set(sessions) & group.zookeeper.leader.sessions.keys(), 6.1)
    group.run_until(group.settled, 2.0)
    group.check()
    # After a change, each consumer reads what changed; if its share did, it also releases, claims and reads the
    # offsets.
    assert group.zookeeper.operations < 40_000
