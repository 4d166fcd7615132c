"""Race and kill loaders of one table: `python -m tests.races --results FILE`.

For each of Iceberg and Delta: four loaders in processes of their own, two of them of the same partition, load a table
in small steps, some of whose rows go to the quarantine; at Delta another process compacts. Processes are killed by
SIGKILL at random times and started again. In the end the table and its quarantine must have each row once, up to the
table's offsets. The exit code is 1 if not.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from pylogd.base.clock import wall_ms
from pylogd.lake.tables.errors import CommitConflict
from tests.pages import commit_id, write_page
from tests.unit.lake.tables.cases import CASES, Case

FORMATS = ("iceberg", "delta")
#: The partition of each loader.
PARTITIONS = (0, 0, 1, 2)
STEP = 3
LONGEST_SECONDS = 0.6
COUNTED = ("commits", "refused", "compactions")
COMPACTION_BYTES = 1 << 20


@dataclass(slots=True)
class Outcome:
    """What happened at a format."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    quarantined: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def load(case: Case, partition: int, goal: int) -> None:
    """Load a partition up to an offset. Each commit and each refusal is a line on standard output."""
    table = case.open()
    print("ready", flush=True)
    while (start := table.position.offsets.get(("t", partition), 0)) < goal:
        try:
            case.load(table, min(start + STEP, goal), partition=partition, invalid=[start] if start % 4 == 0 else [])
            print("commits", flush=True)
        except CommitConflict:
            print("refused", flush=True)
            table.refresh()


def compact(case: Case) -> None:
    """Compact until killed."""
    table = case.open()
    print("ready", flush=True)
    while True:
        try:
            done = table.compact(COMPACTION_BYTES, lambda *_: [], at_ms=wall_ms())
            print("compactions" if done else "nothing to compact", flush=True)
        except CommitConflict:
            print("refused", flush=True)
        time.sleep(LONGEST_SECONDS)


class Worker:
    """A process of this module, which is started again when it is killed."""

    def __init__(self, root: Path, *role: str) -> None:
        self._command = [sys.executable, "-m", "tests.races", "--worker", str(root), *role]
        self._log = root / f"{'-'.join(role)}-{id(self)}.log"
        self._log.touch()
        self._start()

    def _start(self) -> None:
        self._begin = self._log.stat().st_size
        with self._log.open("ab") as output:  # read by another file: the process would write where this one has read
            self.process = subprocess.Popen(self._command, stdout=output, stderr=output)

    def kill(self, rng: random.Random) -> bool:
        """Kill it some time after its begin, and start it again. Return false if it has ended by itself."""
        while b"ready" not in self._said():
            if self.process.poll() is not None:
                raise AssertionError(self._said().decode())
            time.sleep(0.01)
        time.sleep(rng.uniform(0, LONGEST_SECONDS))
        if self.process.poll() is not None:
            return False
        self.stop()
        self._start()
        return True

    def stop(self) -> None:
        """Kill it for good."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def finish(self, seconds: float) -> None:
        """Wait for its end. Raises AssertionError if it failed."""
        if self.process.wait(seconds):
            raise AssertionError(self._said().decode())

    def _said(self) -> bytes:
        return self._log.read_bytes()[self._begin :]

    def counts(self) -> Counter[str]:
        """Return how often it said each line."""
        return Counter(self._log.read_text().splitlines())


def race(name: str, root: Path, kills: int, goal: int, rng: random.Random) -> Outcome:
    """Let loaders of a format race, kill them, and check the table."""
    outcome, begun = Outcome(name), time.monotonic()
    case = CASES[name](root)
    case.made()
    loaders = [Worker(root, "load", name, str(partition), str(goal)) for partition in PARTITIONS]
    others = [Worker(root, "compact", name)] if name == "delta" else []
    try:
        while outcome.counts["kills"] < kills:
            alive = [each for each in (*loaders, *others) if each.process.poll() is None]
            if not any(each in alive for each in loaders):
                break
            outcome.counts["kills"] += rng.choice(alive).kill(rng)
        for each in loaders:
            each.finish(600)
    finally:
        for each in (*loaders, *others):
            if each.process.poll() is None:
                each.stop()
            outcome.counts += Counter({line: n for line, n in each.counts().items() if line in COUNTED})
    _check(case, outcome)
    outcome.seconds = time.monotonic() - begun
    return outcome


def _check(case: Case, outcome: Outcome) -> None:
    position = case.open().position.offsets
    for partition in sorted(set(PARTITIONS)):
        rows, aside = (case.offsets(partition=partition, quarantine=each) for each in (False, True))
        outcome.rows += len(rows)
        outcome.quarantined += len(aside)
        if sorted(rows + aside) != list(range(position["t", partition])):
            outcome.faults.append(f"partition {partition}: {rows} and {aside}, but the position is {position}")


def report(path: Path, outcomes: list[Outcome], kills: int) -> None:
    """Write the page of results."""
    lines = [
        "# Loaders of one table that race and are killed", "",
        f"`make races`, {datetime.date.today()}, commit {commit_id()}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, pyiceberg {version('pyiceberg')}, deltalake {version('deltalake')}, "
        f"{kills} kills asked for. See [`__main__.py`](__main__.py).", "",
        "| format | kills | commits told of | refused | compactions | rows | in the quarantine | seconds | faults |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for each in outcomes:
        counts = each.counts
        lines.append(
            f"| {each.name} | {counts['kills']} | {counts['commits']} | {counts['refused']} | {counts['compactions']} "
            f"| {each.rows + each.quarantined} | {each.quarantined} | {each.seconds:.0f} | {len(each.faults)} |"
        )
    write_page(path, lines)


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=FORMATS)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--goal", type=int, default=300, help="offsets of each partition")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path)
    said = parser.parse_args()
    if said.worker:
        root, role, name, *rest = said.worker
        case = CASES[name](Path(root))
        if role == "load":
            load(case, int(rest[0]), int(rest[1]))
        else:
            compact(case)
        return 0
    outcomes = []
    for name in FORMATS if said.only is None else (said.only,):
        with tempfile.TemporaryDirectory() as root:
            outcomes.append(race(name, Path(root), said.kills, said.goal, random.Random(said.seed)))
        print(outcomes[-1], flush=True)
    if said.results is not None:
        report(said.results, outcomes, said.kills)
    return int(any(each.faults for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
