"""The groups of several brokers, some of which do not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.cli.main import pylogd
from pylogd.client import Admin
from pylogd.client.core.errors import BrokerUnavailable, RequestTimedOut
from pylogd.client.core.model import GroupListing
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.list_groups import ListedGroup, ListGroupsResponse
from tests.fakes import broker as fake
from tests.fakes.broker import FakeBroker
from tests.fakes.clock import FakeClock


def listing(name: str, error: ErrorCode = ErrorCode.NONE) -> Callable[[Any], ListGroupsResponse]:
    """Return an act that answers with a group of this name, or with an error."""
    groups = [] if error else [ListedGroup(name, "consumer", "Stable", "classic")]
    return lambda _: ListGroupsResponse(error_code=error, groups=groups)


def test_brokers_that_are_silent_hold_up_nobody(brokers: dict[int, FakeBroker], admin: Admin, clock: FakeClock) -> None:
    for node, act in ((1, listing("a")), (2, fake.silence), (3, fake.silence)):
        brokers[node].on(ApiKey.LIST_GROUPS, act)
    found = admin.groups_by_broker(1.5)
    assert list(found) == [1, 2, 3, 4]
    assert found.pop(1) == [GroupListing("a", "Stable", "consumer", 1)]
    assert {node: type(error) for node, error in found.items()} == {
        2: RequestTimedOut, 3: RequestTimedOut, 4: BrokerUnavailable,
    }  # fmt: skip
    assert 1.0 < sum(clock.slept) <= 1.5  # both were waited for at the same time


def test_one_that_loads_its_groups_is_asked_again(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    loading = listing("", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    for node, acts in ((1, [listing("a")]), (2, [loading, listing("b")]), (3, [listing("c")])):
        brokers[node].on(ApiKey.LIST_GROUPS, *acts)
    found = admin.groups_by_broker()
    assert [one.group_id for node in (1, 2, 3) for one in found[node]] == ["a", "b", "c"]  # type: ignore[union-attr]
    assert {node: len(each.asked(ApiKey.LIST_GROUPS)) for node, each in brokers.items()} == {1: 1, 2: 2, 3: 1}


def test_a_broker_that_refuses_has_answered(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    acts = {1: listing("a"), 2: listing("", ErrorCode.CLUSTER_AUTHORIZATION_FAILED), 3: listing("c")}
    for node, act in acts.items():
        brokers[node].on(ApiKey.LIST_GROUPS, act)
    refused = admin.groups_by_broker()[2]
    assert isinstance(refused, KafkaError) and refused.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_list_of_all_groups_has_to_be_complete(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    for each in brokers.values():
        each.on(ApiKey.LIST_GROUPS, *[listing("a")] * 200)
    with pytest.raises(BrokerUnavailable):
        admin.list_groups()


def test_the_command_shows_the_groups_of_the_others(brokers: dict[int, FakeBroker]) -> None:
    for node, act in ((1, listing("b")), (2, fake.silence), (3, listing("a"))):
        brokers[node].on(ApiKey.LIST_GROUPS, act)
    arguments = ["groups", "list", "--output", "tsv", "--timeout", "1", "-b", brokers[1].address]
    result = CliRunner().invoke(pylogd, arguments)
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["a", "b"]
    assert "left out, since they do not answer: brokers 2, 4" in result.stderr
    assert result.exit_code == 1
