"""`make bench-smoke`: pylogd beside the bare ceiling; writes bench/SMOKE.md and bench/smoke.json.

Rules: the same client (bench/client.c on librdkafka) for both brokers, on this machine, in one run; the brokers take
turns (A, B, B, A ...), and the median counts. Throughput is measured by the client, processor time by the kernel for
the broker's process. Each produce round has a fresh broker and directory, so that no round writes back the dirty pages
of an earlier one; consume rounds read one filled log that is in the page cache. No time is asserted.

    python -m bench smoke [--quick] [--only WORD] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench import frames
from bench.loads.kafka import CLIENT, build
from bench.machine import machine
from bench.memory import warm_pages
from bench.peers import HighestResident, Peer, Pylogd, running
from bench.smoke_report import Results, Sample, Workload, tables
from tests.pages import json_text, write_page

HERE = Path(__file__).parent
TOPIC = "t"
GIB = 1 << 30
MANY = 1000
_FRAMING = 80  # at most so many bytes on disk for a message beyond its value


WORKLOADS = (
    Workload("produce, default batches", "produce", 2_000_000, 200, 0.90),
    Workload("produce, batches of 50", "produce", 1_000_000, 200, 0.85, ("batch.num.messages=50",)),
    Workload("produce, batches of 1", "produce", 200_000, 200, 0.70, ("batch.num.messages=1",), 2.5),
    Workload("consume, default", "consume", 4_000_000, 200, 0.95),
    Workload("consume, 4 KB messages", "consume", 250_000, 4096, 0.90),
)


class Bench:
    """One run: the peers, the size of the run, and the results."""

    def __init__(self, peers: list[str], repeats: int, scale: float, folder: Path, *, refill: bool = False) -> None:
        """`refill`: whether each consume round reads logs of its own, instead of all rounds the same ones."""
        self.peers = peers
        self.refill = refill
        self.repeats = repeats
        self.scale = scale
        self.folder = folder
        self.results = Results()

    def say(self, text: str) -> None:
        """Print progress on standard error."""
        print(f"bench: {text}", file=sys.stderr, flush=True)

    def client(self, peer: Peer, *arguments: str) -> dict[str, float]:
        """Run the C client. Return the figures that it printed."""
        verb, *rest = arguments
        command = [str(CLIENT), verb, peer.address, TOPIC, *rest]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        said: dict[str, float] = json.loads(done.stdout)
        self.results.librdkafka = str(said.pop("librdkafka"))
        return said

    def measured(self, peer: Peer, *arguments: str) -> Sample:
        """Run one round of the client. Return its figures with the broker's processor time."""
        before = peer.cpu_seconds()
        said = self.client(peer, *arguments)
        spent = peer.cpu_seconds() - before
        messages, seconds = said["messages"], said["seconds"]
        return Sample(messages / seconds, said["bytes"] / seconds / 1e6, spent / messages * 1e6)

    def keep(self, row: str, peer: str, sample: Sample) -> None:
        """Keep the result of a round."""
        self.results.workloads.setdefault(row, {}).setdefault(peer, []).append(sample)
        self.say(f"{row}: {peer}: {sample.rate:,.0f} msg/s, {sample.cpu:.3f} CPU s per million")

    def turn(self, number: int) -> list[str]:
        """Return the peers in the order of a round: each other round is reversed, so that none always follows one."""
        return self.peers[:: -1 if number % 2 else 1]

    def produce_row(self, work: Workload) -> None:
        """Produce in turns, each round on a fresh broker that has served its first requests."""
        count = max(int(work.count * self.scale), 1000)
        for number in range(self.repeats):
            for name in self.turn(number):
                with running(name, self.folder) as peer:
                    self.client(peer, "produce", "2000", str(work.size), *work.settings)
                    warm_pages(self.folder, count * (work.size + _FRAMING))
                    sample = self.measured(peer, "produce", str(count), str(work.size), *work.settings)
                self.keep(work.name, name, sample)

    def consume_row(self, work: Workload) -> None:
        """Consume in turns, one filled log per broker, or one for each round."""
        rounds = range(self.repeats)
        for some in [[number] for number in rounds] if self.refill else [rounds]:
            self._consume(work, some)

    def _consume(self, work: Workload, rounds: Sequence[int]) -> None:
        count = max(int(work.count * self.scale), 1000)
        with ExitStack() as stack:
            peers = {name: stack.enter_context(running(name, self.folder)) for name in self.turn(rounds[0])}
            for peer in peers.values():
                self.client(peer, "produce", str(count), str(work.size))
                self.client(peer, "consume", str(count))
            for number in rounds:
                for name in self.turn(number):
                    self.keep(work.name, name, self.measured(peers[name], "consume", str(count), *work.settings))

    @contextmanager
    def many_partitions(self) -> Iterator[Peer]:
        """Run a pylogd that has a topic of 1,000 partitions besides the one that is used."""
        with running("pylogd", self.folder) as peer:
            admin = AdminClient({"bootstrap.servers": peer.address})
            admin.create_topics([NewTopic("many", MANY, 1)], operation_timeout=60)["many"].result(60)
            del admin
            yield peer

    def cost(self, row: str, column: str, peer: Peer) -> None:
        """Measure the processor microseconds of one request, with batches of 1."""
        count = max(int(50_000 * self.scale), 1000)
        sample = self.measured(peer, "produce", str(count), "200", "batch.num.messages=1")
        self.results.flat.setdefault(row, {}).setdefault(column, []).append(sample.cpu)
        self.say(f"cost of a request, {row}: {column}: {sample.cpu:.1f} us")

    def partitions_row(self) -> None:
        """Compare the cost of a request on brokers with 1 and 1,000 partitions."""
        with running("pylogd", self.folder) as one, self.many_partitions() as many:
            for peer in (one, many):
                self.client(peer, "produce", "2000", "200")
            for _ in range(self.repeats):
                self.cost("partitions on the broker", "1", one)
                self.cost("partitions on the broker", "1,000", many)

    def connections_row(self) -> None:
        """Compare the cost of a request without and with 1,000 idle connections."""
        with running("pylogd", self.folder) as peer:
            self.client(peer, "produce", "2000", "200")
            for _ in range(self.repeats):
                self.cost("idle connections", "1", peer)
                with frames.idle_connections(peer.host, peer.port, MANY):
                    self.cost("idle connections", "1,000", peer)

    def start_row(self) -> None:
        """Measure the time from start to first accept on an empty directory, and the resident memory when idle."""
        idle: dict[str, list[float]] = {}
        for _ in range(self.repeats):
            for name in self.peers:
                with running(name, self.folder) as peer:
                    self.results.start.setdefault(name, []).append(peer.started)
                    time.sleep(1.0)
                    idle.setdefault(name, []).append(peer.resident())
        for name in self.peers:
            self.say(f"start to first accept: {name}: {statistics.median(self.results.start[name]):.2f} s")
            self.remember("idle", name, statistics.median(idle[name]))

    def remember(self, row: str, column: str, size: float) -> None:
        """Keep a resident size in bytes."""
        self.results.memory.setdefault(row, {})[column] = size
        self.say(f"resident, {row}: {column}: {size / 1e6:.1f} MB")

    def reading_row(self) -> None:
        """Measure the resident memory while one client reads 10 GB."""
        count = max(int(2_000_000 * self.scale), 1000)
        total = int(10 * GIB * self.scale) // 200
        with running("pylogd", self.folder) as peer:
            self.client(peer, "produce", str(count), "200")
            with HighestResident(peer) as watch:
                self.client(peer, "consume", str(total), "fetch.wait.max.ms=10")
            self.remember("client reads 10 GB", "before", watch.before)
            self.remember("client reads 10 GB", "highest", watch.highest)

    def unread_row(self, row: str, frame: Callable[[int], bytes]) -> None:
        """Measure the resident memory while a client sends 1,000 requests before it reads the replies."""
        with self.many_partitions() as peer:
            self.client(peer, "produce", "100000", "200")
            requests = [frame(number) for number in range(MANY)]
            with socket.create_connection((peer.host, peer.port), 10) as connection, HighestResident(peer) as watch:
                sent = frames.send_unread(connection, requests)
                self.client(peer, "produce", "1000", "200")
                highest = watch.highest
                read = frames.read_unread(connection, requests, sent)
            self.remember(row, "before", watch.before)
            self.remember(row, "highest", highest)
            self.say(f"{row}: {read} replies read in order afterwards")

    def storage_row(self) -> None:
        """Measure the bytes on disk beyond the 200 of each message, after a clean stop, of log and indexes."""
        count = max(int(1_000_000 * self.scale), 1000)
        for row, settings in (("batches of 50", ["batch.num.messages=50", "linger.ms=50"]), ("default batches", [])):
            with running("pylogd", self.folder) as peer:
                assert isinstance(peer, Pylogd)
                self.client(peer, "produce", str(count), "200", *settings)
                peer.finish()
                sizes = {path.suffix: path.stat().st_size for path in (peer.data / f"{TOPIC}-0").iterdir()}
            indexes = sizes[".index"] + sizes[".timeindex"]
            found = {"log": sizes[".log"] / count - 200, "indexes": indexes / count}
            self.results.storage[row] = found
            self.say(f"storage beyond the message, {row}: {found['log']:.2f} + {found['indexes']:.2f} bytes")

    def rows(self) -> list[tuple[str, Callable[[], None]]]:
        """Return all rows by name, in order."""
        work: list[tuple[str, Callable[[], None]]] = []
        for item in WORKLOADS:
            row = self.produce_row if item.verb == "produce" else self.consume_row
            work.append((item.name, lambda row=row, item=item: row(item)))  # type: ignore[misc]
        work.append(("start and idle", self.start_row))
        if "pylogd" in self.peers:
            work += [
                ("1,000 partitions", self.partitions_row),
                ("1,000 connections", self.connections_row),
                ("storage", self.storage_row),
                ("memory, 10 GB read", self.reading_row),
                (
                    "memory, unread fetches",
                    lambda: self.unread_row("1,000 unread fetches", lambda n: frames.fetch(n, TOPIC, 1 << 20)),
                ),
                (
                    "memory, unread metadata",
                    lambda: self.unread_row("1,000 unread metadata replies", frames.all_metadata),
                ),
            ]
        return work


