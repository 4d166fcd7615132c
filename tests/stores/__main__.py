"""Race processes on lakes on several file systems, and kill them: `python -m tests.stores --results FILE`.

For each place: two processes create the same files at the same times, and each has to be told to one of them. Then
three loaders, two of them of the same partition, and a process that compacts and expires work on one lake, while
processes are killed and started again. The lake must have each row once, as of each commit that is kept. The exit code
is 1 if not.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.parquet.lake import Lake
from pylogd.lake.tables.position import by_partition
from tests.fakes.s3 import S3Server
from tests.pages import write_page
from tests.stores.filesystems import FileSystem, opened, running_hdfs, s3a_settings
from tests.stores.loading import Loaded, load_with_spark
from tests.stores.worker import EVERY
from tests.unit.lake.tables.parquet.lakes import expected, records

PLACES = ("local, Python", "S3, Python", "HDFS, Python", "local, Hadoop", "HDFS", "S3A")
SECONDS = 400.0


@dataclass(slots=True)
class Outcome:
    """What happened at a place. wins: files that each of two processes created."""

    name: str
    races: int = 0
    wins: list[int] = field(default_factory=list)
    commits: int = 0
    kept: int = 0
    conflicts: int = 0
    kills: int = 0
    rows: int = 0
    spark: Loaded | None = None
    seconds: float = 0.0


class Worker:
    """A process of `tests.stores.worker`."""

    def __init__(self, place: FileSystem, *role: str) -> None:
        self.role = role
        command = [sys.executable, "-m", "tests.stores.worker", json.dumps(asdict(place)), *role]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True
        )

    def wait_ready(self) -> None:
        """Wait until it has opened its files."""
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != b"ready":
            raise AssertionError(f"{self.role} did not start: {self._said()}")

    def result(self) -> dict[str, int]:
        """Wait for its end, and return what it did."""
        assert self.process.stdout is not None
        self.process.wait(SECONDS)
        out = self.process.stdout.read()  # not `communicate`, which forgets what `wait_ready` has read ahead
        if self.process.returncode:
            raise AssertionError(f"{self.role} ended with {self.process.returncode}: {self._said()}")
        found: dict[str, int] = json.loads(out.splitlines()[-1])
        return found

    def kill(self) -> None:
        """Kill it with its JVM."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self._log.close()

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-3000:]


def race(place: FileSystem, outcome: Outcome) -> None:
    """Let two processes create the same files. Raises AssertionError if one is told to both, or to none."""
    workers = [Worker(place, "create", str(outcome.races), name) for name in "ab"]
    try:
        for worker in workers:
            worker.wait_ready()
        start = f"{time.time() + 1.0}\n".encode()
        for worker in workers:
            assert worker.process.stdin is not None
            worker.process.stdin.write(start)
            worker.process.stdin.flush()
        won = [worker.result() for worker in workers]
    finally:
        for worker in workers:
            if worker.process.poll() is None:
                worker.kill()
    outcome.wins = [len(each) for each in won]
    told = Counter(name for each in won for name in each)
    assert told == {f"{number:06d}": 1 for number in range(outcome.races)}, f"not each file has one winner: {told}"
    with opened(place) as files:
        for name, each in zip("ab", won, strict=True):
            assert all(files.read(f"race/{number}") == name.encode() for number in each), "a file of the other process"
        files.delete("race")


def work(place: FileSystem, outcome: Outcome, goal: int, kills: int, rng: random.Random) -> None:
    """Load, compact and expire at once, with kills; then compare."""
    with tempfile.TemporaryDirectory(prefix="pylogd-stores-") as folder:
        stop = Path(folder) / "stop"
        loaders = [("load", "t", str(goal), "2"), ("load", "t", str(goal), "3"), ("load", "u", str(goal), "2")]
        others = [("tidy", str(stop))]
        running = [Worker(place, *role) for role in (*loaders, *others)]
        try:
            for worker in running:
                worker.wait_ready()
            while outcome.kills < kills and any(each.process.poll() is None for each in running[: len(loaders)]):
                time.sleep(rng.uniform(0.2, 2.0))
                at = rng.randrange(len(running))
                if running[at].process.poll() is None:
                    running[at].kill()
                    outcome.kills += 1
                    running[at] = Worker(place, *running[at].role)
                    running[at].wait_ready()
            done = [each.result() for each in running[: len(loaders)]]
            stop.touch()
            done += [each.result() for each in running[len(loaders) :]]
        finally:
            for worker in running:
                if worker.process.poll() is None:
                    worker.kill()
    outcome.conflicts = sum(each.get("conflicts", 0) for each in done)
    with opened(place) as files:
        _check(files, outcome, goal)


def check_refused(place: FileSystem) -> None:
    """Check that S3A without conditional writes is refused, as two writers would lose commits."""
    without = {**place.settings, "spark.hadoop.fs.s3a.create.conditional.enabled": "false"}
    with opened(replace(place, settings=without)) as files:
        try:
            files.create("refused", b"")
        except TableError as error:
            assert "fs.s3a.create.conditional.enabled" in str(error), error
        else:
            raise AssertionError("a file was created without a condition")
        assert not files.exists("refused")


