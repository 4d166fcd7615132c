"""Descriptions of groups of the newer protocol."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.fakes.parts import Parts


@pytest.fixture(autouse=True)
def group(parts: Parts) -> None:
    parts.create("t", 4)
    assert parts.call(FindCoordinatorRequest("g"), 3).error_code == 0
    for member in ("one", "two"):
        join = ConsumerGroupHeartbeatRequest(
            "g", member, 0, rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
        )
        assert parts.call(join, 1).error_code == 0


def describe(parts: Parts, *group_ids: str) -> list[Any]:
    found: list[Any] = parts.call(ConsumerGroupDescribeRequest([*group_ids]), 1).groups
    return found


def test_members_and_what_they_have(parts: Parts) -> None:
    (answer,) = describe(parts, "g", "g")
    assert (answer.error_code, answer.group_state, answer.assignor_name) == (0, "Reconciling", "uniform")
    assert [member.member_id for member in answer.members] == ["one", "two"]
    targets = [member.target_assignment.topic_partitions for member in answer.members]
    assert sorted(index for (topic,) in targets for index in topic.partitions) == [0, 1, 2, 3]
    assert all(member.subscribed_topic_names == ["t"] for member in answer.members)


def test_a_group_that_does_not_exist(parts: Parts) -> None:
    missing, found = describe(parts, "absent", "g")
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert not missing.members
    assert len(found.members) == 2
