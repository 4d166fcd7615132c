"""The query under test as a process, and what its checkpoint and the brokers say about its epochs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pylogd.base.errors import KafkaError
from pylogd.client import Admin
from pylogd.lake.spark.epochs import Epoch
from pylogd.lake.spark.stream_offsets import topics_of
from tests.exactly_once.events import LATE_SECONDS, WINDOW_MS
from tests.kills.processes import SparkProcess, confs

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "counts_exactly_once.py"
TOPICS, TARGET, NAME = ("departures", "repairs"), "counts", "counts-of-events"
MOST = 3000
LATE = f"{LATE_SECONDS} seconds"


class QueryProcess(SparkProcess):
    """A run of the example. classes: see `tests.kills.processes.confs`. late, most: as the example has them."""

    def __init__(
        self, bootstrap: str, checkpoint: Path, log: Path, scratch: Path, *, follow: bool,
        classes: Path | None = None, late: str = LATE, most: int = MOST,
    ) -> None:  # fmt: skip
        command = [
            sys.executable, str(EXAMPLE), bootstrap, ",".join(TOPICS), TARGET, str(checkpoint), "--name", NAME,
            "--window", f"{WINDOW_MS // 1000} seconds", "--late", late, "--most", str(most),
        ]  # fmt: skip
        given = " ".join(f"--conf {name}='{value}'" for name, value in confs(scratch, classes).items())
        environment = {
            "PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": f"--master local[2,4] {given} pyspark-shell",
        }  # fmt: skip
        super().__init__(command + ["--follow"] * follow, log, scratch, environment)


class Checkpoint:
    """What the files of a query's checkpoint say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def planned(self) -> int:
        """Return the number of the last epoch that was planned; -1 if there is none."""
        return self._last("offsets")

    def committed(self) -> int:
        """Return the number of the last epoch whose end Spark has noted; -1 if there is none."""
        return self._last("commits")

    def _last(self, log: str) -> int:
        folder = self.folder / log
        found = [int(name) for name in os.listdir(folder) if name.isdigit()] if folder.is_dir() else []
        return max(found, default=-1)

    def events(self) -> int:
        """Return about how many events were read until the last epoch's end."""
        last = self.planned()
        if last < 0:
            return 0
        *_, document = (self.folder / "offsets" / str(last)).read_text().splitlines()
        return sum(offset for inner in topics_of(json.loads(document)).values() for offset in inner.values())

    def query_id(self) -> str | None:
        """Return the id of the query, once it has one."""
        metadata = self.folder / "metadata"
        return str(json.loads(metadata.read_text())["id"]) if metadata.exists() else None


def recorded(admin: Admin, checkpoint: Checkpoint) -> int:
    """Return the number of the last epoch that was committed with its rows; -1 if there is none."""
    query_id = checkpoint.query_id()
    if query_id is None:
        return -1
    found = admin.group_offsets(Epoch(0, query_id).group_of(NAME))
    return max((offset.offset for offset in found.values()), default=-1)


def is_open(admin: Admin) -> bool:
    """Return whether a transaction of the query is open or being ended."""
    try:
        state = admin.describe_transaction(NAME).state
    except KafkaError:
        return False  # there was none yet
    return state in ("Ongoing", "PrepareCommit", "PrepareAbort")
