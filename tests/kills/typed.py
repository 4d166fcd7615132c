"""Kill loaders of typed tables, and check that table and quarantine have each record once.

    python -m tests.kills.typed --kills 10 --results tests/kills/RESULTS.md

For each format: `pylogd load --schema-registry --follow` loads a topic while more is written to it, in versions of a
schema of which each adds a column; every tenth message is none. The loader with its JVM and workers, its JVM, its
command or a Python worker is killed by SIGKILL at a moment that the table's files show, and started again. In the end
the rest is loaded without kills. Each message has to be in the table once, with all its columns, and each one that is
none in the quarantine once.

Rules: whoever opens a table completes what a killed loader has left. So nothing opens it before the end: moments and
progress are read from directories. The exit code is 1 if the table is wrong; then its directory is kept.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pylogd.client import Admin, NewTopic, Producer
from pylogd.client.registry.avro import AvroSerializer, SchemaRegistryClient
from pylogd.lake.tables.opening import open_table
from pylogd.local.broker import BrokerProcess
from tests.fakes.registered import record
from tests.kills.comparing import LakeFault
from tests.kills.outcomes import tell
from tests.kills.page import Section, write_section
from tests.kills.processes import Loader, kill, python_version
from tests.pages import circumstances
from tests.registries import RegistryProcess
from tests.tables import read_files

FORMATS = ("parquet", "iceberg", "delta")
TOPIC = "typed"
PARTITIONS = 2
MASTER = "local[2,4]"
PROGRESS_SECONDS = 300.0
#: Messages that are written for each kill, and the most that a commit loads.
SHARE, STEP = 600, 150
_LOOK_SECONDS = 0.002
_COLUMNS = ("note", "size", "place")


class Victim(StrEnum):
    """What is killed."""

    ALL = "command, JVM and workers"
    COMMAND = "the command's process"
    JVM = "its JVM"
    WORKER = "a Python worker"


class Moment(StrEnum):
    """When it is killed."""

    ANY = "any time"
    WRITING = "data files are being written"
    COMMITTED = "a commit was made"
    QUARANTINE = "files of the quarantine are being written"


@dataclass(slots=True)
class TypedOutcome:
    """What happened at a format. deaths: kills by victim and moment."""

    format: str
    deaths: Counter[tuple[Victim, Moment]] = field(default_factory=Counter)
    rows: int = 0
    quarantined: int = 0
    commits: int = 0
    seconds: float = 0.0


class TableFiles:
    """The files of a table as others see them, without opening it."""

    def __init__(self, kind: str, folder: Path) -> None:
        """kind: the format. folder: the table is below it."""
        self.name = {
            "parquet": f"parquet:{folder}/lake",
            "iceberg": f"iceberg:{folder}/warehouse/demo.typed",
            "delta": f"delta:{folder}/typed",
        }[kind]
        root, pattern, aside = {
            "parquet": ("lake", "_pylogd/commits/*.json", "lake/_pylogd/staging"),
            "iceberg": ("warehouse/demo/typed", "metadata/*.metadata.json", "warehouse/demo/typed_quarantine"),
            "delta": ("typed", "_delta_log/*.json", "typed_quarantine"),
        }[kind]
        self._root, self._pattern, self._aside = folder / root, pattern, folder / aside

    def commits(self) -> int:
        """Return the number of documents of commits."""
        return len(list(self._root.glob(self._pattern)))

    def data(self) -> int:
        """Return the number of Parquet files."""
        return _parquet_files(self._root)

    def quarantine(self) -> int:
        """Return the number of Parquet files of the quarantine, in a lake those in staging."""
        return _parquet_files(self._aside)


def _parquet_files(root: Path) -> int:
    try:
        return sum(1 for _ in root.rglob("*.parquet"))
    except FileNotFoundError:  # directories are removed meanwhile
        return 0


class Kills:
    """The kills of one format."""

    def __init__(self, kind: str, folder: Path, seed: int) -> None:
        self._folder = folder
        self._files = TableFiles(kind, folder)
        self._rng = random.Random(f"{kind} {seed}")
        self._broker = BrokerProcess(folder / "data", folder / "broker.log")
        self._registry = RegistryProcess(self._broker.address, folder / "registry.log")
        self._written = 0
        self._loader: Loader | None = None
        (folder / "spark").mkdir()
        self.outcome = TypedOutcome(kind)

    def run(self, kills: int) -> TypedOutcome:
        """Kill so often, then compare. Raises LakeFault."""
        begun = time.monotonic()
        try:
            with Admin(self._broker.address) as admin:
                admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, {"retention.ms": "-1"})])
            self._write(0)
            for number in range(kills):
                self._strike(number, kills)
            self._complete()
            self._compare()
        finally:
            if self._loader is not None:
                self._loader.kill_all()
            self._registry.kill()
            self._broker.kill()
        self.outcome.seconds = time.monotonic() - begun
        return self.outcome

    def _write(self, version: int) -> None:
        """Write messages of a version, which has so many columns beside the number; each has its number as its key."""
        names = _COLUMNS[:version]
        fields = [("id", "int"), *((name, ["null", "string"]) for name in names)]
        schema = record(*fields, name="Message")
        for each in schema["fields"][1:]:
            each["default"] = None
        serialize = AvroSerializer(SchemaRegistryClient(self._registry.url), schema)
        with Producer(self._broker.address, compression="zstd") as producer:
            for number in range(self._written, self._written + SHARE):
                value: dict[str, Any] = {"id": number, **{name: f"{name} {number}" for name in names}}
                body = b"junk" if number % 10 == 9 else serialize(TOPIC, value)
                producer.send(TOPIC, body, key=b"%d" % number, partition=number % PARTITIONS)
        self._written += SHARE

    def _arguments(self) -> list[str]:
        return [
            TOPIC, "--table", self._files.name, "-b", self._broker.address, "--schema-registry", self._registry.url,
            "--by", "topic",
        ]  # fmt: skip

    def _running(self) -> Loader:
        """Return the loader, started again if it has ended. Raises LakeFault if it did not say why."""
        if self._loader is not None:
            if self._loader.process.poll() is None:
                return self._loader
            said = self._loader.output()
            if self._loader.process.returncode not in (0, -9) and "\nError: " not in said:
                raise LakeFault(f"a loader ended without an error message:\n{said[-4000:]}")
            self._loader.kill_all()
        more = ["--follow", "--interval", "0.2", "--max-offsets", str(STEP)]
        self._loader = Loader(
            [*self._arguments(), *more], self._folder / "loader.log", MASTER, self._folder / "spark",
            self._folder.parent / "classes.jsa",
        )  # fmt: skip
        return self._loader

    def _strike(self, number: int, kills: int) -> None:
        """Wait for a moment, kill, and wait for a commit after it."""
        self._write(min(number * (len(_COLUMNS) + 1) // kills, len(_COLUMNS)))
        moment, victim = list(Moment)[number % len(Moment)], self._rng.choice(list(Victim))
        self._wait_for_commit(self._files.commits())  # the loader works
        found = self._wait_for(moment)
        self._kill(victim)
        commits = self._files.commits()
        self._write(min(number * (len(_COLUMNS) + 1) // kills, len(_COLUMNS)))  # there is something to load
        self._wait_for_commit(commits)
        self.outcome.deaths[victim, found] += 1
        tell(f"{self.outcome.format} kill {number + 1:3d}  {victim}; {found}; {self._files.commits()} commits")

    def _wait_for_commit(self, before: int) -> None:
        deadline = time.monotonic() + PROGRESS_SECONDS
        while self._files.commits() <= before:
            loader = self._running()
            if time.monotonic() > deadline:
                raise LakeFault(f"no commit in {PROGRESS_SECONDS:.0f} s:\n{loader.output()[-4000:]}")
            time.sleep(0.05)

    def _wait_for(self, moment: Moment) -> Moment:
        """Return once it is the moment, or has not come for long."""
        look = {
            Moment.WRITING: self._files.data, Moment.COMMITTED: self._files.commits,
            Moment.QUARANTINE: self._files.quarantine,
        }.get(moment)  # fmt: skip
        if look is None:
            time.sleep(self._rng.uniform(0.0, 3.0))
            return moment
        before, deadline = look(), time.monotonic() + 60.0
        while time.monotonic() < deadline:
            now = look()
            if now > before:
                return moment
            before = now
            self._running()
            time.sleep(_LOOK_SECONDS)
        return Moment.ANY

    def _kill(self, victim: Victim) -> None:
        loader = self._running()
        if victim is Victim.ALL:
            loader.kill_all()
        elif victim is Victim.COMMAND:
            kill([loader.process.pid])
        elif victim is Victim.JVM:
            kill(loader.drivers_jvm())
        else:
            kill(loader.workers()[:1])

    def _complete(self) -> None:
        """Load the rest without kills. Raises LakeFault."""
        self._running().kill_all()
        loader = Loader(
            self._arguments(), self._folder / "loader.log", MASTER, self._folder / "spark",
            self._folder.parent / "classes.jsa",
        )  # fmt: skip
        deadline = time.monotonic() + PROGRESS_SECONDS
        while not loader.ended() and time.monotonic() < deadline:
            time.sleep(0.1)
        if loader.process.poll() != 0:
            said = loader.output()[-4000:]
            loader.kill_all()
            raise LakeFault(f"`pylogd load` failed without a kill:\n{said}")

    def _compare(self) -> None:
        """Compare table and quarantine with what was written. Raises LakeFault."""
        table = open_table(self._files.name)
        good, bad = (
            [row for each in read_files(table, files) for row in each.to_pylist()]
            for files in (table.files(), table.quarantined())
        )
        for what, rows, wanted in (
            ("table", good, [number for number in range(self._written) if number % 10 != 9]),
            ("quarantine", bad, range(9, self._written, 10)),
        ):
            found = Counter(int(row["key"]) for row in rows)
            lost, twice = set(wanted) - set(found), [number for number, count in found.items() if count > 1]
            extra = set(found) - set(wanted)
            if lost or twice or extra:
                raise LakeFault(
                    f"{what}: {len(lost)} lost {sorted(lost)[:9]}, {len(twice)} twice {twice[:9]}, {len(extra)} extra"
                )
        versions: Counter[int] = Counter()
        for row in good:
            number = int(row["key"])
            values = [row.get(name) for name in _COLUMNS]
            count = sum(value is not None for value in values)
            expected = [f"{name} {number}" if at < count else None for at, name in enumerate(_COLUMNS)]
            if row["id"] != number or values != expected:
                raise LakeFault(f"message {number} has {row['id']} and {values}")
            versions[count] += 1
        if len(versions) != len(_COLUMNS) + 1:
            raise LakeFault(f"rows by their number of columns: {dict(versions)}")
        if {row["value"] for row in bad} != {b"junk"}:
            raise LakeFault("the quarantine has other messages")
        self.outcome.rows, self.outcome.quarantined = len(good), len(bad)
        self.outcome.commits = self._files.commits()


def report(outcomes: Sequence[TypedOutcome], seed: int) -> list[str]:
    """Return the lines of the section."""
    kills = sum(sum(each.deaths.values()) for each in outcomes)
    lines = [
        f"`make kills-typed`, seed {seed}, Python {python_version()}. {circumstances()} {kills} kills of `pylogd load "
        "--schema-registry --follow` while four versions of a schema were written, each with one more column. In the "
        "end each message was in the table once, with its columns, and each that is none in the quarantine once.",
        "",
        "| format | kills | rows | quarantined | commits | s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {each.format} | {sum(each.deaths.values())} | {each.rows:,} | {each.quarantined:,} | {each.commits:,} | "
        f"{each.seconds:.0f} |"
        for each in outcomes
    ]
    lines += ["", f"| killed when ... | {' | '.join(Moment)} |", f"| --- |{' ---: |' * len(Moment)}"]
    deaths: Counter[tuple[Victim, Moment]] = sum((each.deaths for each in outcomes), Counter())
    lines += [
        f"| {victim} | {' | '.join(str(deaths[victim, moment] or '') for moment in Moment)} |" for victim in Victim
    ]
    return lines


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # run the cleanup of `finally` blocks
    parser = argparse.ArgumentParser(prog="python -m tests.kills.typed", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of each format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=FORMATS, action="append")
    parser.add_argument("--results", type=Path, help="write what happened to its section of this page")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="pylogd-typed-"))
    outcomes = []
    for kind in options.only or FORMATS:
        place = folder / kind
        place.mkdir()
        try:
            outcomes.append(Kills(kind, place, options.seed).run(options.kills))
        except LakeFault as fault:
            tell(f"FAILED, kept in {place}: {fault}")
            return 1
        tell(f"{kind}: {outcomes[-1].rows:,} rows and {outcomes[-1].quarantined:,} quarantined, each once")
        if options.results is not None:
            write_section(options.results, Section.TYPED, report(outcomes, options.seed))
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
