"""pylogd's processor time beside that of the floor, for each request and by how many arrive in one read.

    python -m bench floor [--before /elsewhere/.venv/bin/pylogd] [--rounds 10] [--requests 20000] [--write]

The floor is `bench/floor.c`: it answers without looking at what it was sent. A client has several connections. On each
it sends so many requests at once, waits for all replies, and sends the next: so many arrive in one read. Mostly
another connection has requests then, so that the broker seldom sleeps: to be woken up costs 15 us on a virtual machine
that is otherwise idle, whatever the broker does. The brokers take turns in each round, in reverse order in every other
one. A ratio is the median over rounds, with its 95 % confidence interval (bootstrap over rounds). `--before` adds an
earlier pylogd, installed in another environment.

Rules: the processor time is the kernel's for the broker's process, user and system. The records are the same; the floor
gets the last versions that it serves, Produce 7 and Fetch 4; pylogd gets 11 and 13, which has topic ids. acks=1, one
partition.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import struct
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import frames
from bench.before_after import earlier
from bench.compiling import PROGRAMS
from bench.harness import interval
from bench.machine import machine
from bench.memory import warm_pages
from bench.peers import PEERS, Peer, running
from pylogd.base.clock import wall_ms
from pylogd.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import encode_batch
from pylogd.wire.schema import response_codec
from pylogd.wire.session import ClientSession
from tests.pages import write_page

HERE = Path(__file__).parent
TOPIC = "t"
_MOST_BYTES = 1 << 24
_CREATE_VERSION = 7
#: The versions of Produce and Fetch that a peer is sent.
_VERSIONS = {"floor": (7, 4)}
_NEWEST = (11, 13)
_FETCHED_BYTES = 200_000
_CONNECTIONS = 8
_MOST_TIMES = 10  # as many requests, if so many or more arrive together
_REPLY_HEADER = 5  # bytes: correlation id, no tagged fields


@dataclass(frozen=True, slots=True)
class Row:
    """What is measured. together: the requests in one read. most: the target, as pylogd's multiple of the floor."""

    name: str
    together: int
    messages: int = 1
    fetches: bool = False
    most: float = 3.0


ROWS = (
    Row("produce, batches of 1, one request in a read", 1),
    Row("produce, batches of 1, 5 requests in a read", 5),
    Row("produce, batches of 1, 40 requests in a read", 40),
    Row("produce, batches of 50, one request in a read", 1, messages=50),
    Row(f"fetch, {_FETCHED_BYTES // 1000} KB", 1, fetches=True, most=1.3),
)


