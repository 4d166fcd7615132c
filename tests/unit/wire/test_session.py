"""Server and client sessions connected to each other, and with invalid bytes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.base.limits.elements import AT_ONCE, MAX_ELEMENTS, ElementBounds
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from pylogd.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pylogd.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from pylogd.wire.schema import request_codec, response_codec
from pylogd.wire.session import ClientSession, LargeRequest, RequestReceived, ServerSession, UnsupportedRequest
from tests.rawclient import frame, header

SERVED = {0: (3, 13), 3: (0, 13), 18: (0, 4)}
MAX_FRAME = 1 << 20


class Records:
    """A sized object other than bytes, like a slice of a file."""

    def __len__(self) -> int:
        return 5


def flat(parts: list[Any]) -> bytes:
    return b"".join(bytes(part) for part in parts)


def produce(records: Any) -> ProduceRequest:
    return ProduceRequest(None, 1, 500, [TopicProduceData("t", partition_data=[PartitionProduceData(2, records)])])


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_a_request_and_its_reply_are_exchanged(version: int) -> None:
    client, server = ClientSession(MAX_FRAME, "me"), ServerSession(MAX_FRAME, SERVED)
    server.receive_data(flat(client.encode_request(produce(b"batch"), version)))
    event = server.next_event()
    assert isinstance(event, RequestReceived)
    assert (event.api_key, event.version, event.client_id) == (0, version, "me")
    assert bytes(event.request.topic_data[0].partition_data[0].records) == b"batch"
    answer = PartitionProduceResponse(2, 0, 40, -1, 0 if version >= 5 else -1)
    response = ProduceResponse([TopicProduceResponse("t", partition_responses=[answer])])
    reply = flat(server.encode_reply(event, response))
    assert flat(server.encode_reply(event, flat(response_codec(0, version).encode(response)))) == reply
    client.receive_data(reply)
    received = client.next_event()
    assert received is not None
    assert received.response == response
    assert received.correlation_id == event.correlation_id
    assert client.next_event() is None
    assert server.next_event() is None


def test_no_client_id_and_a_byte_at_a_time() -> None:
    client, server = ClientSession(MAX_FRAME), ServerSession(MAX_FRAME, SERVED)
    events = []
    for byte in flat(client.encode_request(MetadataRequest(topics=None), 9)):
        server.receive_data(bytes([byte]))
        events.append(server.next_event())
    assert all(event is None for event in events[:-1])
    assert events[-1].client_id is None  # type: ignore[union-attr]
    assert events[-1].request.topics is None  # type: ignore[union-attr]


def test_a_reply_may_tell_of_more_partitions_than_a_request() -> None:
    client, server = ClientSession(64 << 20), ServerSession(MAX_FRAME, SERVED)
    server.receive_data(flat(client.encode_request(MetadataRequest(topics=None), 12)))
    event = server.next_event()
    assert isinstance(event, RequestReceived)
    many = MetadataResponsePartition(0, 0, 1, 0, list(range(MAX_ELEMENTS + 1)), [], [])
    client.receive_data(
        flat(
            server.encode_reply(
                event, MetadataResponse(topics=[MetadataResponseTopic(0, "t", bytes(16), False, [many])])
            )
        )
    )
    received = client.next_event()
    assert received is not None
    assert len(received.response.topics[0].partitions[0].replica_nodes) == MAX_ELEMENTS + 1


def test_an_opaque_object_is_passed_on() -> None:
    records = Records()
    parts = ClientSession(MAX_FRAME).encode_request(produce(records), 9)
    assert any(part is records for part in parts)
    (length,) = struct.unpack_from(">i", parts[0])  # type: ignore[arg-type]
    assert length + 4 == sum(map(len, parts))


@pytest.mark.parametrize(("api_key", "version"), [(99, 0), (0, 2), (0, 14), (3, -1)])
def test_an_unsupported_request_has_its_header(api_key: int, version: int) -> None:
    server = ServerSession(MAX_FRAME, SERVED)
    header = struct.pack(">hhih", api_key, version, 7, 2) + b"meXX"
    server.receive_data(struct.pack(">i", len(header)) + header)
    assert server.next_event() == UnsupportedRequest(api_key, version, 7, "me")


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    client = ClientSession(MAX_FRAME)
    client.encode_request(ApiVersionsRequest("c", "1"), 4)
    body = struct.pack(">hihhh", 35, 1, 18, 0, 3)
    client.receive_data(struct.pack(">ii", len(body) + 4, 1) + body)
    event = client.next_event()
    assert event is not None
    assert isinstance(event.response, ApiVersionsResponse)
    assert event.response.error_code == 35
    assert event.response.api_keys[0].max_version == 3


def test_replies_out_of_order_or_without_request_are_refused() -> None:
    client, server = ClientSession(MAX_FRAME), ServerSession(MAX_FRAME, SERVED)
    server.receive_data(flat(client.encode_request(MetadataRequest(), 9)))
    event = server.next_event()
    assert isinstance(event, RequestReceived)
    event.correlation_id += 1
    client.receive_data(flat(server.encode_reply(event, MetadataResponse())))
    with pytest.raises(RemoteProtocolError, match="instead of 1"):
        client.next_event()
    stranger = ClientSession(MAX_FRAME)
    stranger.receive_data(flat(server.encode_reply(event, MetadataResponse())))
    with pytest.raises(RemoteProtocolError, match="no request waits"):
        stranger.next_event()


def test_correlation_ids_start_over_behind_the_last_one() -> None:
    """They are signed numbers of 32 bits; brokers send back whatever they got."""
    client, server = ClientSession(MAX_FRAME), ServerSession(MAX_FRAME, SERVED)
    client._correlation_id = (1 << 31) - 2
    seen = []
    for _ in range(3):
        server.receive_data(flat(client.encode_request(produce(b"batch"), 9)))
        event = server.next_event()
        assert isinstance(event, RequestReceived)
        seen.append(event.correlation_id)
        client.receive_data(flat(server.encode_reply(event, ProduceResponse())))
        assert client.next_event() is not None
    assert seen == [(1 << 31) - 1, 0, 1]


def test_a_produce_without_acks_awaits_no_reply() -> None:
    client = ClientSession(MAX_FRAME)
    client.encode_request(produce(b""), 9, expect_reply=False)
    assert client.in_flight == 0


@settings(max_examples=300)
@given(st.binary(max_size=80), st.integers(1, 80))
def test_any_bytes_become_events_or_one_protocol_error(data: bytes, step: int) -> None:
    server = ServerSession(64, SERVED)
    try:
        for at in range(0, len(data), step):
            server.receive_data(data[at : at + step])
            while server.next_event() is not None:
                pass
    except RemoteProtocolError:
        pass


@settings(max_examples=300)
@given(st.sampled_from([0, 3, 18]), st.integers(-1, 14), st.binary(max_size=60))
def test_any_body_after_a_valid_header_becomes_an_event_or_a_protocol_error(
    api_key: int, version: int, body: bytes
) -> None:
    server = ServerSession(MAX_FRAME, SERVED)
    frame = struct.pack(">hhih", api_key, version, 1, -1) + body
    server.receive_data(struct.pack(">i", len(frame)) + frame)
    try:
        event = server.next_event()
    except RemoteProtocolError:
        return
    assert isinstance(event, (RequestReceived, UnsupportedRequest))


def test_bytes_after_a_request_are_ignored() -> None:
    client, server = ClientSession(MAX_FRAME), ServerSession(MAX_FRAME, SERVED)
    frame = flat(client.encode_request(MetadataRequest(topics=None), 13))[4:] + bytes(3)
    server.receive_data(struct.pack(">i", len(frame)) + frame)
    event = server.next_event()
    assert isinstance(event, RequestReceived)
    assert event.request.topics is None


def test_the_bound_on_elements_can_be_lifted() -> None:
    request = MetadataRequest([MetadataRequestTopic(name=str(number)) for number in range(1001)])
    client, server = ClientSession(MAX_FRAME), ServerSession(MAX_FRAME, SERVED, elements=ElementBounds(1000))
    other = ServerSession(MAX_FRAME, SERVED, elements=ElementBounds(1000))
    server.lift_element_bounds()
    data = flat(client.encode_request(request, 9))
    server.receive_data(data)
    event = server.next_event()
    assert isinstance(event, LargeRequest) and len(event.request().topics) == 1001
    other.receive_data(data)
    with pytest.raises(RemoteProtocolError):
        other.next_event()


def _with_topics(count: int) -> bytes:
    body = b"".join(map(bytes, request_codec(3, 9).encode(MetadataRequest([MetadataRequestTopic(name="t")] * count))))  # type: ignore[arg-type]
    return frame(header(3, 9) + body)


def test_a_request_with_many_elements_is_left_to_be_decoded() -> None:
    session = ServerSession(1 << 20, {3: (0, 9)}, elements=ElementBounds(AT_ONCE + 1))
    session.receive_data(_with_topics(AT_ONCE) + _with_topics(AT_ONCE + 1) + _with_topics(AT_ONCE + 2))
    small = session.next_event()
    assert type(small) is RequestReceived and len(small.request.topics) == AT_ONCE
    large = session.next_event()
    assert isinstance(large, LargeRequest) and large.api_key == 3
    assert len(large.request().topics) == AT_ONCE + 1
    with pytest.raises(RemoteProtocolError, match=f"over the limit of {AT_ONCE + 1}"):
        session.next_event()


def test_a_large_request_may_turn_out_to_be_malformed() -> None:
    data = bytearray(_with_topics(AT_ONCE + 1))
    data[-200:-100] = b"\xff" * 100
    session = ServerSession(1 << 20, {3: (0, 9)})
    session.receive_data(bytes(data))
    large = session.next_event()
    assert isinstance(large, LargeRequest)
    with pytest.raises(RemoteProtocolError):
        large.request()
