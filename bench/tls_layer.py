"""What the broker's TLS layer costs by itself: OpenSSL, its memory BIO and the calls, without sockets and reactor.

A client's end, in this process too, encrypts records of the sizes that librdkafka makes of a Produce request; the
broker's end is given them in chunks as it reads them from a socket, and decrypts them with `link.tls_records.decrypt`.
Only the broker's end is timed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from OpenSSL import SSL

from pylogd.link.tls_records import decrypt

_CHUNK: Final = 1 << 17  # as `link.tls` reads
_FRAME: Final = 1_000_000
_WIRE: Final = 1 << 16
_SMALL: Final = 40  # bytes that librdkafka sends in a record of its own before each value
_RECORD: Final = 1 << 14


def record_sizes(message: int) -> list[int]:
    """Return the sizes of the records of a message of so many bytes."""
    full, rest = divmod(message, _RECORD)
    return [_SMALL, *[_RECORD] * full, *[rest] * bool(rest)]


def decrypt_seconds(keystore: Path, message: int, size: int) -> float:
    """Return the processor seconds to decrypt a GB of messages of `message` bytes, measured with `size` bytes."""
    broker, client = _ends(keystore)
    sizes = record_sizes(message) * max(_FRAME // message, 1)
    buffer = bytearray(2 * sum(sizes))
    got, spent = 0, 0.0
    while got < size:
        sent = _encrypt(client, sizes)
        begun = time.thread_time()
        for at in range(0, len(sent), _CHUNK):
            broker.bio_write(sent[at : at + _CHUNK])
            got += decrypt(broker, buffer, len(buffer))[0]
        spent += time.thread_time() - begun
    return spent / got * 1e9


def _ends(keystore: Path) -> tuple[SSL.Connection, SSL.Connection]:
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.use_certificate_chain_file(str(keystore))
    context.use_privatekey_file(str(keystore))
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    broker, client = SSL.Connection(context, None), SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD), None)
    broker.set_accept_state()
    client.set_connect_state()
    for _ in range(3):
        for one, other in ((client, broker), (broker, client)):
            with contextlib.suppress(SSL.WantReadError):
                one.do_handshake()
            with contextlib.suppress(SSL.WantReadError):
                other.bio_write(one.bio_read(_WIRE))
    return broker, client


def _encrypt(client: SSL.Connection, sizes: Sequence[int]) -> bytes:
    parts = []
    for size in sizes:
        client.send(bytes(size))
        parts.append(client.bio_read(_WIRE))
    return b"".join(parts)
