"""Transactions in the log of a partition: what unmodified clients read of them, also after a crash."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Assignment

from pylogd.base.ports import free_ports
from pylogd.broker.log.verify import verify_log_dir
from pylogd.local.broker import pylogd_command
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from pylogd.wire.records import TRANSACTIONAL, encode_batch
from tests.integration.conftest import StartBroker
from tests.rawclient import RawClient, create_topic

SECONDS = 60.0
#: There is no coordinator in these tests that could be asked.
SETTINGS = {"transaction.partition.verification.enable": "false"}


class Transactions:
    """Writes to partition 0 of topic "t" what producers and the coordinator would."""

    def __init__(self, address: str) -> None:
        self.client = RawClient(address)
        self.next: dict[int, int] = {}

    def send(self, value: bytes, producer: int = -1) -> None:
        rows = [(None, value, int(time.time() * 1000), ())]
        sequence = self.next.get(producer, 0)
        self.next[producer] = sequence + 1
        data = (
            encode_batch(rows)
            if producer < 0
            else encode_batch(
                rows, producer_id=producer, producer_epoch=0, base_sequence=sequence, attributes=TRANSACTIONAL
            )
        )
        topic = TopicProduceData("t", partition_data=[PartitionProduceData(0, data)])
        request = ProduceRequest(None if producer < 0 else f"tx-{producer}", -1, 10_000, [topic])
        (answer,) = self.client.request(request, 11).responses[0].partition_responses
        assert answer.error_code == 0, answer

    def end(self, producer: int, *, committed: bool) -> None:
        marker = WritableTxnMarker(producer, 0, committed, [WritableTxnMarkerTopic("t", [0])])
        answer = self.client.request(WriteTxnMarkersRequest([marker]), 1)
        assert answer.markers[0].topics[0].partitions[0].error_code == 0

    def latest(self, isolation: int) -> int:
        wanted = ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])
        answer = self.client.request(ListOffsetsRequest(-1, isolation, [wanted]), 7)
        return int(answer.topics[0].partitions[0].offset)


def by_librdkafka(address: str, count: int, isolation: str) -> list[bytes]:
    """Return the values of the first `count` messages that a consumer gets."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "g", "isolation.level": isolation, "log_level": 0,
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.assign([Assignment("t", 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    while len(values) < count:
        assert time.monotonic() < deadline, values
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    consumer.close()
    return values


def by_aiokafka(address: str, count: int) -> list[bytes]:
    async def read() -> list[bytes]:
        async with AIOKafkaConsumer(
            bootstrap_servers=address, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            return [(await asyncio.wait_for(consumer.getone(), SECONDS)).value for _ in range(count)]

    return asyncio.run(read())


def test_clients_read_what_is_committed_also_after_a_crash(start_broker: StartBroker, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    broker = start_broker(settings=SETTINGS, port=port)
    writer = Transactions(broker.address)
    create_topic(writer.client, "t")
    writer.send(b"plain")
    for at in range(3):
        writer.send(b"committed %d" % at, 1)
        writer.send(b"aborted %d" % at, 2)
    writer.end(2, committed=False)
    assert (writer.latest(0), writer.latest(1)) == (8, 1)
    writer.end(1, committed=True)
    writer.send(b"last")
    writer.send(b"open", 3)
    writer.send(b"after it")
    committed = [b"plain", *(b"committed %d" % at for at in range(3)), b"last"]
    assert (writer.latest(0), writer.latest(1)) == (12, 10)
    for _ in range(2):
        assert by_librdkafka(broker.address, 5, "read_committed") == committed
        assert by_aiokafka(broker.address, 5) == committed
        assert len(by_librdkafka(broker.address, 10, "read_uncommitted")) == 10
        broker.kill()
        broker = start_broker(settings=SETTINGS, port=port)
        writer.client.close()
        writer.client = RawClient(broker.address)
        assert (writer.latest(0), writer.latest(1)) == (12, 10)
    writer.end(3, committed=False)
    assert (writer.latest(0), writer.latest(1)) == (13, 13)
    assert by_aiokafka(broker.address, 6) == [*committed, b"after it"]
    writer.client.close()
    assert broker.stop() == 0
    directory = next(tmp_path.rglob("t-0"))
    assert list(verify_log_dir(str(directory), records=True)) == []
    (index,) = directory.glob("*.txnindex")
    assert index.stat().st_size == 2 * 34


def test_a_transaction_that_hangs_is_found_and_ended_by_the_command_line(start_broker: StartBroker) -> None:
    """Nobody verifies the first batch, so that a transaction is open of which the coordinator knows nothing."""
    broker = start_broker(settings=SETTINGS | {"transaction.state.log.num.partitions": "1"})
    writer = Transactions(broker.address)
    create_topic(writer.client, "t")
    writer.send(b"hangs", 7)
    writer.send(b"behind it")

    def run(*words: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [*pylogd_command(), "transactions", *words, "-b", broker.address],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout.split()

    find = ("find-hanging", "--topic", "t", "--max-timeout", "0s")
    assert (writer.latest(0), writer.latest(1)) == (2, 0)
    status, words = run(*find)
    assert (status, words[:5]) == (1, ["t", "0", "7", "0", "0"])
    assert run("abort", "t", "0", "--start-offset", words[4], "--yes")[0] == 0
    assert (writer.latest(0), writer.latest(1)) == (3, 3)
    assert run(*find) == (0, [])
    assert by_aiokafka(broker.address, 1) == [b"behind it"]
    writer.client.close()


def test_a_producer_whose_partitions_are_verified(start_broker: StartBroker) -> None:
    """With the coordinator, as it is by default: one transaction after the other to the same partition."""
    broker = start_broker(settings={"transaction.state.log.num.partitions": "1"})
    with RawClient(broker.address) as client:
        create_topic(client, "t")
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "tx", "log_level": 0})
    producer.init_transactions(SECONDS)
    for number in range(6):
        producer.begin_transaction()
        for at in range(3):
            producer.produce("t", b"%d.%d" % (number, at), partition=0)
        if number % 2:
            producer.flush(SECONDS)
            producer.abort_transaction(SECONDS)
        else:
            producer.commit_transaction(SECONDS)
    committed = [b"%d.%d" % (number, at) for number in (0, 2, 4) for at in range(3)]
    assert by_librdkafka(broker.address, 9, "read_committed") == committed
    assert by_aiokafka(broker.address, 9) == committed


def run(*arguments: str, address: str) -> subprocess.CompletedProcess[str]:
    command = [*pylogd_command(), "transactions", *arguments, "--bootstrap-server", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def test_a_transaction_that_hangs_is_found_and_ended(start_broker: StartBroker) -> None:
    """No coordinator knows of this one: a reader of committed records waits behind it until it is aborted."""
    address = start_broker(settings=SETTINGS).address
    writer = Transactions(address)
    create_topic(writer.client, "t")
    writer.send(b"before")
    writer.send(b"hanging", 1)
    writer.send(b"after")
    assert writer.latest(1) == 1
    found = run("find-hanging", "--topic", "t", "--max-timeout", "0s", "--json", address=address)
    assert found.returncode == 1, found.stderr
    (hanging,) = json.loads(found.stdout)
    assert (hanging["topic"], hanging["partition"], hanging["producer_id"], hanging["transaction_start"]) == (
        "t",
        0,
        1,
        1,
    )
    ended = run("abort", "t", "0", "--start-offset", "1", "--yes", address=address)
    assert ended.returncode == 0, ended.stderr
    assert writer.latest(1) == 4
    assert by_librdkafka(address, 2, "read_committed") == [b"before", b"after"]
    none = run("find-hanging", "--topic", "t", "--max-timeout", "0s", address=address)
    assert none.returncode == 0 and "No transaction hangs" in none.stderr
    again = run("abort", "t", "0", "--start-offset", "1", "--yes", address=address)
    assert again.returncode == 1 and "no transaction from offset 1 is open" in again.stderr
