"""The JSON documents of a group in ZooKeeper, as Kafka 0.8 writes them."""

from __future__ import annotations

import json
import re

import pytest

from pylogd.client.core.model import TopicPartition
from pylogd.client.zookeeper.registries import (
    BLACK_LIST,
    WHITE_LIST,
    GroupPaths,
    Subscription,
    decode_member,
    decode_offset,
    decode_partitions,
    encode_member,
    encode_offset,
)
from pylogd.store.errors import CorruptMetadata


def test_nodes_are_where_kafka_has_them() -> None:
    paths = GroupPaths("g")
    assert paths.member("c") == "/consumers/g/ids/c"
    assert paths.owner(TopicPartition("t", 3)) == "/consumers/g/owners/t/3"
    assert paths.offset(TopicPartition("t", 3)) == "/consumers/g/offsets/t/3"


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a\0"])
def test_a_group_needs_the_name_of_a_node(name: str) -> None:
    with pytest.raises(ValueError, match="name of a group"):
        GroupPaths(name)


def test_a_member_is_written_as_kafka_writes_it() -> None:
    data = encode_member(Subscription({"t": 2}), 1234)
    assert json.loads(data) == {"version": 1, "subscription": {"t": 2}, "pattern": "static", "timestamp": "1234"}
    assert decode_member("/m", data) == Subscription({"t": 2})


def test_members_of_other_makes_are_understood() -> None:
    static = b'{"pattern":"static","subscription":{"t":1},"timestamp":"1416206213064","version":1}'
    assert decode_member("/m", static) == Subscription({"t": 1})
    white = decode_member("/m", b'{"version":1,"subscription":{"a.*":3},"pattern":"white_list","timestamp":"1"}')
    assert white == Subscription({"a.*": 3}, WHITE_LIST)
    assert white.streams(["a", "ab", "ba", "__consumer_offsets"]) == {"a": 3, "ab": 3}
    black = decode_member("/m", b'{"version":1,"subscription":{"a.*":1},"pattern":"black_list","timestamp":"1"}')
    assert black == Subscription({"a.*": 1}, BLACK_LIST)
    assert black.streams(["a", "ba", "__consumer_offsets"]) == {"ba": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"subscription": []}',
        b'{"subscription": {"t": "x"}}',
        b'{"subscription": {"t": 1}, "pattern": "grey_list"}',
        b'{"subscription": {"(": 1}, "pattern": "white_list"}',
        b'{"subscription": {"a": 1, "b": 1}, "pattern": "white_list"}',
    ],
)
def test_invalid_registrations_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        decode_member("/m", data)


def test_partitions_and_offsets() -> None:
    assert decode_partitions("/t", b'{"version":1,"partitions":{"10":[1],"2":[1,2],"0":[]}}') == [0, 2, 10]
    assert decode_offset("/o", encode_offset(2**62)) == 2**62
    for data in (b"", b"x", b"{}"):
        with pytest.raises(CorruptMetadata):
            decode_partitions("/t", data)
        with pytest.raises(CorruptMetadata):
            decode_offset("/o", data)


def test_ways_to_subscribe() -> None:
    assert Subscription.of("t") == Subscription.of(["t"]) == Subscription.of({"t": 1}) == Subscription({"t": 1})
    assert Subscription.of(re.compile("t.*")) == Subscription({"t.*": 1}, WHITE_LIST)
    for nothing in ("", [], {}, {"t": 0}, [""]):
        with pytest.raises(ValueError, match="at least one"):
            Subscription.of(nothing)
