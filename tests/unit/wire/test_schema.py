"""The rules of codecs: versions, limits, records that are not copied, and messages that can't be encoded."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from pylogd.base.limits.elements import MAX_ELEMENTS
from pylogd.wire.exceptions import InvalidValue, RemoteProtocolError, UnknownApi, UnsupportedVersion
from pylogd.wire.messages import APIS, ApiKey
from pylogd.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from pylogd.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from pylogd.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
)
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.schema import (
    Codec,
    request_codec,
    request_header_version,
    response_codec,
    response_header_version,
    schema_versions,
)
from pylogd.wire.stream import unsigned_varint


class Slice:
    """An object with a size only, such as a slice of a file, for a field of records."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def joined(codec: Codec, message: object) -> bytes:
    return b"".join(codec.encode(message))  # type: ignore[arg-type]


def produce(records: bytes | None) -> ProduceRequest:
    return ProduceRequest(
        acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(0, records)])]
    )


def test_versions() -> None:
    assert schema_versions(ApiKey.PRODUCE) == (3, 13)
    assert request_codec(ApiKey.PRODUCE, 9) is request_codec(0, 9)
    for version in (2, 14, -1):
        with pytest.raises(UnsupportedVersion, match="Produce has versions 3 to 13"):
            request_codec(ApiKey.PRODUCE, version)
    for ask in (schema_versions, lambda key: request_codec(key, 0), lambda key: request_header_version(key, 0)):
        with pytest.raises(UnknownApi, match="9999"):
            ask(9999)


def test_header_versions() -> None:
    for key, info in APIS.items():
        for version in range(info.min_version, info.max_version + 1):
            flexible = version >= info.flexible_from
            assert request_header_version(key, version) == (2 if flexible else 1)
            assert response_header_version(key, version) == int(flexible and key != ApiKey.API_VERSIONS)


@pytest.mark.parametrize("version", [3, 9])
def test_records_are_a_view_of_the_frame(version: int) -> None:
    codec = request_codec(ApiKey.PRODUCE, version)
    frame = joined(codec, produce(b"batch"))
    for given in (frame, memoryview(frame)):
        records = codec.decode(given).topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        assert records.obj is frame
        assert bytes(records) == b"batch"


@pytest.mark.parametrize("version", [4, 12])
def test_records_pass_through_untouched(version: int) -> None:
    first, second = Slice(1000), Slice(7)
    partitions = [PartitionData(records=first), PartitionData(records=Slice(0)), PartitionData(records=second)]
    message = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    parts = response_codec(ApiKey.FETCH, version).encode(message)
    assert [part for part in parts if not isinstance(part, bytes)] == [first, second]
    assert [type(part) for part in parts[:4]] == [bytes, Slice, bytes, Slice]
    assert len(b"".join(part for part in parts if isinstance(part, bytes))) == sum(map(len, parts)) - 1007


def test_records_may_be_null() -> None:
    for version in (3, 9):
        codec = request_codec(ApiKey.PRODUCE, version)
        assert codec.decode(joined(codec, produce(None))) == produce(None)


def test_more_elements_than_the_limit_are_refused() -> None:
    codec = request_codec(ApiKey.DESCRIBE_LOG_DIRS, 1)
    head = struct.pack(">ih1si", 1, 1, b"t", MAX_ELEMENTS + 1)
    with pytest.raises(RemoteProtocolError, match="over the limit"):
        codec.decode(head + bytes(4 * (MAX_ELEMENTS + 1)))


