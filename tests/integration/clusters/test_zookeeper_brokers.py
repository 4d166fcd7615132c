"""Brokers on a real ZooKeeper: they find each other, restart, and survive a restart of ZooKeeper."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from pylogd.client import Admin, Cluster, Consumer, Producer
from pylogd.local.broker import BrokerFailed, BrokerProcess
from pylogd.local.zookeeper import LocalZooKeeper
from tests.zookeeper import ZooKeeper

PATIENCE_SECONDS = 180.0
#: Session timeout, short enough for tests that wait for an expiry, long enough for a slow machine.
SESSION_MS = 5000
#: Session timeout of brokers whose session must not expire.
LONG_MS = "30000"
VALUES = [b"%d" % number for number in range(40)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Return a function that starts a broker. All are stopped at the end."""
    started: list[BrokerProcess] = []

    def start(connect: str, node: int, **settings: str) -> BrokerProcess:
        names = {
            "zookeeper.connect": connect,
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            "zookeeper.connection.timeout.ms": "60000",
            "node.id": str(node),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        started.append(BrokerProcess(tmp_path / f"data-{node}", tmp_path / f"log-{node}", names))
        return started[-1]

    yield start
    faults = [broker.log() for broker in started if broker.process.poll() is None and broker.stop() != 0]
    faults += [broker.log() for broker in started if "Traceback (most recent call last)" in broker.log()]
    assert not faults, "\n".join(faults)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def seen_by(broker: BrokerProcess) -> set[int]:
    """Return the node ids of the brokers that a broker knows."""
    with Admin(broker.address) as admin:
        return {other.node_id for other in admin.describe_cluster().brokers}


def topics_of(broker: BrokerProcess) -> set[str]:
    with Admin(broker.address) as admin:
        return {topic.name for topic in admin.list_topics()}


def write(producer: Producer, topic: str, values: list[bytes]) -> None:
    """Write to partitions 0 and 1, each led by another broker, and wait for the acknowledgements."""
    for number, value in enumerate(values):
        producer.send(topic, value, partition=number % 2)
    producer.flush(PATIENCE_SECONDS)


def assert_holds(broker: BrokerProcess, topic: str, values: list[bytes]) -> None:
    """Check that a topic, read with this broker as bootstrap server, has exactly these values."""
    read: list[bytes] = []
    with Cluster(broker.address) as cluster, Consumer(cluster) as consumer:
        consumer.assign(cluster.partitions(topic))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(read) < len(values) and time.monotonic() < deadline:
            read += [record.value or b"" for record in consumer.poll(1)]
    assert sorted(read) == sorted(values)


def test_both_brokers_know_topics_created_on_either(zookeeper: ZooKeeper, start: Callable[..., BrokerProcess]) -> None:
    one = start(zookeeper.connect, 1, broker_rack="r1", zookeeper_session_timeout_ms=LONG_MS)
    two = start(zookeeper.connect, 2, zookeeper_session_timeout_ms=LONG_MS)
    until(lambda: seen_by(one) == seen_by(two) == {1, 2}, "each broker knows both")
    for maker, topic in ((one, "made-on-one"), (two, "made-on-two")):
        with Admin(maker.address) as admin:
            admin.create_topic(topic, 4)
    until(lambda: topics_of(one) == topics_of(two) == {"made-on-one", "made-on-two"}, "each broker knows both topics")
    for broker, topic in ((one, "made-on-two"), (two, "made-on-one")):
        with Producer(broker.address) as producer:
            write(producer, topic, VALUES)
        assert_holds(broker, topic, VALUES)

    client = KazooClient(zookeeper.connect, timeout=60)
    client.start(PATIENCE_SECONDS)
    data, stat = client.get("/brokers/ids/1")
    registered = json.loads(data)
    leaders = json.loads(client.get("/brokers/topics/made-on-two")[0])
    client.stop()
    client.close()
    assert stat.ephemeralOwner != 0
    assert (registered["host"], registered["port"], registered["rack"]) == (one.host, one.port, "r1")
    assert registered["endpoints"] == [f"PLAINTEXT://{one.address}"]
    assert {replicas[0] for replicas in leaders["partitions"].values()} == {1, 2}


def test_a_restarted_broker_replaces_the_registration_of_its_killed_process(
    zookeeper: ZooKeeper, start: Callable[..., BrokerProcess]
) -> None:
    # The session of the killed process outlasts the restart.
    one = start(zookeeper.connect, 1, zookeeper_session_timeout_ms=LONG_MS)
    two = start(zookeeper.connect, 2, zookeeper_session_timeout_ms="60000")
    until(lambda: seen_by(one) == {1, 2}, "both are known")
    two.kill()
    again = start(zookeeper.connect, 2)  # started at once, so that the old registration still exists
    assert "Removing the registration of this broker's former process" in again.log()
    until(lambda: seen_by(one) == seen_by(again) == {1, 2}, "the broker is back")
    again.kill()
    until(lambda: seen_by(one) == {1}, "the killed broker is gone")


def test_a_node_id_in_use_is_refused(zookeeper: ZooKeeper, start: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    first = start(zookeeper.connect, 1, zookeeper_session_timeout_ms=LONG_MS)
    with pytest.raises(BrokerFailed, match=r"another broker with node\.id 1 is alive"):
        BrokerProcess(
            tmp_path / "second", tmp_path / "second.log",
            {
                "zookeeper.connect": zookeeper.connect,
                "zookeeper.session.timeout.ms": "4000",  # it waits a little longer for the other session to end
                "zookeeper.connection.timeout.ms": "60000",
            },
        )  # fmt: skip
    assert seen_by(first) == {1}


def test_brokers_survive_a_restart_of_zookeeper(
    own_zookeeper: LocalZooKeeper, start: Callable[..., BrokerProcess]
) -> None:
    one, two = (start(own_zookeeper.hosts, node, zookeeper_session_timeout_ms=LONG_MS) for node in (1, 2))
    until(lambda: seen_by(one) == seen_by(two) == {1, 2}, "each broker knows both")
    with Admin(one.address) as admin:
        admin.create_topic("before", 2)
    until(lambda: topics_of(one) == topics_of(two) == {"before"}, "each broker knows the topic")
    with Producer(one.address) as producer:
        write(producer, "before", VALUES[:20])
        own_zookeeper.kill()
        write(producer, "before", VALUES[20:])  # leaders and producers with an id need no ZooKeeper
        assert_holds(two, "before", VALUES)
        own_zookeeper.start()

    def works() -> bool:
        try:
            with Admin(one.address, request_timeout=10, retry_timeout=10) as admin:
                admin.create_topic("after", 2)
        except Exception as error:
            return "exists" in str(error)
        return True

    until(works, "topics can be created again")
    until(lambda: topics_of(one) == topics_of(two) == {"before", "after"}, "each broker knows both topics")
    until(lambda: seen_by(one) == seen_by(two) == {1, 2}, "each broker knows both")
    with Producer(two.address) as producer:
        write(producer, "after", VALUES)
    assert_holds(one, "after", VALUES)


def test_a_broker_whose_session_expired_registers_again(
    own_zookeeper: LocalZooKeeper, start: Callable[..., BrokerProcess]
) -> None:
    one = start(own_zookeeper.hosts, 1)
    two = start(own_zookeeper.hosts, 2)
    until(lambda: seen_by(two) == {1, 2}, "both are known")
    client = KazooClient(own_zookeeper.hosts, timeout=60)
    client.start(PATIENCE_SECONDS)
    first = client.exists("/brokers/ids/1").ephemeralOwner
    one.process.send_signal(19)  # paused by SIGSTOP for longer than its session timeout
    until(lambda: client.exists("/brokers/ids/1") is None, "the session ends")
    one.process.send_signal(18)
    until(lambda: client.exists("/brokers/ids/1") is not None, "the broker is registered again")
    assert client.exists("/brokers/ids/1").ephemeralOwner != first
    client.stop()
    client.close()
    until(lambda: seen_by(one) == seen_by(two) == {1, 2}, "each broker knows both")
    assert "the ZooKeeper session has ended; starting a new one" in one.log()


def test_a_broker_that_can_not_reach_zookeeper_reports_it(own_zookeeper: LocalZooKeeper, tmp_path: Path) -> None:
    own_zookeeper.stop()
    with pytest.raises(BrokerFailed, match=f"can't connect to ZooKeeper at {own_zookeeper.hosts} within 2000 ms"):
        BrokerProcess(
            tmp_path / "data", tmp_path / "log",
            {"zookeeper.connect": own_zookeeper.hosts, "zookeeper.connection.timeout.ms": "2000"},
        )  # fmt: skip
