"""kafka-python: the tasks of `conformance.secure.tasks`."""

from __future__ import annotations

import sys
import time
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.net.sasl.oauth import AbstractTokenProvider

from conformance.secure.program import SECONDS, Unexpected, compare, expect_error, logged, python_settings, run, value
from conformance.secure.tasks import FORBIDDEN, REFUSED, ROUND_TRIP, SESSIONS


class Token(AbstractTokenProvider):  # type: ignore[misc]
    """A source of one token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


def settings(task: Any) -> dict[str, Any]:
    """Return the settings of a client."""
    found = python_settings(task, Token) | {"ssl_cafile": task.authority}
    if task.keystore:
        found |= {"ssl_certfile": task.certificate, "ssl_keyfile": task.key}
    return found


def create(task: Any, topic: str) -> None:
    """Create a topic."""
    admin = KafkaAdminClient(**settings(task))
    try:
        admin.create_topics([NewTopic(topic, 2, 1)])
    finally:
        admin.close()


def produce(task: Any, count: int) -> None:
    """Send so many records, and wait for all."""
    producer = KafkaProducer(**settings(task))
    try:
        for future in [producer.send(task.topic, value(number)) for number in range(count)]:
            future.get(SECONDS)
    finally:
        producer.close(5)


def consume(task: Any, count: int) -> list[bytes]:
    """Read so many records in a group."""
    consumer = KafkaConsumer(
        task.topic, **settings(task), group_id=task.group, auto_offset_reset="earliest",
        consumer_timeout_ms=SECONDS * 1000,
    )  # fmt: skip
    found: list[bytes] = []
    try:
        for message in consumer:
            found.append(message.value)
            if len(found) == count:
                break
        consumer.commit()
    finally:
        consumer.close()
    return found


def round_trip(task: Any) -> None:
    """Create, produce, read in a group."""
    create(task, task.topic)
    produce(task, task.records)
    compare(consume(task, task.records), task.records)


def refused(task: Any) -> None:
    """Expect the error of authentication. The client logs it, and raises one that it could not connect.

    It drops what it has read if the end of the connection came with it (`_sock_recv` of its transport). Then all that
    it says is that it was disconnected.
    """
    names = ["KafkaTimeoutError", "SaslAuthenticationFailedError"]
    with logged("kafka", "SaslAuthenticationFailedError", "socket disconnected"):
        expect_error("connecting", names, lambda: KafkaAdminClient(**settings(task), bootstrap_timeout_ms=10_000))


def forbidden(task: Any) -> None:
    """Expect errors of authorization."""
    topic = ["TopicAuthorizationFailedError", "ClusterAuthorizationFailedError"]
    expect_error("creating a topic", topic, lambda: create(task, f"{task.topic}-new"))
    expect_error("producing", topic[:1], lambda: produce(task, 1))
    expect_error("joining a group", ["GroupAuthorizationFailedError"], lambda: consume(task, 1))


def sessions(task: Any) -> None:
    """Produce and read all the time; no error may come."""
    create(task, task.topic)
    producer = KafkaProducer(**settings(task), retries=0)
    consumer = KafkaConsumer(task.topic, **settings(task), group_id=task.group, auto_offset_reset="earliest")
    found: list[bytes] = []
    sent = 0
    end = time.monotonic() + task.seconds
    while time.monotonic() < end or (len(found) < sent and time.monotonic() < end + SECONDS):
        if time.monotonic() < end:
            producer.send(task.topic, value(sent)).get(SECONDS)
            sent += 1
        for records in consumer.poll(timeout_ms=100).values():
            found += [record.value for record in records]
    producer.close(5)
    consumer.close()
    if not sent:
        raise Unexpected("nothing was sent")
    compare(found, sent)


if __name__ == "__main__":
    sys.exit(run({ROUND_TRIP: round_trip, REFUSED: refused, FORBIDDEN: forbidden, SESSIONS: sessions}))
