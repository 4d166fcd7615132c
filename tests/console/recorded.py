"""Serve a recorded cluster of 12,000 topics, 200,000 partitions and 10,000 groups: `python -m tests.console.recorded`.

Three brokers in one process answer what a console asks, over real sockets, from a record that is generated from a seed.
Nothing is stored: log ends grow with the time since the start. The addresses are printed once they listen.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from twisted.internet import protocol
from twisted.internet.interfaces import IListeningPort

from pylogd.client.core.group.commits import NAMES_UNTIL
from pylogd.wire.messages import (
    APIS,
    api_versions,
    consumer_group_describe,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_topic_partitions,
    find_coordinator,
    list_groups,
    list_offsets,
    metadata,
    offset_fetch,
)  # fmt: skip
from pylogd.wire.session import LargeRequest, RequestReceived, ServerSession

NODES: Final = (1, 2, 3)
TOPICS: Final = 12_000
PARTITIONS: Final = 200_000
GROUPS: Final = 10_000
_ACTIVE: Final = 20  # every so many topics is written to
_EARLIEST: Final = -2
_MEMBERS: Final = 3


class Record:
    """The recorded cluster. topics: the number of partitions by name. groups: the topics that each reads."""

    def __init__(self, topics: int, partitions: int, groups: int, seed: int = 1) -> None:
        chance = random.Random(seed)
        names = [f"team-{index % 97:02}.stream-{index:05}" for index in range(topics)]
        counts = dict.fromkeys(names, 1)
        weights = [chance.paretovariate(1.2) for _ in names]
        for name in chance.choices(names, weights, k=partitions - topics):
            counts[name] += 1
        self.topics = dict(sorted(counts.items()))
        self.numbers = {name: number for number, name in enumerate(self.topics)}
        self.replicas: tuple[int, ...] = NODES
        middling = [name for name in names if counts[name] <= 64]
        self.groups = {f"reader-{index:05}": chance.sample(middling, 2) for index in range(groups)}

    def both(self) -> tuple[list[int], list[int]]:
        """Return the replicas of each partition, and those in sync."""
        return list(self.replicas), list(self.replicas)

    def leader(self, name: str, index: int) -> int:
        """Return the id of the broker that leads a partition."""
        return NODES[(self.numbers[name] + index) % len(NODES)]

    def end(self, name: str, index: int, seconds: float) -> int:
        """Return the log end of a partition so many seconds after the start."""
        base = 1000 + self.numbers[name] * 7 + index
        return base + (int(seconds * (1 + index % 5)) if self.numbers[name] % _ACTIVE == 0 else 0)

    def coordinator(self, group_id: str) -> int:
        """Return the id of a group's coordinator."""
        return NODES[int(group_id.rpartition("-")[2]) % len(NODES)]


