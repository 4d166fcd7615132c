"""Send Produce requests in pieces as small as the TLS records of librdkafka, encrypted or not, at a given pace.

librdkafka hands a request of 1 MB to a plain socket in a few calls, but with TLS in a call for each record, because it
encrypts each message by itself. A broker that is faster than its client then finds one piece each time it wakes up.
This client sends the same pieces on both kinds of listener, so that the difference is what the encryption costs.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import time
from pathlib import Path
from typing import Final

from bench.frames import produce, read_reply
from bench.tls_layer import record_sizes
from pylogd.local.broker import HOST
from pylogd.wire.records import NewRecord, encode_batch

_BATCH: Final = 1_000_000
_SECONDS: Final = 120.0


def send(port: int, authority: Path | None, topic: str, message: int, size: int, rate: float) -> int:
    """Send messages of `message` bytes, `size` bytes in all, at most `rate` bytes a second. Wait for the answers.

    authority: the certificate to trust, None for a plain listener. Return the bytes of the values.
    """
    records = [NewRecord(None, bytes(message), time.time_ns() // 1_000_000)] * max(_BATCH // message, 1)
    request = memoryview(produce(1, topic, encode_batch(records)))
    pieces = list(_pieces(request, message))
    count = -(-size // (message * len(records)))
    with socket.create_connection((HOST, port), _SECONDS) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = plain
        if authority is not None:
            context = ssl.create_default_context(cafile=str(authority))
            connection = context.wrap_socket(plain, server_hostname=HOST)
        with connection:
            _send_paced(connection, pieces * count, rate)
            for _ in range(count):
                read_reply(connection)
    return count * len(records) * message


def _pieces(request: memoryview, message: int) -> list[memoryview]:
    found: list[memoryview] = []
    at = 0
    for size in itertools.cycle(record_sizes(message)):
        if at >= len(request):
            return found
        found.append(request[at : at + size])
        at += size
    return found


def _send_paced(connection: socket.socket, pieces: list[memoryview], rate: float) -> None:
    due = time.perf_counter()
    for piece in pieces:
        while time.perf_counter() < due:
            pass
        connection.sendall(piece)
        due += len(piece) / rate
