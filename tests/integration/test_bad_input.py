"""Arbitrary bytes on a socket, and arbitrary batches in a request.

Each is answered with an error code, or the connection is closed and one log line says why. Nothing hangs, no traceback
is logged (the fixture checks), memory stays bounded, and other clients are served.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.local.broker import BrokerProcess
from pylogd.wire.compression import CompressionType
from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import CRC_START, HEADER, HEADER_SIZE, BatchHeader, NewRecord, crc32c, encode_batch, speedups
from tests.fuzz.requests import request_bodies
from tests.rawclient import (
    ConnectionClosed,
    RawClient,
    check_serves,
    connections,
    create_topic,
    encode,
    end_offset,
    frame,
    header,
    memory,
    produce,
    reset_peak,
    wait_until,
    wait_until_at_rest,
)

METADATA, API_VERSIONS = 3, 18
FUZZ_SEED = 20_260_917
FUZZ_FRAMES_PER_VERSION = 25
MEMORY_CAP = 24.0  # MiB by which the process may grow meanwhile


# Frames ---------------------------------------------------------------------------------------------------------------

TLS_HELLO = bytes.fromhex("16030100c4010000c00303") + bytes(range(180))
BAD_BYTES: dict[str, tuple[bytes, str]] = {
    "negative length": (struct.pack(">i", -1) + b"x" * 64, "frame length -1"),
    "lowest length": (struct.pack(">i", -(1 << 31)), "frame length -2147483648"),
    "largest length": (struct.pack(">i", (1 << 31) - 1), "frame length 2147483647"),
    "length just over the cap": (struct.pack(">i", 104_857_601), "socket.request.max.bytes"),
    "empty frame": (frame(b""), "too short for a header"),
    "frame shorter than a header": (frame(bytes(9)), "too short for a header"),
    "client id over the end": (frame(struct.pack(">hhih", METADATA, 5, 1, 3000) + b"abc"), "client id"),
    "client id not UTF-8": (frame(struct.pack(">hhih", METADATA, 5, 1, 2) + b"\xff\xfe"), "UTF-8"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "frame length 1195725856"),
    "text": (b"hello, this is not a frame\n" * 3, "frame length"),
    "unknown API": (frame(header(METADATA, 5)[:0] + struct.pack(">hhih", 4711, 0, 1, -1)), "API 4711"),
    "negative API": (frame(struct.pack(">hhih", -1, 0, 1, -1)), "API -1"),
    "unknown version": (frame(struct.pack(">hhih", METADATA, 99, 1, -1)), "version 99"),
    "negative version": (frame(struct.pack(">hhih", METADATA, -1, 1, -1)), "version -1"),
    "produce before its first version": (frame(struct.pack(">hhih", 0, 2, 1, -1) + bytes(20)), "version 2"),
    "body cut short": (frame(encode(MetadataRequest([MetadataRequestTopic(name="abc")]), 5)[:-3]), "Metadata"),
    "no body": (frame(header(METADATA, 5)), "Metadata"),
    "2 147 483 647 elements": (frame(header(METADATA, 5) + struct.pack(">i", (1 << 31) - 1)), "Metadata"),
    "more elements than bytes": (frame(header(METADATA, 5) + struct.pack(">i", 999_999) + bytes(64)), "Metadata"),
    "an endless varint": (frame(header(METADATA, 9) + b"\xff" * 12), "varint"),
    "20 000 tagged fields": (frame(header(METADATA, 9)[:-1] + b"\xa0\x9c\x01" + bytes(60_000)), "tagged fields"),
    "a string that is not UTF-8": (frame(header(METADATA, 5) + struct.pack(">ih", 1, 2) + b"\xff\xfe\x01"), "UTF-8"),
    "null for a string": (frame(header(METADATA, 5) + struct.pack(">ih", 1, -1) + b"\x01"), "Metadata"),
}


@pytest.mark.parametrize("name", BAD_BYTES)
def test_bad_bytes_close_the_connection_with_a_reason(own: BrokerProcess, name: str) -> None:
    data, reason = BAD_BYTES[name]
    logged = len(own.log())
    with RawClient(own.address) as client:
        client.send(data)
        assert client.is_closed_by_broker(), "a reply, where the connection should have been closed"
    said = [line for line in own.log()[logged:].splitlines() if "Closing the connection" in line]
    assert len(said) == 1, own.log()[logged:]
    assert reason in said[0]
    check_serves(own.address)


def test_a_tls_hello_is_answered_with_words_that_a_tls_library_shows(own: BrokerProcess) -> None:
    logged = len(own.log())
    with RawClient(own.address) as client:
        client.send(TLS_HELLO)
        said = b"This listener does not use TLS.\n"
        assert b"".join(client.socket.recv(1) for _ in said) == said
        assert client.is_closed_by_broker()
    assert "the other side uses TLS" in own.log()[logged:]
    check_serves(own.address)


def test_requests_before_a_bad_frame_are_answered(own: BrokerProcess) -> None:
    with RawClient(own.address) as client:
        good = b"".join(frame(encode(ApiVersionsRequest("a", "1"), 3, number)) for number in range(5))
        client.send(good + frame(b"\0"))
        for number in range(5):
            assert client.response(API_VERSIONS, 3, number).error_code == 0
        assert client.is_closed_by_broker()


def test_api_versions_of_an_unknown_version_is_answered_in_version_0(own: BrokerProcess) -> None:
    with RawClient(own.address) as client:
        client.send(frame(struct.pack(">hhih", API_VERSIONS, 99, 7, -1) + b"\0whatever comes with it"))
        reply = client.response(API_VERSIONS, 0, 7)
        assert reply.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [api.api_key for api in reply.api_keys] == [API_VERSIONS]
        assert client.request(ApiVersionsRequest("a", "1"), 3).error_code == 0, "the connection goes on"


def test_a_request_sent_one_byte_at_a_time_is_answered(own: BrokerProcess) -> None:
    with RawClient(own.address) as client:
        for byte in frame(encode(MetadataRequest([]), 9, 1)) + frame(encode(ApiVersionsRequest("a", "1"), 3, 2)):
            client.send(bytes((byte,)))
        assert client.response(METADATA, 9, 1).brokers
        assert client.response(API_VERSIONS, 3, 2).error_code == 0


def test_unfinished_frames_cost_memory_for_received_bytes_only(own: BrokerProcess) -> None:
    wait_until_at_rest(own.pid)  # the connections of the previous test are closed
    sockets = connections(own.pid)
    before = memory(own.pid)
    clients = [RawClient(own.address) for _ in range(100)]
    try:
        for client in clients:
            client.send(struct.pack(">i", 100_000_000) + header(0, 9) + bytes(2000))
        check_serves(own.address)
        assert connections(own.pid) > len(clients), "unfinished frames are no errors; the listener is one more"
        assert memory(own.pid) - before < MEMORY_CAP
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: connections(own.pid) <= sockets, "the sockets are closed")


def test_well_formed_requests_with_extreme_sizes_cost_bounded_memory(own: BrokerProcess) -> None:
    """Each of these well-formed requests could take much memory or time."""
    before = memory(own.pid)
    with RawClient(own.address) as client:
        topic = CreatableTopic("moon", (1 << 31) - 1, 1, [], [])
        reply = client.request(CreateTopicsRequest([topic], 30_000), 5)
        assert reply.topics[0].error_code == ErrorCode.POLICY_VIOLATION
        names = [MetadataRequestTopic(name="x/" + str(number)) for number in range(50_000)]
        reply = client.request(MetadataRequest(names[:20_000], allow_auto_topic_creation=True), 9)
        assert {topic.error_code for topic in reply.topics} == {ErrorCode.INVALID_TOPIC_EXCEPTION}
        del reply
        client.send_request(MetadataRequest(names), 9)
        assert client.is_closed_by_broker(), "more elements than request.max.elements"
    assert memory(own.pid) - before < 2 * MEMORY_CAP


def test_random_requests_are_answered_or_close_the_connection(start_broker: Callable[..., BrokerProcess]) -> None:
    """A valid request sent after each frame shows which of the two happened."""
    broker = start_broker(settings={"max.partitions.per.request": "20"})
    wait_until_at_rest(broker.pid)
    rng = random.Random(FUZZ_SEED)
    sockets, before = connections(broker.pid), memory(broker.pid)
    with RawClient(broker.address) as client:
        served = client.request(ApiVersionsRequest("fuzz", "1"), 3).api_keys
    frames = closed = 0
    client = RawClient(broker.address)
    for api in served:
        for version in range(max(api.min_version, 3 if api.api_key == 0 else 0), api.max_version + 1):
            for body in request_bodies(rng, api.api_key, version, FUZZ_FRAMES_PER_VERSION):
                frames += 1
                client.send(frame(header(api.api_key, version) + body))
                client.send_request(ApiVersionsRequest("fuzz", "1"), 3)
                if not answered(client):
                    closed += 1
                    client.close()
                    client = RawClient(broker.address)
    client.close()
    assert frames > 2000
    assert 0 < closed < frames, "some frames were well-formed and some were not"
    log = broker.log()
    assert 100 <= log.count("Closing the connection") < closed, "a flood of them does not fill the log"
    assert "internal error" not in log
    wait_until(lambda: connections(broker.pid) <= sockets, "the sockets are closed")
    assert memory(broker.pid) - before < MEMORY_CAP
    check_serves(broker.address)


def answered(client: RawClient) -> bool:
    """Read up to the reply to the last request. Return False if the connection is closed before."""
    last = struct.pack(">i", client.last_correlation_id)
    try:
        while client.read_frame()[:4] != last:
            pass
    except ConnectionClosed:
        return False
    return True


def test_random_bytes_close_the_connection(own: BrokerProcess) -> None:
    rng = random.Random(FUZZ_SEED)
    wait_until_at_rest(own.pid)
    sockets, before = connections(own.pid), memory(own.pid)
    for _ in range(300):
        with RawClient(own.address) as client:
            client.send(rng.randbytes(rng.randint(1, 4000)))
    check_serves(own.address)  # accepted after all of them
    wait_until(lambda: connections(own.pid) <= sockets, "the sockets are closed")
    assert memory(own.pid) - before < MEMORY_CAP


# Batches --------------------------------------------------------------------------------------------------------------


def batch(value: bytes = b"value", *, compression: int = CompressionType.NONE, stamp: int | None = None) -> bytes:
    """Return a valid batch of three records."""
    now = time.time_ns() // 1_000_000 if stamp is None else stamp
    return encode_batch([NewRecord(b"key", value, now) for _ in range(3)], compression=compression)


def with_header(data: bytes, *, fix_crc: bool = True, **changes: int) -> bytes:
    """Return `data` with changed header fields and, if `fix_crc`, a matching CRC."""
    copy = bytearray(data)
    HEADER.pack_into(copy, 0, *BatchHeader._make(HEADER.unpack_from(copy))._replace(**changes))
    if fix_crc:
        struct.pack_into(">I", copy, CRC_START - 4, crc32c(bytes(copy[CRC_START:])))
    return bytes(copy)


def fix_crc(data: bytes) -> bytes:
    """Return `data` with a CRC that matches its bytes."""
    return with_header(data)


def flip_byte(data: bytes, at: int) -> bytes:
    """Return `data` with one byte changed."""
    return data[:at] + bytes((data[at] ^ 0xFF,)) + data[at + 1 :]


class Refused(NamedTuple):
    """A batch, and the error code with which it has to be answered."""

    make: Callable[[], bytes | None]
    code: ErrorCode


HOUR_MS = 3_600_000
BAD_BATCHES: dict[str, Refused] = {
    "bad CRC": Refused(lambda: with_header(batch(), fix_crc=False, crc=1), ErrorCode.CORRUPT_MESSAGE),
    "a flipped byte": Refused(lambda: flip_byte(batch(), 70), ErrorCode.CORRUPT_MESSAGE),
    "length too large": Refused(lambda: with_header(batch(), batch_length=5000), ErrorCode.INVALID_RECORD),
    "length too small": Refused(lambda: with_header(batch(), batch_length=60), ErrorCode.CORRUPT_MESSAGE),
    "length of nothing": Refused(lambda: with_header(batch(), batch_length=0), ErrorCode.CORRUPT_MESSAGE),
    "length negative": Refused(lambda: with_header(batch(), batch_length=-61), ErrorCode.CORRUPT_MESSAGE),
    "length the largest": Refused(lambda: with_header(batch(), batch_length=(1 << 31) - 1), ErrorCode.INVALID_RECORD),
    "cut off": Refused(lambda: batch()[:-1], ErrorCode.INVALID_RECORD),
    "truncated in its header": Refused(lambda: batch()[:40], ErrorCode.INVALID_RECORD),
    "a few bytes": Refused(lambda: b"\0\0\0", ErrorCode.INVALID_RECORD),
    "bytes behind it": Refused(lambda: batch() + b"\0" * 10, ErrorCode.CORRUPT_MESSAGE),
    "nothing": Refused(lambda: b"", ErrorCode.INVALID_RECORD),
    "null": Refused(lambda: None, ErrorCode.INVALID_RECORD),
    "too large": Refused(lambda: batch(b"v" * 400_000), ErrorCode.MESSAGE_TOO_LARGE),
    "codec 5": Refused(lambda: with_header(batch(), attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "codec 7": Refused(lambda: with_header(batch(), attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "magic 0": Refused(lambda: with_header(batch(), magic=0), ErrorCode.INVALID_RECORD),
    "magic 1": Refused(lambda: with_header(batch(), magic=1), ErrorCode.INVALID_RECORD),
    "magic 3": Refused(lambda: with_header(batch(), magic=3), ErrorCode.CORRUPT_MESSAGE),
    "base offset not 0": Refused(lambda: with_header(batch(), base_offset=7), ErrorCode.INVALID_RECORD),
    "base offset negative": Refused(lambda: with_header(batch(), base_offset=-7), ErrorCode.INVALID_RECORD),
    "descending offsets": Refused(lambda: with_header(batch(), last_offset_delta=-3), ErrorCode.INVALID_RECORD),
    "more offsets than records": Refused(lambda: with_header(batch(), last_offset_delta=9), ErrorCode.INVALID_RECORD),
    "fewer records than offsets": Refused(lambda: with_header(batch(), record_count=1), ErrorCode.INVALID_RECORD),
    "no records": Refused(lambda: with_header(batch(), record_count=0, last_offset_delta=-1), ErrorCode.INVALID_RECORD),
    "a control batch": Refused(lambda: with_header(batch(), attributes=0x20), ErrorCode.INVALID_RECORD),
    "a valid batch and an invalid one": Refused(lambda: batch() + flip_byte(batch(), 70), ErrorCode.INVALID_RECORD),
    "two batches": Refused(lambda: batch() + batch(), ErrorCode.INVALID_RECORD),
    "a batch of today's format and an older one": Refused(
        lambda: batch() + with_header(batch(), magic=1), ErrorCode.INVALID_RECORD
    ),
    "overlapping offsets": Refused(lambda: batch() + with_header(batch(), base_offset=1), ErrorCode.INVALID_RECORD),
    "gzip cut off": Refused(lambda: batch(compression=CompressionType.GZIP)[:-5], ErrorCode.INVALID_RECORD),
    "snappy with a hole": Refused(
        lambda: (whole := batch(compression=CompressionType.SNAPPY))[:70] + whole[75:], ErrorCode.INVALID_RECORD
    ),
    "tomorrow's time stamp": Refused(
        lambda: batch(stamp=time.time_ns() // 1_000_000 + 24 * HOUR_MS), ErrorCode.INVALID_TIMESTAMP
    ),
    "plain records under gzip": Refused(lambda: with_header(batch(), attributes=1), ErrorCode.INVALID_RECORD),
    "plain records under lz4": Refused(lambda: with_header(batch(), attributes=3), ErrorCode.INVALID_RECORD),
    "an undefined attribute bit": Refused(lambda: with_header(batch(), attributes=0x100), ErrorCode.INVALID_RECORD),
    "a transaction that was not begun": Refused(
        lambda: with_header(batch(), attributes=0x10, producer_id=5, producer_epoch=0, base_sequence=0),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "a producer without a sequence": Refused(
        lambda: with_header(batch(), producer_id=5, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD
    ),
}


if speedups is not None:  # found by walking over the records
    BAD_BATCHES |= {
        "garbage for records": Refused(
            lambda: fix_crc((whole := batch())[:HEADER_SIZE] + b"?" * (len(whole) - HEADER_SIZE)),
            ErrorCode.INVALID_RECORD,
        ),
        "a wrong record count": Refused(
            lambda: with_header(batch(), record_count=2, last_offset_delta=1), ErrorCode.INVALID_RECORD
        ),
        "the same delta twice": Refused(
            lambda: fix_crc((whole := batch(b""))[:-7] + b"\2" + whole[-6:]), ErrorCode.INVALID_RECORD
        ),
    }


@pytest.fixture(scope="module")
def batch_topic(own: BrokerProcess) -> str:
    """A topic of two partitions for the bad batches."""
    with RawClient(own.address) as client:
        create_topic(client, "batches", 2)
    return "batches"


@pytest.mark.parametrize("version", [3, 8, 9])
@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_is_answered_with_its_code_and_not_stored(
    own: BrokerProcess, batch_topic: str, name: str, version: int
) -> None:
    make, code = BAD_BATCHES[name]
    with RawClient(own.address) as client:
        before = [end_offset(client, batch_topic, index) for index in (0, 1)]
        data = [PartitionProduceData(0, make()), PartitionProduceData(1, batch())]
        request = ProduceRequest(None, -1, 30_000, [TopicProduceData(batch_topic, partition_data=data)])
        refused, good = client.request(request, version).responses[0].partition_responses
        assert ErrorCode(refused.error_code) is code
        assert (refused.base_offset, good.error_code) == (-1, 0)
        assert [end_offset(client, batch_topic, index) for index in (0, 1)] == [before[0], before[1] + 3]


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_alone_in_a_request_has_its_code(own: BrokerProcess, batch_topic: str, name: str) -> None:
    """A request with a single batch takes the broker's fast path."""
    make, code = BAD_BATCHES[name]
    bad = make()
    with RawClient(own.address) as client:
        before = end_offset(client, batch_topic)
        data = [PartitionProduceData(0, bad)]
        request = ProduceRequest(None, 1, 30_000, [TopicProduceData(batch_topic, partition_data=data)])
        (answer,) = client.request(request, 9).responses[0].partition_responses
        assert ErrorCode(answer.error_code) is code
        assert answer.error_message
        assert end_offset(client, batch_topic) == before
        (answer,) = produce(client, batch_topic, [batch()])
        assert (answer.error_code, answer.base_offset) == (0, before)


def test_a_bad_batch_with_acks_0_closes_the_connection(own: BrokerProcess, batch_topic: str) -> None:
    """Requests with acks=0 have no response: closing the connection is the only way to report an error."""
    with RawClient(own.address) as client:
        before = end_offset(client, batch_topic)
        data = [PartitionProduceData(0, flip_byte(batch(), 70))]
        client.send_request(ProduceRequest(None, 0, 1000, [TopicProduceData(batch_topic, partition_data=data)]), 9)
        assert client.is_closed_by_broker()
    with RawClient(own.address) as client:
        assert end_offset(client, batch_topic) == before


def test_many_bad_batches_cost_no_memory(own: BrokerProcess, batch_topic: str) -> None:
    large = with_header(batch(b"v" * 300_000), fix_crc=False, crc=1)
    with RawClient(own.address) as client:
        produce(client, batch_topic, [large])
        reset_peak(own.pid)
        before = memory(own.pid)
        for _ in range(100):
            assert produce(client, batch_topic, [large])[0].error_code == ErrorCode.CORRUPT_MESSAGE
    assert memory(own.pid, "VmHWM") - before < MEMORY_CAP
