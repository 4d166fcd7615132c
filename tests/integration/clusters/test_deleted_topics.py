"""What was kept of a deleted topic does not apply to a new topic of that name, whoever was down at the deletion."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.base.ports import free_ports
from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.clusters import BrokerCluster
from tests.integration.conftest import StartBroker
from tests.rawclient import RawClient, create_topic, wait_until

NONE = ErrorCode.NONE
GROUPS = [f"g{number}" for number in range(1000)]


def commit_request(group_id: str, topic: str, offset: int) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(0, offset, -1, "")]
    return OffsetCommitRequest(group_id, -1, "", topics=[OffsetCommitRequestTopic(topic, partitions=partitions)])


def committed(client: RawClient, topic: str, groups: Sequence[str], topic_id: bytes = b"") -> list[tuple[int, int]]:
    """Return each group's offset of a topic's first partition, and the error code; by the topic's id if it is given."""
    wanted = OffsetFetchRequestTopics("" if topic_id else topic, topic_id or bytes(16), [0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=[wanted]) for group in groups])
    found = []
    for answer in client.request(request, 10 if topic_id else 9).groups:
        if answer.error_code:
            found.append((-1, answer.error_code))
        found += [(one.committed_offset, one.error_code) for one in (p for t in answer.topics for p in t.partitions)]
    return found


def id_of(client: RawClient, topic: str) -> bytes:
    found: bytes = client.request(MetadataRequest([MetadataRequestTopic(name=topic)]), 12).topics[0].topic_id
    return found


class GroupOffset:
    """The offset of a group, asked of its coordinator, whichever broker that is."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.cluster = cluster

    def coordinator(self) -> int:
        """Return the coordinator's node id."""

        def find() -> int:
            live = next(node for node in self.cluster.brokers if node not in self.cluster.paused)
            with RawClient(self.cluster.address(live)) as client:
                found = client.request(FindCoordinatorRequest("", 0, ["g"]), 4).coordinators[0]
            return 0 if found.error_code or found.node_id in self.cluster.paused else found.node_id

        return self.cluster.until(find, "a coordinator")

    def commit(self, offset: int) -> None:
        def commit() -> bool:
            with RawClient(self.cluster.address(self.coordinator())) as client:
                answer = client.request(commit_request("g", "t", offset), 9).topics[0].partitions[0]
            return bool(answer.error_code == NONE)

        self.cluster.until(commit, "a committed offset")

    def offset(self, by_id: bool = False) -> int:
        """Return what the coordinator answers once it has loaded the group."""

        def fetch() -> list[tuple[int, int]]:
            with RawClient(self.cluster.address(self.coordinator())) as client:
                found = committed(client, "t", ["g"], id_of(client, "t") if by_id else b"")
            return [one for one in found if one[1] == NONE]

        return self.cluster.until(fetch, "the group's offset")[0][0]


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_the_coordinator_is_down_while_a_topic_is_deleted(
    start_cluster: Callable[..., BrokerCluster], how: str
) -> None:
    cluster = start_cluster(
        settings={"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "3"}
    )  # fmt: skip
    cluster.ask(lambda admin: admin.create_topic("t", partitions=1, replication_factor=3))
    group = GroupOffset(cluster)
    group.commit(1000)
    assert group.offset() == 1000
    down = group.coordinator()
    getattr(cluster, how)(down)
    other = next(node for node in cluster.ports if node != down)
    old = cluster.topic("t", other).topic_id

    def recreated() -> bool:
        names = cluster.ask(lambda admin: [topic.name for topic in admin.list_topics()], other)
        if "t" not in names:
            cluster.ask(lambda admin: admin.create_topic("t", partitions=1, replication_factor=2), other)
        elif cluster.topic("t", other).topic_id == old:
            cluster.ask(lambda admin: admin.delete_topic("t"), other)
        return cluster.topic("t", other).topic_id != old

    cluster.until(recreated, "a new topic of the name")
    assert (group.offset(), group.offset(by_id=True)) == (-1, -1)  # another broker coordinates the group
    if how == "kill":
        cluster.start(down)
    else:
        cluster.resume(down)
    cluster.wait_for_brokers(cluster.ports)
    assert (group.offset(), group.offset(by_id=True)) == (-1, -1)
    group.commit(5)
    assert group.offset(by_id=True) == 5


def test_a_broker_is_killed_right_after_it_has_deleted_a_topic(start_broker: StartBroker) -> None:
    """It has no time to delete the offsets of all groups."""
    port = free_ports(1)[0]
    broker: BrokerProcess = start_broker(port=port)
    with RawClient(broker.address) as client:
        create_topic(client, "t")
        create_topic(client, "u")

        def coordinates() -> bool:
            found = client.request(FindCoordinatorRequest("", 0, [GROUPS[0]]), 4).coordinators[0]
            return found.error_code == NONE and committed(client, "t", GROUPS) == [(-1, 0)] * len(GROUPS)

        wait_until(coordinates, "the coordinator")
        for topic, offset in (("t", 1000), ("u", 7)):
            for start in range(0, len(GROUPS), 100):
                some = GROUPS[start : start + 100]
                sent = [client.send_request(commit_request(group, topic, offset), 9) for group in some]
                codes = [client.response(8, 9, number).topics[0].partitions[0].error_code for number in sent]
                assert codes == [NONE] * len(some)
        assert committed(client, "t", GROUPS) == [(1000, 0)] * len(GROUPS)
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState("t")], timeout_ms=10_000)
        assert client.request(deletion, 6).responses[0].error_code == NONE
        broker.kill()
    again = start_broker(port=port)
    with RawClient(again.address) as client:
        create_topic(client, "t")
        new = id_of(client, "t")

        def loaded() -> bool:
            return committed(client, "u", GROUPS[:1]) == [(7, 0)]

        wait_until(loaded, "the group")
        assert committed(client, "t", GROUPS) == [(-1, 0)] * len(GROUPS)
        assert committed(client, "t", GROUPS, new) == [(-1, 0)] * len(GROUPS)
        assert committed(client, "u", GROUPS) == [(7, 0)] * len(GROUPS)
