"""Every exception has an entry in the table from exceptions to error codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.logger import LogEvent

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.broker.api.errors import explain, why_absent
from pylogd.broker.log import errors as storage
from pylogd.broker.metadata.errors import InvalidTopicName
from pylogd.broker.replica import errors as replica_errors
from pylogd.config import ConfigError
from tests.fakes.parts import Parts
from twisted import logger

globalLogPublisher: Any = logger.globalLogPublisher  # declared to take an ILogObserver only


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


@pytest.mark.parametrize("kind", sorted(subclasses(storage.InvalidAppend), key=str))
def test_invalid_appends_are_errors_of_the_client(kind: type[PylogdError]) -> None:
    code, message = explain(kind("why"))
    assert code not in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE)
    assert message == "why"


def test_other_storage_errors_are_not_errors_of_the_client() -> None:
    failure = storage.StorageFailure("/data", OSError(28, "No space left on device"))
    assert explain(failure) == (ErrorCode.KAFKA_STORAGE_ERROR, "No space left on device")
    assert explain(storage.CorruptFile("/data/f", "cut short")) == (ErrorCode.KAFKA_STORAGE_ERROR, "cut short")
    assert explain(storage.LogClosed("closed"))[0] is ErrorCode.KAFKA_STORAGE_ERROR
    assert explain(storage.OffsetOutOfRange(5, 0, 3))[0] is ErrorCode.OFFSET_OUT_OF_RANGE


def test_errors_that_carry_their_code() -> None:
    assert explain(KafkaError(ErrorCode.POLICY_VIOLATION, "no")) == (ErrorCode.POLICY_VIOLATION, "no")
    assert explain(InvalidTopicName("no"))[0] is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert explain(ConfigError("no"))[0] is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    "kind",
    [
        replica_errors.NotEnoughReplicas,
        replica_errors.FencedLeaderEpoch,
        replica_errors.UnknownLeaderEpoch,
        replica_errors.PartitionOffline,
    ],
)
def test_what_replicas_raise(kind: type[PylogdError]) -> None:
    assert explain(kind("why"))[0] is not ErrorCode.UNKNOWN_SERVER_ERROR


def test_an_unexpected_error_is_logged_and_not_shown_to_the_client() -> None:
    events: list[LogEvent] = []
    globalLogPublisher.addObserver(events.append)
    try:
        raise PylogdError("a secret")
    except PylogdError as error:
        assert explain(error) == (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR.text)
    finally:
        globalLogPublisher.removeObserver(events.append)
    (event,) = [event for event in events if "Unexpected error" in str(event.get("log_format"))]
    assert "a secret" in str(event["log_failure"])


def test_the_error_says_why_a_partition_is_absent(parts: Parts) -> None:
    topic = parts.create("t")
    for name, index, code in [
        ("nope", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (b"x" * 16, 0, ErrorCode.UNKNOWN_TOPIC_ID),
        ("t", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (topic.topic_id, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]:
        assert why_absent(parts, name, index) is code  # type: ignore[arg-type]
