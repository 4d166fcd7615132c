"""A broker among clients that ask for as much as requests can: its memory stays bounded, and others are served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pylogd.wire.messages.describe_groups import DescribeGroupsRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from pylogd.wire.records import NewRecord, encode_batch
from tests.rawclient import (
    ConnectionClosed,
    RawClient,
    create_topic,
    encode,
    end_offset,
    frame,
    memory,
    produce,
    wait_until_at_rest,
)

MOST_MB = 300.0
ZSTD = 4
NOW_MS = 1_700_000_000_000


def prepare(client: RawClient) -> None:
    """What the requests below are about: a large batch in few bytes, and a group with large offsets."""
    create_topic(client, "bomb", message_timestamp_type="CreateTime")
    create_topic(client, "wide", 200)
    records = [NewRecord(None, b"", NOW_MS)] * 1_000_000
    (answer,) = produce(client, "bomb", [encode_batch(records, compression=ZSTD)])
    assert answer.error_code == 0
    while client.request(FindCoordinatorRequest("g"), 3).error_code:
        pass
    for _ in range(2):
        offsets = [OffsetCommitRequestPartition(index, 7, -1, "x" * 4000) for index in range(200)]
        request = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("wide", partitions=offsets)])
        client.request(request, 8)


def greedy() -> Iterator[bytes]:
    """Requests that once took seconds and hundreds of megabytes, or an unbounded number of objects."""
    broker = DescribeConfigsResource(4, "1", None)
    yield encode(DescribeConfigsRequest([broker] * 4000, True, True), 4)
    yield encode(DescribeGroupsRequest(["g"] * 400), 5)
    yield encode(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)] * 1000), 8)
    for stamp in (NOW_MS, -3):
        wanted = [ListOffsetsPartition(0, timestamp=stamp)]
        yield encode(ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic("bomb", wanted)]), 7)
        yield encode(ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic("bomb", wanted * 10_000)]), 7)
    yield encode(FindCoordinatorRequest(coordinator_keys=["k" * 8_000_000]), 6)
    for count in (15_000, 400_000):
        partitions = [FetchPartition(index) for index in range(count)]
        yield encode(FetchRequest(session_epoch=0, topics=[FetchTopic("nope", partitions=partitions)]), 12)
    protocols = [JoinGroupRequestProtocol("p", b"")] * 900_000
    yield encode(JoinGroupRequest("j", 30_000, 30_000, protocol_type="consumer", protocols=protocols), 7)
    nobody = AlterConfigsResource(4, "", [AlterableConfig("max.connections", 0, "0")])
    yield encode(IncrementalAlterConfigsRequest([nobody]), 1)


def ask_for_too_much(address: str, requests: list[bytes], rounds: int, ended: threading.Event) -> None:
    """Send each request on a connection of its own, and read the answer, if there is one."""
    try:
        for data in requests * rounds:
            with RawClient(address) as client:
                client.send(frame(data))
                try:
                    client.read_frame()
                except ConnectionClosed:
                    continue
    finally:
        ended.set()


def test_memory_stays_bounded_and_others_go_on(start_broker: Callable[..., BrokerProcess]) -> None:
    broker = start_broker()
    with RawClient(broker.address) as client:
        prepare(client)
        create_topic(client, "t")
        ended = threading.Event()
        requests = list(greedy())
        greed = threading.Thread(target=ask_for_too_much, args=(broker.address, requests, 3, ended))
        greed.start()
        served = 0
        try:
            while not ended.is_set():
                (answer,) = produce(client, "t", [encode_batch([NewRecord(None, b"v", NOW_MS)])])
                assert answer.error_code == 0
                served += 1
                assert end_offset(client, "t") == served
        finally:
            greed.join()
        assert served > len(requests)
        assert memory(broker.pid, "VmHWM") < MOST_MB
    with RawClient(broker.address) as client:
        assert end_offset(client, "t") == served  # and connections are still accepted
    wait_until_at_rest(broker.pid)
