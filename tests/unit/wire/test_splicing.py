"""Structs that are encoded around elements encoded before are what the codec of the whole message makes."""

from __future__ import annotations

import pytest

from pylogd.wire import schema
from pylogd.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pylogd.wire.splicing import response_array

FIRST, LAST = schema.schema_versions(MetadataRequest.API_KEY)


@pytest.mark.parametrize("version", range(FIRST, LAST + 1))
@pytest.mark.parametrize("count", [0, 1, 127, 200])
def test_arrays_in_arrays(version: int, count: int) -> None:
    partitions = [MetadataResponsePartition(0, number, 1, 5, [1, 2], [1], [2]) for number in range(count)]
    response = MetadataResponse(0, [MetadataResponseBroker(1, "h", 9092)], "c", 1)
    topic = MetadataResponseTopic(0, "t", bytes(range(16)), False)
    topics = response_array(MetadataRequest.API_KEY, version, "topics")
    inner = response_array(MetadataRequest.API_KEY, version, "topics", "partitions")
    one = inner.join(inner.around(topic), [inner.encode(partition) for partition in partitions])
    joined = topics.join(topics.around(response), [one] * count)
    topic.partitions = partitions
    response.topics = [topic] * count
    assert topics.encode(topic) == one
    assert [joined] == schema.response_codec(MetadataRequest.API_KEY, version).encode(response)


def test_one_part_may_be_several_elements() -> None:
    codec = response_array(MetadataRequest.API_KEY, LAST, "topics", "partitions")
    around = codec.around(MetadataResponseTopic(0, "t"))
    some = [codec.encode(MetadataResponsePartition(0, number)) for number in range(4)]
    assert codec.join(around, [some[0] + some[1], some[2] + some[3]], 4) == codec.join(around, some)
