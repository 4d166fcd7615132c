"""No replica leaves its label: real brokers are killed, topics created, moved to another label, and expanded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client import Admin, NewTopic, Producer
from tests.clusters import PATIENCE_SECONDS, BrokerCluster
from tests.commands import Outcome, run_command

StartCluster = Callable[..., BrokerCluster]
ONLINE, LOGS = {1, 2, 3}, {4, 5}


class Labelled:
    """Brokers 1 to 3 with the label `online`, in three racks, 4 and 5 with `logs`; and what clients see of them."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.cluster = cluster

    def run(self, *words: str, ok: bool = True, text: str = "") -> Outcome:
        """Run a command of `pylogd`."""
        done = run_command(*words, "-b", self.cluster.bootstrap, stdin=text)
        assert (done.returncode == 0) is ok, done.stderr
        return done

    def create(self, name: str, label: str, partitions: int = 6, factor: int = 2) -> KafkaError | None:
        new = NewTopic(name, partitions, factor, {"placement.label": label})
        return self.cluster.ask(lambda admin: admin.create_topics([new]))[name]

    def nodes(self, name: str) -> set[int]:
        """Return the brokers that have, or will have, replicas of a topic."""

        def ask(admin: Admin) -> set[int]:
            moving = admin.reassignments()
            found = set()
            for one in admin.describe_topic(name).partitions:
                move = moving.get((name, one.index))  # type: ignore[call-overload]
                found |= set(one.replicas) - set(move.removing if move is not None else ())
            return found

        return self.cluster.ask(ask)

    def fill(self, name: str, count: int, size: int) -> None:
        with Producer(self.cluster.bootstrap) as producer:
            for number in range(count):
                producer.send(name, bytes(size), partition=number % 4)


@pytest.fixture
def labelled(start_cluster: StartCluster) -> Iterator[Labelled]:
    settings = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}
    racks, labels = ["a", "b", "c", "a", "b"], ["online", "online", "online", "logs", "logs"]
    yield Labelled(start_cluster(5, settings, racks, labels=labels))


def test_brokers_of_a_label_are_killed(labelled: Labelled) -> None:
    cluster = labelled.cluster
    assert labelled.create("t", "online") is None
    assert labelled.create("l", "logs") is None
    assert labelled.create("free", "", partitions=10) is None
    cluster.wait_for_isr("t", 2)
    assert (labelled.nodes("t"), labelled.nodes("l"), labelled.nodes("free")) == (ONLINE, LOGS, ONLINE | LOGS)
    for node in (1, 2):
        cluster.kill(node)
    cluster.wait_for_brokers([3, 4, 5])
    cluster.until(
        lambda: all(one.leader in (3, -1) for one in cluster.partitions("t")),
        "that only broker 3 leads partitions of t",
    )
    refused = labelled.create("u", "online")
    assert refused is not None and refused.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert 'replication factor 2 is more than the 1 brokers that are alive, carry the label "online"' in str(refused)
    assert labelled.create("v", "online", factor=1) is None
    cluster.ask(lambda admin: admin.create_partitions("v", 9))
    assert labelled.nodes("v") == {3}
    outcome = cluster.ask(lambda admin: admin.reassign({("v", 0): [4], ("v", 1): [3], ("l", 0): [5, 4]}))
    errors = {str(place): error.code if error else None for place, error in outcome.items()}
    assert errors == {"v-0": ErrorCode.INVALID_REPLICA_ASSIGNMENT, "v-1": None, "l-0": None}
    with pytest.raises(KafkaError) as caught:
        cluster.ask(lambda admin: admin.alter_configs("topic", "l", {"placement.label": "online"}))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert labelled.nodes("t") == ONLINE, "dead brokers keep their replicas"
    for node in (1, 2):
        cluster.start(node)
    cluster.wait_for_isr("t", 2)
    assert (labelled.nodes("t"), labelled.nodes("l"), labelled.nodes("v")) == (ONLINE, LOGS, {3})


