"""Which clients are forgotten if too many ask for subscriptions."""

from __future__ import annotations

from pylogd.base.limits.shares import Share
from pylogd.broker.telemetry.instances import Instances
from pylogd.broker.telemetry.subscriptions import ClientIdentity, Wanted

WANTED = Wanted((), 60_000)


def client(number: int, share: Share) -> ClientIdentity:
    """Return a client with this number as its instance id."""
    return ClientIdentity(number.to_bytes(16, "big"), "c", ("", ""), "10.0.0.1", 1, share)


def test_who_has_most_instances_loses_one_and_nobody_else_does() -> None:
    forgotten: list[int] = []
    instances = Instances(lambda key: forgotten.append(int.from_bytes(key, "big")), most=10)
    alice = Share("User:alice", True)
    for number in range(3):
        instances.find(client(number, alice), 1.0, 1, lambda _: WANTED)
    for number in range(100, 200):
        instances.find(client(number, Share(f"10.0.0.{number % 50}", False)), 1.0, 1, lambda _: WANTED)
    assert len(instances) == 10 and min(forgotten) == 100
    instances.find(client(0, alice), 2.0, 1, lambda _: WANTED)
    for number in range(200, 220):
        instances.find(client(number, Share("User:bob", True)), 3.0, 1, lambda _: WANTED)
    assert {one.client.share.name for one in instances} >= {"User:alice"} and 0 not in forgotten


def test_nothing_is_left_of_clients_that_were_forgotten() -> None:
    instances = Instances(lambda key: None, most=10)
    instances.find(client(1, Share("a", False)), 1.0, 1, lambda _: WANTED)
    instances.sweep(1e6)
    assert not len(instances) and not len(instances._places)
