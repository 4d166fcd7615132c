"""aiokafka: the tasks of `conformance.secure.tasks`."""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import for_code

from conformance.secure.program import SECONDS, compare, expect_error, logged, python_settings, run, value
from conformance.secure.tasks import FORBIDDEN, REFUSED, ROUND_TRIP, SESSIONS


class Token(AbstractTokenProvider):  # type: ignore[misc]
    """A source of one token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    async def token(self) -> str:
        return self._token


def settings(task: Any) -> dict[str, Any]:
    """Return the settings of a client."""
    context = ssl.create_default_context(cafile=task.authority)
    if task.keystore:
        context.load_cert_chain(task.certificate, task.key)
    return python_settings(task, Token) | {"ssl_context": context}


async def create(task: Any, topic: str) -> None:
    """Create a topic. Errors of the answer are raised: the client returns them."""
    admin = AIOKafkaAdminClient(**settings(task))
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(topic, 2, 1)])
    finally:
        await admin.close()
    for _, code, *_ in answer.topic_errors:
        if code:
            raise for_code(code)


async def produce(task: Any, count: int) -> None:
    """Send so many records, and wait for all."""
    producer = AIOKafkaProducer(**settings(task))
    try:
        await producer.start()
        for number in range(count):
            await producer.send_and_wait(task.topic, value(number))
    finally:
        await producer.stop()


async def consume(task: Any, count: int) -> list[bytes]:
    """Read so many records in a group."""
    consumer = AIOKafkaConsumer(task.topic, **settings(task), group_id=task.group, auto_offset_reset="earliest")
    try:
        await consumer.start()
        found = [(await asyncio.wait_for(consumer.getone(), SECONDS)).value for _ in range(count)]
        await consumer.commit()
    finally:
        await consumer.stop()
    return found


async def round_trip(task: Any) -> None:
    """Create, produce, read in a group."""
    await create(task, task.topic)
    await produce(task, task.records)
    compare(await consume(task, task.records), task.records)


def refused(task: Any) -> None:
    """Expect the error of authentication. The client logs it, and raises one that it could not connect."""
    names = ["KafkaConnectionError", "AuthenticationFailedError"]
    # It takes the first answer to a bad token, which says why (RFC 7628), for success, and is disconnected then.
    word = "closed" if task.mechanism == "OAUTHBEARER" else "SaslAuthenticationFailed"
    with logged("aiokafka", word):
        expect_error("connecting", names, lambda: asyncio.run(produce(task, 1)))


def forbidden(task: Any) -> None:
    """Expect errors of authorization."""
    topic = ["TopicAuthorizationFailedError", "ClusterAuthorizationFailedError"]
    expect_error("creating a topic", topic, lambda: asyncio.run(create(task, f"{task.topic}-new")))
    expect_error("producing", topic[:1], lambda: asyncio.run(produce(task, 1)))
    expect_error(
        "joining a group", ["GroupAuthorizationFailedError", *topic[:1]], lambda: asyncio.run(consume(task, 1))
    )


async def sessions(task: Any) -> None:
    """Produce and read all the time. The client does not authenticate again: it connects anew."""
    await create(task, task.topic)
    producer = AIOKafkaProducer(**settings(task))
    consumer = AIOKafkaConsumer(task.topic, **settings(task), group_id=task.group, auto_offset_reset="earliest")
    await producer.start()
    await consumer.start()
    found: list[bytes] = []
    sent = 0
    end = time.monotonic() + task.seconds
    while time.monotonic() < end or (len(found) < sent and time.monotonic() < end + SECONDS):
        if time.monotonic() < end:
            await producer.send_and_wait(task.topic, value(sent))
            sent += 1
        for records in (await consumer.getmany(timeout_ms=100)).values():
            found += [record.value for record in records]
    await producer.stop()
    await consumer.stop()
    compare(found, sent)


def _blocking(work: Callable[[Any], Awaitable[None]]) -> Callable[[Any], None]:
    return lambda task: asyncio.run(work(task))  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(
        run(
            {
                ROUND_TRIP: _blocking(round_trip),
                REFUSED: refused,
                FORBIDDEN: forbidden,
                SESSIONS: _blocking(sessions),
            }
        )
    )
