"""What happens to a large cluster: a broker dies, a rack dies, a rolling restart, ZooKeeper elects a leader.

Each scenario begins with a whole cluster (`make_whole`), so that it can follow any other one, and returns what it cost.
Times are simulated seconds; `controller` and `other` are real processor time of one broker's code on the machine that
runs the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pylogd.broker.replica.isr_updater import RETRY_SECONDS
from tests.scale.cluster import CATCH_UP_SECONDS, LargeCluster, rack_of

_START_SECONDS: Final = 600.0
_SETTLE_SECONDS: Final = 300.0
_ELECTION_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a scenario cost.

    led: seconds until every partition has a live leader. leading: until each leader knows what it leads. known: until
    every broker knows. reads (of nodes), requests (to read), writes, refused (of these, since another broker had
    written), events (of watches), bytes (that were read): at ZooKeeper. largest: bytes of the largest write.
    controller, other: processor seconds of the controller, and of the median of the other brokers. in_sync: seconds
    until all replicas are in sync, if that was waited for.
    """

    led: float
    leading: float
    known: float
    reads: int
    requests: int
    writes: int
    refused: int
    events: int
    bytes: int
    largest: int
    controller: float
    other: float
    in_sync: float = 0.0


def started(cluster: LargeCluster, seeded: bool = False) -> LargeCluster:
    """Start all brokers, and return when they know each other and every partition's leader.

    seeded: only the first one reads the topics; the others are given what it has.
    """
    nodes = range(1, cluster.count + 1)
    if seeded:
        cluster.start(nodes[:1])
        cluster.run(cluster.all_registered, _START_SECONDS)
        cluster.start(nodes[1:], cluster.members[1])
    else:
        cluster.start(nodes)
    cluster.run(cluster.all_registered, _START_SECONDS)
    cluster.elect()
    cluster.run(lambda: cluster.all_ready() and cluster.all_know(), _START_SECONDS)
    for member in cluster.live():
        vars(member.metadata.topics).pop("reload", None)  # from now on a seeded broker reads for itself
    assert cluster.all_in_sync()
    cluster.wait(1)
    return cluster


def make_whole(cluster: LargeCluster) -> float:
    """Start the brokers that an earlier scenario killed, and wait until all replicas are in sync again.

    Returns after how many seconds all were accepted, and known to all.
    """
    missing = [node for node, member in cluster.members.items() if not member.alive]
    cluster.start(missing)
    return _settle(cluster, missing)


def a_broker_dies(cluster: LargeCluster) -> Cost:
    """Kill a broker that is not the controller."""

    def kill() -> None:
        cluster.members[_other_than_controller(cluster)].kill()

    return _after(cluster, kill)


def the_controller_dies(cluster: LargeCluster) -> Cost:
    """Kill the controller."""

    def kill() -> None:
        found = cluster.controller()
        assert found is not None
        found.kill()

    return _after(cluster, kill)


def a_rack_dies(cluster: LargeCluster) -> Cost:
    """Kill all brokers of the controller's rack, which is the worst case. Each partition has replicas in others."""

    def kill() -> None:
        found = cluster.controller()
        assert found is not None
        for member in cluster.live():
            if rack_of(member.node_id) == rack_of(found.node_id):
                member.kill()

    return _after(cluster, kill)


def a_rack_returns(cluster: LargeCluster) -> Cost:
    """Start all brokers of a rack that has died, at once. Leaders write them into their in-sync sets within a second.

    Returns in `known` when all were accepted and known to all, and in `in_sync` when all replicas were in sync again.
    """
    if len(cluster.live()) == cluster.count:
        a_rack_dies(cluster)
    cluster.reset()
    begun = cluster.time.now
    known = make_whole(cluster)
    return replace(_cost(cluster, 0.0, 0.0, known), in_sync=cluster.time.now - begun)


def zookeeper_elects(cluster: LargeCluster) -> Cost:
    """Take the store away from all brokers for as long as an election of its servers takes; no session ends."""

    def cut() -> None:
        for member in cluster.live():
            member.store.cut()
        cluster.server_clock.callLater(_ELECTION_SECONDS, heal)

    def heal() -> None:
        for member in cluster.live():
            member.store.heal()

    return _after(cluster, cut, lambda: all(member.store.up for member in cluster.live()))


def a_rolling_restart(cluster: LargeCluster, brokers: int) -> Cost:
    """Stop brokers one after the other, start each again, and go on when its replicas are in sync.

    Returns the counts and costs for one broker on average; `led` and `known` are the longest.
    """
    make_whole(cluster)
    cluster.reset()
    longest = 0.0
    for node in range(1, brokers + 1):
        longest = max(longest, _restart(cluster, node))
        _settle(cluster, [node])
    all_together = _cost(cluster, longest, longest, longest)
    each = {
        name: round(getattr(all_together, name) / brokers)
        for name in ("reads", "requests", "writes", "refused", "events", "bytes")
    }
    return replace(
        all_together, **each, controller=all_together.controller / brokers, other=all_together.other / brokers
    )


def _restart(cluster: LargeCluster, node: int) -> float:
    """Stop a broker and start it again; return how long its partitions were without a leader."""
    stopped = cluster.members[node].stop()
    cluster.run(lambda: bool(stopped.called), _SETTLE_SECONDS)
    unled = cluster.run(cluster.led, _SETTLE_SECONDS)
    cluster.start([node])
    return unled


def _settle(cluster: LargeCluster, started: Iterable[int]) -> float:
    """Wait until brokers that were started are ready and known to all, and all their replicas in sync.

    Returns how long the first of these took.
    """
    known = cluster.run(lambda: cluster.all_ready() and cluster.all_know(), _SETTLE_SECONDS)
    given_up = cluster.time.now + _SETTLE_SECONDS
    while not cluster.all_in_sync():
        assert cluster.time.now < given_up, "not all replicas are in sync"
        cluster.readmit(started)
        again = cluster.time.now + CATCH_UP_SECONDS + RETRY_SECONDS  # what was refused is proposed again
        cluster.run(partial(_in_sync_or_late, cluster, again), _SETTLE_SECONDS)
    return known


def _in_sync_or_late(cluster: LargeCluster, late: float) -> bool:
    return cluster.all_in_sync() or cluster.time.now >= late


def _after(cluster: LargeCluster, happens: Callable[[], object], and_then: Callable[[], bool] = lambda: True) -> Cost:
    """Return what it cost a whole cluster until every partition was led, and every broker knew, again."""
    make_whole(cluster)
    cluster.reset()
    happens()
    led = cluster.run(lambda: and_then() and cluster.led(), _SETTLE_SECONDS)
    leading = led + cluster.run(cluster.leaders_know, _SETTLE_SECONDS)
    known = leading + cluster.run(cluster.all_know, _SETTLE_SECONDS)
    return _cost(cluster, led, leading, known)


def _cost(cluster: LargeCluster, led: float, leading: float, known: float) -> Cost:
    counts = cluster.server.counts
    return Cost(
        led, leading, known, counts["reads"], counts["requests"], counts["writes"], counts["refused"],
        counts["events"], counts["bytes"], cluster.server.largest, *cluster.processor(),
    )  # fmt: skip


def _other_than_controller(cluster: LargeCluster) -> int:
    found = cluster.controller()
    return next(member.node_id for member in cluster.live() if member is not found)
