"""A real broker with two disks of which one hangs: what is on the other one, and control, go on; nothing is lost.

Control are metadata, heartbeats, commits of offsets and transactions.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.isolation import QUEUE_REQUESTS, join, read_keys, running, topics_on
from bench.lab.cgroups import Unavailable
from bench.lab.disks import Disk, check_tools, make_disk
from pylogd.base.errors import ErrorCode
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import encode_batch
from tests.rawclient import RawClient, create_topic, wait_until

DISK_BYTES = 64 << 20
#: The file system is thawed after so many seconds, whatever happens here.
LONGEST = 60.0
SECONDS = 30.0


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Disk]]:
    with ExitStack() as stack:
        made: list[Disk] = []
        try:
            check_tools()
            for name in ("sound", "sick"):
                made.append(make_disk(tmp_path, name, DISK_BYTES))
                stack.callback(made[-1].remove)
        except Unavailable as reason:
            pytest.skip(f"no disk can be frozen here: {reason}")
        yield made


def request(topic: str, key: bytes) -> ProduceRequest:
    records = encode_batch([(key, b"v", 1_700_000_000_000, ())])
    return ProduceRequest(None, 1, 30_000, [TopicProduceData(topic, bytes(16), [PartitionProduceData(0, records)])])


def produce(client: RawClient, topic: str, key: bytes) -> int:
    code: int = client.request(request(topic, key), 9).responses[0].partition_responses[0].error_code
    return code


def answered(clients: list[RawClient]) -> list[int]:
    """Return which of the clients have an answer to read."""
    readable = select.select([client.socket for client in clients], [], [], 0)[0]
    return [at for at, client in enumerate(clients) if client.socket in readable]


def code_of(client: RawClient, sent: int) -> int:
    answer = client.response(ProduceRequest.API_KEY, 9, sent)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def test_a_frozen_disk_stops_only_what_is_on_it(disks: list[Disk], tmp_path: Path) -> None:
    with running(disks, "always", tmp_path) as broker, ExitStack() as stack:
        member = stack.enter_context(RawClient(broker.address))
        identity, generation = join(member, "g")  # makes the offsets topic, on the first disk, before the others
        good, bad = topics_on(disks, broker.address)
        other = stack.enter_context(RawClient(broker.address))
        clients = [stack.enter_context(RawClient(broker.address)) for _ in range(2 * QUEUE_REQUESTS)]
        with disks[1].frozen(LONGEST):
            sent = [client.send_request(request(bad[0], b"%d" % at), 9) for at, client in enumerate(clients)]
            wait_until(lambda: len(answered(clients)) == QUEUE_REQUESTS, "the requests that the queue has no room for")
            refused = answered(clients)
            assert {code_of(clients[at], sent[at]) for at in refused} == {ErrorCode.NOT_ENOUGH_REPLICAS}
            for number in range(20):
                assert produce(clients[refused[0]], bad[0], b"never") == ErrorCode.NOT_ENOUGH_REPLICAS
                assert produce(other, good[0], b"%d" % number) == 0
            assert member.request(HeartbeatRequest("g", generation, identity), 3).error_code == 0
            assert len(member.request(MetadataRequest(None), 9).topics) >= len(good) + len(bad)
        accepted = [at for at in range(len(clients)) if at not in refused]
        assert [code_of(clients[at], sent[at]) for at in accepted] == [0] * QUEUE_REQUESTS
        assert produce(other, bad[0], b"again") == 0
        assert read_keys(broker.address, bad[0]) == {*(b"%d" % at for at in accepted), b"again"}
        assert read_keys(broker.address, good[0]) == {b"%d" % number for number in range(20)}


class Transactions:
    """A transactional producer of librdkafka, and a member of a group of its own whose offsets it may commit."""

    def __init__(self, address: str, name: str) -> None:
        self._settings: dict[str, Any] = {"bootstrap.servers": address, "log_level": 0}
        self.name = name
        self.producer = Producer(self._settings | {"transactional.id": name})
        self.producer.init_transactions(SECONDS)
        self.consumer = Consumer(self._settings | {"group.id": name, "enable.auto.commit": False})

    def begin(self, topic: str, *values: bytes) -> None:
        """Begin a transaction and send records in it."""
        self.producer.begin_transaction()
        for value in values:
            self.producer.produce(topic, value, partition=0)

    def commit(self, topic: str = "", offset: int = 0) -> None:
        """Commit, with an offset of the group if a topic is given."""
        if topic:
            place = TopicPartition(topic, 0, offset)
            self.producer.send_offsets_to_transaction([place], self.consumer.consumer_group_metadata(), SECONDS)
        self.producer.commit_transaction(SECONDS)

    def committed(self, topic: str) -> int:
        """Return the offset that the group has committed."""
        (found,) = self.consumer.committed([TopicPartition(topic, 0)], SECONDS)
        return int(found.offset)

    def values(self, topic: str, count: int) -> list[bytes]:
        """Return the values of the first committed records."""
        reader = Consumer(self._settings | {"group.id": "readers", "isolation.level": "read_committed"})
        reader.assign([TopicPartition(topic, 0, 0)])
        messages = reader.consume(count, SECONDS)
        reader.close()
        return [message.value() or b"" for message in messages]


def test_transactions_and_commits_go_on_beside_a_frozen_disk(disks: list[Disk], tmp_path: Path) -> None:
    settings = {"transaction_state_log_num_partitions": "1", "transaction_state_log_replication_factor": "1"}
    with running(disks, "always", tmp_path, **settings) as broker, ExitStack() as stack:
        client = stack.enter_context(RawClient(broker.address))
        join(client, "warm")  # makes the offsets topic, on the first disk; the next topic is for the second one
        create_topic(client, "filler")
        free, hung, late = (Transactions(broker.address, name) for name in ("free", "hung", "late"))
        for name in ("__consumer_offsets-0", "__transaction_state-0"):
            assert (disks[0].mount / "data" / name).is_dir()
        good, bad = topics_on(disks, broker.address)
        late.begin(bad[0], b"late")
        late.producer.flush(SECONDS)
        with disks[1].frozen(LONGEST):
            hung.begin(bad[0], b"hung")
            late.commit()  # is decided now; the marker waits for the disk
            for number in range(5):
                free.begin(good[0], b"%d" % number)
                free.commit(bad[0], number)
                assert free.committed(bad[0]) == number
                place = TopicPartition(bad[0], 0, 100 + number)
                late.consumer.commit(offsets=[place], asynchronous=False)
                assert late.committed(bad[0]) == 100 + number
            assert free.values(good[0], 5) == [b"%d" % number for number in range(5)]
        hung.commit(bad[0], 7)
        assert hung.committed(bad[0]) == 7
        assert sorted(free.values(bad[0], 2)) == [b"hung", b"late"]
