"""Commands beside a broker that accepts connections and does not answer: they show the others, and name this one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pylogd.cli.main import pylogd
from pylogd.cli.top_sample import Sampler
from pylogd.client import Admin, Cluster, NewTopic, Producer, TopicPartition
from tests.clusters import BrokerCluster

pytestmark = pytest.mark.timeout(300)
NODES = (1, 2, 3)
SETTINGS = {
    "zookeeper.session.timeout.ms": "120000",  # outlasts the test: the paused broker leads and coordinates on
    "offsets.topic.num.partitions": "6", "offsets.topic.replication.factor": "1",
}  # fmt: skip


def make_groups(admin: Admin, offset: int) -> dict[str, int]:
    """Commit an offset in each partition for groups, some of each broker. Return their coordinators."""
    for number in range(100):
        admin.alter_group_offsets(f"g{number}", {TopicPartition("t", index): offset for index in range(3)})
        found = {group.group_id: group.coordinator for group in admin.list_groups()}
        if sorted(set(found.values())) == list(NODES):
            return found
    raise AssertionError(f"one broker coordinates no group: {found}")


@pytest.fixture
def cluster(start_cluster: Callable[..., BrokerCluster]) -> BrokerCluster:
    """Three brokers. Broker N leads partition N - 1 of topic `t`, which has ten records in each partition."""
    made = start_cluster(settings=SETTINGS)
    with Admin(made.bootstrap) as admin:
        admin.create_topics([NewTopic("t", assignments={node - 1: [node] for node in NODES})])
    with Producer(made.bootstrap) as producer:
        for number in range(30):
            producer.send("t", b"%d" % number, partition=number % 3)
    return made


def test_commands_beside_a_broker_that_does_not_answer(cluster: BrokerCluster) -> None:
    def run(*arguments: str) -> Result:
        output = [] if "--output" in arguments else ["--output", "json"]
        command = [*arguments, *output, "--timeout", "3", "--bootstrap-server", cluster.bootstrap]
        return CliRunner().invoke(pylogd, command)

    with Admin(cluster.bootstrap) as admin:
        groups = make_groups(admin, 4)

    def described(result: Result) -> dict[str, list[tuple[int, int | None]]]:
        """Return for each group the committed offset and the lag of each partition."""
        return {
            group["group"]: [(row["committed"], row["lag"]) for row in group["offsets"]]
            for group in json.loads(result.stdout)
        }

    whole = run("groups", "describe", *groups)
    assert (whole.exit_code, described(whole)) == (0, {name: [(4, 6)] * 3 for name in groups}), whole.stderr
    everywhere = run("top", "--once", "--interval", "0.2")
    assert everywhere.exit_code == 0, everywhere.stderr

    cluster.pause(2)
    try:
        left = [name for name, node in groups.items() if node != 2]
        for arguments in ([*groups], ["--regex", "g.*"]):
            part = run("groups", "describe", *arguments)
            assert part.exit_code == 1
            assert described(part) == {name: [(4, 6), (4, None), (4, 6)] for name in left}
            assert part.stderr.endswith("left out, since they do not answer: brokers 2\n")
            totals = {(one["lag"], one["lag_unknown_partitions"]) for one in json.loads(part.stdout)}
            assert totals == {(12, 1)}
        table = run("groups", "describe", left[0], "--output", "table")
        assert "members, lag 12, 1 partition unknown\n" in table.stdout
        seen = run("top", "--once", "--interval", "0.2")
        assert seen.exit_code == 1
        assert seen.stderr.endswith("left out, since they do not answer: brokers 2\n")
        check_top(json.loads(seen.stdout), left)
    finally:
        cluster.resume(2)


def check_top(found: dict[str, Any], groups: list[str]) -> None:
    """Check what `top` shows without broker 2."""
    assert [(row["broker"], row["state"], row["bytes"] is None) for row in found["brokers"]] == [
        (1, "up", False), (2, "silent", True), (3, "up", False),
    ]  # fmt: skip
    assert {row["group"]: row["lag"] for row in found["groups"]} == dict.fromkeys(groups)
    [topic] = found["topics"]
    assert topic["partitions"] == 3 and topic["bytes"] > 0
    assert topic["records_per_second"] is None, "the end of one of its logs is not known"


def test_top_goes_on_when_the_broker_of_its_connection_stops_to_answer(cluster: BrokerCluster) -> None:
    """A client that gives up after the first request without an answer would raise."""
    first = cluster.bootstrap.partition(",")[0]
    with Cluster(first, request_timeout=15.0, retry_timeout=10.0) as connection, Admin(connection) as admin:
        sampler = Sampler(admin, 2.0)
        assert sampler.look().silent == []
        cluster.pause(1)
        try:
            found = sampler.look()
        finally:
            cluster.resume(1)
        assert found.silent == [1]
        assert [(row["broker"], row["state"]) for row in found.brokers] == [(1, "silent"), (2, "up"), (3, "up")]
        assert [row["topic"] for row in found.topics] == ["t"]
        assert sampler.look().silent == []


def test_a_connected_client_describes_groups_of_the_others(cluster: BrokerCluster) -> None:
    """The client has connections to all brokers when one of them stops to answer."""
    with Cluster(cluster.bootstrap, request_timeout=3.0) as connection, Admin(connection) as admin:
        groups = make_groups(admin, 4)
        assert admin.describe_groups(groups).silent == ()
        cluster.pause(3)
        try:
            found = admin.describe_groups(groups, timeout=2.0)
            assert {*found.groups} == {name for name, node in groups.items() if node != 3}
            assert found.silent == (3,)
            known = {TopicPartition("t", 0): 10, TopicPartition("t", 1): 10}
            assert found.ends == known
            ends = admin.log_ends([TopicPartition("t", index) for index in range(3)], timeout=2.0)
            assert (ends.ends, ends.silent) == (known, (3,))
        finally:
            cluster.resume(3)
