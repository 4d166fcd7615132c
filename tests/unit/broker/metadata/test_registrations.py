"""Registrations are followed with few reads, and none is missed: also one that replaces another of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.broker.metadata.image import Broker, Endpoint
from pylogd.broker.metadata.layout import encode_broker
from pylogd.broker.metadata.registrations import Registrations, announcement
from pylogd.store.interfaces import Create, Delete, Node, Operation, SetData, Watch, WatchEvent
from pylogd.store.paths import BROKERS, PARENTS, REGISTRATIONS
from pylogd.store.sqlite import SqliteStore
from tests.fakes.metadata import result_of


class Counting:
    """A store that counts the nodes that are read, and keeps the events of watches until they are asked for."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.read: list[str] = []
        self._events: list[tuple[Watch, WatchEvent]] = []

    def _later(self, watch: Watch | None) -> Watch | None:
        return None if watch is None else lambda event: self._events.append((watch, event))

    def deliver(self) -> None:
        """Deliver the events."""
        events, self._events = self._events, []
        for watch, event in events:
            watch(event)

    def get(self, path: str, watch: Watch | None = None) -> Deferred[Node]:
        self.read.append(path)
        return self._store.get(path, self._later(watch))

    def get_many(self, paths: Sequence[str]) -> Deferred[Sequence[Node | None]]:
        self.read += paths
        return self._store.get_many(paths)

    def children(self, path: str, watch: Watch | None = None) -> Deferred[Sequence[str]]:
        self.read.append(path)
        return self._store.children(path, self._later(watch))

    def children_data(self, path: str) -> Deferred[Mapping[str, Node]]:
        def note(found: Mapping[str, Node]) -> Mapping[str, Node]:
            self.read += [f"{path}/{name}" for name in found]
            return found

        return self._store.children_data(path).addCallback(note)


