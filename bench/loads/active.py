"""The client with many active connections: bench/connections.c, which sends the same Produce request by all of them."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench import compiling
from bench.loads.base import TOPIC, Said, parse
from bench.peers.base import Peer
from pylogd.base.clock import wall_ms
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import encode_batch
from pylogd.wire.session import ClientSession

SOURCE: Final = Path(__file__).parents[1] / "connections.c"
#: How many requests of a connection the broker finds in each read.
TOGETHER: Final = 5
#: The version of Produce that a broker is sent, and where a response to it, its length included, has the error.
_NEWEST, _FLOOR = (11, 17), (7, 23)
_MOST_BYTES = 1 << 20
_LIMIT_SECONDS = 120.0


class ActiveConnections:
    """A client whose connections stay: each `produce` sends by all of them."""

    def __init__(self, process: subprocess.Popen[str], size: int) -> None:
        self._process, self._size = process, size

    def produce(self, count: int) -> Said:
        """Have `count` batches of one message, or a few more, acknowledged."""
        assert self._process.stdin is not None and self._process.stdout is not None
        watchdog = threading.Timer(_LIMIT_SECONDS, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(f"{count}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            assert self._process.stderr is not None
            raise RuntimeError(f"connections: {self._process.stderr.read().strip() or 'took too long'}")
        said = parse(line)
        return replace(said, bytes=said.messages * self._size)


@contextmanager
def active_connections(peer: Peer, count: int, size: int) -> Iterator[ActiveConnections]:
    """Connect so many times to a broker, inside a `with` block. size: bytes of a message's value."""
    version, error = _FLOOR if peer.name == "floor" else _NEWEST
    path = peer.folder / "request"
    path.write_bytes(request(size, version))
    words = [compiling.compiled(SOURCE), peer.host, peer.port, count, TOGETHER, path, error]
    process = subprocess.Popen(
        [*map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield ActiveConnections(process, size)
    finally:
        process.kill()
        process.communicate()


def request(size: int, version: int) -> bytes:
    """Return a Produce request, acks=1, with one message whose value has `size` bytes."""
    records = encode_batch([(None, b"v" * size, wall_ms(), ())])
    data = [TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, records)])]
    session = ClientSession(_MOST_BYTES, "bench")
    parts: list[Any] = session.encode_request(ProduceRequest(None, 1, 1000, data), version)
    return b"".join(parts)
