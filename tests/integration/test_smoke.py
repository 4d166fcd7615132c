"""Are broker, client and Spark source whole? `make smoke` runs this file alone, within a minute on a quiet machine.

One broker: the own client and librdkafka write and read, in a group and in transactions; it is killed and started
again; Spark reads what is left. Each step asks for what the steps before have written, so the first one that fails says
where to look. What is tested here in short is tested in full elsewhere: see the table in CONTRIBUTING.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer

from pylogd.base.ports import free_ports
from pylogd.client import Admin, Consumer, Producer
from pylogd.local.broker import BrokerProcess
from tests.commands import run_command
from tests.sparks import running_spark

pytestmark = pytest.mark.timeout(1800)  # of a machine that does much else
SECONDS = 120.0
TOPIC, PARTITIONS, EACH = "smoke", 3, 300


class Smoke:
    """A broker that can be killed and started again on its port, and the values that were acknowledged."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_ports(1)[0]
        self.acknowledged: set[str] = set()
        self.broker = self.start()

    def start(self) -> BrokerProcess:
        self.broker = BrokerProcess(
            self._folder / "data", self._folder / "log", {"group.initial.rebalance.delay.ms": "0"}, port=self._port
        )
        return self.broker

    @property
    def address(self) -> str:
        return self.broker.address

    def send(self, name: str, count: int = EACH) -> None:
        """Send values with the own client, and note them once all are acknowledged."""
        with Producer(self.address) as producer:
            sent = [producer.send(TOPIC, f"{name}-{number}".encode(), key=b"%d" % number) for number in range(count)]
            for one in sent:
                one.result(SECONDS)
        self.acknowledged |= {f"{name}-{number}" for number in range(count)}

    def read(self, count: int, group: str) -> list[str]:
        """Read so many committed values with a member of a group, which starts at its offset or at the beginning."""
        found: list[str] = []
        with Consumer(self.address, group_id=group, isolation="committed", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(TOPIC)
            deadline = time.monotonic() + SECONDS
            while len(found) < count:
                assert time.monotonic() < deadline, f"{len(found)} of {count} values came"
                found += [record.value.decode() for record in consumer.poll(0.2) if record.value is not None]
        return found


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Smoke]:
    made = Smoke(tmp_path_factory.mktemp("smoke"))
    with Admin(made.address) as admin:
        admin.create_topic(TOPIC, PARTITIONS)
    yield made
    assert made.broker.stop() == 0
    assert "Traceback" not in made.broker.log()
    assert run_command("verify-log", str(made.broker.data), "--records").returncode == 0


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with running_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session


def test_the_own_client_and_librdkafka_write_and_read(smoke: Smoke) -> None:
    smoke.send("own")
    failed: list[object] = []
    producer = ConfluentProducer({"bootstrap.servers": smoke.address, "compression.type": "zstd"})
    for number in range(EACH):
        producer.produce(
            TOPIC, f"librdkafka-{number}", callback=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(SECONDS) == 0 and not failed
    smoke.acknowledged |= {f"librdkafka-{number}" for number in range(EACH)}
    assert sorted(smoke.read(2 * EACH, "own")) == sorted(smoke.acknowledged)


def test_a_group_goes_on_where_it_was(smoke: Smoke) -> None:
    smoke.send("next")
    settings = {"bootstrap.servers": smoke.address, "group.id": "own", "auto.offset.reset": "earliest"}
    consumer = ConfluentConsumer(settings)
    consumer.subscribe([TOPIC])
    found: list[str] = []
    deadline = time.monotonic() + SECONDS
    try:
        while len(found) < EACH:
            assert time.monotonic() < deadline, f"{len(found)} of {EACH} values came"
            for message in consumer.consume(EACH, 0.2):
                assert message.error() is None
                found.append((message.value() or b"").decode())
    finally:
        consumer.close()
    assert sorted(found) == sorted(f"next-{number}" for number in range(EACH))


def test_a_transaction_is_seen_whole_or_not_at_all(smoke: Smoke) -> None:
    with Producer(smoke.address, transactional_id="smoke") as producer:
        producer.begin_transaction()
        producer.send(TOPIC, b"aborted")
        producer.flush()
        producer.abort_transaction()
        with producer.transaction():
            for number in range(10):
                producer.send(TOPIC, f"committed-{number}".encode())
    smoke.acknowledged |= {f"committed-{number}" for number in range(10)}
    assert sorted(smoke.read(len(smoke.acknowledged), "reader")) == sorted(smoke.acknowledged)


def test_a_killed_broker_keeps_what_it_has_acknowledged(smoke: Smoke) -> None:
    smoke.send("last")
    smoke.broker.kill()
    smoke.start()
    smoke.send("after")
    assert sorted(smoke.read(len(smoke.acknowledged), "later")) == sorted(smoke.acknowledged)


def test_spark_reads_a_batch(smoke: Smoke, spark: Any) -> None:
    reader = spark.read.format("pylogd").option("kafka.bootstrap.servers", smoke.address)
    frame = reader.options(**{"subscribe": TOPIC, "kafka.isolation.level": "read_committed"}).load()
    values = [bytes(row.value).decode() for row in frame.select("value").collect()]
    assert sorted(values) == sorted(smoke.acknowledged)