class Cluster:
    """A store, and what follows the registrations in it."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        for path in PARENTS:
            result_of(store.ensure(path))
        self.counting = Counting(store)
        self.news = 0
        self.registrations = Registrations(self.counting, self._changed)  # type: ignore[arg-type]

    def _changed(self) -> None:
        self.news += 1

    def write(self, *operations: Operation) -> None:
        """Write, all or nothing."""
        result_of(self.store.multi(operations))

    def register(self, node: int, host: str = "a", announced: bool = True) -> None:
        """Register a broker, which replaces an earlier registration of its id."""
        path, broker = f"{BROKERS}/{node}", Broker(node, (Endpoint("PLAINTEXT", host, 1),), announced=announced)
        gone: list[Operation] = [] if result_of(self.store.exists(path)) is None else [Delete(path)]
        self.write(*gone, Create(path, encode_broker(broker)), *([announcement(node)] if announced else []))

    def follow(self) -> list[str]:
        """Deliver what watches have seen, follow it, and return what was read."""
        self.counting.read, self.news = [], 0
        self.counting.deliver()
        if self.news:
            result_of(self.registrations.follow())
        return self.counting.read

    def hosts(self) -> dict[int, str]:
        """Return the host of each broker."""
        return {node: one.broker.host for node, one in self.registrations.found.items()}


@pytest.fixture
def cluster(store: SqliteStore) -> Cluster:
    made = Cluster(store)
    for node in range(1, 11):
        made.register(node)
    result_of(made.registrations.read_all())
    return made


def test_a_registration_costs_one_read_of_it_however_many_there_are(cluster: Cluster) -> None:
    cluster.register(11, "b")
    assert cluster.follow() == [REGISTRATIONS, BROKERS, f"{BROKERS}/11"]
    assert cluster.hosts()[11] == "b" and len(cluster.hosts()) == 11


def test_the_end_of_a_registration_costs_no_read_of_others(cluster: Cluster) -> None:
    cluster.write(Delete(f"{BROKERS}/3"))
    assert cluster.follow() == [BROKERS]
    assert 3 not in cluster.hosts() and len(cluster.hosts()) == 9
    cluster.write(Delete(f"{BROKERS}/4"), Delete(f"{BROKERS}/5"))
    cluster.follow()
    assert sorted(cluster.hosts()) == [1, 2, 6, 7, 8, 9, 10]


def test_a_registration_that_replaces_another_of_the_same_name_is_seen(cluster: Cluster) -> None:
    before = cluster.registrations.found[3].broker.incarnation
    cluster.register(3, "b")
    assert f"{BROKERS}/3" in cluster.follow()
    found = cluster.registrations.found[3].broker
    assert found.host == "b" and found.incarnation > before


def test_a_registration_is_seen_if_its_event_comes_after_that_of_the_children(cluster: Cluster) -> None:
    cluster.write(Delete(f"{BROKERS}/4"))
    cluster.register(3, "b")
    events, cluster.counting._events = cluster.counting._events, []
    (late,) = [one for one in events if one[1].path == REGISTRATIONS]
    cluster.counting._events = [one for one in events if one is not late]
    assert REGISTRATIONS not in cluster.follow()
    cluster.counting._events.append(late)
    assert REGISTRATIONS in cluster.follow()
    assert cluster.hosts()[3] == "b"


def test_one_that_is_not_announced_is_read_with_every_change_of_the_children(cluster: Cluster) -> None:
    cluster.register(3, "old release", announced=False)
    cluster.follow()
    assert cluster.hosts()[3] == "old release"
    cluster.register(3, "old release, again", announced=False)
    assert cluster.follow() == [BROKERS, f"{BROKERS}/3"]
    assert cluster.hosts()[3] == "old release, again"


def test_after_several_registrations_at_once_all_are_read(cluster: Cluster) -> None:
    cluster.register(3, "b")
    cluster.register(11, "c")
    cluster.register(4, "d")
    cluster.write(Delete(f"{BROKERS}/4"), Delete(f"{BROKERS}/5"))
    cluster.follow()
    expected = dict.fromkeys((1, 2, 6, 7, 8, 9, 10), "a") | {3: "b", 11: "c"}
    assert cluster.hosts() == expected


def test_after_all_were_read_a_lost_connection_costs_no_read_of_them(cluster: Cluster) -> None:
    cluster.register(3, "b")
    cluster.register(11, "c")
    assert len(cluster.follow()) > 10
    cluster.registrations.lose_watches()
    cluster.counting.read = []
    result_of(cluster.registrations.follow())
    assert cluster.counting.read == [REGISTRATIONS, BROKERS]


@pytest.mark.parametrize("data", [b"", b"{}", b"not JSON"])
def test_all_are_read_if_the_announcement_is_not_readable(cluster: Cluster, data: bytes) -> None:
    cluster.write(SetData(REGISTRATIONS, data), SetData(f"{BROKERS}/3", encode_broker(_elsewhere(3))))
    assert len(cluster.follow()) > 10
    assert cluster.hosts()[3] == "elsewhere"


def test_a_broker_that_is_gone_before_it_is_read_is_none(cluster: Cluster) -> None:
    cluster.register(11)
    cluster.write(Delete(f"{BROKERS}/11"))
    cluster.follow()
    assert 11 not in cluster.hosts()


def test_new_watches_are_set_when_the_old_ones_are_lost(cluster: Cluster) -> None:
    cluster.counting._events.clear()
    cluster.registrations.lose_watches()
    result_of(cluster.registrations.read_all())
    cluster.register(12)
    cluster.follow()
    assert 12 in cluster.hosts()


def test_after_a_lost_connection_only_changes_are_read(cluster: Cluster) -> None:
    for changed in ([], [11]):
        cluster.counting._events.clear()
        cluster.registrations.lose_watches()
        for node in changed:
            cluster.register(node)
        cluster.counting.read = []
        result_of(cluster.registrations.follow())
        assert cluster.counting.read == [REGISTRATIONS, BROKERS, *(f"{BROKERS}/{node}" for node in changed)]
    assert len(cluster.hosts()) == 11


def test_a_registration_that_cannot_be_read_is_left_out_until_it_can(cluster: Cluster) -> None:
    cluster.write(Create(f"{BROKERS}/11", b"damaged"), Create(f"{BROKERS}/name", b"{}"))
    cluster.follow()
    assert len(cluster.hosts()) == 10
    cluster.write(SetData(f"{BROKERS}/11", encode_broker(_elsewhere(11))))
    result_of(cluster.registrations.read(["11"]))
    assert cluster.hosts()[11] == "elsewhere"


def test_of_all_that_is_read_again_only_what_has_changed_is_decoded(cluster: Cluster) -> None:
    before = dict(cluster.registrations.found)
    cluster.register(3, "another session's")
    cluster.write(SetData(f"{BROKERS}/5", encode_broker(_elsewhere(5))), SetData(f"{BROKERS}/6", b"damaged"))
    cluster.write(Delete(f"{BROKERS}/7"))
    result_of(cluster.registrations.read_all())
    found = cluster.registrations.found
    assert cluster.hosts() == dict.fromkeys((1, 2, 4, 8, 9, 10), "a") | {3: "another session's", 5: "elsewhere"}
    assert {node for node, one in found.items() if one is before[node]} == {1, 2, 4, 8, 9, 10}


def _elsewhere(node: int) -> Any:
    return Broker(node, (Endpoint("PLAINTEXT", "elsewhere", 1),))
