"""The `struct` codecs of Produce equal the general codecs, on valid bytes and on any bytes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pylogd.wire import fast
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.fast.produce import FIRST, FIRST_FLEXIBLE, FIRST_TOPIC_ID, FIRST_WITH_ZSTD, LAST
from pylogd.wire.fast.request_batch import parse_request
from pylogd.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from pylogd.wire.schema import request_codec, response_codec
from pylogd.wire.session import ClientSession, RequestReceived, ServerSession

PRODUCE = 0
VERSIONS = range(FIRST, LAST + 1)

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=4) | st.sampled_from(["x" * 126, "x" * 127, "x" * 128, "é" * 64])
ids = st.binary(min_size=16, max_size=16)


@st.composite
def requests(draw: st.DrawFn, version: int) -> ProduceRequest:
    """Generate requests that can be encoded at `version`, mostly with one topic of one partition."""
    records = st.none() | st.binary(max_size=8) | st.sampled_from([bytes(126), bytes(127), bytes(20_000)])
    partitions = st.lists(st.builds(PartitionProduceData, int32, records), max_size=2)
    if version >= 13:
        topics = st.builds(TopicProduceData, st.just(""), ids, partitions)
    else:
        topics = st.builds(TopicProduceData, names, st.just(bytes(16)), partitions)
    some = st.lists(topics, max_size=2) | st.lists(topics, min_size=1, max_size=1)
    return draw(st.builds(ProduceRequest, st.none() | names, int16, int32, some))


@st.composite
def responses(draw: st.DrawFn, version: int) -> ProduceResponse:
    """Generate responses that can be encoded at `version`."""
    errors = st.lists(st.builds(BatchIndexAndErrorMessage, int32, st.none() | names), max_size=1)
    leaders = st.builds(LeaderIdAndEpoch, int32, int32) | st.just(LeaderIdAndEpoch())
    partitions = st.builds(
        PartitionProduceResponse,
        int32,
        st.just(0) | int16,
        int64,
        int64,
        int64 if version >= 5 else st.just(-1),
        errors if version >= 8 else st.just([]),
        st.none() | names if version >= 8 else st.none(),
        leaders if version >= 10 else st.just(LeaderIdAndEpoch()),
    )
    topics = st.builds(
        TopicProduceResponse,
        st.just("") if version >= 13 else names,
        ids if version >= 13 else st.just(bytes(16)),
        st.lists(partitions, max_size=2) | st.lists(partitions, min_size=1, max_size=1),
    )
    nodes = st.lists(st.builds(NodeEndpoint, int32, names, int32, st.none() | names), max_size=1)
    return draw(
        st.builds(
            ProduceResponse,
            st.lists(topics, max_size=2) | st.lists(topics, min_size=1, max_size=1),
            int32,
            nodes if version >= 10 else st.just([]),
        )
    )


def joined(parts: list[Any]) -> bytes:
    return b"".join(map(bytes, parts))


def outcome(decode: Any, body: bytes) -> Any:
    try:
        message = decode(memoryview(body))
    except RemoteProtocolError:
        return "refused"
    for topic in message.topic_data:
        for partition in topic.partition_data:
            if partition.records is not None:
                partition.records = bytes(partition.records)
    return message


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=40)
@given(data=st.data())
def test_requests_decode_alike(version: int, data: st.DataObject) -> None:
    general = request_codec(PRODUCE, version)
    quick = fast.request_decoder(PRODUCE, version, general.decode_leniently)
    body = joined(general.encode(data.draw(requests(version))))
    assert outcome(quick, body) == outcome(general.decode_leniently, body)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=40)
@given(data=st.data())
def test_damaged_requests_decode_alike(version: int, data: st.DataObject) -> None:
    general = request_codec(PRODUCE, version)
    quick = fast.request_decoder(PRODUCE, version, general.decode_leniently)
    body = bytearray(joined(general.encode(data.draw(requests(version)))))
    for _ in range(data.draw(st.integers(1, 3))):
        if not body:
            break
        at = data.draw(st.integers(0, len(body) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if kind == "flip":
            body[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del body[at:]
        else:
            body.insert(at, data.draw(st.integers(0, 255)))
    assert outcome(quick, bytes(body)) == outcome(general.decode_leniently, bytes(body))


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=40)
@given(body=st.binary(max_size=64))
@example(body=b"")
def test_any_bytes_decode_alike(version: int, body: bytes) -> None:
    general = request_codec(PRODUCE, version)
    quick = fast.request_decoder(PRODUCE, version, general.decode_leniently)
    assert outcome(quick, body) == outcome(general.decode_leniently, body)


def test_the_usual_request_takes_the_fast_path() -> None:
    for version in VERSIONS:
        topic = TopicProduceData("", b"i" * 16) if version >= 13 else TopicProduceData("t")
        topic.partition_data = [PartitionProduceData(3, b"r" * 200)]
        body = memoryview(joined(request_codec(PRODUCE, version).encode(ProduceRequest(None, -1, 1000, [topic]))))
        decoded = fast.request_decoder(PRODUCE, version, lambda body: None)(body)
        assert decoded == ProduceRequest(None, -1, 1000, [topic])


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=40)
@given(data=st.data())
def test_responses_encode_alike(version: int, data: st.DataObject) -> None:
    general = response_codec(PRODUCE, version)
    quick = fast.response_encoder(PRODUCE, version, general.encode)
    response = data.draw(responses(version))
    assert joined(quick(response)) == joined(general.encode(response))


def test_the_usual_response_takes_the_fast_path() -> None:
    answer = PartitionProduceResponse(1, 0, 17, -1, 0)
    for version in VERSIONS:
        response = ProduceResponse([TopicProduceResponse("topic", partition_responses=[answer])])
        assert fast.response_encoder(PRODUCE, version, lambda response: [])(response)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60)
@given(data=st.data())
def test_a_request_batch_of_one_is_what_the_session_parses(version: int, data: st.DataObject) -> None:
    """For any bytes, the fast path leaves the frame to the session, or finds the same fields as the session."""
    client = ClientSession(1 << 20, data.draw(st.sampled_from([None, "", "me"])))
    frame = bytearray(joined(client.encode_request(data.draw(requests(version)), version))[4:])
    for _ in range(data.draw(st.integers(0, 2))):
        frame[data.draw(st.integers(0, min(len(frame) - 1, 60)))] = data.draw(st.integers(0, 255))
    batch = parse_request(memoryview(frame))
    if batch is None:
        return
    event = ServerSession(1 << 20, {PRODUCE: (FIRST, LAST)}).parse(memoryview(frame))
    assert isinstance(event, RequestReceived)
    (correlation_id,), (records,), shape = batch.correlation_ids, batch.records, batch.shape
    assert (event.api_key, event.version, event.correlation_id) == (PRODUCE, shape.version, correlation_id)
    partition = PartitionProduceData(shape.index, bytes(records))
    topic = TopicProduceData(shape.topic, shape.topic_id, [partition])
    expected = ProduceRequest(None, shape.acks, event.request.timeout_ms, [topic])
    assert outcome(lambda _: event.request, b"") == expected


def one_partition(version: int, records: bytes) -> bytes:
    """Return a usual request, its length in front."""
    topic = TopicProduceData("", b"i" * 16) if version >= FIRST_TOPIC_ID else TopicProduceData("t")
    topic.partition_data = [PartitionProduceData(3, records)]
    return joined(ClientSession(1 << 20, "me").encode_request(ProduceRequest(None, -1, 1000, [topic]), version))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_usual_request_is_a_request_batch_of_one(version: int) -> None:
    batch = parse_request(memoryview(one_partition(version, b"r" * 20_000))[4:])
    assert batch is not None
    assert [bytes(records) for records in batch.records] == [b"r" * 20_000]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_batch_ends_before_a_request_that_is_cut_off_or_has_another_codec(version: int) -> None:
    usual = one_partition(version, bytes(100))
    zstd = one_partition(version, bytes(22) + b"\4" + bytes(77))
    assert _taken(usual, usual)
    assert not _taken(usual, usual[:-1])
    assert _taken(usual, zstd) is (version >= FIRST_WITH_ZSTD)
    assert (parse_request(memoryview(zstd)[4:]) is not None) is (version >= FIRST_WITH_ZSTD)


@pytest.mark.parametrize("version", range(FIRST, FIRST_FLEXIBLE))
@pytest.mark.parametrize("size", [-(1 << 31), -(1 << 30), -140, -100, -1, 99, 101, 1 << 30, (1 << 31) - 1])
def test_a_request_with_another_size_of_records_ends_a_batch(version: int, size: int) -> None:
    """It may have as many bytes as it says, or as many as the size of its records requires, some not received."""
    usual = one_partition(version, bytes(100))
    at = len(usual) - 104
    length = min(max(at + size, -(1 << 31)), (1 << 31) - 1)
    changed = usual[:at] + struct.pack(">i", size) + usual[at + 4 :]
    assert parse_request(memoryview(changed)[4:]) is None
    assert not _taken(usual, changed)
    assert _taken(usual, struct.pack(">i", length) + changed[4:]) is (size == 99)


def _taken(first: bytes, second: bytes) -> bool:
    """Return whether a request, its length in front, is added to a batch of another one."""
    batch = parse_request(memoryview(first)[4:])
    assert batch is not None
    batch.collect(memoryview(first + second), len(first), (1 << 31) - 1, 256)
    return len(batch) == 2
