"""The floor of the benchmarks: what is produced to it is fetched from it, though it looks at nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers import running
from bench.peers.base import Peer
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import decode_batch, iter_batches
from tests.fakes.parts import batch
from tests.rawclient import RawClient, encode, frame

#: Small batches that are written together, one that is written by itself, and more than one read has.
VALUES = [b"%d" % number * 30 for number in range(2000)] + [b"x" * 400_000] + [b"y" * 5] * 20
_PRODUCE, _FETCH = 7, 4


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RawClient]:
    peer: Peer
    with running("floor", tmp_path) as peer, RawClient(peer.address) as made:
        yield made


def produce_of(value: bytes, acks: int = 1) -> ProduceRequest:
    data = PartitionProduceData(0, batch(value))
    return ProduceRequest(None, acks, 1000, [TopicProduceData("t", partition_data=[data])])


def fetched(client: RawClient, offset: int, wait_ms: int = 0) -> list[tuple[int, bytes | None]]:
    """Return offset and value of each message of one fetch from `offset` on."""
    topic = FetchTopic("t", partitions=[FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 24)])
    response = client.request(FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 24, topics=[topic]), _FETCH)
    [answer] = response.responses[0].partitions
    return [
        (record.offset, record.value)
        for header, view in iter_batches(bytes(answer.records or b""), allow_partial=True)
        for record in decode_batch(view, header)
        if record.offset >= offset
    ]


def test_what_is_produced_is_fetched(client: RawClient) -> None:
    client.send(b"".join(frame(encode(produce_of(value), _PRODUCE, at)) for at, value in enumerate(VALUES)))
    for at in range(len(VALUES)):
        answer = client.response(ProduceRequest.API_KEY, _PRODUCE, at)
        assert answer.responses[0].partition_responses[0].base_offset == at
    assert fetched(client, 0) == list(enumerate(VALUES))
    assert fetched(client, 1999) == list(enumerate(VALUES))[1999:]


def test_acks_0_has_no_answer_and_a_fetch_of_nothing_waits(client: RawClient) -> None:
    client.send(frame(encode(produce_of(b"v", acks=0), _PRODUCE, 1)))
    assert fetched(client, 0) == [(0, b"v")]
    assert fetched(client, 1, wait_ms=20) == []
