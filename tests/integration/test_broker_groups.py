"""Consumer groups of unmodified clients: members share, leave and die; offsets survive the kill of a broker.

Every wait is for a condition and polls all members of the test meanwhile, since a member that is not polled does not
take part in rebalances.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, ConsumerGroupState, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from pylogd.local.broker import BrokerProcess
from tests.integration.conftest import StartBroker

SECONDS = 180.0
PARTITIONS = 4
#: Long, so that members are not expelled on a slow machine.
SESSION_MS = 60_000
#: Groups form without delay, and dead members are noticed soon.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "5",
}


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker(settings=SETTINGS)


def fill(address: str, topic: str, count: int = 40, *, create: bool = True) -> None:
    """Create a topic of `PARTITIONS` partitions and spread `count` records over them."""
    if create:
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(SECONDS)
    producer = Producer({"bootstrap.servers": address})
    for number in range(count):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(SECONDS) == 0


def until(condition: Callable[[], bool], poll: Callable[[], object], what: str) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {SECONDS:.0f} s"
        poll()


class Confluent:
    """A confluent-kafka consumer, and the (partition, offset) of what it has read."""

    def __init__(self, address: str, topic: str, group: str = "g", **settings: Any) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 300,
                **named,
            }
        )
        self.consumer.subscribe([topic])
        self.seen: set[tuple[int, int]] = set()

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.seen.add((message.partition() or 0, message.offset() or 0))

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    @property
    def partitions(self) -> set[int]:
        return {found.partition for found in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


class KafkaPython:
    """A kafka-python consumer, and the (partition, offset) of what it has read."""

    def __init__(self, address: str, topic: str, group: str = "g", **settings: Any) -> None:
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            **settings,
        )
        self.seen: set[tuple[int, int]] = set()

    def poll(self) -> None:
        for batch in self.consumer.poll(timeout_ms=50).values():
            self.seen |= {(record.partition, record.offset) for record in batch}

    def commit(self) -> None:
        self.consumer.commit()

    @property
    def partitions(self) -> set[int]:
        return {found.partition for found in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


ALL = set(range(PARTITIONS))


def halved(first: Any, second: Any) -> bool:
    """Return whether each of two members has half of the partitions, by the same generation."""
    return len(first.partitions) == len(second.partitions) == 2 and first.partitions | second.partitions == ALL


@pytest.mark.parametrize("client", [Confluent, KafkaPython])
def test_members_share_and_take_over_from_one_that_leaves(broker: BrokerProcess, topic: str, client: Any) -> None:
    fill(broker.address, topic)
    with closing(client(broker.address, topic)) as first:
        until(lambda: first.partitions == ALL and len(first.seen) == 40, first.poll, "one member has all partitions")
        first.commit()
        with closing(client(broker.address, topic)) as second:

            def both() -> None:
                first.poll()
                second.poll()

            until(lambda: halved(first, second), both, "two members share")
            fill(broker.address, topic, create=False)
            until(lambda: len(first.seen | second.seen) == 80, both, "all is read")
            assert second.seen
            assert all(offset >= 10 for _, offset in second.seen)  # committed records are not read again
            second.commit()
        until(lambda: first.partitions == ALL, first.poll, "the second member's partitions are taken over")


#: A member in a process of its own.
MEMBER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g", "session.timeout.ms": 6000})
consumer.subscribe([sys.argv[2]])
while True:
    consumer.poll(0.1)
"""


def test_the_partitions_of_a_killed_member_are_taken_over(broker: BrokerProcess, topic: str) -> None:
    fill(broker.address, topic)
    with closing(Confluent(broker.address, topic)) as first:
        other = subprocess.Popen([sys.executable, "-c", MEMBER, broker.address, topic])
        try:
            until(lambda: len(first.partitions) == 2, first.poll, "two members share")
        finally:
            other.kill()
            other.wait()
        until(lambda: first.partitions == ALL, first.poll, "the first takes over")


@pytest.mark.parametrize("client", [Confluent, KafkaPython])
def test_committed_offsets_survive_the_kill_of_the_broker(
    broker: BrokerProcess, start_broker: StartBroker, topic: str, client: Any
) -> None:
    fill(broker.address, topic)
    with closing(client(broker.address, topic)) as reader:
        until(lambda: len(reader.seen) == 40, reader.poll, "all is read")
        reader.commit()
    broker.kill()
    again = start_broker(settings=SETTINGS)
    fill(again.address, topic, 8, create=False)
    with closing(client(again.address, topic)) as reader:
        until(lambda: len(reader.seen) >= 8, reader.poll, "the new records are read")
        assert reader.seen == {(partition, offset) for partition in ALL for offset in (10, 11)}


