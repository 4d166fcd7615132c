"""What happens to a cluster of a dozen brokers: the small version of RESULTS.md."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from xml.etree import ElementTree

import pytest

from pylogd.broker.controller.election import AT_ONCE
from pylogd.broker.replica.isr_updater import RETRY_SECONDS
from tests.scale import clients, scenarios
from tests.scale.__main__ import measure
from tests.scale.cluster import LargeCluster
from tests.scale.page import charts, page
from tests.scale.scenarios import Cost
from tests.scale.store import Latencies

_TOPICS, _EACH = 40, 8
#: Within which every partition has to be led again, in simulated seconds: most of it is the session's timeout.
_LED_SECONDS = 6.0


def cluster(count: int, topics: int = _TOPICS) -> LargeCluster:
    return scenarios.started(LargeCluster(count, topics, topics * _EACH, Latencies()))


@pytest.mark.parametrize("happens", [
    scenarios.a_broker_dies, scenarios.the_controller_dies, scenarios.a_rack_dies, scenarios.zookeeper_elects,
])  # fmt: skip
def test_every_partition_is_led_again_and_every_broker_knows(happens: Callable[[LargeCluster], Cost]) -> None:
    brokers = cluster(12)
    cost = happens(brokers)
    assert cost.known <= _LED_SECONDS
    assert brokers.led() and brokers.all_know()


def test_a_scenario_begins_with_all_brokers_alive_and_in_sync() -> None:
    brokers = cluster(6)
    killed = set()
    for _ in range(6):  # without the others' return, none would be left, and before that partitions without a leader
        found = brokers.controller()
        assert found is not None
        killed.add(found.node_id)
        assert scenarios.the_controller_dies(brokers).led <= _LED_SECONDS
        assert len(brokers.live()) == 5
    assert len(killed) > 1
    scenarios.make_whole(brokers)
    assert len(brokers.live()) == 6 and brokers.all_in_sync()


def test_the_brokers_of_a_rack_return_together() -> None:
    brokers = cluster(9)
    scenarios.a_rack_dies(brokers)
    assert len(brokers.live()) == 6
    scenarios.make_whole(brokers)
    assert len(brokers.live()) == 9 and brokers.all_in_sync()


def test_leaders_that_write_to_the_same_topics_at_once_get_out_of_each_others_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a wait before the next attempt, half of 525 writes are refused, and some leaders give up for a second."""
    monkeypatch.setattr("tests.scale.cluster.CATCH_UP_SECONDS", 0.05)
    monkeypatch.setattr("tests.scale.scenarios.CATCH_UP_SECONDS", 0.05)
    cost = scenarios.a_rack_returns(cluster(24, 60))
    assert cost.in_sync < RETRY_SECONDS
    assert cost.refused <= cost.writes / 3


def test_a_rolling_restart_leaves_no_partition_without_a_leader() -> None:
    brokers = cluster(9)
    cost = scenarios.a_rolling_restart(brokers, 9)
    assert cost.led < 0.1
    assert brokers.all_in_sync()
    found = brokers.controller()
    assert found is not None and len(found.metadata.cluster.brokers) == 9


def test_a_broker_that_restarts_costs_others_reads_for_each_leader_that_readmits_it() -> None:
    few, many = (scenarios.a_rolling_restart(cluster(9, topics), 3) for topics in (20, 200))
    assert many.reads <= 3 * few.reads  # not ten times as many


@contextmanager
def counted_calls() -> Iterator[Callable[[], float]]:
    """Yield a function that returns how many functions were called until now: as often in each run, unlike seconds."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield lambda: calls
    finally:
        sys.setprofile(before)


def test_clients_are_answered_from_encoded_pieces() -> None:
    brokers = cluster(9, 200)
    with counted_calls() as worked:
        found = clients.answers(brokers, lambda: scenarios.a_broker_dies(brokers), worked)
    assert found.bytes > 200 * _EACH * 30 and found.named_bytes < found.bytes / 10
    assert found.again < found.changed < found.first / 4
    assert found.named < found.first / 10


def test_the_page_has_each_size_and_its_plots() -> None:
    sizes = [measure(count, slowness=0) for count in (6, 9)]  # with the same history each time
    text = "\n".join(page(sizes))
    assert text.count("\n| 9 | ") == 1 + len(sizes[0].costs) + 1
    assert "at every size" in text
    for name, chart in charts(sizes).items():
        assert f"({name})" in text
        ElementTree.fromstring(chart)


def test_a_death_costs_the_same_reads_however_many_topics_there_are() -> None:
    few, many = (scenarios.a_broker_dies(cluster(9, topics)) for topics in (20, 200))
    assert (many.reads, many.writes, many.events) == (few.reads, few.writes, few.events)


def test_few_brokers_of_a_large_cluster_try_to_become_the_controller() -> None:
    few, many = scenarios.the_controller_dies(cluster(AT_ONCE)), scenarios.the_controller_dies(cluster(100))
    assert few.writes == AT_ONCE - 1 + 1  # each tries, and the decisions are written
    assert many.writes <= 20
    assert many.known <= few.known + 0.1


def test_an_election_of_zookeeper_costs_the_same_reads_however_many_topics_there_are() -> None:
    few, many = (scenarios.zookeeper_elects(cluster(9, topics)) for topics in (20, 200))
    assert many.reads == few.reads
    assert many.reads <= 9 * 6


def test_a_death_costs_each_broker_the_same_reads_however_many_brokers_there_are() -> None:
    few, many = scenarios.a_broker_dies(cluster(8)), scenarios.a_broker_dies(cluster(24))
    assert many.reads / 23 <= few.reads / 7 + 1
