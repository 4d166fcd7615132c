"""librdkafka, by confluent-kafka: the tasks of `conformance.secure.tasks`."""

from __future__ import annotations

import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from conformance.secure.program import SECONDS, Unexpected, compare, run, value
from conformance.secure.tasks import FORBIDDEN, REFUSED, ROUND_TRIP, SESSIONS

_REFUSED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


def settings(task: Any, heard: list[KafkaError]) -> dict[str, Any]:
    """Return the settings of a client. heard: gets its errors."""
    found: dict[str, Any] = dict(task.properties) | {"error_cb": heard.append, "log_level": 0}
    if task.mechanism == "OAUTHBEARER":
        found["oauth_cb"] = lambda _config: (task.token, time.time() + 3600)
    return found


def _produce(task: Any, values: list[bytes]) -> list[KafkaError | None]:
    """Return what came of each record."""
    results: list[KafkaError | None] = []
    producer = Producer(settings(task, []) | {"message.timeout.ms": int(SECONDS * 1000)})
    for one in values:
        producer.produce(task.topic, one, callback=lambda error, _message: results.append(error))
    producer.flush(SECONDS)
    return results


def round_trip(task: Any) -> None:
    """Create, produce, read in a group."""
    _create(task, task.topic)
    results = _produce(task, [value(number) for number in range(task.records)])
    if any(results) or len(results) != task.records:
        raise Unexpected(f"{len(results)} acknowledged, {next(filter(None, results), None)}")
    consumer = Consumer(settings(task, []) | {"group.id": task.group, "auto.offset.reset": "earliest"})
    consumer.subscribe([task.topic])
    found: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < task.records and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None:
            if message.error():
                raise KafkaException(message.error())
            found.append(message.value() or b"")
    consumer.commit(asynchronous=False)
    consumer.close()
    compare(found, task.records)


def _create(task: Any, topic: str) -> None:
    admin = AdminClient(settings(task, []))
    for future in admin.create_topics([NewTopic(topic, 2, 1)]).values():
        future.result(SECONDS)


def refused(task: Any) -> None:
    """Wait for the error that says that authentication failed."""
    heard: list[KafkaError] = []
    admin = AdminClient(settings(task, heard))
    deadline = time.monotonic() + SECONDS
    try:
        admin.list_topics(timeout=5)
    except KafkaException:
        pass
    else:
        raise Unexpected("the client was let in")
    while not any(error.code() == KafkaError._AUTHENTICATION for error in heard):
        if time.monotonic() > deadline:
            raise Unexpected(f"the client heard {[error.name() for error in heard]}")
        admin.poll(0.1)


def forbidden(task: Any) -> None:
    """Expect errors of authorization."""
    try:
        _create(task, f"{task.topic}-new")
        raise Unexpected("creating a topic was not refused")
    except KafkaException as error:
        if error.args[0].code() not in _REFUSED:
            raise
    [result] = _produce(task, [b"x"])
    if result is None or result.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise Unexpected(f"producing: {result}")
    consumer = Consumer(settings(task, []) | {"group.id": task.group})
    consumer.subscribe([task.topic])
    heard: list[str] = []
    deadline = time.monotonic() + SECONDS
    while "GROUP_AUTHORIZATION_FAILED" not in heard:
        message = consumer.poll(1)
        if message is not None:
            problem = message.error()
            heard.append("a record" if problem is None else problem.name())
        if time.monotonic() > deadline:
            raise Unexpected(f"joining a group: {heard}")
    consumer.close()


def sessions(task: Any) -> None:
    """Produce and read all the time; no error may come."""
    _create(task, task.topic)
    heard: list[KafkaError] = []
    results: list[KafkaError | None] = []
    producer = Producer(settings(task, heard))
    consumer = Consumer(settings(task, heard) | {"group.id": task.group, "auto.offset.reset": "earliest"})
    consumer.subscribe([task.topic])
    found: list[bytes] = []
    sent = 0
    end = time.monotonic() + task.seconds
    while time.monotonic() < end or (len(found) < sent and time.monotonic() < end + SECONDS):
        if time.monotonic() < end:
            producer.produce(task.topic, value(sent), callback=lambda error, _message: results.append(error))
            sent += 1
        producer.poll(0)
        message = consumer.poll(0.1)
        if message is not None:
            if message.error():
                raise KafkaException(message.error())
            found.append(message.value() or b"")
    producer.flush(SECONDS)
    consumer.close()
    compare(found, sent)
    if any(results) or heard:
        raise Unexpected(f"the client heard {[error.str() for error in heard]}")


if __name__ == "__main__":
    sys.exit(run({ROUND_TRIP: round_trip, REFUSED: refused, FORBIDDEN: forbidden, SESSIONS: sessions}))