def test_a_topic_gets_another_label_while_brokers_are_killed(labelled: Labelled, tmp_path: Path) -> None:
    cluster = labelled.cluster
    assert labelled.create("t", "online", partitions=4) is None
    cluster.wait_for_isr("t", 2)
    labelled.fill("t", 80, 10_000)
    nothing = labelled.run("topics", "relabel", "t", "nothing", ok=False)
    assert 'no live broker carries the label "nothing"' in nothing.stderr and "logs, online" in nothing.stderr
    labelled.run("topics", "relabel", "t", "logs", "--throttle", "4000", "--no-wait")
    assert cluster.ask(lambda admin: admin.topic_labels(["t"])) == {"t": "logs"}
    assert labelled.nodes("t") == LOGS
    assert any(one.isr for one in cluster.partitions("t") if set(one.isr) <= ONLINE), "the moves are under way"
    cancelled = cluster.ask(lambda admin: admin.reassign(dict.fromkeys(admin.reassignments())))
    assert {error.code for error in cancelled.values() if error} == {ErrorCode.POLICY_VIOLATION}
    # The former label cancels.
    back = labelled.run("topics", "relabel", "t", "online", "--no-wait")
    assert "`pylogd topics relabel t logs` cancels" in back.stderr
    assert labelled.nodes("t") == ONLINE
    cluster.until(lambda: not cluster.ask(lambda admin: admin.reassignments()), "that nothing moves")
    # Once more, and a broker of each label is killed meanwhile.
    labelled.run("topics", "relabel", "t", "logs", "--throttle", "4000", "--no-wait")
    cluster.kill(4)
    cluster.kill(2)
    cluster.wait_for_brokers([1, 3, 5])
    cluster.ask(lambda admin: admin.create_topic("probe", 3, 1, {"placement.label": "logs"}))
    assert (labelled.nodes("t"), labelled.nodes("probe")) == (LOGS, {5})
    cluster.start(4)
    cluster.start(2)
    followed = labelled.run("topics", "relabel", "t", "logs", "--throttle", "50000000")
    assert "all 4 partitions have the replicas of the plan" in followed.stderr
    assert {node for one in cluster.wait_for_isr("t", 2) for node in one.replicas} == LOGS
    left = cluster.ask(lambda admin: admin.describe_configs("topic", "t"))
    assert {one.name for one in left if one.source == "topic"} == {"placement.label"}, "the throttle is removed"
    # Smooth expansion and a new broker of the label.
    cluster.start(6, {"broker.labels": "logs"})
    cluster.wait_for_brokers(range(1, 7))
    plan = labelled.run("reassign", "plan", "t").stdout
    assert any(6 in one["replicas"] for one in json.loads(plan)["partitions"])
    labelled.run("reassign", "execute", "-", "--from-latest", "1s", text=plan)
    assert labelled.nodes("t") == LOGS | {6}


def test_a_broker_that_lost_its_label_is_reported(labelled: Labelled) -> None:
    cluster = labelled.cluster
    assert labelled.create("l", "logs") is None
    cluster.wait_for_isr("l", 2)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    resource = ConfigResource(ConfigResource.Type.BROKER, "5")
    shown = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
    assert shown["broker.labels"].value == "logs"
    assert labelled.run("cluster", "describe", "--misplaced").stdout == ""
    cluster.kill(5)
    cluster.start(5, {"broker.labels": ""})
    cluster.wait_for_isr("l", 2)
    rows = [line.split("\t") for line in labelled.run("cluster", "describe", "--misplaced").stdout.splitlines()]
    assert [(row[0], row[2], row[4]) for row in rows] == [("l", "logs", "5")] * 6
    reported = 'broker 5 has 6 replicas of topics with the label "logs", which it does not carry'
    cluster.until(lambda: any(reported in cluster.log(node) for node in range(1, 6)), "that the controller reports it")
    refused = labelled.create("m", "logs")
    assert refused is not None and "(broker.labels: 4)" in str(refused)
    labelled.run("cluster", "label", "5", "logs", "hdd")
    cluster.until(lambda: labelled.create("m", "logs") is None, "that broker 5 gets replicas of the label again")
    assert labelled.run("cluster", "describe", "--misplaced").stdout == ""
    described = json.loads(labelled.run("cluster", "describe", "--json").stdout)
    assert [one["labels"] for one in described["brokers"]] == [["online"]] * 3 + [["logs"], ["logs", "hdd"]]
    cluster.restart(5)  # what was set at run time stays
    cluster.wait_for_isr("m", 2)
    assert labelled.run("cluster", "describe", "--misplaced").stdout == ""
