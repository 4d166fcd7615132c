"""The time that a group of consumer processes takes to rebalance after a change, on a real ZooKeeper.

    python -m bench.zookeeper_consumers [--consumers 20] [--partitions 200] [--rounds 5] [--results FILE]

Every consumer is a process with `ZooKeeperMembership` that stops fetching at once when asked to. A group has settled
when every partition has an owner and all members have equal shares. Three changes are measured: a member joins, leaves,
or is killed (from the end of its session). There are no brokers, since only the coordination is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kazoo.client import KazooClient

from pylogd.client.zookeeper.bridge import ZooKeeperMembership
from pylogd.local.zookeeper import LocalZooKeeper

GROUP, TOPIC = "bench", "t"
SESSION_MS = 4000
PATIENCE_SECONDS = 60.0


def consume(connect: str) -> None:
    """Run a consumer that reads nothing until SIGTERM."""
    leaving = False

    def leave(*_: object) -> None:
        nonlocal leaving
        leaving = True

    signal.signal(signal.SIGTERM, leave)
    membership = ZooKeeperMembership(connect, GROUP, {TOPIC: 1}, session_timeout_ms=SESSION_MS)
    membership.start()
    while not leaving:
        for event in membership.poll(0.5):
            membership.done(event)
    membership.close()


class Bench:
    """The consumer processes, and a client that watches ZooKeeper."""

    def __init__(self, connect: str, partitions: int) -> None:
        self._connect = connect
        self._partitions = partitions
        self._client = KazooClient(connect)
        self._client.start()
        self._client.ensure_path("/brokers/topics")
        document = {"version": 1, "partitions": {str(index): [1] for index in range(partitions)}}
        self._client.create(f"/brokers/topics/{TOPIC}", json.dumps(document).encode())
        self._client.ensure_path(f"/consumers/{GROUP}/ids")
        self._client.ensure_path(f"/consumers/{GROUP}/owners/{TOPIC}")
        self.processes: list[subprocess.Popen[bytes]] = []

    def join(self) -> None:
        """Start a consumer process."""
        command = [sys.executable, "-m", "bench.zookeeper_consumers", "--consume", self._connect]
        self.processes.append(subprocess.Popen(command))

    def end(self, how: signal.Signals) -> None:
        """Send a signal to the process in the middle, and wait for its end."""
        process = self.processes.pop(len(self.processes) // 2)
        process.send_signal(how)
        process.wait()

    def members(self) -> int:
        """Return how many members are registered."""
        return len(self._client.get_children(f"/consumers/{GROUP}/ids"))

    def settled(self) -> bool:
        """Return whether all partitions have owners, evenly, among as many members as there are processes."""
        base = f"/consumers/{GROUP}/owners/{TOPIC}"
        names = self._client.get_children(base)
        if len(names) != self._partitions or self.members() != len(self.processes):
            return False
        answers = [self._client.get_async(f"{base}/{name}") for name in names]
        for answer in answers:
            answer.wait()
        if not all(answer.successful() for answer in answers):
            return False
        shares = Counter(answer.value[0] for answer in answers)
        return len(shares) == len(self.processes) and max(shares.values()) - min(shares.values()) <= 1

    def wait(self, condition: Callable[[], bool]) -> float:
        """Return the seconds until the group has settled."""
        since = time.monotonic()
        while not condition():
            if time.monotonic() - since > PATIENCE_SECONDS:
                raise RuntimeError("the group does not settle")
            time.sleep(0.005)
        return time.monotonic() - since

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.kill()
            process.wait()
        self._client.stop()
        self._client.close()


def measure(bench: Bench, consumers: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds to settle after each change."""
    for _ in range(consumers - 1):
        bench.join()
    bench.wait(bench.settled)
    found: dict[str, list[float]] = {"one joins": [], "one leaves": [], "one is killed": []}
    for _ in range(rounds):
        before = bench.members()
        bench.join()
        bench.wait(lambda before=before: bench.members() > before)  # type: ignore[misc]
        found["one joins"].append(bench.wait(bench.settled))
        bench.end(signal.SIGTERM)
        found["one leaves"].append(bench.wait(bench.settled))
        bench.join()
        bench.wait(bench.settled)
        bench.end(signal.SIGKILL)
        bench.wait(lambda: bench.members() == len(bench.processes))
        found["one is killed"].append(bench.wait(bench.settled))
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="How soon a group of consumers on ZooKeeper settles.")
    parser.add_argument("--consumers", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--consume", metavar="CONNECT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.consume:
        consume(options.consume)
        return
    with tempfile.TemporaryDirectory() as directory, LocalZooKeeper(directory) as server:
        bench = Bench(server.hosts, options.partitions)
        try:
            found = measure(bench, options.consumers, options.rounds)
        finally:
            bench.close()
    setting = {"consumers": options.consumers, "partitions": options.partitions, "processors": os.cpu_count()}
    for change, seconds in found.items():
        print(f"{change}: settled after {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s")
    if options.results:
        options.results.write_text(json.dumps({"setting": setting, "seconds": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
