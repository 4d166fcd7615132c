"""The answer to a heartbeat, as handlers encode it."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.members import TopicPartition


class HeartbeatAnswer(NamedTuple):
    """The answer to a heartbeat. `text` is the error as text; `assignment` is None if it has not changed."""

    error: ErrorCode
    text: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assignment: frozenset[TopicPartition] | None = None


def settled(
    answer: HeartbeatAnswer, outcome: ErrorCode | Deferred[ErrorCode]
) -> HeartbeatAnswer | Deferred[HeartbeatAnswer]:
    """Return the answer once a change is committed, or an answer with the error."""
    if isinstance(outcome, Deferred):
        return outcome.addCallback(partial(_or_error, answer))
    return _or_error(answer, outcome)


def _or_error(answer: HeartbeatAnswer, error: ErrorCode) -> HeartbeatAnswer:
    return HeartbeatAnswer(error, None, answer.member_id) if error else answer
