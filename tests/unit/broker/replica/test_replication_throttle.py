"""Throttled replication, and the choice of a replica near the reader."""

from __future__ import annotations

import pytest

from pylogd.broker.metadata.image import Broker, Endpoint
from pylogd.broker.replica.followers import Follower
from pylogd.broker.replica.replication_throttle import ReplicationQuota, is_throttled
from pylogd.broker.replica.selector import NO_PREFERENCE, RackAwareSelector


def test_an_allowance_grows_with_the_time_to_one_second() -> None:
    now = [0.0]
    quota = ReplicationQuota(lambda: 1000, lambda: now[0])
    assert not quota.exceeded
    quota.record(3000)
    assert quota.exceeded
    assert quota.wait == pytest.approx(2.0)
    now[0] = 1.9
    assert quota.exceeded
    now[0] = 2.1
    assert not quota.exceeded
    assert quota.wait == 0.0
    now[0] = 100.0
    quota.record(1001)
    assert quota.exceeded


@pytest.mark.parametrize(
    ("listed", "held"),
    [((), False), (("*",), True), (("3:2",), True), (("3:1", "2:2"), False), (("3:1", "3:2"), True)],
)
def test_which_replicas_are_meant(listed: tuple[str, ...], held: bool) -> None:
    assert is_throttled(listed, 3, 2) == held


class Led:
    """A partition as the selector sees it."""

    node_id = 1
    isr = (1, 2, 3)

    def __init__(self) -> None:
        self.followers = {node: Follower(0.0) for node in (2, 3, 4)}
        for node, end in ((2, 10), (3, 20), (4, 30)):
            self.followers[node].fetched(end, 5, 30, 0.0)


@pytest.mark.parametrize(
    ("rack", "offset", "preferred"),
    [
        ("a", 7, NO_PREFERENCE),  # the leader's own rack
        ("b", 7, 3),  # both have the offset: the one with the most records
        ("b", 15, 3),
        ("b", 25, NO_PREFERENCE),  # no follower has it yet
        ("b", 4, NO_PREFERENCE),  # no follower has it any more
        ("c", 7, NO_PREFERENCE),  # its only replica is not in sync
        ("d", 7, NO_PREFERENCE),
    ],
)
def test_a_consumer_is_sent_to_its_rack(rack: str, offset: int, preferred: int) -> None:
    racks = {1: "a", 2: "b", 3: "b", 4: "c"}
    brokers = {node: Broker(node, (Endpoint("PLAINTEXT", "h", node),), at) for node, at in racks.items()}
    selector = RackAwareSelector(lambda: brokers)
    assert selector.preferred(Led(), rack, offset) == preferred  # type: ignore[arg-type]
    del brokers[3]
    assert selector.preferred(Led(), "b", 7) == 2  # type: ignore[arg-type]
