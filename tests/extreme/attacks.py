"""Attacks that are known by name: the table of requests that once cost a broker too much, and those of many requests.

Each is a function that returns what to send, or a context manager that sends it and holds on to what it has.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pylogd.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pylogd.wire.messages.describe_groups import DescribeGroupsRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.list_transactions import ListTransactionsRequest
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from pylogd.wire.records import NewRecord, encode_batch
from pylogd.wire.schema import request_codec
from tests.extreme.access import Access
from tests.extreme.asking import connect_many
from tests.extreme.messages import Extreme
from tests.extreme.state import CONSUMERS, GROUP, PARTITIONS, STAMP, TOPIC, Known
from tests.rawclient import frame, header, produce

_BROKER, _TOPIC = 4, 2
_SET = 0
_UNREAD: Final = 0.5  # seconds after which the broker is taken not to read further
_LONGEST: Final = 30.0  # seconds of an attack of many requests


def encoded(message: Any, version: int, about: str) -> Extreme:
    """Return a message as a request."""
    parts = request_codec(message.API_KEY, version).encode(message)
    return Extreme(message.API_KEY, version, about, b"".join(map(bytes, parts)))  # type: ignore[arg-type]


def describe_one_broker_often(_: Known, scale: float) -> Extreme:
    resources = [DescribeConfigsResource(_BROKER, "1", None)] * int(4_000 * scale)
    return encoded(DescribeConfigsRequest(resources, True, True), 4, "one broker, over and over")


def describe_one_group_often(_: Known, scale: float) -> Extreme:
    return encoded(DescribeGroupsRequest([GROUP] * int(10_000 * scale)), 5, "one group, over and over")


def offsets_of_one_group_often(_: Known, scale: float) -> Extreme:
    groups = [OffsetFetchRequestGroup(GROUP, topics=None)] * int(10_000 * scale)
    return encoded(OffsetFetchRequest(groups=groups), 8, "all offsets of one group, over and over")


def times_in_a_packed_batch(_: Known, scale: float) -> Extreme:
    entries = [ListOffsetsPartition(PARTITIONS - 1, timestamp=STAMP + 1)] * max(20, int(20 * scale))
    return encoded(ListOffsetsRequest(-1, topics=[ListOffsetsTopic(TOPIC, entries)]), 7, "a time, in a packed batch")


def largest_times(_: Known, scale: float) -> Extreme:
    entries = [ListOffsetsPartition(PARTITIONS - 1, timestamp=-3)] * int(100_000 * scale)
    return encoded(ListOffsetsRequest(-1, topics=[ListOffsetsTopic(TOPIC, entries)]), 7, "the largest time, often")


def a_coordinator_of_a_long_key(_: Known, scale: float) -> Extreme:
    """The codec refuses to write so long a string."""
    size = int((8 << 20) * scale)
    body = struct.pack(">b", 0) + _varint(2) + _varint(size + 1) + b"x" * size + b"\0"
    return Extreme(ApiKey.FIND_COORDINATOR, 4, "a key of megabytes", body)


def a_member_with_many_protocols(_: Known, scale: float) -> Extreme:
    protocols = [JoinGroupRequestProtocol("p", b"")] * int(900_000 * scale)
    return encoded(
        JoinGroupRequest("many", 6000, 1, protocol_type="consumer", protocols=protocols), 5, "many protocols"
    )


def no_connections_for_anybody(_: Known, scale: float) -> Extreme:
    wanted = AlterConfigsResource(_BROKER, "", [AlterableConfig("max.connections", _SET, "0")])
    return encoded(IncrementalAlterConfigsRequest([wanted]), 1, "max.connections=0 for all brokers")


def a_forged_follower(known: Known, scale: float) -> Extreme:
    partition = FetchPartition(0, fetch_offset=1, partition_max_bytes=1)
    topics = [FetchTopic(topic_id=known.topic_id, partitions=[partition])]
    message = FetchRequest(replica_state=ReplicaState(2, 1), max_wait_ms=0, min_bytes=0, max_bytes=1, topics=topics)
    return encoded(message, 16, "as if from broker 2")


def a_generation_out_of_range(known: Known, scale: float) -> Extreme:
    return encoded(HeartbeatRequest(GROUP, (1 << 31) - 1, known.member_id), 3, "the largest generation")


def a_session_of_unknown_partitions(_: Known, scale: float) -> Extreme:
    partitions = [FetchPartition(number, partition_max_bytes=1) for number in range(1000)]
    topics = [FetchTopic(f"unknown-{number}", partitions=partitions) for number in range(int(400 * scale))]
    message = FetchRequest(replica_id=-1, max_wait_ms=0, max_bytes=1, session_epoch=0, topics=topics)
    return encoded(message, 11, "a large session")


def slow_expression() -> str:
    """Return a regular expression that RE2 takes milliseconds to match with a long name."""
    return "(x?){1000}[^x]"


def a_subscription_that_is_slow_to_match(_: Known, scale: float) -> Extreme:
    """Subscribe to what an expression matches; with names of topics as long as those that exist."""
    join = ConsumerGroupHeartbeatRequest(
        CONSUMERS, f"slow-{scale:g}", 0, rebalance_timeout_ms=1000, subscribed_topic_names=[], topic_partitions=[],
        subscribed_topic_regex=f"(x?){{{int(1000 * scale)}}}[^x]",
    )  # fmt: skip
    return encoded(join, 1, "an expression that is slow to match")


def a_subscription_to_many_topics(_: Known, scale: float) -> Extreme:
    names = [f"{TOPIC}-{number}" for number in range(int(10_000 * scale))]
    join = ConsumerGroupHeartbeatRequest(
        CONSUMERS, f"many-{scale:g}", 0, rebalance_timeout_ms=1000, subscribed_topic_names=names, topic_partitions=[]
    )
    return encoded(join, 1, "very many names")


def transactions_by_a_slow_expression(_: Known, scale: float) -> Extreme:
    return encoded(
        ListTransactionsRequest(transactional_id_pattern=slow_expression()), 2, "an expression that is slow to match"
    )


#: The table. Each of these cost a broker seconds, or hundreds of MB, before work was bounded.
TABLE: Final[tuple[Callable[[Known, float], Extreme], ...]] = (
    describe_one_broker_often,
    describe_one_group_often,
    offsets_of_one_group_often,
    times_in_a_packed_batch,
    largest_times,
    a_coordinator_of_a_long_key,
    a_member_with_many_protocols,
    no_connections_for_anybody,
    a_forged_follower,
    a_generation_out_of_range,
    a_session_of_unknown_partitions,
    a_subscription_that_is_slow_to_match,
    a_subscription_to_many_topics,
    transactions_by_a_slow_expression,
)


# More than one request ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def unfinished_frames(access: Access, scale: float) -> Iterator[None]:
    """Send almost all of a dozen large frames, and wait."""
    size = int((90 << 20) * scale)
    clients = connect_many(access, 12)
    with contextlib.ExitStack() as stack:
        for client in clients:
            stack.enter_context(client)
            client.settimeout(_UNREAD)
            with contextlib.suppress(OSError):  # those that the broker does not take, or does not read further
                client.sendall(struct.pack(">i", size + 10) + header(ApiKey.PRODUCE, 9))
                for _ in range(size // (1 << 20)):
                    client.sendall(bytes(1 << 20))
        yield


@contextlib.contextmanager
def slow_senders(access: Access, scale: float) -> Iterator[None]:
    """Open many connections that send a byte now and then."""
    clients = connect_many(access, int(2_000 * scale))
    request = frame(header(ApiKey.API_VERSIONS, 0))
    with contextlib.ExitStack() as stack:
        for client in clients:
            stack.enter_context(client)
        for byte in request[:6]:
            for client in clients:
                with contextlib.suppress(OSError):
                    client.send(bytes((byte,)))
        yield


def within_seconds(count: int) -> Iterator[int]:
    """Count from 0, as far as `_LONGEST` allows: a client over its quota has to wait between two requests."""
    end = time.monotonic() + _LONGEST
    yield from itertools.takewhile(lambda _: time.monotonic() < end, range(count))


@contextlib.contextmanager
def producer_ids(access: Access, scale: float) -> Iterator[None]:
    """Write one batch for each of very many producers, whom the broker has to remember."""
    with access.connect() as client:
        for number in within_seconds(int(100_000 * scale)):
            batch = encode_batch(
                [NewRecord(None, b"", STAMP)], producer_id=1_000_000 + number, producer_epoch=0, base_sequence=0
            )
            produce(client, TOPIC, [batch], acks=1)
        yield


@contextlib.contextmanager
def members(access: Access, scale: float) -> Iterator[None]:
    """Ask for very many member ids, none of which ever joins."""
    with access.connect() as client:
        join = JoinGroupRequest(
            "crowded", 300_000, 1, protocol_type="consumer", protocols=[JoinGroupRequestProtocol("p")]
        )
        for _ in within_seconds(int(20_000 * scale)):
            client.request(join, 6)
        yield


@contextlib.contextmanager
def consumers(access: Access, scale: float) -> Iterator[None]:
    """Have very many members of the newer protocol join a group, each with other topics."""
    with access.connect() as client:
        for number in within_seconds(int(2_000 * scale)):
            names = [TOPIC, *(f"unknown-{number * 7 + each}" for each in range(50))]
            join = ConsumerGroupHeartbeatRequest(
                "crowded-consumers", f"member-{number}", 0, rebalance_timeout_ms=1000, subscribed_topic_names=names,
                topic_partitions=[],
            )  # fmt: skip
            client.request(join, 1)
        yield


@contextlib.contextmanager
def transactional_ids(access: Access, scale: float) -> Iterator[None]:
    """Take very many transactional ids, which the broker has to remember for a week, and list them all."""
    with access.connect() as client:
        for number in within_seconds(int(20_000 * scale)):
            client.request(InitProducerIdRequest(f"crowd-{number}", 60_000), 4)
        client.request(ListTransactionsRequest(), 1)
        yield


CONVERSATIONS: Final = (unfinished_frames, slow_senders, producer_ids, members, consumers, transactional_ids)


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*data, number))