class Answers:
    """The answers of one of the brokers."""

    def __init__(self, record: Record, node: int, ports: Mapping[int, int], seconds: Callable[[], float]) -> None:
        self._record = record
        self._node = node
        self._ports = ports
        self._seconds = seconds
        self._by_api: dict[int, Callable[[Any], Any]] = {
            api_versions.ApiVersionsRequest.API_KEY: self.versions,
            metadata.MetadataRequest.API_KEY: self.metadata,
            describe_cluster.DescribeClusterRequest.API_KEY: self.cluster,
            describe_topic_partitions.DescribeTopicPartitionsRequest.API_KEY: self.partitions,
            list_offsets.ListOffsetsRequest.API_KEY: self.offsets,
            describe_log_dirs.DescribeLogDirsRequest.API_KEY: self.log_dirs,
            list_groups.ListGroupsRequest.API_KEY: self.list_groups,
            describe_groups.DescribeGroupsRequest.API_KEY: self.describe_groups,
            consumer_group_describe.ConsumerGroupDescribeRequest.API_KEY: self.describe_consumers,
            offset_fetch.OffsetFetchRequest.API_KEY: self.committed,
            find_coordinator.FindCoordinatorRequest.API_KEY: self.coordinator,
            describe_configs.DescribeConfigsRequest.API_KEY: self.configs,
        }
        self.served = {key: (APIS[key].min_version, APIS[key].max_version) for key in self._by_api}
        key = offset_fetch.OffsetFetchRequest.API_KEY
        self.served[key] = (self.served[key][0], NAMES_UNTIL)

    def answer(self, event: RequestReceived) -> Any:
        """Return the response to a request that came."""
        return self.response(event.request() if isinstance(event, LargeRequest) else event.request)

    def response(self, request: Any) -> Any:
        """Return the response to a request."""
        return self._by_api[request.API_KEY](request)

    def versions(self, _: Any) -> Any:
        return api_versions.ApiVersionsResponse(
            api_keys=[api_versions.ApiVersion(key, *bounds) for key, bounds in sorted(self.served.items())]
        )

    def metadata(self, request: metadata.MetadataRequest) -> Any:
        names = self._record.topics if request.topics is None else [str(topic.name) for topic in request.topics]
        found = [
            metadata.MetadataResponseTopic(name=name, topic_id=bytes(16), partitions=[
                metadata.MetadataResponsePartition(
                    0, index, self._record.leader(name, index), 0, *self._record.both(), []
                )
                for index in range(self._record.topics[name])
            ])
            for name in names
        ]  # fmt: skip
        brokers = [metadata.MetadataResponseBroker(node, "127.0.0.1", port, None) for node, port in self._ports.items()]
        return metadata.MetadataResponse(brokers=brokers, cluster_id="recorded", controller_id=1, topics=found)

    def cluster(self, _: Any) -> Any:
        brokers = [
            describe_cluster.DescribeClusterBroker(node, "127.0.0.1", port, f"rack-{node}")
            for node, port in self._ports.items()
        ]
        return describe_cluster.DescribeClusterResponse(cluster_id="recorded", controller_id=1, brokers=brokers)

    def partitions(self, request: describe_topic_partitions.DescribeTopicPartitionsRequest) -> Any:
        messages = describe_topic_partitions
        response = messages.DescribeTopicPartitionsResponse()
        left = request.response_partition_limit
        start = ("", 0) if request.cursor is None else (request.cursor.topic_name, request.cursor.partition_index)
        for name, count in self._record.topics.items():
            if name < start[0]:
                continue
            first = start[1] if name == start[0] else 0
            if not left:
                response.next_cursor = messages.Cursor(name, first)
                break
            some = range(first, min(count, first + left))
            left -= len(some)
            found = [
                messages.DescribeTopicPartitionsResponsePartition(
                    0,
                    index,
                    self._record.leader(name, index),
                    3,
                    list(self._record.replicas),
                    list(self._record.replicas),
                    [],
                    [],
                    [],
                )
                for index in some
            ]
            response.topics.append(messages.DescribeTopicPartitionsResponseTopic(0, name, bytes(16), False, found))
            if some.stop < count:
                response.next_cursor = messages.Cursor(name, some.stop)
                break
        return response

    def offsets(self, request: list_offsets.ListOffsetsRequest) -> Any:
        now = self._seconds()
        topics = [
            list_offsets.ListOffsetsTopicResponse(topic.name, [
                list_offsets.ListOffsetsPartitionResponse(
                    one.partition_index, 0, -1,
                    0 if one.timestamp == _EARLIEST else self._record.end(topic.name, one.partition_index, now), 3,
                )
                for one in topic.partitions
            ])
            for topic in request.topics
        ]  # fmt: skip
        return list_offsets.ListOffsetsResponse(topics=topics)

    def log_dirs(self, request: describe_log_dirs.DescribeLogDirsRequest) -> Any:
        messages = describe_log_dirs
        assert request.topics is not None, "a console must not ask for all sizes in one answer"
        topics = [
            messages.DescribeLogDirsTopic(
                topic.topic, [messages.DescribeLogDirsPartition(index, 100_000 + index) for index in topic.partitions]
            )
            for topic in request.topics
        ]
        result = messages.DescribeLogDirsResult(0, "/data", topics, 4 << 40, 1 << 40)
        return messages.DescribeLogDirsResponse(results=[result])

    def list_groups(self, _: Any) -> Any:
        mine = (group_id for group_id in self._record.groups if self._record.coordinator(group_id) == self._node)
        groups = [list_groups.ListedGroup(group_id, "consumer", "Stable", "classic") for group_id in mine]
        return list_groups.ListGroupsResponse(groups=groups)

    def describe_groups(self, request: describe_groups.DescribeGroupsRequest) -> Any:
        messages = describe_groups
        groups = []
        for group_id in request.groups:
            members = [
                messages.DescribedGroupMember(f"{group_id}-member-{number}", None, f"client-{number}", "/127.0.0.1")
                for number in range(_MEMBERS)
            ]
            groups.append(messages.DescribedGroup(
                group_id=group_id, group_state="Stable", protocol_type="consumer", protocol_data="range",
                members=members,
            ))  # fmt: skip
        return messages.DescribeGroupsResponse(groups=groups)

    def describe_consumers(self, request: consumer_group_describe.ConsumerGroupDescribeRequest) -> Any:
        messages = consumer_group_describe
        groups = [messages.DescribedConsumerGroup(69, group_id=group_id) for group_id in request.group_ids]
        return messages.ConsumerGroupDescribeResponse(groups=groups)

    def committed(self, request: offset_fetch.OffsetFetchRequest) -> Any:
        messages = offset_fetch
        now = self._seconds()
        groups = []
        if request.group_id:  # before version 8
            topics = [
                messages.OffsetFetchResponseTopic(name, [
                    messages.OffsetFetchResponsePartition(index, offset) for index, offset in enumerate(offsets)
                ])
                for name, offsets in self._committed(request.group_id, now)
            ]  # fmt: skip
            return messages.OffsetFetchResponse(topics=topics)
        for asked in request.groups:
            found = [
                messages.OffsetFetchResponseTopics(name, bytes(16), [
                    messages.OffsetFetchResponsePartitions(index, offset, 3, "", 0)
                    for index, offset in enumerate(offsets)
                ])
                for name, offsets in self._committed(asked.group_id, now)
            ]  # fmt: skip
            groups.append(messages.OffsetFetchResponseGroup(asked.group_id, found, 0))
        return messages.OffsetFetchResponse(groups=groups)

    def _committed(self, group_id: str, now: float) -> Iterator[tuple[str, list[int]]]:
        """Yield the topics of a group with what it has committed: what was there up to 90 s ago."""
        then = now - int(group_id.rpartition("-")[2]) % 900 / 10
        for name in self._record.groups[group_id]:
            count = self._record.topics[name]
            yield name, [max(self._record.end(name, index, then), 0) for index in range(count)]

    def coordinator(self, request: find_coordinator.FindCoordinatorRequest) -> Any:
        messages = find_coordinator
        response = messages.FindCoordinatorResponse()
        for key in request.coordinator_keys or [request.key]:
            node = self._record.coordinator(key)
            response.coordinators.append(messages.Coordinator(key, node, "127.0.0.1", self._ports[node], 0, ""))
        return response

    def configs(self, request: describe_configs.DescribeConfigsRequest) -> Any:
        messages = describe_configs
        results = []
        for resource in request.resources:
            names = [f"setting.{number}" for number in range(100)]
            if resource.configuration_keys is not None:
                names = [name for name in names if name in resource.configuration_keys]
            entries = [messages.DescribeConfigsResourceResult(name, "value") for name in names]
            results.append(messages.DescribeConfigsResult(
                resource_type=resource.resource_type, resource_name=resource.resource_name, configs=entries
            ))  # fmt: skip
        return messages.DescribeConfigsResponse(results=results)


