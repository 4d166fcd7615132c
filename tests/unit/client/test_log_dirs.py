"""The data directories of several brokers, some of which do not answer."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client import Admin
from pylogd.client.core.errors import BrokerUnavailable, RequestTimedOut
from pylogd.client.core.model import TopicPartition
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages import describe_log_dirs as log_dirs
from tests.fakes import broker as fake
from tests.fakes.broker import FakeBroker
from tests.fakes.clock import FakeClock


def answer(_: Any) -> log_dirs.DescribeLogDirsResponse:
    partition = log_dirs.DescribeLogDirsPartition(2, 700, 0, False)
    topic = log_dirs.DescribeLogDirsTopic("t", [partition])
    found = log_dirs.DescribeLogDirsResult(0, "/data", [topic], 1000, 300)
    return log_dirs.DescribeLogDirsResponse(results=[found])


def test_brokers_that_are_silent_hold_up_nobody(brokers: dict[int, FakeBroker], admin: Admin, clock: FakeClock) -> None:
    for node, act in ((1, answer), (2, fake.silence), (3, fake.silence)):
        brokers[node].on(ApiKey.DESCRIBE_LOG_DIRS, act)
    found = admin.log_dirs_by_broker([1, 2, 3, 4, 9], 1.5)
    assert list(found) == [1, 2, 3, 4, 9]
    [directory] = found.pop(1)  # type: ignore[misc]
    assert (directory.broker, directory.path, directory.usable_bytes) == (1, "/data", 300)
    assert directory.sizes == {TopicPartition("t", 2): 700}
    kinds = {node: type(error) for node, error in found.items()}
    silent = dict.fromkeys((2, 3), RequestTimedOut)
    assert kinds == {**silent, **dict.fromkeys((4, 9), BrokerUnavailable)}
    assert 1.0 < sum(clock.slept) <= 1.5  # both were waited for at the same time


def test_a_broker_that_refuses_has_answered(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    refused = log_dirs.DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    brokers[2].on(ApiKey.DESCRIBE_LOG_DIRS, lambda _: refused)
    found = admin.log_dirs_by_broker([2])
    assert isinstance(found[2], KafkaError) and found[2].code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_only_those_that_failed_are_asked_again(brokers: dict[int, FakeBroker], admin: Admin) -> None:
    for node, acts in ((1, [answer]), (2, [fake.close, answer]), (3, [answer])):
        brokers[node].on(ApiKey.DESCRIBE_LOG_DIRS, *acts)
    assert [one.broker for one in admin.describe_log_dirs([3, 2, 1])] == [3, 2, 1]
    asked = {node: len(each.asked(ApiKey.DESCRIBE_LOG_DIRS)) for node, each in brokers.items()}
    assert asked == {1: 1, 2: 2, 3: 1}


def test_one_that_stays_away_is_an_error(brokers: dict[int, FakeBroker], admin: Admin, clock: FakeClock) -> None:
    for each in brokers.values():
        each.on(ApiKey.DESCRIBE_LOG_DIRS, answer)
    with pytest.raises(BrokerUnavailable):
        admin.describe_log_dirs()
    assert 30 < sum(clock.slept) <= 60  # the retry timeout of a cluster
