"""Processes of a mirror for tests: they are started as a user does, and what they have copied is compared."""

from __future__ import annotations

import select
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from pylogd.base.errors import PylogdError
from pylogd.client import Admin, Consumer
from pylogd.local.broker import START_SECONDS, RunningBroker, pylogd_command
from pylogd.local.launch import bound
from pylogd.wire.records import HEADER_SIZE, iter_batches

T = TypeVar("T")
PATIENCE_SECONDS = 120.0


class MirrorProcess(RunningBroker):
    """`pylogd mirror run` as a child process. `line`: what it says once it runs."""

    process: subprocess.Popen[bytes]
    line = ""

    def __init__(self, file: Path, log: Path, *arguments: str) -> None:
        """Start it; its standard error is appended to `log`."""
        command = [*pylogd_command(), "mirror", "run", str(file), *arguments]
        with log.open("ab") as errors:
            child = subprocess.Popen(
                bound(command, signal.SIGTERM), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        assert child.stdout is not None
        super().__init__(child, child.stdout, log)

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Return once it says that it runs. Raises AssertionError."""
        ready, _, _ = select.select([self._output.fileno()], [], [], seconds)
        self.line = self._output.readline().decode() if ready else ""
        assert self.line, self.log()

    def metric(self, name: str) -> float:
        """Return the value of a metric with its labels; 0 if there is none. It was started with `--listen`."""
        with urllib.request.urlopen(self.line.split()[-1], timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return float(next((line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"{name} ")), 0))

    def kill(self) -> None:
        super().kill()
        self._output.close()


def write_file(
    path: Path, clusters: Mapping[str, str], routes: Iterable[Mapping[str, object]], store: str, more: str = ""
) -> Path:
    """Write a mirror's file. clusters: bootstrap servers by name. store: the line that names it."""
    lines = ['name = "test"', store, "refresh.interval.ms = 500", "commit.interval.ms = 200", more]
    for name, bootstrap in clusters.items():
        lines += [f"[cluster.{name}]", f'bootstrap.servers = "{bootstrap}"']
    for route in routes:
        lines.append("[[route]]")
        lines += [f"{name} = {_toml(value)}" for name, value in route.items()]
    path.write_text("\n".join([*lines, ""]))
    return path


def write_table_file(folder: Path, bootstrap: str, table: str, topics: str, more: str = "") -> Path:
    """Write the file of a mirror with a route from a cluster to a table. Return its path.

    table: its location. topics: a pattern. more: lines of the table's section.
    """
    section = f'[table.lake]\nlocation = "{table}"\ncommit.interval.ms = 300\n{more}'
    route = {"source": "a", "target": "lake", "topics": [topics]}
    store = f'metadata.store = "{folder / "store"}"'
    return write_file(folder / "mirror.toml", {"a": bootstrap}, [route], store, section)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}'"
    return str(value)


def until(condition: Callable[[], T], what: str, log: Callable[[], str] = str, seconds: float = PATIENCE_SECONDS) -> T:
    """Return the first true value of `condition`; pylogd's errors count as not yet. Raises AssertionError."""
    deadline = time.monotonic() + seconds
    while True:
        last: object = None
        try:
            last = found = condition()
            if found:
                return found
        except PylogdError as error:
            last = error
        assert time.monotonic() < deadline, f"waited in vain for {what}; the last was {last!r}\n{log()[-6000:]}"
        time.sleep(0.2)  # most conditions read whole topics over new connections


def committed(bootstrap: str, topic: str) -> dict[int, list[bytes]]:
    """Return the values of the committed records of a topic, by partition, in order. Raises KafkaError."""
    with Admin(bootstrap) as admin:
        count = len(admin.describe_topic(topic).partitions)
    found: dict[int, list[bytes]] = {index: [] for index in range(count)}
    with Consumer(bootstrap, isolation="committed", auto_commit="off", auto_offset_reset="earliest") as consumer:
        partitions = [(topic, index) for index in range(count)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for record in consumer.poll(0.2, 100_000):
                found[record.partition].append(record.value or b"")
    return found


def stored_records(data: Path, topic: str) -> list[bytes]:
    """Return the encoded records of each data batch in a broker's directory, without the batches' headers."""
    found = []
    for segment in sorted(data.glob(f"{topic}-*/*.log")):
        for header, batch in iter_batches(segment.read_bytes(), allow_partial=True):
            if not header.is_control:
                found.append(bytes(batch[HEADER_SIZE:]))
    return found
