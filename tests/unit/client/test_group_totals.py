"""The members and the lag of many groups: how many requests that takes, and what is known without some brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from pylogd.base.errors import ErrorCode
from pylogd.cli.main import pylogd
from pylogd.client import Admin
from pylogd.client.core.model import GroupListing
from pylogd.wire.messages import ApiKey, offset_fetch
from pylogd.wire.messages import consumer_group_describe as newer
from pylogd.wire.messages import describe_groups as described
from pylogd.wire.messages import find_coordinator as coordinators
from pylogd.wire.messages.describe_configs import DescribeConfigsResponse
from pylogd.wire.messages.list_groups import ListedGroup, ListGroupsResponse
from pylogd.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pylogd.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.fakes import broker as fake
from tests.fakes.broker import FakeBroker

END = 100
#: The leaders of the partitions of topic `t`. Its partition 3 and the topic `deleted` do not exist.
LEADERS = {0: 1, 1: 2, 2: 3}
Offsets = Mapping[tuple[str, int], int]
ASKED = (ApiKey.DESCRIBE_GROUPS, ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.OFFSET_FETCH, ApiKey.LIST_OFFSETS)


class Groups:
    """What a coordinator knows: the committed offsets of its groups. Groups called `new...` have the newer protocol."""

    def __init__(self, offsets: Mapping[str, Offsets], refused: str = "") -> None:
        self.offsets = offsets
        self._refused = refused

    def listed(self, _: Any) -> ListGroupsResponse:
        return ListGroupsResponse(groups=[ListedGroup(name, "consumer", "Stable", "classic") for name in self.offsets])

    def describe(self, request: described.DescribeGroupsRequest) -> described.DescribeGroupsResponse:
        member = described.DescribedGroupMember("m", None, "c", "h", b"", b"")
        return described.DescribeGroupsResponse(groups=[
            described.DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, None, name, "Dead", members=[])
            if name.startswith("new") or name not in self.offsets
            else described.DescribedGroup(0, None, name, "Stable", "consumer", "range", [member, member])
            for name in request.groups
        ])  # fmt: skip

    def describe_newer(self, request: newer.ConsumerGroupDescribeRequest) -> newer.ConsumerGroupDescribeResponse:
        return newer.ConsumerGroupDescribeResponse(groups=[
            newer.DescribedConsumerGroup(
                0 if name in self.offsets else ErrorCode.GROUP_ID_NOT_FOUND, None, name, "Empty", members=[]
            )
            for name in request.group_ids
        ])  # fmt: skip

    def fetch(self, request: offset_fetch.OffsetFetchRequest) -> offset_fetch.OffsetFetchResponse:
        if not request.groups:
            return offset_fetch.OffsetFetchResponse(topics=[
                offset_fetch.OffsetFetchResponseTopic(topic, [
                    offset_fetch.OffsetFetchResponsePartition(index, at, -1, "", 0)
                ])
                for (topic, index), at in self.offsets[request.group_id].items()
            ])  # fmt: skip
        return offset_fetch.OffsetFetchResponse(groups=[self._fetched(group.group_id) for group in request.groups])

    def _fetched(self, name: str) -> offset_fetch.OffsetFetchResponseGroup:
        if name == self._refused:
            return offset_fetch.OffsetFetchResponseGroup(name, [], ErrorCode.GROUP_AUTHORIZATION_FAILED)
        topics = [
            offset_fetch.OffsetFetchResponseTopics(
                topic, partitions=[offset_fetch.OffsetFetchResponsePartitions(index, at, -1, "", 0)]
            )
            for (topic, index), at in self.offsets.get(name, {}).items()
        ]
        return offset_fetch.OffsetFetchResponseGroup(name, topics, 0)


def ends(*errors: ErrorCode) -> list[Callable[[Any], ListOffsetsResponse]]:
    """Return acts that answer with errors, and then with the ends of logs."""

    def act(error: ErrorCode) -> Callable[[Any], ListOffsetsResponse]:
        return lambda request: ListOffsetsResponse(topics=[
            ListOffsetsTopicResponse(topic.name, [
                ListOffsetsPartitionResponse(one.partition_index, error, offset=-1 if error else END)
                for one in topic.partitions
            ])
            for topic in request.topics
        ])  # fmt: skip

    return [act(error) for error in (*errors, ErrorCode.NONE)]


@pytest.fixture
def brokers() -> Iterator[dict[int, FakeBroker]]:
    """Brokers 1, 2 and 3, which know each other and the topic."""
    with FakeBroker() as one, FakeBroker() as two, FakeBroker() as three:
        made = {1: one, 2: two, 3: three}
        known = [MetadataResponseBroker(node, each.host, each.port) for node, each in made.items()]
        partitions = [
            MetadataResponsePartition(0, index, node, 0, [node], [node], []) for index, node in LEADERS.items()
        ]

        def act(request: Any) -> MetadataResponse:
            topics = [
                MetadataResponseTopic(0, "t", partitions=partitions) if one.name == "t"
                else MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, one.name)
                for one in request.topics or ()
            ]  # fmt: skip
            return MetadataResponse(brokers=known, controller_id=1, topics=topics)

        for each in made.values():
            each.on(ApiKey.METADATA, *[act] * 100)
        yield made


def coordinate(broker: FakeBroker, groups: Groups, *errors: ErrorCode) -> None:
    """Let a broker coordinate groups, and answer with the ends of logs after some errors."""
    broker.on(ApiKey.LIST_GROUPS, groups.listed)
    broker.on(ApiKey.DESCRIBE_GROUPS, groups.describe)
    broker.on(ApiKey.CONSUMER_GROUP_DESCRIBE, groups.describe_newer)
    broker.on(ApiKey.OFFSET_FETCH, *[groups.fetch] * 10)
    broker.on(ApiKey.LIST_OFFSETS, *ends(*errors))


def listings(groups: Mapping[int, Groups]) -> list[GroupListing]:
    return [GroupListing(name, "Stable", "consumer", node) for node, some in groups.items() for name in some.offsets]


def test_requests_depend_on_brokers_not_on_groups(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    groups = {
        1: Groups({f"a{index}": {("t", 0): 10, ("t", 1): END} for index in range(200)}),
        2: Groups({f"b{index}": {("t", 2): 99} for index in range(200)} | {"new": {("t", 0): 0}, "newer": {}}),
        3: Groups({}),
    }
    for node, each in groups.items():
        coordinate(brokers[node], each)
    totals = admin.group_totals(listings(groups), timeout=5)
    assert (totals.silent, totals.errors) == ((), {})
    assert len(totals.groups) == 402
    figures = {name: tuple(totals.groups[name]) for name in ("a0", "a199", "b7", "new", "newer")}
    assert figures == {"a0": (2, 90), "a199": (2, 90), "b7": (2, 1), "new": (0, 100), "newer": (0, 0)}
    asked = {node: [len(each.asked(api)) for api in ASKED] for node, each in brokers.items()}
    assert asked == {1: [1, 0, 1, 1], 2: [1, 1, 1, 1], 3: [0, 0, 0, 1]}


def test_deleted_topics_and_groups_do_not_count(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    groups = {1: Groups({"a": {("t", 0): 40, ("t", 3): 0, ("deleted", 0): 0}})}
    coordinate(brokers[1], groups[1])
    totals = admin.group_totals([*listings(groups), GroupListing("gone", "Empty", "consumer", 1)])
    assert {name: tuple(total) for name, total in totals.groups.items()} == {"a": (2, 60)}
    assert totals.errors == {}


def test_a_leader_that_moves_is_asked_again(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    groups = {1: Groups({"a": {("t", 0): 40}})}
    coordinate(brokers[1], groups[1], ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert tuple(admin.group_totals(listings(groups), timeout=5).groups["a"]) == (2, 60)


def test_a_silent_coordinator_and_a_silent_leader(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    groups = {
        1: Groups({"a": {("t", 0): 40}, "b": {("t", 0): 40, ("t", 2): 0}}),
        2: Groups({"c": {("t", 0): 40}}),
    }
    coordinate(brokers[1], groups[1])
    brokers[2].on(ApiKey.DESCRIBE_GROUPS, fake.silence)
    brokers[2].on(ApiKey.OFFSET_FETCH, fake.silence)
    brokers[3].on(ApiKey.LIST_OFFSETS, fake.silence)
    totals = admin.group_totals(listings(groups), timeout=1)
    assert {name: tuple(total) for name, total in totals.groups.items()} == {
        "a": (2, 60), "b": (2, None), "c": (None, None),
    }  # fmt: skip
    assert totals.silent == (2, 3)


def test_a_broker_that_has_been_silent_is_not_asked(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    groups = {1: Groups({"a": {("t", 2): 40}})}
    coordinate(brokers[1], groups[1])
    totals = admin.group_totals(listings(groups), [3], timeout=1)
    assert (totals.groups["a"].lag, totals.silent) == (None, (3,))
    assert brokers[3].asked(ApiKey.LIST_OFFSETS) == []


def test_older_brokers_are_asked_group_by_group(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    groups = {1: Groups({"a": {("t", 0): 40}, "b": {("t", 0): 50}})}
    brokers[1].versions[ApiKey.OFFSET_FETCH] = (1, 7)
    coordinate(brokers[1], groups[1])
    totals = admin.group_totals(listings(groups), timeout=5)
    assert {name: tuple(total) for name, total in totals.groups.items()} == {"a": (2, 60), "b": (2, 50)}


def know_coordinators(brokers: Mapping[int, FakeBroker], groups: Mapping[int, Groups]) -> None:
    """Let the brokers answer which of them coordinates a group."""

    def found(name: str) -> tuple[int, str, int]:
        node = next(node for node, some in groups.items() if name in some.offsets)
        return node, brokers[node].host, brokers[node].port

    def act(request: coordinators.FindCoordinatorRequest) -> coordinators.FindCoordinatorResponse:
        if not request.coordinator_keys:
            node, host, port = found(request.key)
            return coordinators.FindCoordinatorResponse(node_id=node, host=host, port=port)
        return coordinators.FindCoordinatorResponse(
            coordinators=[coordinators.Coordinator(name, *found(name)) for name in request.coordinator_keys]
        )

    for each in brokers.values():
        each.on(ApiKey.FIND_COORDINATOR, *[act] * 10)


def test_many_groups_are_described_by_a_request_to_each_broker(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    groups = {
        1: Groups({f"a{index}": {("t", 0): 10, ("deleted", 0): 7} for index in range(200)} | {"new": {}}),
        2: Groups({f"b{index}": {("t", 2): 99} for index in range(200)}),
    }
    know_coordinators(brokers, groups)
    for node, each in groups.items():
        coordinate(brokers[node], each)
    coordinate(brokers[3], Groups({}))
    names = [name for each in groups.values() for name in each.offsets]
    found = admin.describe_groups(names, timeout=5)
    assert (found.silent, found.errors, list(found.groups)) == ((), {}, names)
    classic, newer = found.groups["b7"], found.groups["new"]
    assert (classic.coordinator, classic.protocol, len(classic.members)) == (2, "range", 2)
    assert (newer.coordinator, newer.state, newer.members) == (1, "Empty", ())
    assert {at: one.offset for at, one in found.offsets["a5"].items()} == {("t", 0): 10, ("deleted", 0): 7}
    assert found.ends == {("t", 0): END, ("t", 2): END}
    asked = {node: [len(each.asked(api)) for api in ASKED] for node, each in brokers.items()}
    assert asked == {1: [1, 1, 1, 1], 2: [1, 0, 1, 0], 3: [0, 0, 0, 1]}
    assert sum(len(each.asked(ApiKey.FIND_COORDINATOR)) for each in brokers.values()) == 1


def test_older_brokers_find_coordinators_one_by_one(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    groups = {1: Groups({"a": {("t", 0): 40}}), 2: Groups({"b": {("t", 0): 50}})}
    for each in brokers.values():
        each.versions[ApiKey.FIND_COORDINATOR] = (1, 3)
    know_coordinators(brokers, groups)
    for node, some in groups.items():
        coordinate(brokers[node], some)
    found = admin.describe_groups(["a", "b"], timeout=5)
    assert {name: one.coordinator for name, one in found.groups.items()} == {"a": 1, "b": 2}


def test_groups_of_a_silent_coordinator_are_missing(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    groups = {1: Groups({"a": {("t", 0): 40}}), 2: Groups({"b": {("t", 0): 50}})}
    brokers[1].on(ApiKey.FIND_COORDINATOR, fake.silence)
    know_coordinators({2: brokers[2], 3: brokers[3]}, {2: groups[2]})
    coordinate(brokers[2], groups[2])
    found = admin.describe_groups(["b"], [3], timeout=1)
    assert (list(found.groups), found.ends, found.silent) == (["b"], {}, (1,))


def test_a_group_that_does_not_exist_is_an_error_beside_the_others(
    brokers: dict[int, FakeBroker], admin: Admin
) -> None:
    groups = {1: Groups({"a": {("t", 0): 40}})}
    know_coordinators(brokers, {1: Groups({"a": {}, "gone": {}})})
    coordinate(brokers[1], groups[1])
    found = admin.describe_groups(["a", "gone"], timeout=5)
    assert list(found.groups) == ["a"]
    assert {name: error.code for name, error in found.errors.items()} == {"gone": ErrorCode.GROUP_ID_NOT_FOUND}
    arguments = ["groups", "describe", "a", "gone", "--output", "tsv", "--timeout", "5", "-b", brokers[1].address]
    coordinate(brokers[1], groups[1])
    for each in brokers.values():
        each.on(ApiKey.DESCRIBE_CONFIGS, lambda _: DescribeConfigsResponse(results=[]))
    result = CliRunner().invoke(pylogd, arguments)
    assert result.stdout.splitlines() == ["a\tt\t0\t40\t100\t60\t-\t-\t-"]
    assert result.stderr == "Error: group gone: GROUP_ID_NOT_FOUND: there is no group 'gone'\n"
    assert result.exit_code == 1


def run(broker: FakeBroker) -> tuple[list[list[Any]], str, int]:
    """Run `groups list --lag`. Return group, members and lag of each record, standard error, and the exit status."""
    arguments = ["groups", "list", "--lag", "--output", "json", "--timeout", "1", "-b", broker.address]
    result = CliRunner().invoke(pylogd, arguments)
    found = [[one["group"], one["members"], one["lag"]] for one in json.loads(result.stdout)]
    return found, result.stderr, result.exit_code


def test_the_command_shows_the_lag_of_the_others(brokers: dict[int, FakeBroker]) -> None:
    coordinate(brokers[1], Groups({"a": {("t", 0): 40}, "b": {("t", 2): 40}}))
    coordinate(brokers[2], Groups({"c": {("t", 1): 90}}))
    brokers[3].on(ApiKey.LIST_GROUPS, fake.silence)
    found, errors, code = run(brokers[1])
    assert found == [["a", 2, 60], ["b", 2, None], ["c", 2, 10]]
    assert "left out, since they do not answer: brokers 3" in errors
    assert code == 1


def test_the_command_names_groups_whose_figures_are_refused(brokers: dict[int, FakeBroker]) -> None:
    coordinate(brokers[1], Groups({"a": {("t", 0): 40}, "b": {("t", 0): 40}}, refused="b"))
    for node in (2, 3):
        coordinate(brokers[node], Groups({}))
    found, errors, code = run(brokers[1])
    assert found == [["a", 2, 60], ["b", 2, None]]
    assert "group b: GROUP_AUTHORIZATION_FAILED" in errors
    assert code == 1
