"""Waiting until all brokers show a change: which brokers are waited for, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import Admin, NewTopic
from pylogd.client.blocking.cluster import Cluster
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from pylogd.wire.messages.metadata import MetadataResponseTopic
from tests.fakes import broker as fake
from tests.fakes.clock import FakeClock
from tests.fakes.late_brokers import CHANGES, LateBrokers, late_brokers, topic

CREATED = CHANGES["a topic is created"]


def create(late: LateBrokers, clock: FakeClock) -> None:
    """Make the change with an admin whose request timeout is 30 s."""
    with Cluster(late.address, clock=clock) as cluster, Admin(cluster) as admin:
        CREATED.make(admin)


def test_brokers_are_asked_again_after_short_pauses(clock: FakeClock) -> None:
    with late_brokers(CREATED, 3) as late:
        create(late, clock)
        assert late.all_show_it
    assert len(clock.slept) == 3 and sum(clock.slept) < 0.1


def test_a_broker_that_never_shows_it_is_given_up_after_the_request_timeout(clock: FakeClock) -> None:
    with late_brokers(CREATED, 1_000_000) as late:
        create(late, clock)
        assert not late.all_show_it
    assert 25 < sum(clock.slept) <= 30


@pytest.mark.parametrize("act", [fake.close, fake.silence], ids=["closes", "silent"])
def test_a_broker_that_does_not_answer_is_not_waited_for(act: fake.Misbehaviour, clock: FakeClock) -> None:
    with late_brokers(CREATED, 2) as late:
        late.brokers[2].on(ApiKey.METADATA, *[act] * 5)
        create(late, clock)
        assert late.answers[1][-1] is late.answers[3][-1] is CREATED.after
        assert not late.answers[2]
        assert len(late.brokers[2].asked(ApiKey.METADATA)) == (2 if act is fake.close else 1)
    assert sum(clock.slept) < 10


def test_a_broker_whose_connection_failed_once_is_waited_for(clock: FakeClock) -> None:
    with late_brokers(CREATED, 0) as late:
        late.brokers[3].on(ApiKey.METADATA, fake.close)
        create(late, clock)
        assert late.all_show_it


def test_who_may_create_but_not_describe_does_not_wait(clock: FakeClock) -> None:
    refused = [MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t")]
    with late_brokers(replace(CREATED, after=refused), 0) as late:
        create(late, clock)
        assert [len(answers) for answers in late.answers.values()] == [1, 1, 1]
    assert not clock.slept


def test_a_check_and_a_refusal_are_not_waited_for(clock: FakeClock) -> None:
    refusal = CreateTopicsResponse(topics=[CreatableTopicResult("t", error_code=ErrorCode.INVALID_PARTITIONS)])
    with late_brokers(CREATED, 0) as late, Cluster(late.address, clock=clock) as cluster, Admin(cluster) as admin:
        admin.create_topics([NewTopic("t")], validate_only=True)
        late.brokers[1].on(ApiKey.CREATE_TOPICS, lambda _: refusal)
        admin.create_topics([NewTopic("t")])
        assert not any(late.answers.values())


def test_a_change_is_made_although_the_brokers_are_not_known(clock: FakeClock) -> None:
    change = CHANGES["an ACL is created"]
    with late_brokers(change, 0) as late, Cluster(late.address, clock=clock) as cluster, Admin(cluster) as admin:
        late.brokers[1].on(ApiKey.METADATA, *[fake.close] * 500)
        assert not any(change.make(admin).values())
        assert not any(late.answers.values())
    assert 25 < sum(clock.slept) <= 30


def test_disagreeing_brokers_are_asked_until_they_agree(clock: FakeClock) -> None:
    """A broker that knows the topic with another id still has an earlier topic of that name."""
    with late_brokers(replace(CREATED, before=topic(1, topic_id=b"e" * 16)), 2) as late:
        create(late, clock)
        assert late.all_show_it
