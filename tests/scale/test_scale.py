"""What happens to a cluster of a dozen brokers: the small version of RESULTS.md."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.scale import scenarios
from tests.scale.cluster import LargeCluster
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


def test_a_rolling_restart_leaves_no_partition_without_a_leader() -> None:
    brokers = cluster(9)
    cost = scenarios.a_rolling_restart(brokers, 9)
    assert cost.led < 0.1
    assert brokers.all_in_sync()
    found = brokers.controller()
    assert found is not None and len(found.metadata.cluster.brokers) == 9


def test_a_death_costs_the_same_reads_however_many_topics_there_are() -> None:
    few, many = (scenarios.a_broker_dies(cluster(9, topics)) for topics in (20, 200))
    assert (many.reads, many.writes, many.events) == (few.reads, few.writes, few.events)


def test_an_election_of_zookeeper_costs_the_same_reads_however_many_topics_there_are() -> None:
    few, many = (scenarios.zookeeper_elects(cluster(9, topics)) for topics in (20, 200))
    assert many.reads == few.reads
    assert many.reads <= 9 * 6


def test_a_death_costs_each_broker_the_same_reads_however_many_brokers_there_are() -> None:
    few, many = scenarios.a_broker_dies(cluster(8)), scenarios.a_broker_dies(cluster(24))
    assert many.reads / 23 <= few.reads / 7 + 1
