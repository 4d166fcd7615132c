"""The processor time of `pylogd audit serve`, and of an earlier one. Writes AUDIT_SERVICE.md with `--write`.

    python -m bench audit-service [--before CHECKOUT] [--rounds 8] [--messages 300000] [--write]

`--before` names a checkout of an earlier pylogd with its compiled functions (`python setup.py build_ext --inplace`);
both services take turns, in another order each round, beside the same brokers. Measured is the processor time of the
service's process, with all of its threads:

- backlog: the service starts when all is sent: three topics of two partitions at two stages, which have half of the
  messages each, of three producers that report. From the start of the process until the last verdict is stored.
- live: one topic of two partitions; the service runs when the first of the messages is sent, 20,000 a second. From then
  on until the last verdict is stored. This has the time that a service needs which does nothing.
- idle: the same stages and topics without messages: from the start of the process until the service reads all stages.
  "counting" is the backlog without this.

Messages have 200 bytes, and windows a second. "broker" is the processor time of the serving broker in the live run,
from the first message to the last verdict: what a service that only counts may not come near.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench.harness import interval
from bench.machine import machine
from bench.peers import Peer, running
from bench.peers.base import process_seconds
from pylogd.base.clock import wall_ms
from pylogd.client import Admin, AuditedProducer, Consumer, Producer
from tests.pages import write_page

REPORT: Final = Path(__file__).with_name("AUDIT_SERVICE.md")
_HERE: Final = Path(__file__).parent.parent
_SIZE: Final = 200
_TOPICS: Final = ("first", "second", "third")
_PARTITIONS: Final = 2
_PRODUCERS: Final = 3
_WIDTH_MS: Final = 1000
_RATE: Final = 20_000
_SECONDS: Final = 300.0  # the longest that a sample may take


class Sample(NamedTuple):
    """Seconds of processor time of a service in one round, and of the serving broker beside the live one."""

    idle: float
    backlog: float
    live: float
    broker: float

    @property
    def counting(self) -> float:
        """The backlog without the start."""
        return self.backlog - self.idle


class Brokers(NamedTuple):
    """The two clusters."""

    serving: Peer
    copy: Peer


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with `--write` replace the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--write", action="store_true")
    said = parser.parse_args(arguments)
    trees = {"present": _HERE} | ({"before": said.before.resolve()} if said.before else {})
    with tempfile.TemporaryDirectory(prefix="pylogd-audit-service-") as name, running(
        "pylogd", Path(name)
    ) as serving, running("pylogd", Path(name)) as copy:  # fmt: skip
        samples = measure(Brokers(serving, copy), trees, said.rounds, said.messages, Path(name))
    lines = _page(samples, said.rounds, said.messages)
    print("\n".join(lines))
    if said.write:
        write_page(REPORT, lines)


def measure(
    brokers: Brokers, trees: Mapping[str, Path], rounds: int, messages: int, folder: Path
) -> dict[str, list[Sample]]:
    """Return the samples of each checkout."""
    # compiled modules are cached, as if the service were installed
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "cache")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    windows = _fill(brokers, messages // 2)
    empty = [f"{topic}-empty" for topic in _TOPICS]
    for broker in brokers:
        _create(broker.address, empty)
    found: dict[str, list[Sample]] = {name: [] for name in trees}
    for name, tree in trees.items():  # the first start fills the cache
        _backlog(brokers, tree, f"{name}-first", empty, 0)
    for number in range(rounds):
        for name in list(trees)[:: -1 if number % 2 else 1]:
            run = f"{name}-{number}"
            idle = _backlog(brokers, trees[name], f"{run}-idle", empty, 0)
            backlog = _backlog(brokers, trees[name], run, _TOPICS, windows)
            found[name].append(Sample(idle, backlog, *_live(brokers, trees[name], run, messages)))
            print(name, found[name][-1], file=sys.stderr)
    return found


def _create(address: str, topics: Sequence[str]) -> None:
    with Admin(address) as admin:
        for topic in topics:
            admin.create_topic(topic, _PARTITIONS, 1, {"retention.ms": "-1"})


def _fill(brokers: Brokers, count: int) -> int:
    """Send messages, whose times are those of the last minutes, to both stages. Return how many windows they are in."""
    for broker in brokers:
        _create(broker.address, _TOPICS)
    each = count // len(_TOPICS) // _PRODUCERS
    seconds = 30
    start = wall_ms() // _WIDTH_MS * _WIDTH_MS - 600_000
    value = bytes(_SIZE)
    for _ in range(_PRODUCERS):
        times = (start + at * seconds * _WIDTH_MS // each for at in itertools.count())
        now = start
        with Producer(brokers.serving.address) as producer, AuditedProducer(
            producer, topic="reports", window_ms=_WIDTH_MS, now_ms=lambda: now  # noqa: B023
        ) as audited:  # fmt: skip
            for now, at in zip(times, range(each), strict=False):
                for topic in _TOPICS:
                    audited.send(topic, value, partition=at % _PARTITIONS, timestamp=now)
    with Consumer(brokers.serving.address, auto_offset_reset="earliest") as consumer, Producer(
        brokers.copy.address
    ) as copier:  # fmt: skip
        partitions = [each for topic in _TOPICS for each in consumer.partitions(topic)]
        ends = consumer.end_offsets(partitions)
        consumer.assign(consumer.beginning_offsets(partitions))
        while any(consumer.position(each) < ends[each] for each in partitions):
            for record in consumer.poll(1.0):
                copier.send(
                    record.topic, record.value, partition=record.partition, headers=record.headers,
                    timestamp=record.timestamp,
                )  # fmt: skip
    return seconds * len(_TOPICS) * len(brokers)


def _backlog(brokers: Brokers, tree: Path, run: str, topics: Sequence[str], windows: int) -> float:
    stage = ("--stage", f"copy=cluster:{brokers.copy.address},settle=0")
    with _serving(brokers.serving.address, tree, run, topics, "--since", "beginning", *stage) as pid:
        if windows:
            _await_verdicts(brokers.serving.address, f"{run}-state", windows)
        return process_seconds(pid)


def _live(brokers: Brokers, tree: Path, run: str, count: int) -> tuple[float, float]:
    address, topic = brokers.serving.address, f"{run}-live"
    _create(address, [topic])
    with _serving(address, tree, topic, [topic], reports=topic + "-reports") as pid:
        time.sleep(max(0.0, (-wall_ms() % _WIDTH_MS) / 1000) + 1.0)  # the first whole window has begun
        begun, broker = process_seconds(pid), process_seconds(brokers.serving.pid)
        first = wall_ms() // _WIDTH_MS
        with Producer(address) as producer, AuditedProducer(
            producer, topic=topic + "-reports", window_ms=_WIDTH_MS
        ) as audited:  # fmt: skip
            clock, value = time.monotonic(), bytes(_SIZE)
            for number in range(count):
                if not number % 100:
                    time.sleep(max(0.0, clock + number / _RATE - time.monotonic()))
                audited.send(topic, value, partition=number // 100 % _PARTITIONS)
            last = wall_ms() // _WIDTH_MS
        _await_verdicts(address, f"{topic}-state", last - first)
        return process_seconds(pid) - begun, process_seconds(brokers.serving.pid) - broker


@contextmanager
def _serving(
    address: str, tree: Path, run: str, topics: Sequence[str], *options: str, reports: str = "reports"
) -> Iterator[int]:
    """Run a service of a checkout, which reads all stages inside of the context. The value is its process id."""
    command = [
        sys.executable, "-m", "pylogd", "audit", "serve", *topics, "-b", address, "--reports", reports,
        "--state", f"{run}-state", "--markers", f"{run}-complete", "--window", str(_WIDTH_MS / 1000),
        "--period", "10", "--grace", "0.2", "--late", "1e9", *options,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tree, env=environment) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise SystemExit("the service did not start")
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _await_verdicts(address: str, state: str, count: int) -> None:
    """Wait until so many windows are stored as complete. Raises SystemExit if they are not in time."""
    complete: set[bytes] = set()
    deadline = time.monotonic() + _SECONDS
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign(consumer.beginning_offsets(consumer.partitions(state)))
        while len(complete) < count:
            for record in consumer.poll(0.2):
                if record.key is not None and record.key.startswith(b"window/") and record.value is not None:
                    is_complete = json.loads(record.value)["judgement"]["verdict"] == "complete"
                    (complete.add if is_complete else complete.discard)(record.key)
            if time.monotonic() > deadline:
                raise SystemExit(f"{state}: {len(complete)} of {count} windows are complete")


def _page(samples: Mapping[str, Sequence[Sample]], rounds: int, messages: int) -> list[str]:
    names = ("idle", "backlog", "counting", "live", "broker")
    rows = []
    for name in names:
        each = {tree: [float(getattr(sample, name)) for sample in found] for tree, found in samples.items()}
        cells = [f"{median(found):.2f}" for found in each.values()]
        if "before" in each:
            pairs = zip(each["present"], each["before"], strict=True)
            cells.append(interval([one / two for one, two in pairs]))
        rows.append(f"| {name} | {' | '.join(cells)} |")
    heads = [*samples, *(["present : before"] if "before" in samples else [])]
    return [
        "# What the audit costs",
        "",
        f"By `python -m bench audit-service --rounds {rounds} --messages {messages}`; its docstring explains the rows.",
        "Medians of seconds of processor time; ratios with 95 % confidence intervals.",
        "",
        f"| | {' | '.join(heads)} |",
        f"| --- |{' ---: |' * len(heads)}",
        *rows,
        "",
        "Measured on {cores} cores ({processor}), {memory}, {system}, Python {python}, at commit {commit}.".format(
            **machine("")
        ),
        f"The load average was {os.getloadavg()[0]:.0f}.",
    ]


if __name__ == "__main__":
    main()
