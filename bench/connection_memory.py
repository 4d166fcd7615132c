"""The memory of an idle connection in pylogd: resident, and by line of code.

    python -m bench.connection_memory [--connections 1000] [--sent BYTES] [--rounds 5]

Each connection sends one request: ApiVersions, or with `--sent` a produce request of that size to a topic that does not
exist. The resident memory is the growth of a fresh broker's process. The lines are from a broker in this process, by
tracemalloc.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import statistics
import tempfile
import tracemalloc
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from twisted.internet.task import react
from twisted.internet.threads import deferToThread

from bench import frames
from bench.peers import running
from pylogd.broker import Broker
from pylogd.config import Settings

_FIRST = 20  # connections before the measured ones, for which the broker allocates what it needs once
_LEAST_BYTES = 4


def _resident(name: str, folder: Path, count: int, sent: int) -> float:
    with running(name, folder) as peer:
        with frames.idle_connections(peer.host, peer.port, _FIRST, sent):
            pass
        before = peer.resident()
        with frames.idle_connections(peer.host, peer.port, count, sent):
            return (peer.resident() - before) / count


def _open(pipe: Connection, port: int, count: int, sent: int) -> None:
    with frames.idle_connections("127.0.0.1", port, count, sent):
        pipe.send("open")
        pipe.recv()


def _meanwhile(port: int, count: int, sent: int, look: Callable[[], Any]) -> Any:
    """Return what `look` returns while another process holds the connections open."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_open, args=(theirs, port, count, sent))
    process.start()
    ours.recv()
    try:
        return look()
    finally:
        ours.send("close")
        process.join()


async def _by_line(reactor: Any, folder: Path, count: int, sent: int) -> None:
    broker = Broker(Settings.load(None, {"listeners": "127.0.0.1:0", "log.dirs": str(folder)}), reactor)
    await broker.start()
    port = broker.listeners[0].port
    await deferToThread(_meanwhile, port, _FIRST, sent, gc.collect)
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    after = await deferToThread(_meanwhile, port, count, sent, tracemalloc.take_snapshot)
    lines = after.compare_to(before, "lineno")
    print(f"{sum(line.size_diff for line in lines) / count:8,.0f} bytes of Python objects, of which")
    for line in lines:
        if line.size_diff >= _LEAST_BYTES * count:
            frame = line.traceback[0]
            print(f"{line.size_diff / count:8,.0f} {'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno}")
    await broker.stop()


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--sent", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pylogd-connections-") as folder:
        grown = [_resident("pylogd", Path(folder), args.connections, args.sent) for _ in range(args.rounds)]
        print(f"{statistics.median(grown):8,.0f} bytes resident", flush=True)
        react(_by_line, (Path(folder) / "logs", args.connections, args.sent))


if __name__ == "__main__":
    main()
