"""What strangers do, each a coroutine for one of them, over and over; and crowds of them.

Strategy: one event loop in a process of its own drives all clients of a crowd, so that the threads of an attacker are
not what is measured, nor is what they keep from the well-behaved clients. A client whose connection is closed comes
again after a pause, so that a crowd keeps its size.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import random
import socket
import ssl
import struct
import uuid
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, NamedTuple

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from pylogd.broker.telemetry.otlp import MOST_POINTS
from pylogd.credentials.oauthbearer import OAuthBearerClient
from pylogd.credentials.plain import PlainClient
from pylogd.credentials.scram import SCRAM_SHA_512, ScramClient
from pylogd.wire.compression import CompressionType, compress
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pylogd.wire.messages.push_telemetry import PushTelemetryRequest
from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest
from pylogd.wire.schema import response_codec, response_header_version
from tests.extreme.access import Access, password_of, tls_context
from tests.extreme.state import STAMP, TOPIC
from tests.integration.test_sasl import token
from tests.rawclient import encode, frame, header

#: The beginning of a TLS handshake: a record of 512 bytes is announced, of which a few come.
_HALF_A_HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
#: A topic with batches of many records, compressed: to find a time stamp, a batch has to be decompressed.
SEARCHED: Final = "searched"
_ADDRESSES: Final = 20
_FRAME_BYTES: Final = 90 << 20
_FETCHES: Final = 2_000
_TOKEN_SECONDS: Final = 2
_RUSH_SECONDS: Final = 0.3
_UNUSED_SECONDS: Final = 600.0  # after which a crowd that was not entered ends
_AT_ONCE: Final = 10  # requests that a client sends before it reads
_ENDS = (OSError, ssl.SSLError, asyncio.IncompleteReadError, EOFError, TimeoutError, PermissionError)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(access: Access, number: int = 0, *, encrypted: bool = True) -> Streams:
    """Connect from one of several addresses; with TLS if the access has it and `encrypted` is set."""
    host, _, port = access.address.rpartition(":")
    context = tls_context(access.authority) if encrypted and access.authority else None
    return await asyncio.open_connection(
        host, int(port), ssl=context, server_hostname=host if context else None,
        local_addr=(f"127.0.0.{2 + number % _ADDRESSES}", 0),
    )  # fmt: skip


async def ask(streams: Streams, message: Any, version: int) -> Any:
    """Send a request and return the answer."""
    reader, writer = streams
    writer.write(frame(encode(message, version)))
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    data = await reader.readexactly(size)
    skipped = 4 + (response_header_version(message.API_KEY, version) >= 1)
    return response_codec(message.API_KEY, version).decode(data[skipped:])


async def authenticate(streams: Streams, conversation: Any) -> bool:
    """Authenticate by a mechanism. Return whether the broker accepted it."""
    if (await ask(streams, SaslHandshakeRequest(conversation.mechanism), 1)).error_code:
        return False
    message = conversation.first()
    while message is not None:
        answer = await ask(streams, SaslAuthenticateRequest(message), 2)
        if answer.error_code:
            return False
        message = conversation.step(answer.auth_bytes)
    return True


async def known(access: Access, number: int) -> Streams:
    """Connect, and authenticate if the access has a user."""
    streams = await connect(access, number)
    if access.user and not await authenticate(streams, PlainClient(access.user, password_of(access.user))):
        raise PermissionError
    return streams


async def until_closed(streams: Streams) -> None:
    """Read, and wait for the end of the connection."""
    reader, writer = streams
    try:
        while await reader.read(1 << 16):
            pass
    finally:
        writer.close()


# What one stranger does -----------------------------------------------------------------------------------------------


async def never_finish_the_handshake(access: Access, number: int) -> None:
    """Begin a TLS handshake and wait; every other one says nothing at all."""
    streams = await connect(access, number, encrypted=False)
    if number % 2:
        streams[1].write(_HALF_A_HELLO)
    await until_closed(streams)


async def garbage_after_the_handshake(access: Access, number: int) -> None:
    """Finish the TLS handshake, and send random bytes."""
    streams = await connect(access, number)
    streams[1].write(os.urandom(256))
    await until_closed(streams)


async def garbage(access: Access, number: int) -> None:
    """Send random bytes to a plain listener."""
    streams = await connect(access, number)
    streams[1].write(os.urandom(256))
    await until_closed(streams)


async def a_byte_a_second(access: Access, number: int) -> None:
    """Send a request of a megabyte, a byte a second."""
    reader, writer = await connect(access, number)
    writer.write(struct.pack(">i", 1 << 20) + header(ApiKey.PRODUCE, 9))
    ended = asyncio.ensure_future(until_closed((reader, writer)))
    try:
        while not ended.done():
            writer.write(b"x")
            await asyncio.wait([ended], timeout=1.0)
    finally:
        ended.cancel()
        writer.close()


async def wrong_passwords(access: Access, number: int) -> None:
    """Guess a password, by one of two mechanisms."""
    streams = await connect(access, number)
    guess = f"guess {number}"
    mechanism = PlainClient("neighbour", guess) if number % 2 else ScramClient(SCRAM_SHA_512, "neighbour", guess)
    assert not await authenticate(streams, mechanism)
    await until_closed(streams)


async def tokens_that_expire(access: Access, number: int) -> None:
    """Authenticate with a token that lives two seconds, and ask on until the broker closes the connection."""
    streams = await connect(access, number)
    try:
        if await authenticate(streams, OAuthBearerClient(token("stranger", _TOKEN_SECONDS))):
            while True:
                await ask(streams, MetadataRequest([]), 12)
                await asyncio.sleep(0.2)
    finally:
        streams[1].close()


async def unfinished_frames(access: Access, number: int) -> None:
    """Send almost all of a large request, and wait."""
    reader, writer = await known(access, number)
    ended = asyncio.ensure_future(until_closed((reader, writer)))
    try:
        writer.write(struct.pack(">i", _FRAME_BYTES + 10) + header(ApiKey.PRODUCE, 9))
        block = bytes(1 << 20)
        for _ in range(_FRAME_BYTES >> 20):
            writer.write(block)
            await writer.drain()
        await ended
    finally:
        ended.cancel()
        writer.close()


async def answers_never_read(access: Access, number: int) -> None:
    """Ask for records over and over, and read none. The library reads ahead a little, then no more."""
    _, writer = await known(access, number)
    partition = FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = frame(
        encode(FetchRequest(replica_id=-1, max_bytes=1 << 20, topics=[FetchTopic(TOPIC, partitions=[partition])]), 11)
    )
    try:
        for _ in range(_FETCHES):
            writer.write(request)
            await writer.drain()
        await asyncio.Event().wait()
    finally:
        writer.transport.abort()


async def connect_in_a_rush(access: Access, number: int) -> None:
    """Connect, say nothing, and leave a moment later, without the cost of streams.

    So many of these take all places of a listener for handshakes, and take them again as fast as the machine lets them.
    """
    host, _, port = access.address.rpartition(":")
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.setblocking(False)
        one.bind((f"127.0.0.{2 + number % _ADDRESSES}", 0))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leaves no port in TIME_WAIT
        await loop.sock_connect(one, (host, int(port)))
        await asyncio.sleep(_RUSH_SECONDS)


async def ask_a_page_for_nothing(access: Access, number: int) -> None:
    """Connect to the pages of metrics and health, and say nothing."""
    await until_closed(await connect(access, number, encrypted=False))


async def _over_and_over(access: Access, number: int, request: Callable[[], tuple[Any, int]]) -> None:
    """Send requests, a few at a time, and read the answers to them."""
    streams = await known(access, number)
    reader, writer = streams
    try:
        while True:
            for _ in range(_AT_ONCE):
                writer.write(frame(encode(*request())))
            for _ in range(_AT_ONCE):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                await reader.readexactly(size)
    finally:
        writer.close()


def _random_name() -> str:
    return f"stranger-{uuid.uuid4()}"


async def new_groups(access: Access, number: int) -> None:
    """Join one group after the other, and forget it."""
    protocols = [JoinGroupRequestProtocol("range", bytes(10))]
    await _over_and_over(
        access, number,
        lambda: (JoinGroupRequest(_random_name(), 1_800_000, 60_000, "", None, "consumer", protocols), 5),
    )  # fmt: skip


async def new_members(access: Access, number: int) -> None:
    """Get one member id after the other for the same group, and forget it."""
    protocols = [JoinGroupRequestProtocol("range", bytes(10))]
    await _over_and_over(
        access, number,
        lambda: (JoinGroupRequest("strangers", 1_800_000, 60_000, "", None, "consumer", protocols), 5),
    )  # fmt: skip


async def offsets_of_new_groups(access: Access, number: int) -> None:
    """Commit offsets of one group after the other, with as much metadata as is allowed."""
    partition = OffsetCommitRequestPartition(0, 5, committed_metadata="x" * 4000)
    topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
    await _over_and_over(
        access, number, lambda: (OffsetCommitRequest(_random_name(), -1, "", None, topics=topics), 8)
    )  # fmt: skip


def new_consumer_group() -> tuple[Any, int]:
    """Return a request to join a new group of the newer protocol, and its version."""
    return (
        ConsumerGroupHeartbeatRequest(
            _random_name(), str(uuid.uuid4()), 0, rebalance_timeout_ms=60_000, subscribed_topic_names=[TOPIC],
            topic_partitions=[],
        ),
        1,
    )  # fmt: skip


async def new_consumer_groups(access: Access, number: int) -> None:
    """Join one group of the newer protocol after the other, and forget it."""
    await _over_and_over(access, number, new_consumer_group)


def new_transactional_id() -> tuple[Any, int]:
    """Return a request for a producer id of a new transactional id, and its version."""
    return InitProducerIdRequest(_random_name(), 60_000, -1, -1), 4


async def new_transactional_ids(access: Access, number: int) -> None:
    """Get a producer id for one transactional id after the other."""
    await _over_and_over(access, number, new_transactional_id)


async def large_group_changes(access: Access, number: int) -> None:
    """Join groups of the newer protocol with so many topic names that a thread makes the change."""
    names = [f"absent-{at}" for at in range(5000)]
    await _over_and_over(
        access, number,
        lambda: (
            ConsumerGroupHeartbeatRequest(
                f"large-{number}", str(uuid.uuid4()), 0, rebalance_timeout_ms=60_000, subscribed_topic_names=names,
                topic_partitions=[],
            ),
            1,
        ),
    )  # fmt: skip


async def slow_expressions(access: Access, number: int) -> None:
    """Subscribe by expressions that are slow to match."""
    streams = await known(access, number)
    try:
        while True:
            text = "|".join(f"(x?){{{random.randrange(300, 400)}}}y" for _ in range(2))
            await ask(
                streams,
                ConsumerGroupHeartbeatRequest(
                    f"stranger-{number}-{random.random()}", str(uuid.uuid4()), 0, rebalance_timeout_ms=60_000,
                    subscribed_topic_names=[], subscribed_topic_regex=text, topic_partitions=[],
                ),
                1,
            )  # fmt: skip
    finally:
        streams[1].close()


async def push_metrics(access: Access, number: int) -> None:
    """Push as many metrics as are allowed, each time as another client."""
    codec, data = many_metrics()
    streams = await known(access, number)
    try:
        while True:
            asked = await ask(streams, GetTelemetrySubscriptionsRequest(), 0)
            await ask(
                streams,
                PushTelemetryRequest(asked.client_instance_id, asked.subscription_id, False, codec, data),
                0,
            )  # fmt: skip
    finally:
        streams[1].close()


async def search_by_time(access: Access, number: int) -> None:
    """Look up the offset of a time stamp, for which a batch is decompressed."""
    await _over_and_over(access, number, lambda: (search(STAMP + 1 + number), 7))


async def open_fetch_sessions(access: Access, number: int) -> None:
    """Open one fetch session after the other, and leave each."""
    await _over_and_over(access, number, lambda: (new_session(TOPIC, 1), 11))


async def open_large_fetch_sessions(access: Access, number: int) -> None:
    """Open fetch sessions with so many partitions that a few of them have as many as all may have."""
    await _over_and_over(access, number, lambda: (new_session(TOPIC, 5000), 11))


def many_metrics() -> tuple[int, bytes]:
    """Return the codec and the bytes of a push with as many data points as are taken."""
    scope = MetricsData()
    metrics = scope.resource_metrics.add().scope_metrics.add().metrics
    for number in range(MOST_POINTS // 2 - 10):
        metrics.add(name=f"strange.{number}").gauge.data_points.add(as_double=1.0)
    data = scope.SerializeToString()
    return CompressionType.GZIP, compress(CompressionType.GZIP, data)


def search(timestamp: int) -> ListOffsetsRequest:
    """Return a request for the offset of a time stamp in `SEARCHED`."""
    return ListOffsetsRequest(
        topics=[ListOffsetsTopic(SEARCHED, [ListOffsetsPartition(0, timestamp=timestamp)])], replica_id=-1
    )


def new_session(topic: str, partitions: int) -> FetchRequest:
    """Return a request that opens a fetch session and asks for no records."""
    wanted = [FetchPartition(index, fetch_offset=0, partition_max_bytes=0) for index in range(partitions)]
    return FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=0, session_epoch=0,
        topics=[FetchTopic(topic, partitions=wanted)],
    )  # fmt: skip


class Attack(NamedTuple):
    """What a crowd does. secured: on the listener with TLS and SASL, else the plain one. pause: before coming again.

    pages: on the listener of metrics and health instead. costly: whether it makes the broker work for all it asks, so
    that neighbours get their share of the processor only.
    """

    name: str
    client: Callable[[Access, int], Awaitable[None]]
    clients: int
    secured: bool
    pause: float = 10.0
    pages: bool = False
    costly: bool = False


ATTACKS: Final = (
    Attack("TLS handshakes that never end", never_finish_the_handshake, 1000, True, 1.0),
    Attack("garbage after the TLS handshake", garbage_after_the_handshake, 1000, True),
    Attack("garbage on the plain listener", garbage, 1000, False, 5.0),
    Attack("a byte a second on the plain listener", a_byte_a_second, 1000, False, 1.0),
    Attack("wrong passwords in a loop", wrong_passwords, 40, True, 0.0),
    Attack("tokens that expire while in use", tokens_that_expire, 50, True, 0.5),
    Attack("unfinished frames of 90 MB, plain", unfinished_frames, 12, False, 1.0),
    Attack("unfinished frames of 90 MB, TLS", unfinished_frames, 12, True, 1.0),
    Attack("answers that are never read, plain", answers_never_read, 200, False, 1.0),
    Attack("answers that are never read, TLS", answers_never_read, 200, True, 1.0),
    Attack("a rush of connections", connect_in_a_rush, 1500, True, 0.0),
    Attack("500 wrong passwords at a time", wrong_passwords, 500, True, 0.0, costly=True),
    Attack("silent connections to the pages", ask_a_page_for_nothing, 300, False, 0.1, pages=True),
    Attack("new groups of strangers", new_groups, 20, False, 0.0, costly=True),
    Attack("new groups of a user", new_groups, 20, True, 0.0, costly=True),
    Attack("new members of a group", new_members, 20, False, 0.0, costly=True),
    Attack("offsets of new groups", offsets_of_new_groups, 20, False, 0.0, costly=True),
    Attack("new groups of the newer protocol", new_consumer_groups, 20, False, 0.0, costly=True),
    Attack("large changes of groups", large_group_changes, 20, False, 0.0, costly=True),
    Attack("new transactional ids", new_transactional_ids, 20, False, 0.0, costly=True),
    Attack("slow regular expressions", slow_expressions, 20, False, 0.0, costly=True),
    Attack("pushed metrics", push_metrics, 20, False, 0.0, costly=True),
    Attack("searches by time stamp", search_by_time, 20, False, 0.0, costly=True),
    Attack("new fetch sessions of strangers", open_fetch_sessions, 20, False, 0.0, costly=True),
    Attack("new fetch sessions of a user", open_fetch_sessions, 20, True, 0.0, costly=True),
    Attack("large fetch sessions", open_large_fetch_sessions, 20, False, 0.0, costly=True),
)


class Crowd:
    """The clients of an attack, from when this is entered to when it is left. attempts: how often one came.

    They are in a process of their own, which is made at once, while this process has no threads that may hold locks.
    """

    def __init__(self, attack: Attack, access: Access, count: int | None = None) -> None:
        """`count`: how many clients, where that is not the attack's number."""
        self._attack = attack
        self._access = access
        self._count = attack.clients if count is None else count
        forking = multiprocessing.get_context("fork")
        self._begin = forking.Event()
        self._attempts = forking.Value("q", 0)
        self._process = forking.Process(target=self._run, daemon=True)
        self._process.start()

    @property
    def attempts(self) -> int:
        """How often a client came."""
        return int(self._attempts.value)

    def __enter__(self) -> Crowd:
        self._begin.set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()

    def _run(self) -> None:
        if self._begin.wait(_UNUSED_SECONDS):
            asyncio.run(self._come())

    async def _come(self) -> None:
        await asyncio.gather(*(self._go_on(number) for number in range(self._count)))

    async def _go_on(self, number: int) -> None:
        while True:
            self._attempts.value += 1  # by this thread only
            with contextlib.suppress(*_ENDS):
                await self._attack.client(self._access, number)
            await asyncio.sleep(self._attack.pause)
