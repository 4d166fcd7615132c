"""What the block cache costs the processor: a broker with it beside one without. Writes BLOCK_CACHE.md with `--write`.

    python -m bench.block_cache [--rounds 8] [--folder DIR] [--write]

Two brokers of one topic each take turns in alternating order. A round of a broker appends by requests of one batch,
large ones and small ones, and then fetches the same bytes from the end of the log, all of which the cache holds, by
answers of several sizes; last, it fetches the oldest bytes of a topic that is larger than the cache. Before that, the
kernel is asked to drop that topic's files from its page cache, for both brokers.

Measured is the processor time of the broker for each MB or request: of all its threads, and of the reactor's alone,
which is what limits a broker. The page cache of the broker without a cache is written to the disk, and given up, by
threads of the kernel, whose time is in neither; the cache's own thread does that for the other broker. Ratios are the
median over rounds of the ratios of neighbouring rounds. The client is a plain socket that throws away what it receives.

Then a log alone, in this process, is appended to by batches of 100 kB: without a cache; with blocks that were all used
before; with these and the thread that has pages dropped; and with blocks that are used for the first time, so that the
kernel has to find and clear a page for every 4 KiB. And what the bare copy into such memory takes.
"""

from __future__ import annotations

import argparse
import mmap
import os
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from bench.machine import machine
from bench.peers.base import process_seconds
from pylogd.cache.blocks import BLOCK_BYTES
from pylogd.cache.counters import CacheCounters
from pylogd.cache.page_dropper import PageDropper
from pylogd.cache.ranges import BlockCache, BlockRange
from pylogd.client import Admin, NewTopic
from pylogd.local.broker import BrokerProcess
from pylogd.log.config import LogConfig
from pylogd.log.manager import LogManager
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import encode_batch
from pylogd.wire.session import ClientSession
from tests.pages import write_page

REPORT: Final = Path(__file__).with_name("BLOCK_CACHE.md")
SETTING: Final = "log.block.cache.bytes"
MIB: Final = 1 << 20
CACHE: Final = 192 * MIB
LARGE: Final = (96 * MIB, 100_000)  # bytes of a round, and of a batch
SMALL: Final = (4 * MIB, 500)
OLD: Final = 64 * MIB
FETCHES: Final = (16_384, 262_144, MIB)
TOPICS: Final = ("large", "small", "old")
#: Bytes of a round of a log alone, less than the cache has, so that all may be used for the first time.
ALONE: Final = 96 * MIB
_ALONE_ROUNDS: Final = 5
_NOW_MS: Final = 1_700_000_000_000
_PRODUCE_VERSION, _FETCH_VERSION = 10, 12


class Spent(NamedTuple):
    """Processor time: seconds of all threads, and of the reactor's."""

    all: float
    reactor: float

    @classmethod
    def until_now(cls, pid: int) -> Spent:
        """Return what a process has used since its start."""
        ran = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]  # nanoseconds; Python's first thread
        return cls(process_seconds(pid), int(ran) / 1e9)

    def __sub__(self, earlier: Spent) -> Spent:
        return Spent(self.all - earlier.all, self.reactor - earlier.reactor)

    def __truediv__(self, count: float) -> Spent:
        """Return microseconds for each of `count`."""
        return Spent(self.all * 1e6 / count, self.reactor * 1e6 / count)