def test_the_elements_of_all_arrays_count_together() -> None:
    codec = request_codec(ApiKey.DESCRIBE_LOG_DIRS, 1)
    half = DescribableLogDirTopic("t", [0] * (MAX_ELEMENTS // 2 - 1))
    message = DescribeLogDirsRequest([half, half])
    assert codec.decode(joined(codec, message)) == message
    with pytest.raises(RemoteProtocolError, match="over the limit of 1000000 in a message"):
        codec.decode(joined(codec, DescribeLogDirsRequest([half, half, half])))


def test_an_array_larger_than_the_frame_is_refused_before_its_elements_are_read() -> None:
    codec = request_codec(ApiKey.METADATA, 0)
    with pytest.raises(RemoteProtocolError, match="999999 elements are announced, but only 2 bytes are left"):
        codec.decode(struct.pack(">ih", 999_999, -1))


def test_tagged_fields_over_the_limit_are_refused() -> None:
    codec = request_codec(ApiKey.DESCRIBE_CLUSTER, 0)
    good = b"\0" + unsigned_varint(10_000) + b"".join(unsigned_varint(tag) + b"\0" for tag in range(10_000))
    assert codec.decode(good) == codec.construct.cls()
    bad = b"\0" + unsigned_varint(10_001) + b"".join(unsigned_varint(tag) + b"\0" for tag in range(10_001))
    with pytest.raises(RemoteProtocolError, match="10001 tagged fields"):
        codec.decode(bad)


def test_a_tagged_field_must_be_as_long_as_it_announces() -> None:
    codec = request_codec(ApiKey.FETCH, 17)
    message = FetchRequest(topics=[FetchTopic(partitions=[FetchPartition(replica_directory_id=b"x" * 16)])])
    frame = joined(codec, message)
    assert codec.decode(frame) == message
    at = frame.index(b"\x01\x00\x10" + b"x" * 16)
    with pytest.raises(RemoteProtocolError, match=r"replica_directory_id: .* announced 15 bytes, its content takes 16"):
        codec.decode(frame[: at + 2] + b"\x0f" + b"x" * 15 + frame[at + 19 :])


def test_a_field_that_does_not_exist_is_dropped_if_ignorable() -> None:
    codec = request_codec(ApiKey.FETCH, 4)
    assert codec.decode(joined(codec, FetchRequest(rack_id="r1", session_id=7))) == FetchRequest()


def test_a_field_that_does_not_exist_is_refused_if_set() -> None:
    codec = request_codec(ApiKey.FIND_COORDINATOR, 3)
    assert joined(codec, FindCoordinatorRequest(key="g"))
    with pytest.raises(UnsupportedVersion, match="coordinator_keys is set, but does not exist at this version"):
        codec.encode(FindCoordinatorRequest(coordinator_keys=["g"]))
    epoch = PartitionData(current_leader=LeaderIdAndEpoch(3, 4))
    with pytest.raises(UnsupportedVersion, match=r"FetchResponse version 11: .*current_leader is set"):
        response_codec(ApiKey.FETCH, 11).encode(FetchResponse(responses=[FetchableTopicResponse(partitions=[epoch])]))


@pytest.mark.parametrize(
    ("version", "request_"),
    [
        (0, MetadataRequest(topics=None)),  # may be null from version 1 on
        (8, MetadataRequest(topics=[MetadataRequestTopic(name=None)])),  # has names from version 10 on
        (12, MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"short")])),
        (12, MetadataRequest(topics=[MetadataRequestTopic(name="\ud800")])),
        (1, MetadataRequest(topics=[MetadataRequestTopic(name="x" * 40_000)])),  # too long for 16 bits
        (1, MetadataRequest(topics=5)),  # type: ignore[arg-type]
        (1, "not a message"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(version: int, request_: object) -> None:
    with pytest.raises(InvalidValue, match=f"MetadataRequest version {version}"):
        request_codec(ApiKey.METADATA, version).encode(request_)


def test_a_number_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidValue):
        request_codec(ApiKey.FETCH, 4).encode(FetchRequest(max_wait_ms=1 << 31))


def test_a_nullable_struct() -> None:
    codec = request_codec(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)
    for cursor in (None, Cursor("t", 3)):
        message = DescribeTopicPartitionsRequest(cursor=cursor)
        assert codec.decode(joined(codec, message)) == message


def test_nothing_is_read_before_it_is_used() -> None:
    script = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from pylogd.wire import schema
assert not [path for path in opened if path.endswith(".json")], opened
schema.request_codec(0, 9)
assert [path.rpartition("/")[2] for path in opened if path.endswith(".json")] == ["produce.json"], opened
"""
    subprocess.run([sys.executable, "-c", script], check=True)
