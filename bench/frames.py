"""Hand-made requests for what client libraries can't do: a thousand idle connections or unread replies."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
STALLED_SECONDS = 2.0


def request(api_key: int, version: int, correlation: int, body: bytes = b"") -> bytes:
    """Return a frame with a version 1 request header."""
    head = struct.pack(">hhih", api_key, version, correlation, 5) + b"bench"
    return struct.pack(">i", len(head) + len(body)) + head + body


def produce(correlation: int, topic: str, records: bytes) -> bytes:
    """Return a Produce request, version 3, to partition 0 with acks=1."""
    name = topic.encode()
    body = struct.pack(">hhiih", -1, 1, 1000, 1, len(name)) + name + struct.pack(">iii", 1, 0, len(records)) + records
    return request(PRODUCE, 3, correlation, body)


def fetch(correlation: int, topic: str, max_bytes: int) -> bytes:
    """Return a Fetch request, version 4, of partition 0 from offset 0."""
    name = topic.encode()
    body = struct.pack(">iiiibi", -1, 100, 1, max_bytes, 0, 1) + struct.pack(">h", len(name)) + name
    return request(FETCH, 4, correlation, body + struct.pack(">iiqi", 1, 0, 0, max_bytes))


def all_metadata(correlation: int) -> bytes:
    """Return a Metadata request, version 1, for all topics."""
    return request(METADATA, 1, correlation, struct.pack(">i", -1))


def receive(connection: socket.socket, count: int) -> bytes:
    """Receive exactly `count` bytes."""
    parts = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionError("the broker closed the connection")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_reply(connection: socket.socket) -> int:
    """Read one reply. Return its correlation id."""
    size, correlation = struct.unpack(">ii", receive(connection, 8))
    left = size - 4
    while left:
        left -= len(receive(connection, min(left, 1 << 20)))
    return int(correlation)


@contextmanager
def idle_connections(host: str, port: int, count: int) -> Iterator[None]:
    """Open connections that each send one ApiVersions request and are then idle."""
    with ExitStack() as stack:
        for number in range(count):
            connection = stack.enter_context(socket.create_connection((host, port), 10))
            connection.sendall(request(API_VERSIONS, 0, number))
            read_reply(connection)
        yield


def send_unread(connection: socket.socket, frames: list[bytes]) -> int:
    """Send until everything is sent or the broker has accepted nothing for 2 s. Return how many bytes it accepted."""
    data = memoryview(b"".join(frames))
    sent = 0
    connection.settimeout(STALLED_SECONDS)
    try:
        while sent < len(data):
            sent += connection.send(data[sent : sent + (1 << 16)])
    except TimeoutError:
        return sent
    time.sleep(STALLED_SECONDS)
    return sent


def read_unread(connection: socket.socket, frames: list[bytes], sent: int) -> int:
    """Send the rest and read all replies, which must come in order. Return how many came."""
    data = memoryview(b"".join(frames))
    connection.settimeout(60)
    for expected in range(len(frames)):
        connection.setblocking(False)
        try:
            sent += connection.send(data[sent : sent + (1 << 16)]) if sent < len(data) else 0
        except BlockingIOError:
            pass
        finally:
            connection.settimeout(60)
        correlation = read_reply(connection)
        if correlation != expected:
            raise RuntimeError(f"reply {correlation} came where {expected} was due")
    return len(frames)