class Line:
    """A plain socket to a broker, so that no client library is measured."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), 30.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._session = ClientSession(1 << 24, "bench")
        self._buffer = bytearray(MIB)

    def frame(self, message: Any, version: int) -> bytes:
        """Return a request as bytes."""
        parts: list[Any] = self._session.encode_request(message, version)
        return b"".join(map(bytes, parts))

    def ask(self, frame: bytes) -> bytes:
        """Send a request. Return the first bytes of the answer; the rest is thrown away."""
        self._socket.sendall(frame)
        got = self._socket.recv_into(self._buffer, 4, socket.MSG_WAITALL)
        (left,) = struct.unpack_from(">i", self._buffer)
        head = b""
        while left:
            got = self._socket.recv_into(self._buffer, min(left, MIB))
            if not got:
                raise RuntimeError("the broker has closed the connection")
            head = head or bytes(self._buffer[:200])
            left -= got
        return head

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


class Arm:
    """A broker with or without the cache. found: by measure, microseconds of all threads and of the reactor's."""

    def __init__(self, name: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.name = name
        self.found: dict[str, list[Spent]] = {}
        self.broker = BrokerProcess(folder / name, folder / f"{name}.log", settings)
        with Admin(self.broker.address) as admin:
            for error in admin.create_topics([NewTopic(topic, 1) for topic in TOPICS]).values():
                if error is not None:
                    raise error
        self.ends = dict.fromkeys(TOPICS, 0)
        self.line = Line(self.broker.host, self.broker.port)
        self.produce("old", CACHE + 2 * OLD, LARGE[1])

    def stop(self) -> None:
        """Stop the broker."""
        self.line.close()
        self.broker.stop()

    def produce(self, topic: str, size: int, batch_bytes: int) -> int:
        """Append so many bytes by batches of one record. Return how many requests that took."""
        records = encode_batch([(None, os.urandom(batch_bytes), int(time.time() * 1000), ())])
        data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, records)])]
        frame = self.line.frame(ProduceRequest(None, 1, 30_000, data), _PRODUCE_VERSION)
        count = size // len(records)
        for _ in range(count):
            self.line.ask(frame)
        self.ends[topic] += count
        return count

    def fetch(self, topic: str, begin: int, count: int, batch_bytes: int, max_bytes: int) -> int:
        """Fetch so many batches. Return how many requests that took."""
        requests, offset = 0, begin
        step = max(max_bytes // (batch_bytes + 80), 1)
        while offset < begin + count:
            wanted = FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)
            request = FetchRequest(max_wait_ms=0, max_bytes=max_bytes, topics=[FetchTopic(topic, partitions=[wanted])])
            self.line.ask(self.line.frame(request, _FETCH_VERSION))
            offset += step
            requests += 1
        return requests

    def round(self, keep: bool) -> None:
        """Take all measures."""
        results: dict[str, Spent] = {}
        size, batch = LARGE
        seconds, requests = self._spent(lambda: self.produce("large", size, batch))
        results["append batches of 100 kB, a MB"] = seconds / (size / MIB)
        for most in FETCHES[1:]:
            begin = self.ends["large"] - requests
            seconds, _ = self._spent(lambda b=begin, m=most: self.fetch("large", b, requests, batch, m))
            results[f"fetch by {most >> 10} KiB what is held, a MB"] = seconds / (size / MIB)
        size, batch = SMALL
        seconds, requests = self._spent(lambda: self.produce("small", size, batch))
        results["append a batch of 500 bytes"] = seconds / requests
        begin = self.ends["small"] - requests
        seconds, fetches = self._spent(lambda: self.fetch("small", begin, requests, batch, FETCHES[0]))
        results[f"fetch {FETCHES[0] >> 10} KiB of small batches that are held"] = seconds / fetches
        for path in (self.broker.data / "old-0").glob("*.log"):
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        batch = LARGE[1]
        seconds, _ = self._spent(lambda: self.fetch("old", 0, OLD // batch, batch, MIB))
        results["fetch by 1024 KiB what has to be read from the disk, a MB"] = seconds / (OLD / MIB)
        for name, value in results.items() if keep else ():
            self.found.setdefault(name, []).append(value)

    def _spent(self, work: Any) -> tuple[Spent, int]:
        before = Spent.until_now(self.broker.pid)
        result: int = work()
        return Spent.until_now(self.broker.pid) - before, result


def main() -> None:
    """Measure, and print or write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="folder for the brokers' data; by default a temporary one")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
        common = {"log.segment.bytes": str(256 * MIB)}
        arms = []
        for name, settings in (("without", common), ("with", {**common, SETTING: str(CACHE)})):
            arms.append(Arm(name, folder, settings))
            stack.callback(arms[-1].stop)
        for number in range(arguments.rounds + 1):
            for arm in arms if number % 2 else reversed(arms):
                arm.round(keep=number > 0)
            print(f"bench: round {number}", file=sys.stderr, flush=True)
        text = report(arms, arguments.rounds) + "\n" + alone_report(folder)
    if arguments.write:
        write_page(REPORT, [text])
    print(text)


def alone(folder: Path, used_before: bool, dropping: bool, cached: bool = True) -> tuple[float, float]:
    """Append to a log without a broker. Return this thread's microseconds a MiB: of all, and of the cache's part."""
    counters = CacheCounters()
    dropper = PageDropper(counters, print) if dropping else None
    cache = BlockCache(CACHE // BLOCK_BYTES, dropper=dropper, counters=counters) if cached else None
    if cache is not None and used_before:
        _copy(cache.memory, bytes(LARGE[1]))
    batch = encode_batch([(None, os.urandom(LARGE[1]), _NOW_MS, ())])
    manager = LogManager(
        [str(folder)], config=LogConfig(segment_bytes=256 * MIB), now_ms=lambda: _NOW_MS, node_id=1, cluster_id="c",
        cache=cache,
    )  # fmt: skip
    manager.load()
    log = manager.create("t", 0, bytes(16))
    spent, wrote = 0.0, BlockRange.wrote

    def timed(*arguments: Any) -> None:
        nonlocal spent
        begun = time.thread_time()
        wrote(*arguments)
        spent += time.thread_time() - begun

    with mock.patch.object(BlockRange, "wrote", timed):
        begun = time.thread_time()
        for _ in range(ALONE // len(batch)):
            log.append(batch, leader_epoch=0)
        total = time.thread_time() - begun
    manager.close(clean=False)
    if dropper is not None:
        dropper.stop(10.0)
    return total * 1e6 / (ALONE / MIB), spent * 1e6 / (ALONE / MIB)


def _copy(memory: memoryview, data: bytes) -> float:
    """Fill memory with copies of some bytes; return this thread's microseconds a MiB."""
    begun = time.thread_time()
    for at in range(0, len(memory) - len(data), len(data)):
        memory[at : at + len(data)] = data
    return (time.thread_time() - begun) * 1e6 / (len(memory) / MIB)


def alone_report(folder: Path) -> str:
    """Measure a log without a broker, and return the results as Markdown."""
    kinds = {
        "no cache": (False, False, False),
        "blocks that were used before": (True, False, True),
        "and pages dropped by a thread": (True, True, True),
        "blocks that are used for the first time": (False, False, True),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for number in range(_ALONE_ROUNDS):
        for name, (used_before, dropping, cached) in kinds.items():
            with tempfile.TemporaryDirectory(dir=folder) as place:
                found[name].append(alone(Path(place), used_before, dropping, cached))
        print(f"bench: a log alone, round {number + 1}", file=sys.stderr, flush=True)
    memory = memoryview(mmap.mmap(-1, CACHE))
    _copy(memory, bytes(LARGE[1]))
    copies = statistics.median(_copy(memory, os.urandom(LARGE[1])) for _ in range(_ALONE_ROUNDS))
    lines = [
        f"A log alone, to which batches of 100 kB are appended, without a broker: microseconds of its thread a MiB, "
        f"medians of {_ALONE_ROUNDS} rounds. To copy 100 kB at a time into memory that was used before takes "
        f"{copies:.0f}.",
        "",
        "| | an append | of it in the cache |",
        "| --- | ---: | ---: |",
    ]
    for name, rows in found.items():
        total, own = (statistics.median(column) for column in zip(*rows, strict=True))
        lines.append(f"| {name} | {total:.0f} | {own:.0f} |")
    return "\n".join([*lines, ""])


def report(arms: Sequence[Arm], rounds: int) -> str:
    """Return the results as Markdown."""
    without, cached = arms
    lines = [
        "# What the block cache costs the processor",
        "",
        f"By `python -m bench.block_cache` ({rounds} rounds of each broker, by turns); its docstring explains the "
        f"method. The cache has {CACHE // MIB} MiB. What is held is sent from memory, which copies it once more than "
        "`sendfile` from the page cache does; what is not is read past the page cache by a thread. Processor time of "
        "the broker in microseconds; the ratio is the median over rounds, and in brackets the lowest and the highest.",
        "",
        "| | without | with | ratio | of the reactor's thread: without | with | ratio |",
        "| --- | ---: | ---: | --- | ---: | ---: | --- |",
    ]
    for name, base in without.found.items():
        own = cached.found[name]
        columns = [
            f"{statistics.median(before):.1f} | {statistics.median(after):.1f} | {_ratio(before, after)}"
            for before, after in zip(zip(*base, strict=True), zip(*own, strict=True), strict=True)
        ]
        lines.append(f"| {name} | {' | '.join(columns)} |")
    where = machine("")
    lines += [
        "",
        f"Measured on {where['cores']} cores ({where['processor']}), {where['memory']}, {where['system']}, "
        f"Python {where['python']}, at commit {where['commit']}.",
        "",
    ]
    return "\n".join(lines)


def _ratio(before: Sequence[float], after: Sequence[float]) -> str:
    ratios = [its / other for its, other in zip(after, before, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
