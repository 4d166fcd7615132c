"""What the tests of a group's consumers share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pylogd.client import Consumer, Record, TopicPartition
from pylogd.errors import ErrorCode
from pylogd.wire.messages import (
    ApiKey,
    find_coordinator,
    heartbeat,
    join_group,
    offset_commit,
    offset_fetch,
    sync_group,
)
from pylogd.wire.records import encode_batch
from tests.fakes.group_broker import GroupBroker

Make = Callable[..., Consumer]


SECONDS = 120.0


TP = [TopicPartition("t", index) for index in range(4)]


def fill(server: GroupBroker, partition: int, count: int) -> None:
    start = server.ends[partition]
    records = [(None, b"%d-%d" % (partition, n), 1000 + n, ()) for n in range(start, start + count)]
    server.append(partition, encode_batch(records))


def until(consumers: list[Consumer], condition: Callable[[], object]) -> list[Record]:
    """Poll until it holds; what came."""
    records: list[Record] = []
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        for consumer in consumers:
            records += consumer.poll(0.02)
    return records


def read(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + SECONDS
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count}"
        records += consumer.poll(0.02)
    return records


def committed(server: GroupBroker) -> dict[tuple[str, int], int]:
    with server.lock:
        return {partition: offset for partition, (offset, _) in server.groups.group("g").offsets.items()}


def refuse_commit(code: ErrorCode) -> Callable[[Any], Any]:
    def act(request: Any) -> Any:
        return offset_commit.OffsetCommitResponse(
            topics=[
                offset_commit.OffsetCommitResponseTopic(
                    t.name,
                    partitions=[
                        offset_commit.OffsetCommitResponsePartition(p.partition_index, code) for p in t.partitions
                    ],
                )
                for t in request.topics
            ]
        )

    return act


def refuse(api: int, code: ErrorCode) -> Callable[[Any], Any]:
    def act(request: Any) -> Any:
        if api == ApiKey.FIND_COORDINATOR:
            found = [find_coordinator.Coordinator(k, -1, "", -1, code) for k in request.coordinator_keys]
            return find_coordinator.FindCoordinatorResponse(coordinators=found)
        if api == ApiKey.OFFSET_FETCH:
            groups = [offset_fetch.OffsetFetchResponseGroup(request.groups[0].group_id, error_code=code)]
            return offset_fetch.OffsetFetchResponse(groups=groups)
        if api == ApiKey.OFFSET_COMMIT:
            return refuse_commit(code)(request)
        module: Any = {
            ApiKey.JOIN_GROUP: join_group.JoinGroupResponse,
            ApiKey.SYNC_GROUP: sync_group.SyncGroupResponse,
            ApiKey.HEARTBEAT: heartbeat.HeartbeatResponse,
        }[ApiKey(api)]
        return module(error_code=code)

    return act
