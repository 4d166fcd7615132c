"""Measure what a real ZooKeeper's requests cost, for the simulated one: `python -m tests.scale.latencies`.

A server on this machine, with a client in Python that is slower than the server. So the server's processor time is
measured, in all of its threads, not how fast it answers. Prints a `Latencies`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient

from bench.peers.base import process_seconds
from pylogd.local.zookeeper import LocalZooKeeper
from pylogd.store.kazoo_requests import read_many
from pylogd.store.zookeeper import READ_NODES
from tests.scale.store import Latencies

_ROUNDS: Final = 3
_AT_ONCE: Final = 500
_CHILDREN: Final = 2000
_LARGE_BYTES: Final = 500_000
_WRITTEN_NODES: Final = 100
_WAY: Final = 0.000_2  # between two machines of a data centre


def measure() -> Latencies:
    """Start a server, ask it, and return what requests cost."""
    # The compiler of a server that runs for long, not the quick start that tests want.
    java = ["-XX:TieredStopAtLevel=4"]
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalZooKeeper(Path(folder), java_options=java, heap_mib=1024) as server,
    ):
        client = KazooClient(server.hosts)
        client.start()
        try:
            return _measure(server, client)
        finally:
            client.stop()
            client.close()


def _measure(server: LocalZooKeeper, client: KazooClient) -> Latencies:
    small = [f"/c/{number:04}" for number in range(_CHILDREN)]
    client.create("/c")
    client.create("/large", b"x" * _LARGE_BYTES)
    _all([partial(client.create_async, path, b"x" * 100) for path in small])

    def cost(asks: Sequence[Callable[[], Any]]) -> float:
        """Return the server's seconds for each request: the least of some rounds, after one to warm up."""
        took = []
        for _ in range(_ROUNDS + 1):
            before = process_seconds(server.pid)
            _all(asks)
            took.append((process_seconds(server.pid) - before) / len(asks))
        return min(took[1:])

    request = cost([partial(client.get_async, small[number % _CHILDREN]) for number in range(20_000)])
    many = cost([partial(read_many, small[:READ_NODES], client)] * 2000)
    large = cost([partial(client.get_async, "/large")] * 400)
    names = cost([partial(client.get_children_async, "/c")] * 600)
    alone = cost([partial(client.set_async, small[0], b"x" * 100)] * 4000)
    together = cost([partial(_write, client, small[:_WRITTEN_NODES])] * 200)
    one = (together - alone) / (_WRITTEN_NODES - 1)
    return Latencies(
        _WAY, request, max(many - request, 0) / READ_NODES, max(large - request, 0) / _LARGE_BYTES,
        max(names - request, 0) / _CHILDREN, max(alone - one, 0), one, _commit(client),
    )  # fmt: skip


def _write(client: KazooClient, paths: Sequence[str]) -> Any:
    transaction = client.transaction()
    for path in paths:
        transaction.set_data(path, b"x" * 100)
    return transaction.commit_async()


def _commit(client: KazooClient) -> float:
    """Return the median time of a write on an idle server."""
    took = []
    for _ in range(300):
        before = time.perf_counter()
        client.set("/c", b"x")
        took.append(time.perf_counter() - before)
    return statistics.median(took)


def _all(asks: Sequence[Callable[[], Any]]) -> None:
    """Send requests, some at a time, and wait for the answers."""
    for start in range(0, len(asks), _AT_ONCE):
        for waiting in [ask() for ask in asks[start : start + _AT_ONCE]]:
            waiting.get(timeout=60)


if __name__ == "__main__":
    print(measure())