def main() -> None:
    """Run the rows and write the tables."""
    parser = argparse.ArgumentParser(description="pylogd beside the bare ceiling")
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of the size, for an impression")
    parser.add_argument("--repeats", type=int, default=5, help="number of rounds (5); the median counts")
    parser.add_argument("--only", default="", help="only the rows whose name contains this")
    parser.add_argument("--peers", default="ceiling,pylogd", help="which brokers (ceiling,pylogd)")
    parser.add_argument("--folder", type=Path, help="folder for data (one under .cache)")
    options = parser.parse_args()
    build()
    folder = options.folder or CLIENT.parent
    with tempfile.TemporaryDirectory(prefix="data-", dir=folder) as data:
        repeats, scale = (1, 0.1) if options.quick else (options.repeats, 1.0)
        bench = Bench(options.peers.split(","), repeats, scale, Path(data))
        rows = [row for row in bench.rows() if options.only in row[0]]
        begun = time.monotonic()
        for number, (name, run) in enumerate(rows, 1):
            bench.say(f"[{number}/{len(rows)}] {name}")
            run()
    about = machine(bench.results.librdkafka) | {"minutes": round((time.monotonic() - begun) / 60, 1)}
    table = tables(WORKLOADS, bench.results, about, options.quick, repeats)
    print(table)
    if options.only or options.quick:
        bench.say("only a part or a quick run: bench/SMOKE.md is not written")
        return
    write_page(HERE / "SMOKE.md", [table])
    everything = {"machine": about, "repeats": repeats} | asdict(bench.results)
    (HERE / "smoke.json").write_text(json_text(everything))


if __name__ == "__main__":
    main()