class Client:
    """Connections that send requests in groups, each when the one before on its connection has been answered."""

    def __init__(self, peer: Peer) -> None:
        self._sockets = [socket.create_connection((peer.host, peer.port), 30) for _ in range(_CONNECTIONS)]
        for connection in self._sockets:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._session = ClientSession(_MOST_BYTES, "bench")
        self._produce, self._fetch = _VERSIONS.get(peer.name, _NEWEST)
        self._topic_id = bytes(16)
        if peer.name not in _VERSIONS:
            create = CreateTopicsRequest([CreatableTopic(TOPIC, 1, 1)], 30_000)
            reply = self._ask(self._encoded(create, _CREATE_VERSION))
            response = response_codec(create.API_KEY, _CREATE_VERSION).decode(memoryview(reply)[_REPLY_HEADER:])
            self._topic_id = response.topics[0].topic_id

    def close(self) -> None:
        """Close the connections."""
        for connection in self._sockets:
            connection.close()

    def _encoded(self, request: object, version: int) -> bytes:
        parts: list[Any] = self._session.encode_request(request, version)
        return b"".join(parts)

    def _ask(self, request: bytes) -> bytes:
        """Send one request and return its reply."""
        first = self._sockets[0]
        first.sendall(request)
        (size,) = struct.unpack(">i", frames.receive(first, 4))
        return frames.receive(first, size)

    def request(self, row: Row) -> bytes:
        """Return the request of a row."""
        if row.fetches:
            topic = FetchTopic(TOPIC, self._topic_id, [FetchPartition(0, partition_max_bytes=_FETCHED_BYTES)])
            return self._encoded(FetchRequest(min_bytes=1, max_bytes=_MOST_BYTES, topics=[topic]), self._fetch)
        records = encode_batch([(None, b"v" * 200, wall_ms(), ())] * row.messages)
        data = [TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, records)])]
        return self._encoded(ProduceRequest(None, 1, 1000, data), self._produce)

    def repeat(self, row: Row, count: int) -> None:
        """Send at least `count` requests, in groups."""
        request = self.request(row)
        size = len(self._ask(request)) + 4
        group, replies = request * row.together, bytearray(size * row.together)
        for connection in self._sockets:
            connection.sendall(group)
        for _ in range(-(-count // row.together // _CONNECTIONS) - 1):
            for connection in self._sockets:
                _receive(connection, replies)
                connection.sendall(group)
        for connection in self._sockets:
            _receive(connection, replies)


def _receive(connection: socket.socket, replies: bytearray) -> None:
    """Fill a buffer."""
    left = memoryview(replies)
    while left:
        left = left[connection.recv_into(left) :]


def measured(name: str, row: Row, count: int, folder: Path) -> float:
    """Return the processor microseconds of one request, on a new broker.

    count: how many are sent one by one; there are more if they arrive together, since each takes less.
    """
    count *= min(row.together, _MOST_TIMES)
    with running(name, folder) as peer, ExitStack() as stack:
        client = Client(peer)
        stack.callback(client.close)
        if row.fetches:  # something to fetch
            client.repeat(ROWS[0], 2 * _FETCHED_BYTES // 200)
        warm_pages(folder, count * 300 * row.messages * (not row.fetches) + 1)
        client.repeat(row, count // 10)
        before = peer.cpu_seconds()
        client.repeat(row, count)
        return (peer.cpu_seconds() - before) / count * 1e6


def rounds_of(row: Row, names: Sequence[str], rounds: int, count: int, folder: Path) -> dict[str, list[float]]:
    """Return the microseconds of a request by broker, which take turns."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 else reversed(names):
            found[name].append(measured(name, row, count, folder))
    return found


def table(results: dict[Row, dict[str, list[float]]], where: str, rounds: int) -> str:
    """Return the page."""
    names = list(next(iter(results.values())))
    others = [name for name in names if name != "floor"]
    heads = [*(f"{name}, us" for name in names), *(f"{name} : floor" for name in others)]
    heads += ["pylogd : before"] if "before" in names else []
    lines = [
        "# pylogd beside the floor",
        "",
        f"By `python -m bench floor` ({rounds} rounds in turns; see its docstring). The broker's processor "
        "microseconds of one request: medians, and medians of ratios with 95 % confidence intervals. The target is "
        "pylogd's multiple of the floor, and is met when the whole interval is below.",
        "",
        "| | " + " | ".join([*heads, "target", ""]) + " |",
        "| --- |" + " --: |" * len(heads) + " --: | --- |",
    ]
    for row, found in results.items():
        pairs = {name: [one / floor for one, floor in zip(found[name], found["floor"], strict=True)] for name in others}
        cells = [row.name, *(f"{statistics.median(found[name]):.2f}" for name in names)]
        cells += [interval(pairs[name]) for name in others]
        if "before" in names:
            cells.append(interval([new / old for new, old in zip(found["pylogd"], found["before"], strict=True)]))
        high = float(interval(pairs["pylogd"]).rpartition(" ")[2].rstrip(")"))
        lines.append("| " + " | ".join([*cells, f"{row.most:g}", "met" if high <= row.most else "**missed**"]) + " |")
    return "\n".join([*lines, "", f"Measured on {where}.", ""])


def main() -> None:
    """Run the rows."""
    parser = argparse.ArgumentParser(description="pylogd's processor time beside the floor's")
    parser.add_argument("--before", help="the `pylogd` command of an earlier version")
    parser.add_argument("--rounds", type=int, default=10, help="rounds (10)")
    parser.add_argument("--requests", type=int, default=20_000, help="requests of a round (20,000)")
    parser.add_argument("--only", default="", help="only the rows whose name contains this")
    parser.add_argument("--write", action="store_true", help="write FLOOR.md, but for its notes")
    options = parser.parse_args()
    names = ["floor", "pylogd"]
    if options.before:
        PEERS["before"] = earlier(options.before)
        names.append("before")
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    results: dict[Row, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="data-", dir=PROGRAMS) as folder:
        for row in ROWS:
            if options.only in row.name:
                results[row] = rounds_of(row, names, options.rounds, options.requests, Path(folder))
    where = ", ".join(f"{key} {value}" for key, value in machine("not used").items())
    page = table(results, where, options.rounds)
    print(page)
    if options.write:
        write_page(HERE / "FLOOR.md", [page])


if __name__ == "__main__":
    main()
