"""The fake broker with a group coordinator: real sockets, groups in memory, misbehaviour on cue."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages import (
    ApiKey,
    consumer_group_heartbeat,
    find_coordinator,
    heartbeat,
    join_group,
    offset_commit,
    offset_fetch,
    sync_group,
)
from pylogd.wire.records import encode_batch
from pylogd.wire.session import ServerSession
from pylogd.wire.values import ZERO_UUID
from tests.fakes.broker import FakeBroker
from tests.fakes.consumer_coordinator import FakeConsumerGroups, fake_topic
from tests.fakes.group_coordinator import FakeGroups


class GroupBroker(FakeBroker):
    """As `FakeBroker`; the groups are in `groups`, which `lock` guards, those of the newer protocol in `consumers`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups = FakeGroups()
        self.consumers = FakeConsumerGroups({})
        self.lock = threading.RLock()
        self._asking = threading.local()
        self._ended = threading.Event()

    def __enter__(self) -> GroupBroker:
        super().__enter__()
        self._start(self._tick)
        return self

    def __exit__(self, *args: object) -> None:
        self._ended.set()
        super().__exit__(*args)

    def _now(self) -> float:
        return time.monotonic()

    def _tick(self) -> None:
        while not self._ended.wait(0.05):
            with self.lock:
                self.groups.tick(self._now())
                self.consumers.tick(self._now())

    def _answer(self, sock: socket.socket, session: ServerSession, event: Any) -> bool:
        self._asking.of = sock, session, event
        return super()._answer(sock, session, event)

    def _handle(self, request: Any) -> None:
        """Answered by the groups, now or later."""
        sock, session, event = self._asking.of

        def answer(response: Any) -> None:
            with contextlib.suppress(OSError):  # the client has gone
                sock.sendall(b"".join(session.encode_reply(event, response)))

        with self.lock:
            self.groups.handle(request, answer, self._now())

    def _consumer_group_heartbeat(self, request: Any) -> Any:
        with self.lock:
            self.consumers.topics = {self.topic: fake_topic(self.topic, len(self.leader_of), self.topic_id)}
            return self.consumers.handle(request, self._now())

    _join_group = _sync_group = _heartbeat = _leave_group = _handle

    def _find_coordinator(self, request: Any) -> Any:
        return self.groups.find(request, 1, self.host, self.port)

    def _offset_commit(self, request: Any) -> offset_commit.OffsetCommitResponse:
        with self.lock:
            group = self.groups.group(request.group_id)
            error = self._check_consumer(request)
            if request.group_id in self.consumers.groups:
                pass
            elif request.member_id:
                error = self.groups.check(group, request, request.generation_id_or_member_epoch)
            elif group.members:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            if not error and group.state == "CompletingRebalance":
                error = ErrorCode.REBALANCE_IN_PROGRESS
            response = offset_commit.OffsetCommitResponse()
            for topic in request.topics:
                name = topic.name or self._name(topic.topic_id)
                found = error if name else ErrorCode.UNKNOWN_TOPIC_ID
                for p in topic.partitions:
                    if not found:
                        group.offsets[name, p.partition_index] = p.committed_offset, p.committed_metadata
                response.topics.append(
                    offset_commit.OffsetCommitResponseTopic(
                        topic.name,
                        topic.topic_id,
                        partitions=[
                            offset_commit.OffsetCommitResponsePartition(p.partition_index, found)
                            for p in topic.partitions
                        ],
                    )
                )
            return response

    def _check_consumer(self, request: Any) -> ErrorCode:
        partitions = [
            (topic.topic_id if topic.topic_id != ZERO_UUID else self.topic_id, p.partition_index)
            for topic in request.topics
            for p in topic.partitions
        ]
        epoch = request.generation_id_or_member_epoch
        return self.consumers.check_commit(request.group_id, request.member_id, epoch, partitions)

    def _name(self, topic_id: bytes) -> str:
        return self.topic if topic_id == self.topic_id else ""

    def _offset_fetch(self, request: Any) -> offset_fetch.OffsetFetchResponse:
        [asked] = request.groups
        with self.lock:
            offsets = self.groups.group(asked.group_id).offsets
            by_topic: dict[str, list[int]] = {}
            by_id = any(not topic.name for topic in asked.topics or ())
            if asked.topics is None:
                for name, index in offsets:
                    by_topic.setdefault(name, []).append(index)
            else:
                by_topic = {topic.name or self._name(topic.topic_id): topic.partition_indexes for topic in asked.topics}
            topics = [
                offset_fetch.OffsetFetchResponseTopics(
                    "" if by_id else name,
                    self.topic_id if by_id else ZERO_UUID,
                    partitions=[
                        offset_fetch.OffsetFetchResponsePartitions(index, offset, -1, metadata)
                        for index in indexes
                        for offset, metadata in [offsets.get((name, index), (-1, ""))]
                    ],
                )
                for name, indexes in by_topic.items()
            ]
            error = self.consumers.check_fetch(asked.group_id, asked.member_id, asked.member_epoch)
            return offset_fetch.OffsetFetchResponse(
                groups=[offset_fetch.OffsetFetchResponseGroup(asked.group_id, [] if error else topics, error)]
            )


def fill(server: GroupBroker, partition: int, count: int) -> None:
    """Append so many records, whose values name the partition and the offset."""
    start = server.ends[partition]
    records = [(None, b"%d-%d" % (partition, n), 1000 + n, ()) for n in range(start, start + count)]
    server.append(partition, encode_batch(records))


def refuse_commit(code: ErrorCode) -> Callable[[Any], Any]:
    """Answer OffsetCommit with an error for each partition."""

    def act(request: Any) -> Any:
        return offset_commit.OffsetCommitResponse(
            topics=[
                offset_commit.OffsetCommitResponseTopic(
                    t.name,
                    t.topic_id,
                    partitions=[
                        offset_commit.OffsetCommitResponsePartition(p.partition_index, code) for p in t.partitions
                    ],
                )
                for t in request.topics
            ]
        )

    return act


def refuse(api: int, code: ErrorCode) -> Callable[[Any], Any]:
    """Answer a request of a group's API with an error."""

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
            ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat.ConsumerGroupHeartbeatResponse,
        }[ApiKey(api)]
        return module(error_code=code)

    return act
