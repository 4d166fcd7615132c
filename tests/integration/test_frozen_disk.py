"""A real broker with two disks of which one hangs: what is on the other one, and control, go on; nothing is lost."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.isolation import QUEUE_REQUESTS, join, read_keys, running, topics_on
from bench.kuaishou.cgroups import Unavailable
from bench.kuaishou.disks import Disk, check_tools, make_disk
from pylogd.errors import ErrorCode
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import encode_batch
from tests.rawclient import RawClient, wait_until

DISK_BYTES = 64 << 20
#: The file system is thawed after so many seconds, whatever happens here.
LONGEST = 60.0


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
