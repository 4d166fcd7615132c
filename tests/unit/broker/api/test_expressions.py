"""Regular expressions in requests: matched in a thread if there is much to match, and refused if that takes long."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.base.limits import expressions
from pylogd.base.limits.names import MAX_SUBSCRIPTIONS
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts

TOPICS = 10


@pytest.fixture(autouse=True)
def coordinator(parts: Parts) -> None:
    for number in range(TOPICS):
        parts.create(f"t-{number}")
    assert parts.call(FindCoordinatorRequest("g"), 3).error_code == 0


def join(parts: Parts, expression: str | None, member: str = "m", topics: list[str] | None = None) -> Any:
    """Join the group, and return the response, or a Deferred of it."""
    request = ConsumerGroupHeartbeatRequest(
        "g", member, 0, rebalance_timeout_ms=1000, subscribed_topic_names=topics or [],
        subscribed_topic_regex=expression, topic_partitions=[],
    )  # fmt: skip
    return parts.ask(request, 1)


def heartbeat(parts: Parts, epoch: int, member: str = "m") -> Any:
    return parts.ask(ConsumerGroupHeartbeatRequest("g", member, epoch), 1)


def assigned(answer: Any) -> int:
    return sum(len(topic.partitions) for topic in answer.assignment.topic_partitions)


def test_a_member_that_joins_waits_for_a_thread(parts: Parts) -> None:
    parts.threads.hold = True
    answer = join(parts, "t-[0-4]")
    assert isinstance(answer, Deferred)
    assert not answer.called or answer.paused
    parts.threads.hold = False
    parts.threads.release()
    response = result_of(answer)
    assert response.error_code == 0
    assert assigned(response) == 5
    parts.threads.hold = True
    assert assigned(join(parts, "t-[0-4]")) == 5, "what has been found is kept"


def test_a_new_topic_is_found_without_a_thread(parts: Parts) -> None:
    joined = result_of(join(parts, "t-.*"))
    assert assigned(joined) == TOPICS
    parts.create("t-new")
    parts.threads.hold = True
    answer = heartbeat(parts, joined.member_epoch)
    assert answer.error_code == 0
    assert assigned(answer) == TOPICS + 1


def test_many_new_topics_are_found_in_a_thread(parts: Parts) -> None:
    joined = result_of(join(parts, "t-.*"))
    for number in range(TOPICS):
        parts.create(f"t-more-{number}")
    parts.threads.hold = True
    answer = heartbeat(parts, joined.member_epoch)
    assert isinstance(answer, Deferred)
    parts.threads.hold = False
    parts.threads.release()
    assert assigned(result_of(answer)) == 2 * TOPICS


@pytest.mark.parametrize("expression", ["(", "(?=a)"])
def test_one_that_is_not_valid(parts: Parts, expression: str) -> None:
    answer = join(parts, expression)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "not valid" in answer.error_message


def test_one_that_is_slow(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "_MOST_SECONDS", -1.0)
    answer = result_of(join(parts, "t-.*"))
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "takes more than" in answer.error_message


def test_a_member_that_names_too_many_topics(parts: Parts) -> None:
    names = [f"n-{number}" for number in range(MAX_SUBSCRIPTIONS + 1)]
    assert join(parts, None, topics=names).error_code == ErrorCode.INVALID_REQUEST
    answer = join(parts, None, topics=names[1:])
    assert (result_of(answer) if isinstance(answer, Deferred) else answer).error_code == 0


def test_a_member_that_waits_for_its_expression_is_not_removed(parts: Parts) -> None:
    joined = result_of(join(parts, "t-.*"))
    session = parts.settings.integer("group.consumer.session.timeout.ms") / 1000
    for number in range(TOPICS):
        parts.create(f"t-more-{number}")
    parts.time.advance(session - 1)
    parts.threads.hold = True
    answer = heartbeat(parts, joined.member_epoch)
    assert isinstance(answer, Deferred)
    parts.time.advance(session - 1)
    parts.threads.hold = False
    parts.threads.release()
    assert result_of(answer).error_code == 0
