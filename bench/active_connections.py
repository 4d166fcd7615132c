"""What thousands of active connections cost one broker, beside one connection that sends as many requests.

    python -m bench.active_connections [--connections 1,256,10000] [--rounds 5] [--requests 20000] [--write]

All connections are opened at once and ask for the API versions: the time until the last one is answered is that of a
crowd of clients that return after a restart. Then each sends Produce requests of one message of 200 bytes with acks=1,
one at a time, and Fetch requests of a few kilobytes, until there were `--requests` of each; the processor time is the
broker's, for one request. The memory is the growth of the broker's process while all connections are open: of those
that have asked once, and after the requests. The kernel's memory of sockets is not in it. A round is a fresh broker,
with one number of connections after the other; shown is the median. The client needs a descriptor for each connection
(`ulimit -n`), and so does the broker, of which 256 stay free for files.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import frames
from bench.peers import running
from bench.peers.base import Peer
from pylogd.client import Admin, NewTopic
from pylogd.process.tuning import raise_file_limit
from pylogd.wire.records import encode_batch
from tests.pages import circumstances, write_page

REPORT = Path(__file__).with_name("ACTIVE_CONNECTIONS.md")
_TOPIC = "active"
_VALUE_BYTES, _FETCH_BYTES = 200, 4096
_PATIENCE_SECONDS = 120.0
_WARM_UP = 20  # connections, for which the broker allocates what it needs once

#: What is measured, and its unit.
MEASURES = {
    "connected and answered": "s",
    "processor time for a connection": "us",
    "memory, one request": "bytes",
    "a produce": "us",
    "a fetch": "us",
    "memory, after all": "bytes",
}
_DIGITS = {"s": 2, "us": 1, "bytes": 0}
Measured = dict[str, float]


class Crowd:
    """Connections of this process that each have one request in flight."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        """Begin to connect all of them."""
        self._selector = selectors.DefaultSelector()
        self.sockets = []
        for _ in range(count):
            one = socket.socket()
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.connect_ex(address)
            self._selector.register(one, selectors.EVENT_WRITE)
            self.sockets.append(one)

    def connected(self, request: bytes) -> None:
        """Send the first request on each connection once it is made, and return when all are answered."""
        self._exchange(request, len(self.sockets), len(self.sockets))

    def ask(self, request: bytes, total: int) -> None:
        """Send so many requests, one at a time on each connection, and return when all are answered."""
        first = self.sockets[:total]
        for one in first:
            one.sendall(request)
        self._exchange(request, total, 0, total - len(first))

    def _exchange(self, request: bytes, replies: int, unsent: int, more: int = 0) -> None:
        """Receive replies; send on connections that are just made, and `more` times where a reply has come."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        missing: dict[int, int] = {}  # bytes of replies that have begun
        while replies:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{replies} requests were not answered within {_PATIENCE_SECONDS:.0f} s")
            for key, events in self._selector.select(1.0):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if events & selectors.EVENT_WRITE:
                    one.sendall(request)
                    self._selector.modify(one, selectors.EVENT_READ)
                    continue
                data = one.recv(1 << 16)
                if not data:
                    raise ConnectionError("the broker closed a connection")
                left = missing.pop(key.fd, None)
                left = int.from_bytes(data[:4], "big") + 4 - len(data) if left is None else left - len(data)
                if left:
                    missing[key.fd] = left
                    continue
                replies -= 1
                if more:
                    more -= 1
                    one.sendall(request)

    def close(self) -> None:
        """Close all connections."""
        self._selector.close()
        for one in self.sockets:
            one.close()


def measure(peer: Peer, count: int, requests: int) -> Measured:
    """Measure one number of connections."""
    now_ms = int(time.time() * 1000)
    produce = frames.produce(1, _TOPIC, encode_batch([(None, bytes(_VALUE_BYTES), now_ms, ())]))
    fetch = frames.fetch(2, _TOPIC, _FETCH_BYTES)
    hello = frames.request(frames.API_VERSIONS, 0, 0)
    found: Measured = {}
    memory, busy, begun = peer.resident(), peer.cpu_seconds(), time.monotonic()
    crowd = Crowd((peer.host, peer.port), count)
    try:
        crowd.connected(hello)
        found["connected and answered"] = time.monotonic() - begun
        found["processor time for a connection"] = (peer.cpu_seconds() - busy) / count * 1e6
        found["memory, one request"] = (peer.resident() - memory) / count
        for name, request in (("a produce", produce), ("a fetch", fetch)):
            crowd.ask(request, count)  # each once, which opens what is opened once
            busy = peer.cpu_seconds()
            crowd.ask(request, requests)
            found[name] = (peer.cpu_seconds() - busy) / requests * 1e6
        found["memory, after all"] = (peer.resident() - memory) / count
    finally:
        crowd.close()
    return found


def run(counts: Sequence[int], requests: int, folder: Path) -> list[Measured]:
    """Measure all numbers of connections, each with a fresh broker."""
    found = []
    for count in counts:
        with running("pylogd", folder) as peer:
            with Admin(peer.address) as admin:
                admin.create_topics([NewTopic(_TOPIC, 1, 1)])
            measure(peer, _WARM_UP, _WARM_UP)
            found.append(measure(peer, count, requests))
    return found


def table(counts: Sequence[int], rounds: Sequence[Sequence[Measured]]) -> list[str]:
    """Return the table of medians."""
    head = " | ".join(f"{count:,}" for count in counts)
    lines = [f"| connections | unit | {head} |", f"| --- | --- |{' ---: |' * len(counts)}"]
    for name, unit in MEASURES.items():
        middle = [statistics.median(row[at][name] for row in rounds) for at in range(len(counts))]
        digits = _DIGITS[unit]
        cells = [
            "" if unit == "bytes" and count < _WARM_UP else f"{value:,.{digits}f}"
            for count, value in zip(counts, middle, strict=True)
        ]
        lines.append(f"| {name} | {unit} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure, and print or write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--connections", default="1,256,10000")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    options = parser.parse_args()
    raise_file_limit()
    counts = [int(count) for count in options.connections.split(",")]
    with tempfile.TemporaryDirectory(prefix="pylogd-connections-") as folder:
        rounds = [run(counts, options.requests, Path(folder)) for _ in range(options.rounds)]
    how = f"By `python -m bench.active_connections`, {options.rounds} rounds; its docstring says what is measured."
    lines = ["# What active connections cost a broker", "", f"{how} {circumstances()}", "", *table(counts, rounds)]
    if options.write:
        write_page(REPORT, lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
