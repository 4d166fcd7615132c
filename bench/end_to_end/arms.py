"""One arm of the measurement: a broker, a sender, a loader and a reader, each a process of its own.

The reader is this process. The loader starts before the sender and is warm before the events that count are sent.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.end_to_end.reading import LakeListing, Listing, PollingReader, StreamListing
from bench.spark import Processes
from pylogd.client import Admin, Producer
from pylogd.local.broker import BrokerProcess, pylogd_command

TOPIC: Final = "events"
PARTITIONS: Final = 2
#: Loader -> what it is called in the page.
LOADERS: Final = {"follow": "`pylogd load --follow`", "streaming": "Spark structured streaming"}
_POLL_SECONDS: Final = 0.1
_START_SECONDS: Final = 300.0
_DRAIN_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 60.0
_BEFORE_END: Final = 2.0  # seconds: the processor time of a process that has ended is not known
_FIRST: Final = b"first"


@dataclass(frozen=True, slots=True)
class ArmOptions:
    """What is measured: a loader at a rate of events a second, for `seconds` after `warm` seconds.

    interval: of `pylogd load --follow`, the least time from one load to the next.
    """

    loader: str
    rate: int
    seconds: float
    warm: float
    interval: float


@dataclass(slots=True)
class ArmResult:
    """Times in milliseconds. behind: events that no query had seen two minutes after the last one was sent.

    median_by_second: of the events sent in each second, the median. cores: of the processor, on average, by process.
    """

    loader: str
    rate: int
    seconds: float
    interval: float
    sent: int
    seen: int
    behind: int
    p50: float = 0.0
    p99: float = 0.0
    mean: float = 0.0
    most: float = 0.0
    late_ms: float = 0.0
    files: int = 0
    poll_ms: float = 0.0
    cores: dict[str, float] = field(default_factory=dict)
    median_by_second: list[float] = field(default_factory=list)


def run_arm(options: ArmOptions, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure an arm. Raises RuntimeError if the loader does not start, or a row was seen twice."""
    table = folder / "table"
    broker = BrokerProcess(folder / "data", folder / "broker.log")
    try:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, PARTITIONS, 1)
        with Producer(broker.address) as producer:
            producer.send(TOPIC, _FIRST, partition=0)
        with _loading(options, broker.address, table, folder) as loader:
            listing: Listing = LakeListing(table) if options.loader == "follow" else StreamListing(table)
            reader = PollingReader(listing)
            _wait_for_first(reader, loader, folder)
            say(f"{options.loader}, {options.rate:,} events/s: the loader is there")
            return asdict(_measure(options, broker, reader, loader))
    finally:
        broker.stop()


def _measure(
    options: ArmOptions, broker: BrokerProcess, reader: PollingReader, loader: subprocess.Popen[bytes]
) -> ArmResult:
    command = [sys.executable, "-m", "bench.end_to_end.sending", broker.address, TOPIC, str(options.rate)]
    total = options.warm + options.seconds
    processes, first_rows = Processes(broker.pid), reader.rows
    with subprocess.Popen([*command, str(total)], stdout=subprocess.PIPE) as sender:
        _poll_until(reader, lambda: sender.poll() is not None, options.warm)
        before, begun, polls = processes.cpu(), time.monotonic(), reader.polls
        _poll_until(reader, lambda: sender.poll() is not None, options.seconds - _BEFORE_END)
        cpu, took = processes.cpu(), time.monotonic() - begun
        polls = reader.polls - polls
        _poll_until(reader, lambda: sender.poll() is not None, _STOP_SECONDS)
        assert sender.stdout is not None
        sent = json.loads(sender.stdout.read())
    _poll_until(reader, lambda: reader.rows - first_rows >= sent["sent"], _DRAIN_SECONDS)
    seen = reader.rows - first_rows
    if seen > sent["sent"]:
        raise RuntimeError(f"{sent['sent']} events were sent, and {seen} rows are in the table")
    if loader.poll() is not None:
        raise RuntimeError(f"the loader has ended with exit code {loader.returncode}")
    result = ArmResult(
        options.loader, options.rate, options.seconds, options.interval, sent["sent"], seen, sent["sent"] - seen,
        late_ms=sent["late_ms"], files=reader.commits, poll_ms=round(1000 * took / max(polls, 1)),
        cores={kind: round((cpu[kind] - before[kind]) / took, 2) for kind in cpu},
    )  # fmt: skip
    begin = int(sent["begin_ms"] + 1000 * options.warm)
    _add_latencies(result, *reader.latencies(begin, int(sent["end_ms"]) + 1), begin)
    return result


def _add_latencies(result: ArmResult, times: Any, latencies: Any, begin: int) -> None:
    """Set the figures. Events that were never seen count as slower than all others in the percentiles."""
    if not len(latencies):
        return
    ordered = np.sort(latencies)
    known = len(ordered) / (len(ordered) + result.behind)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        at = min(share / known, 1.0)
        setattr(result, name, float(ordered[min(int(at * len(ordered)), len(ordered) - 1)]))
    result.mean, result.most = round(float(latencies.mean()), 1), float(ordered[-1])
    seconds = (times - begin) // 1000
    result.median_by_second = [
        float(np.median(latencies[seconds == second])) for second in range(int(seconds.max()) + 1)
        if (seconds == second).any()
    ]  # fmt: skip


@contextmanager
def _loading(options: ArmOptions, address: str, table: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    commands = {
        "follow": [
            *pylogd_command(), "load", TOPIC, "-b", address, "--to", str(table), "--master", "local[2]", "--follow",
            "--interval", f"{options.interval:g}",
        ],
        "streaming": [
            sys.executable, "-m", "bench.end_to_end.streaming", address, TOPIC, str(table), str(folder / "checkpoints")
        ],
    }  # fmt: skip
    with (folder / "loader.log").open("wb") as log:
        unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(commands[options.loader], stdout=log, stderr=log, env=unbuffered)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_first(reader: PollingReader, loader: subprocess.Popen[bytes], folder: Path) -> None:
    _poll_until(reader, lambda: reader.rows > 0 or loader.poll() is not None, _START_SECONDS)
    if not reader.rows:
        raise RuntimeError(f"the loader has loaded nothing:\n{(folder / 'loader.log').read_text()[-4000:]}")


def _poll_until(reader: PollingReader, ended: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not ended() and time.monotonic() < deadline:
        begun = time.monotonic()
        reader.poll()
        time.sleep(max(_POLL_SECONDS - (time.monotonic() - begun), 0))