def _check(files: Any, outcome: Outcome, goal: int) -> None:
    lake = Lake(files, every=EVERY)
    offsets = {("t", 0): goal, ("u", 0): goal}
    assert lake.offsets == offsets, lake.offsets
    assert lake.last is not None
    history = list(lake.history())
    assert [each.number for each in history] == list(range(history[0].number, lake.last.number + 1))
    for commit in history:
        rows = {path: files.read(path) for path in lake.files(commit.number)}
        assert records(rows) == expected(by_partition(commit.offsets)), f"as of commit {commit.number}"
    outcome.commits, outcome.kept, outcome.rows = lake.last.number, len(history), 2 * goal


@contextmanager
def place_of(name: str, folder: Path) -> Iterator[FileSystem]:
    """Start what a place needs, and yield it."""
    with ExitStack() as stack:
        if name == "local, Python":
            yield FileSystem(name, "python", str(folder / "lake"))
        elif name == "local, Hadoop":
            yield FileSystem(name, "hadoop", (folder / "lake").as_uri())
        elif name == "HDFS":
            yield FileSystem(name, "hadoop", stack.enter_context(running_hdfs(folder / "hdfs")) + "/lake")
        elif name == "HDFS, Python":
            yield FileSystem(name, "python", stack.enter_context(running_hdfs(folder / "hdfs")) + "/lake")
        else:
            server = stack.enter_context(S3Server())
            if name == "S3, Python":
                yield FileSystem(name, "python", f"{server.bucket}/lake", {}, server.address)
            else:
                yield FileSystem(name, "hadoop", f"s3a://{server.bucket}/lake", s3a_settings(server))


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(prog="python -m tests.stores", description=__doc__)
    parser.add_argument("--races", type=int, default=200)
    parser.add_argument("--goal", type=int, default=120, help="records of each of the two partitions")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--messages", type=int, default=2000, help="to be loaded with Spark")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=PLACES)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args(arguments)
    rows = _rows_of(options.results)
    for name in options.only or PLACES:
        begun = time.monotonic()
        outcome = Outcome(name, options.races)
        with tempfile.TemporaryDirectory(prefix="pylogd-stores-") as folder, place_of(name, Path(folder)) as place:
            race(place, outcome)
            if name == "S3A":
                check_refused(place)
            work(place, outcome, options.goal, options.kills, random.Random(options.seed))
            if place.client == "hadoop":
                outcome.spark = load_with_spark(place, options.messages)
        outcome.seconds = time.monotonic() - begun
        rows[name] = row(outcome)
        print(rows[name], flush=True)
        if options.results:
            write_page(options.results, report([rows[each] for each in PLACES if each in rows]))
    return 0


def _rows_of(page: Path | None) -> dict[str, str]:
    """Return the rows of places in a page, which stay if only other places are run."""
    if page is None or not page.exists():
        return {}
    lines = page.read_text("utf-8").splitlines()
    return {name: line for name in PLACES for line in lines if line.startswith(f"| {name} |")}


def row(outcome: Outcome) -> str:
    """Return the row of a place in the results."""
    wins = " + ".join(f"{each:,}" for each in outcome.wins)
    spark = "-"
    if outcome.spark:
        each = outcome.spark
        spark = f"{each.rows:,} in {each.loads} loads, {each.compactions} compactions of {each.replaced} files"
    return (
        f"| {outcome.name} | {outcome.races:,} | {wins} | {outcome.commits:,} | {outcome.kept:,} | "
        f"{outcome.conflicts:,} | {outcome.kills} | {outcome.rows:,} | {spark} | {outcome.seconds:.0f} |"
    )


def report(rows: Sequence[str]) -> list[str]:
    """Return the results as lines of Markdown."""
    return [
        "# Lakes on local disks, HDFS and S3",
        "",
        f"`make stores`, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, Python "
        f"{platform.python_version()}, {os.cpu_count()} CPUs. At each place two processes create the same files at "
        "the same times: each file was created by one of them. Then three loaders, two of them of the same "
        "partition, and a process that compacts and expires work on one lake; processes are killed and started "
        "again. In the end the lake had each row once, as of each commit that was kept. *rows by Spark*: `pylogd load "
        "--follow` and `--compact` at once; lake and log were the same, also after an expiry.",
        "",
        "| place | races | won by a + b | commits | kept | conflicts | kills | rows | rows by Spark | s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
        "*Python*: without a JVM, by hard links, s3fs or hdfs-native. *Hadoop*, *HDFS*, *S3A*: by the classes that "
        "`pylogd load` uses, each process with a JVM of its own. HDFS is Hadoop's MiniDFSCluster 3.5.0 in another "
        "process. S3A with `fs.s3a.create.conditional.enabled=false` refused to commit. S3 is moto's server, where "
        "conditional writes are served one at a time (`tests/fakes/s3.py`).",
        "",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