class RecordedBroker(protocol.Protocol):
    """A connection."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._session = ServerSession(100 << 20, answers.served)

    def dataReceived(self, data: bytes) -> None:
        """Answer the requests in the data."""
        self._session.receive_data(data)
        while (event := self._session.next_event()) is not None:
            assert isinstance(event, RequestReceived), event
            assert self.transport is not None
            self.transport.writeSequence(_bytes(self._session.encode_reply(event, self._answers.answer(event))))


def _bytes(parts: Iterable[Any]) -> list[bytes]:
    return [bytes(part) for part in parts]


class _Factory(protocol.Factory):
    noisy = False

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def buildProtocol(self, _: Any) -> RecordedBroker:
        return RecordedBroker(self._answers)


def serve(record: Record, loop: Any, *, old: bool = False) -> tuple[str, list[IListeningPort]]:
    """Listen as all brokers of a recorded cluster. Return the bootstrap servers, and the ports to close.

    old: describe no topics page by page, as brokers before Kafka 3.8.
    """
    ports: dict[int, int] = {}
    begun = loop.seconds()
    listening = []
    for node in NODES:
        answers = Answers(record, node, ports, lambda: float(loop.seconds() - begun))
        if old:
            del answers.served[describe_topic_partitions.DescribeTopicPartitionsRequest.API_KEY]
        listening.append(loop.listenTCP(0, _Factory(answers), interface="127.0.0.1"))
        ports[node] = listening[-1].getHost().port
    return ",".join(f"127.0.0.1:{port}" for port in ports.values()), listening


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--old", action="store_true", help="describe no topics page by page, as before Kafka 3.8")
    options = parser.parse_args()
    from twisted.internet import reactor  # noqa: PLC0415 - whoever imports it installs it

    loop: Any = reactor
    bootstrap, _ = serve(Record(options.topics, options.partitions, options.groups), loop, old=options.old)
    print(bootstrap, flush=True)
    loop.run()
    sys.exit(0)


if __name__ == "__main__":
    main()
