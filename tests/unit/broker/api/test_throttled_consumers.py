"""Who had to wait for a busy disk, as DescribeConfigs tells it and `pylogd groups describe` shows it."""

from __future__ import annotations

import json
from typing import Any

from pylogd.broker.isolation.throttled_clients import Client
from pylogd.cli.groups import throttled_of, throttled_text
from pylogd.client.core.model import GroupDescription, GroupMember
from pylogd.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tests.fakes.parts import NODE, Parts

NAME = "lagging.consumers.throttled"
BROKER = 4


def describe(parts: Parts, name: str, *keys: str) -> dict[str, Any]:
    resource = DescribeConfigsResource(BROKER, name, list(keys) or None)
    (result,) = parts.call(DescribeConfigsRequest(resources=[resource])).results
    assert result.error_code == 0
    return {config.name: config.value for config in result.configs}


def wait(parts: Parts, client_id: str, seconds: float) -> None:
    now = parts.time.seconds()
    parts.laggards.clients.add(Client(client_id, "alice", "10.0.0.3"), seconds, now, "t-7", "/data", "vda")


def test_a_broker_tells_who_waited_if_it_is_asked_by_name(parts: Parts) -> None:
    assert json.loads(describe(parts, str(NODE), NAME)[NAME]) == []
    wait(parts, "c1", 2.5)
    wait(parts, "c2", 4.0)
    wait(parts, "c1", 0.25)
    answer = describe(parts, str(NODE), NAME, "node.id")
    assert answer["node.id"] == str(NODE)
    first, second = json.loads(answer[NAME])
    assert (first["client"], second["client"]) == ("c2", "c1")
    assert second == {
        "client": "c1", "principal": "alice", "host": "10.0.0.3", "seconds": 2.75, "total_seconds": 2.75, "waits": 2,
        "partition": "t-7", "directory": "/data", "disk": "vda", "utilization": None,
    }  # fmt: skip


def test_it_is_no_setting(parts: Parts) -> None:
    wait(parts, "c1", 2.5)
    assert NAME not in describe(parts, str(NODE))
    assert describe(parts, "", NAME) == {}


def test_it_is_bounded(parts: Parts) -> None:
    for number in range(300):
        wait(parts, f"c{number}", 1.0 + number)
    found = json.loads(describe(parts, str(NODE), NAME)[NAME])
    assert len(found) == 100
    assert found[0]["client"] == "c299"


def test_a_group_shows_its_own_members() -> None:
    members = (
        GroupMember("c1-1", None, "c1", "/10.0.0.3", (), ()),
        GroupMember("c2-1", None, "c2", "/10.0.0.4", (), ()),
    )
    group = GroupDescription("g", "Stable", "consumer", "range", 1, members)
    clients = [
        {"broker": 1, "client": client, "host": host, "seconds": 12.3, "partition": "t-7", "directory": "/data1",
         "disk": "vda", "utilization": 0.97}
        for client, host in (("c1", "10.0.0.3"), ("c2", "10.0.0.3"), ("c3", "10.0.0.4"))
    ]  # fmt: skip
    (found,) = throttled_of(group, clients)
    assert throttled_text(found) == (
        "throttled: 12.3 s in the last minute: client 'c1' of 10.0.0.3, reading t-7 from broker 1, disk vda (/data1) "
        "at 97%"
    )
    assert throttled_text({**found, "utilization": None}).endswith("disk vda (/data1)")
