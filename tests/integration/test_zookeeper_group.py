"""The blocking consumer with a group in a real ZooKeeper has the same interface as with a broker's group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pylogd.client import Admin, Consumer, Producer, Record, TopicPartition
from pylogd.local.broker import BrokerProcess
from tests.integration.conftest import StartBroker
from tests.zookeeper import ZooKeeper

SECONDS = 180.0
TP = [TopicPartition("events", index) for index in range(4)]
Make = Callable[..., Consumer]


@pytest.fixture
def broker(start_broker: StartBroker, zookeeper: ZooKeeper) -> BrokerProcess:
    broker = start_broker(settings=zookeeper.settings)
    with Admin(broker.address) as admin:
        admin.create_topic("events", 4)
    with Producer(broker.address) as producer:
        for number in range(400):
            producer.send("events", b"%d" % number, partition=number % 4)
    return broker


@pytest.fixture
def make(broker: BrokerProcess, zookeeper: ZooKeeper) -> Iterator[Make]:
    made = []

    def make(**options: Any) -> Consumer:
        made.append(
            Consumer(
                broker.address, group_id="g", coordinator="zookeeper", zookeeper=zookeeper.connect,
                auto_commit_interval=0.2, session_timeout=30.0, **options,
            )
        )  # fmt: skip
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def until(consumers: list[Consumer], condition: Callable[[], object]) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, [consumer.assignment for consumer in consumers]
        for consumer in consumers:
            records += consumer.poll(0.05)
    return records


def test_two_members_share_and_one_takes_over(make: Make) -> None:
    one, two = make(), make()
    told: list[str] = []
    one.subscribe("events", on_assign=lambda _: told.append("assign"), on_revoke=lambda _: told.append("revoke"))
    records = until([one], lambda: sorted(one.assignment) == TP)
    two.subscribe("events")
    records += until([one, two], lambda: len(one.assignment) == 2 == len(two.assignment))
    assert sorted(one.assignment + two.assignment) == TP
    assert told[0] == "assign" and "revoke" in told
    two.close()
    records += until([one], lambda: sorted(one.assignment) == TP)
    seen = {(r.partition, r.offset) for r in records}
    seen |= {(r.partition, r.offset) for r in until([one], lambda: sum(map(one.position, TP)) == 400)}
    assert len(seen) == 400
    one.commit()
    one.close()
    three = make()
    three.subscribe("events")
    until([three], lambda: sorted(three.assignment) == TP)
    assert [three.position(p) for p in TP] == [100] * 4
    assert {p: o.offset for p, o in three.committed(TP).items() if o is not None} == dict.fromkeys(TP, 100)


def test_streams_divide_the_partitions(make: Make) -> None:
    consumer = make()
    streams = consumer.create_message_streams({"events": 2})["events"]
    seen: list[list[Record]] = [[], []]
    threads = [
        threading.Thread(target=lambda n=n, stream=stream: seen[n].extend(stream)) for n, stream in enumerate(streams)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + SECONDS
    while sum(map(len, seen)) < 400 and time.monotonic() < deadline:
        time.sleep(0.05)
    consumer.close()
    for thread in threads:
        thread.join(SECONDS)
    assert [len(records) for records in seen] == [200, 200]
    assert not {r.partition for r in seen[0]} & {r.partition for r in seen[1]}


def test_a_zookeeper_address_is_required() -> None:
    with pytest.raises(ValueError, match="zookeeper="):
        Consumer("localhost", group_id="g", coordinator="zookeeper")
