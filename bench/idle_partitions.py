"""The cost of idle partitions for a write with acks=all. Writes IDLE_PARTITIONS.md with `--write`.

    python -m bench.idle_partitions [--idle 1000,10000] [--rounds 12] [--sends 1000] [--folder DIR] [--write]

There is one cluster without idle partitions and one for each number of them: two brokers and a ZooKeeper each, default
settings. Every partition has two replicas and broker 1 as its leader, so that the follower has all of them in one fetch
session. The clusters take turns in alternating order. A round is `--sends` writes of a message of 200 bytes to a topic
of one partition with acks=all, each sent when the one before is acknowledged. Neighbouring rounds are compared.

Measured are the client's p50 and p99, and the processor time of each broker. A ratio is the median over rounds of the
ratios to the cluster without idle partitions, with its 95 % confidence interval (bootstrap over rounds). No time is
asserted.
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.failover import in_sync, wait_until
from bench.machine import machine
from bench.peers.base import process_seconds
from pylogd.client import Admin, Cluster, NewTopic
from pylogd.local.cluster import LocalCluster
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import encode_batch
from pylogd.wire.session import ClientSession
from tests.pages import write_page

REPORT = Path(__file__).with_name("IDLE_PARTITIONS.md")
LEADER, FOLLOWER = 1, 2
TOPIC = "written"
TARGET = 1.2
SIZE = 200
_PRODUCE_VERSION = 10
_EACH_TOPIC = 100
_CREATE_AT_ONCE = 10
_PAUSE_SECONDS = 3.0
_RESAMPLES = 2000

MEASURES = {
    "p50": "ms",
    "p99": "ms",
    "leader's processor time": "ms for 1,000 writes",
    "follower's processor time": "ms for 1,000 writes",
}


@dataclass(slots=True)
class Beside:
    """A cluster with a number of idle partitions, and the results of its rounds by metric."""

    idle: int
    cluster: LocalCluster
    found: dict[str, list[float]]


def main() -> None:
    """Measure, and print or write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", default="1000,10000", help="numbers of idle partitions, separated by commas")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--sends", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="folder for the brokers' data; by default a temporary one")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    arguments = parser.parse_args()
    counts = [0, *(int(number) for number in arguments.idle.split(","))]
    with ExitStack() as stack:
        beside = []
        for idle in counts:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
            beside.append(Beside(idle, stack.enter_context(LocalCluster(folder, 2)), {name: [] for name in MEASURES}))
            _fill(beside[-1])
        time.sleep(_PAUSE_SECONDS)
        for number in range(arguments.rounds + 1):
            for one in beside if number % 2 else reversed(beside):
                _round(one, arguments.sends, keep=number > 0)
            if number:
                _say(f"round {number}: " + ", ".join(f"{one.idle}: {one.found['p50'][-1]:.2f} ms" for one in beside))
    text = report(beside, arguments.rounds, arguments.sends)
    if arguments.write:
        write_page(REPORT, [text])
    print(text)


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _fill(one: Beside) -> None:
    """Create the topics. Return when all replicas are in sync."""
    placed = dict.fromkeys(range(_EACH_TOPIC), (LEADER, FOLLOWER))
    new = [NewTopic(f"idle-{number:04}", assignments=placed) for number in range(one.idle // _EACH_TOPIC)]
    begin = time.monotonic()
    with Admin(one.cluster.bootstrap) as admin:
        written = NewTopic(TOPIC, configs={"min.insync.replicas": "2"}, assignments={0: (LEADER, FOLLOWER)})
        for start in range(0, len(new) or 1, _CREATE_AT_ONCE):
            now = new[start : start + _CREATE_AT_ONCE] + ([written] if not start else [])
            for error in admin.create_topics(now).values():
                if error is not None:
                    raise error
        wait_until(partial(in_sync, admin, len(new) + 1, 2), "all replicas are in sync")
    _say(f"{one.idle} idle partitions made in {time.monotonic() - begin:.1f} s")


class _Line:
    """A plain socket to a broker, so that no client library is measured."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), 30.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._session = ClientSession(1 << 20, "bench")
        self.close = self._socket.close

    def request(self, message: Any) -> Any:
        """Return the response to a request."""
        parts: list[Any] = self._session.encode_request(message, _PRODUCE_VERSION)
        self._socket.sendall(b"".join(parts))
        while (event := self._session.next_event()) is None:
            self._session.receive_data(self._socket.recv(1 << 16))
        return event.response


def _round(one: Beside, sends: int, keep: bool) -> None:
    """Write `sends` times; record the results if `keep`."""
    records = encode_batch([(None, bytes(SIZE), int(time.time() * 1000), ())])
    data = [TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, records)])]
    request = ProduceRequest(None, -1, 30_000, data)
    pids = {node: broker.pid for node, broker in one.cluster.brokers.items()}
    times = []
    with Cluster(one.cluster.bootstrap) as client:
        client.refresh([TOPIC])
        leader = client.metadata.broker(LEADER)
    with closing(_Line(leader.host, leader.port)) as line:
        for _ in range(20):
            line.request(request)
        before = {node: process_seconds(pid) for node, pid in pids.items()}
        for _ in range(sends):
            begin = time.perf_counter()
            answer = line.request(request)
            times.append(time.perf_counter() - begin)
            if answer.responses[0].partition_responses[0].error_code:
                raise RuntimeError(f"a write was refused: {answer}")
        spent = {node: process_seconds(pid) - before[node] for node, pid in pids.items()}
    if keep:
        times.sort()
        one.found["p50"].append(times[sends // 2] * 1000)
        one.found["p99"].append(times[sends * 99 // 100] * 1000)
        for name, node in ("leader's processor time", LEADER), ("follower's processor time", FOLLOWER):
            one.found[name].append(spent[node] / sends * 1e6)


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median of ratios, by bootstrap."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES))
    return medians[_RESAMPLES * 25 // 1000], medians[_RESAMPLES * 975 // 1000]


def report(beside: Sequence[Beside], rounds: int, sends: int) -> str:
    """Return the results as Markdown."""
    alone, *others = beside
    lines = [
        "# acks=all beside idle partitions",
        "",
        f"By `python -m bench.idle_partitions` ({rounds} rounds of {sends:,} writes in each of {len(beside)} clusters "
        "that take turns); its docstring explains the method. Two brokers, one message of 200 bytes a write, one write "
        "at a time. Ratios are to the cluster without idle partitions: the median over rounds, and in brackets its "
        f"95 % confidence interval. The target is at most {TARGET:g} times p50, p99 and the leader's processor time.",
        "",
        "| | unit | none | " + " | ".join(f"{one.idle:,} idle | ratio" for one in others) + " |",
        "| --- | --- | ---: |" + " ---: | --- |" * len(others),
    ]
    for name, unit in MEASURES.items():
        base = alone.found[name]
        row = [name, unit, f"{statistics.median(base):.2f}"]
        for one in others:
            ratios = [its / own for its, own in zip(one.found[name], base, strict=True)]
            low, high = interval(ratios)
            row += [
                f"{statistics.median(one.found[name]):.2f}",
                f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})",
            ]
        lines.append("| " + " | ".join(row) + " |")
    where = machine("")
    lines += [
        "",
        f"Measured on {where['cores']} cores ({where['processor']}), {where['memory']}, {where['system']}, "
        f"Python {where['python']}, at commit {where['commit']}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