def test_a_static_member_rejoins_without_a_rebalance(broker: BrokerProcess, topic: str) -> None:
    fill(broker.address, topic)
    admin = AdminClient({"bootstrap.servers": broker.address})

    def described() -> Any:
        return admin.describe_consumer_groups(["g"])["g"].result(SECONDS)

    with ExitStack() as stack:
        first = stack.enter_context(closing(Confluent(broker.address, topic, group_instance_id="one")))
        second = Confluent(broker.address, topic, group_instance_id="two")

        def both() -> None:
            first.poll()
            second.poll()

        until(lambda: halved(first, second), both, "two members share")
        before, mine, theirs = described(), first.partitions, second.partitions
        second.close()  # a static member does not leave when it closes
        second = stack.enter_context(closing(Confluent(broker.address, topic, group_instance_id="two")))
        until(lambda: bool(second.partitions), both, "it is back")
        assert (first.partitions, second.partitions) == (mine, theirs)
        after = described()
        assert after.state == ConsumerGroupState.STABLE
        ids = [{member.group_instance_id: member.member_id for member in found.members} for found in (before, after)]
        assert ids[0]["one"] == ids[1]["one"]
        assert ids[0]["two"] != ids[1]["two"]


def test_aiokafka_members_share_a_topic(broker: BrokerProcess, topic: str) -> None:
    fill(broker.address, topic)

    def consumer() -> Any:
        return aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.address,
            group_id="aio",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
        )

    async def read(reader: Any, count: int) -> list[Any]:
        records: list[Any] = []
        while len(records) < count:
            for batch in (await reader.getmany(timeout_ms=100)).values():
                records += batch
        return records

    async def shared(first: Any, second: Any) -> None:
        while not (len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2):
            await asyncio.gather(first.getmany(timeout_ms=100), second.getmany(timeout_ms=100))

    async def run() -> None:
        first, second = consumer(), consumer()
        await first.start()
        assert len(await read(first, 40)) == 40
        await first.commit()
        await second.start()
        await shared(first, second)
        await first.stop()
        while len(second.assignment()) < PARTITIONS:
            assert not await second.getmany(timeout_ms=100)  # everything was read and committed
        await second.stop()

    asyncio.run(asyncio.wait_for(run(), SECONDS * 2))


def test_different_clients_can_share_a_group(broker: BrokerProcess, topic: str) -> None:
    """They agree on the range assignor, which both know by that name."""
    fill(broker.address, topic)
    with (
        closing(Confluent(broker.address, topic, partition_assignment_strategy="range")) as first,
        closing(KafkaPython(broker.address, topic)) as second,
    ):

        def both() -> None:
            first.poll()
            second.poll()

        until(lambda: halved(first, second), both, "they share")


def test_admin_clients_describe_and_delete_groups(broker: BrokerProcess, topic: str) -> None:
    fill(broker.address, topic)
    reader = Confluent(broker.address, topic)
    until(lambda: len(reader.seen) == 40, reader.poll, "all is read")
    reader.commit()
    admin = AdminClient({"bootstrap.servers": broker.address})
    listed = admin.list_consumer_groups(request_timeout=SECONDS).result()
    assert ([(found.group_id, found.state) for found in listed.valid], listed.errors) == (
        [("g", ConsumerGroupState.STABLE)], [],
    )  # fmt: skip
    reader.close()  # it does not wait for ever for the reply to LeaveGroup

    def state() -> Any:
        return admin.describe_consumer_groups(["g"])["g"].result(SECONDS).state

    until(lambda: state() == ConsumerGroupState.EMPTY, lambda: time.sleep(0.05), "nobody is left")
    with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as other:
        offsets = other.list_group_offsets("g")["g"]
        assert {key.partition: found.offset for key, found in offsets.items()} == dict.fromkeys(ALL, 10)
        assert KafkaPartition(topic, 0) in offsets
    admin.delete_consumer_groups(["g"])["g"].result(SECONDS)
    assert admin.list_consumer_groups(request_timeout=SECONDS).result().valid == []
    lookup = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
    assert lookup.committed([TopicPartition(topic, 0)], SECONDS)[0].offset < 0
    lookup.close()
