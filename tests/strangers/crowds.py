"""What strangers do, each a coroutine for one of them, over and over; and crowds of them.

Strategy: one event loop in a thread of its own drives all clients of a crowd, so that the threads of an attacker are
not what is measured. A client whose connection is closed comes again after a pause, so that a crowd keeps its size.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple

from pylogd.security.sasl.oauthbearer import OAuthBearerClient
from pylogd.security.sasl.plain import PlainClient
from pylogd.security.sasl.scram import SCRAM_SHA_512
from pylogd.security.sasl.scram_client import ScramClient
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest
from pylogd.wire.schema import response_codec, response_header_version
from tests.extreme.access import Access, password_of, tls_context
from tests.extreme.state import TOPIC
from tests.integration.test_sasl import token
from tests.rawclient import encode, frame, header

#: The beginning of a TLS handshake: a record of 512 bytes is announced, of which a few come.
_HALF_A_HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
_ADDRESSES: Final = 20
_FRAME_BYTES: Final = 90 << 20
_FETCHES: Final = 2_000
_TOKEN_SECONDS: Final = 2
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


class Attack(NamedTuple):
    """What a crowd does. secured: on the listener with TLS and SASL, else the plain one. pause: before coming again."""

    name: str
    client: Callable[[Access, int], Awaitable[None]]
    clients: int
    secured: bool
    pause: float = 10.0


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
)


class Crowd:
    """The clients of an attack, while this is entered. attempts: how often one came."""

    def __init__(self, attack: Attack, access: Access, count: int | None = None) -> None:
        """`count`: how many clients, where that is not the attack's number."""
        self._attack = attack
        self._access = access
        self._count = attack.clients if count is None else count
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: Sequence[Any] = ()
        self.attempts = 0

    def __enter__(self) -> Crowd:
        self._thread.start()
        self._tasks = [asyncio.run_coroutine_threadsafe(self._go_on(n), self._loop) for n in range(self._count)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def end() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _go_on(self, number: int) -> None:
        while True:
            self.attempts += 1
            with contextlib.suppress(*_ENDS):
                await self._attack.client(self._access, number)
            await asyncio.sleep(self._attack.pause)
