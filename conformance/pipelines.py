"""Kafka Connect with exactly-once sources, and a Flink job that copies exactly once, both on three brokers, with kills.

Both write transactions whose records and progress must appear together: Connect keeps its offsets in a topic, Flink its
open transactions in checkpoints. What they have written is read with read_committed, and compared with what there was
to copy: each line once, and of one partition in order.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

from conformance import java_tools
from conformance.brokers import say
from conformance.checks import CACHE, HERE, Check, expect, last_line
from pylogd.base.ports import free_ports
from pylogd.client import Admin, Consumer, Producer
from pylogd.local.cluster import LocalCluster

_SETTINGS: Final = {
    "min.insync.replicas": "2", "group.initial.rebalance.delay.ms": "0", "transaction.max.timeout.ms": "900000",
}  # fmt: skip
_WAIT_SECONDS: Final = 300.0
_LINES: Final = 20_000
#: Lines that are written to Connect's file at a time, and how many of its workers are killed meanwhile.
_STEP: Final = 250
_KILLS: Final = 3
#: Lines whose transactions are timed at the end, and the longest time of one. A lost wake-up costs half a second.
_TIMED: Final = 4_000
_TRANSACTION_MS: Final = 250
#: The source leaves lines in its buffer behind a full batch until the file grows: such lines push those before out.
_PUSH: Final = ["push"] * 500
_WORKER: Final = """\
bootstrap.servers={bootstrap}
group.id=connect
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
config.storage.topic=connect-configs
offset.storage.topic=connect-offsets
status.storage.topic=connect-status
exactly.once.source.support=enabled
offset.flush.interval.ms=1000
scheduled.rebalance.max.delay.ms=0
session.timeout.ms=6000
heartbeat.interval.ms=1000
plugin.discovery=only_scan
listeners=http://127.0.0.1:{port}
"""


class _Late(Exception):
    """Raised if something that was waited for did not come. The text says what."""


def connect(_: str, folder: Path) -> list[Check]:
    """Run Kafka Connect with a source and a sink of files, kill its worker and each broker, and compare."""
    with _cluster(folder) as cluster:
        worker = _Worker(folder, cluster.bootstrap)
        try:
            return _run_connect(cluster, worker, folder)
        except _Late as late:
            return [Check("Connect: runs to its end", "failed", f"{late}; {worker.last_line()}")]
        finally:
            worker.kill()


def flink(_: str, folder: Path) -> list[Check]:
    """Run a Flink job, kill it and two brokers, let it fail by itself, resume it from its checkpoint, and compare."""
    with _cluster(folder) as cluster:
        lines = [f"{number}" for number in range(_LINES)]
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("from", 2, 3)
            admin.create_topic("to", 2, 3)
        with Producer(cluster.bootstrap) as producer:
            for number, line in enumerate(lines):
                producer.send("from", line.encode(), partition=number % 2)
        with _Reader(cluster.bootstrap, "to", 2) as reader:
            try:
                _run_flink(cluster, folder, reader)
            except _Late as late:
                return [Check("Flink: runs to its end", "failed", str(late))]
            return _same("Flink", reader.read_on(), lines)


def _create_connectors(worker: _Worker, source: Path, target: Path) -> None:
    """Start the worker, with a connector that writes the lines of a file to a topic, and one that writes them back."""
    worker.start()
    common = {"tasks.max": "1", "topic": "lines", "topics": "lines"}
    worker.create("source", {
        **common, "connector.class": "FileStreamSource", "file": str(source), "batch.size": "100",
        "exactly.once.support": "required", "transaction.boundary": "poll",
    })  # fmt: skip
    worker.create("sink", {
        **common, "connector.class": "FileStreamSink", "file": str(target),
        "consumer.override.isolation.level": "read_committed", "consumer.override.auto.offset.reset": "earliest",
    })  # fmt: skip


def _run_connect(cluster: LocalCluster, worker: _Worker, folder: Path) -> list[Check]:
    source, target = folder / "source.txt", folder / "target.txt"
    source.touch()
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("lines", 1, 3)
    _create_connectors(worker, source, target)
    lines = [f"line {number}" for number in range(_LINES + _TIMED)]
    with source.open("a") as out:
        _write_with_kills(cluster, worker, out, lines[:_LINES])
        with _Reader(cluster.bootstrap, "lines") as reader:
            _append(out, _PUSH)
            reader.read_to(lines[_LINES - 1])
            begun = time.monotonic()
            _append(out, [*lines[_LINES:], *_PUSH])
            reader.read_to(lines[-1])
            took = time.monotonic() - begun
            found = [line for line in reader.read_on() if line != _PUSH[0]]
    count = reader.transactions(lines[_LINES], lines[-1])
    say(f"connect: the source writes {count} transactions in {took:.2f} s, one in {took * 1000 / count:.0f} ms")
    with contextlib.suppress(_Late):
        _wait(lambda: not _missing(target, lines), "the sink to write all lines")
    missing = _missing(target, lines)
    return [
        *_same("Connect: source", found, lines),
        expect("Connect: source: in order", found == lines, "the lines are not in the order of the file"),
        expect(
            f"Connect: source: a transaction takes less than {_TRANSACTION_MS:.0f} ms",
            took * 1000 < count * _TRANSACTION_MS,
            f"{count} took {took:.2f} s",
        ),
        expect("Connect: sink: nothing is missing", not missing, f"{len(missing)} are missing"),
    ]


def _write_with_kills(cluster: LocalCluster, worker: _Worker, source: IO[str], lines: Sequence[str]) -> None:
    """Write lines to the source's file in steps. Kill the worker and a broker meanwhile, each broker once."""
    steps = range(0, len(lines), _STEP)
    troubles = {steps[len(steps) * (number + 1) // (_KILLS + 1)]: number for number in range(_KILLS)}
    for step in steps:
        _append(source, lines[step : step + _STEP])
        time.sleep(0.2)
        if step in troubles:
            say(f"connect: the worker and broker {troubles[step] + 1} are killed")
            worker.kill()
            cluster.kill(troubles[step] + 1)
            worker.start()
            cluster.start(troubles[step] + 1)


def _missing(file: Path, lines: Sequence[str]) -> set[str]:
    return set(lines).difference(file.read_text().split("\n"))


def _append(file: IO[str], lines: Sequence[str]) -> None:
    file.writelines(f"{line}\n" for line in lines)
    file.flush()


class _Reader:
    """Read the committed records of a topic from its start, as they come. A context manager."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = 1) -> None:
        self._consumer = Consumer(bootstrap, isolation="committed")
        self._consumer.assign({(topic, partition): 0 for partition in range(partitions)})
        self._found: list[str] = []
        #: line -> where it is first, in whichever partition
        self._offsets: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self, seconds: float) -> int:
        """Read what comes within this time. Return how many lines were read since the start."""
        for record in self._consumer.poll(seconds):
            line = bytes(record.value or b"").decode()
            self._found.append(line)
            self._offsets.setdefault(line, record.offset)
        return len(self._found)

    def read_to(self, line: str) -> None:
        """Read until this line comes. Raises _Late."""
        _wait(lambda: self.read(1.0) and line in self._offsets, f"the line {line!r}")

    def read_on(self) -> list[str]:
        """Read until nothing comes for five seconds. Return all lines since the start."""
        while self.read(0.0) < self.read(5.0):
            pass
        return self._found

    def transactions(self, first: str, last: str) -> int:
        """Return how many transactions wrote the lines from `first` to `last`, of a single partition.

        The offsets between them that are of no record are of the ends of all but the last transaction.
        """
        offsets = range(self._offsets[first], self._offsets[last])
        lines = sum(offset in offsets for offset in self._offsets.values())
        return len(offsets) - lines + 1


def _run_flink(cluster: LocalCluster, folder: Path, reader: _Reader) -> None:
    checkpoints = folder / "checkpoints"
    command = [
        *java_tools.flink(HERE / "java" / "FlinkCopy.java"), cluster.bootstrap, "from", "to", f"file://{checkpoints}",
    ]  # fmt: skip

    def complete() -> list[Path]:
        return sorted(checkpoints.glob("*/chk-*/_metadata"), key=lambda path: path.stat().st_mtime)

    log = CACHE / "flink.log"
    with log.open("wb") as output:
        with _running([*command, str(_LINES // 8)], output) as first:
            _wait(lambda: len(complete()) > 0 or first.poll() is not None, "the first checkpoint")
            say("flink: broker 1 is killed")
            cluster.kill(1)
            time.sleep(3.0)
            cluster.start(1)
            before = complete()
            _wait(lambda: complete() != before or first.poll() is not None, "another checkpoint")
            say("flink: the job is killed")
        resume = str(complete()[-1].parent) if complete() else ""
        if not resume:
            raise _Late(f"the job ended without a checkpoint: {last_line(log.read_text(errors='replace'))}")
        with _running([*command, str(_LINES // 8), resume], output) as second:
            time.sleep(5.0)
            say("flink: broker 2 is killed")
            cluster.kill(2)
            time.sleep(3.0)
            cluster.start(2)
            _wait(lambda: reader.read(1.0) >= _LINES or second.poll() is not None, "the job to copy all lines")
            if second.poll() is not None:
                raise _Late(f"the job ended: {last_line(log.read_text(errors='replace'))}")


class _Worker:
    """A worker of Kafka Connect with a REST interface."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        [port] = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self._properties = folder / "worker.properties"
        self._properties.write_text(_WORKER.format(bootstrap=bootstrap, port=port))
        self._log = CACHE / "connect.log"
        self._log.unlink(missing_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._refusal = ""

    def start(self) -> None:
        """Start it, and wait until it answers. Raises _Late."""
        command = [*java_tools.connect(), "org.apache.kafka.connect.cli.ConnectDistributed", str(self._properties)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        _wait(lambda: self._ask("/connectors") is not None, "the worker to answer")

    def create(self, name: str, config: dict[str, str]) -> None:
        """Create a connector. Raises _Late if the worker keeps refusing it; the text has its last reason."""
        body = {"name": name, "config": config}
        try:
            _wait(lambda: self._ask("/connectors", body) or name in (self._ask("/connectors") or ()), f"the {name}")
        except _Late as late:
            raise _Late(f"{late}: {self._refusal}") from None

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def last_line(self) -> str:
        """Return what it logged last."""
        return last_line(self._log.read_text(errors="replace")) if self._log.exists() else ""

    def _ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            self._refusal = last_line(refused.read().decode(errors="replace"))
            return None
        except (urllib.error.URLError, OSError):
            return None


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[LocalCluster]:
    with LocalCluster(folder / "cluster", 3, settings=_SETTINGS) as cluster:
        yield cluster
        faults = cluster.close()
        if faults:
            raise RuntimeError("\n".join(faults))


@contextlib.contextmanager
def _running(command: Sequence[str], output: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, and kill it at the end if it still runs."""
    process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait(condition: Callable[[], object], what: str, seconds: float = _WAIT_SECONDS) -> None:
    """Wait for a condition. Raises _Late."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise _Late(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.1)


def _same(name: str, found: Sequence[str], wanted: Sequence[str]) -> list[Check]:
    counts = Counter(found)
    missing = [line for line in wanted if line not in counts]
    twice = [line for line, times in counts.items() if times > 1]
    return [
        expect(f"{name}: nothing is missing", not missing, f"{len(missing)} are missing, such as {missing[:3]}"),
        expect(f"{name}: nothing is there twice", not twice, f"{len(twice)} are there twice, such as {twice[:3]}"),
    ]
