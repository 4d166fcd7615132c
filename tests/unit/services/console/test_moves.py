"""Moves of replicas: planned, throttled, cancelled, with the requests that are sent for them."""

from __future__ import annotations

import json
import re
import shlex
from html import unescape
from typing import Any

import pytest

from pylogd.wire.messages import alter_partition_reassignments as alter
from pylogd.wire.messages import describe_configs as described
from pylogd.wire.messages import incremental_alter_configs as configs
from pylogd.wire.messages import list_partition_reassignments as listing
from tests.unit.services.console.memory import MemoryConsole, Response


class Moving(MemoryConsole):
    """A console that may write, on a cluster in which two partitions of a topic move from broker 3 to broker 2."""

    def __init__(self) -> None:
        self.moving: tuple[int, ...] = (0, 1)
        self.throttle: str | None = "20000"
        super().__init__(topics=2, partitions=8, groups=0, allow_writes=True)
        self.topic = max(self.calls.record.topics, key=self.calls.record.topics.__getitem__)
        self.calls.changes = {
            listing.ListPartitionReassignmentsRequest: self._list,
            alter.AlterPartitionReassignmentsRequest: self._alter,
            described.DescribeConfigsRequest: self._describe,
            configs.IncrementalAlterConfigsRequest: lambda _: configs.IncrementalAlterConfigsResponse(),
        }
        self.sample()

    def _list(self, _: Any) -> Any:
        moves = [listing.OngoingPartitionReassignment(index, [1, 2, 3], [2], [3]) for index in self.moving]
        return listing.ListPartitionReassignmentsResponse(
            topics=[listing.OngoingTopicReassignment(self.topic, moves)]
        )  # fmt: skip

    def _describe(self, request: Any) -> Any:
        """Answer the throttles that were set at run time."""
        sources = {2: 1, 4: 2}
        return described.DescribeConfigsResponse(results=[
            described.DescribeConfigsResult(
                resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[
                    described.DescribeConfigsResourceResult(
                        name, self.throttle, config_source=sources[resource.resource_type]
                    )
                    for name in resource.configuration_keys or () if "throttled" in name and self.throttle is not None
                ],
            )
            for resource in request.resources
        ])  # fmt: skip

    def _alter(self, request: Any) -> Any:
        return alter.AlterPartitionReassignmentsResponse(responses=[
            alter.ReassignableTopicResponse(topic.name, [
                alter.ReassignablePartitionResponse(one.partition_index) for one in topic.partitions
            ])
            for topic in request.topics
        ])  # fmt: skip

    def post(self, path: str, **form: str) -> Response:
        """Send the form of an action."""
        page = self.ask(f"/c/cluster{path}")
        return self.ask(f"/c/cluster{path}", {"csrf": page.token, **form}, cookie=page.cookie)

    def sent(self, kind: type[Any]) -> list[Any]:
        """The requests of a kind that came."""
        return [one for one in self.calls.seen if isinstance(one, kind)]

    def throttled(self) -> set[tuple[str, str, str | None]]:
        """Which settings were changed of what, and to which value."""
        return {
            (resource.resource_name, one.name, one.value)
            for request in self.sent(configs.IncrementalAlterConfigsRequest)
            for resource in request.resources
            for one in resource.configs
        }


@pytest.fixture
def console() -> Moving:
    return Moving()


def commands(page: Response) -> str:
    """The command of a plan."""
    found = re.search(r"<pre tabindex=\"0\"><code>(.*?)</code>", page.body, re.DOTALL)
    assert found is not None
    return unescape(found[1])


def test_moves_are_shown_with_how_far_they_are(console: Moving) -> None:
    body = console.ask("/c/cluster/reassignments").body
    assert f"{console.topic}-0" in body and "100%: 97.7 KiB of 97.7 KiB" in body


def test_a_move_is_planned_and_begun(console: Moving) -> None:
    console.calls.record.replicas = (1, 2)
    console.moving = ()
    form = {"topic": console.topic, "brokers": "1, 2, 3", "throttle": "1000000"}
    plan = console.post("/reassign", **form)
    _, document, *_ = shlex.split(commands(plan))
    planned = {one["partition"]: one["replicas"] for one in json.loads(document)["partitions"]}
    assert planned and all(len(set(nodes)) == 2 for nodes in planned.values())
    assert any(3 in nodes for nodes in planned.values())
    assert not console.sent(alter.AlterPartitionReassignmentsRequest), "a plan changes nothing"
    done = console.post("/reassign", **form, confirm="yes")
    assert f"{len(planned)} partitions of {console.topic} begin to move" in done.body
    [request] = console.sent(alter.AlterPartitionReassignmentsRequest)
    asked = {one.partition_index: one.replicas for topic in request.topics for one in topic.partitions}
    assert asked == planned
    changed = console.throttled()
    assert ("1", "leader.replication.throttled.rate", "1000000") in changed
    assert ("3", "follower.replication.throttled.rate", "1000000") in changed
    assert (console.topic, "leader.replication.throttled.replicas", "*") in changed


@pytest.mark.parametrize(
    "form",
    [{"topic": "none", "brokers": "1"}, {"brokers": "1, 2, 9"}, {"brokers": ""}, {"brokers": "1"},
     {"brokers": "1, 2, 3", "throttle": "fast"}],
)  # fmt: skip
def test_moves_that_can_not_be(console: Moving, form: dict[str, str]) -> None:
    refused = console.post("/reassign", **{"topic": console.topic, **form, "confirm": "yes"})
    assert refused.status in (404, 422)
    assert not console.sent(alter.AlterPartitionReassignmentsRequest)


def test_all_moves_are_cancelled_and_the_throttle_is_removed(console: Moving) -> None:
    assert "pylogd reassign cancel" in commands(console.post("/cancel-moves"))
    assert "2 moves were cancelled" in console.post("/cancel-moves", confirm="yes").body
    [request] = console.sent(alter.AlterPartitionReassignmentsRequest)
    assert [one.replicas for topic in request.topics for one in topic.partitions] == [None, None]
    changed = console.throttled()
    assert ("2", "leader.replication.throttled.rate", None) in changed
    assert (console.topic, "follower.replication.throttled.replicas", None) in changed


def test_a_throttle_is_changed(console: Moving) -> None:
    lines = commands(console.post("/throttle", rate="5000")).splitlines()
    assert len(lines) == 4 and all(line.startswith("kafka-configs.sh ") for line in lines)
    assert "5,000 bytes" in console.post("/throttle", rate="5000", confirm="yes").body
    assert ("1", "leader.replication.throttled.rate", "5000") in console.throttled()
