"""Time the opening of a lake of many commits: `python -m tests.stores.opening --commits 20000`.

The commits are written as documents only, without data. "Listed" is a lake as earlier versions left it, without
checkpoints; "checkpoint" is the same lake after one more commit, which wrote one, and 63 after that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pylogd.lake.tables.parquet.commits import Commit, DataFile
from pylogd.lake.tables.parquet.files import COMMITS, Files, numbered
from pylogd.lake.tables.parquet.lake import Lake
from tests.stores.filesystems import FileSystem, opened
from tests.unit.lake.tables.parquet.lakes import load_once

REPEATS = 5


def fill(root: Path, commits: int) -> None:
    """Write the documents of commits of one file each, as version 2 of the format has them."""
    (root / COMMITS).mkdir(parents=True)
    for number in range(1, commits + 1):
        file = DataFile(f"topic=t/{number:06d}-part-0", f"_pylogd/staging/{number}/part-0", 4, 1)
        commit = Commit(number, "load", number, {"t": {"0": number}}, {"t": {"0": 1}}, (file,), version=2)
        document = {name: value for name, value in asdict(commit).items() if value is not None}
        for name in ("schema_ids", "writer"):
            document.pop(name)
        (root / numbered(COMMITS, number, ".json")).write_text(json.dumps(document, indent=1))
        (root / numbered(COMMITS, number, ".done")).touch()


def seconds(action: Callable[[], object]) -> float:
    """Return the median time of an action."""
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        action()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def measure(files: Files, client: str, commits: int) -> list[str]:
    """Return rows of a table: how long opening takes before and after a checkpoint, and listing the files."""
    rows = []

    def row(what: str, action: Callable[[], object]) -> None:
        rows.append(f"| {client} | {what} | {seconds(action) * 1000:,.1f} |")
        print(rows[-1], flush=True)

    row(f"open, {commits:,} commits, listed", lambda: Lake(files))
    load_once(files, commits + 1, every=64)
    row(f"open, {commits + 1:,} commits, checkpoint at {commits + 1:,}", lambda: Lake(files))
    for until in range(commits + 2, commits + 65):
        load_once(files, until, every=64)
    row(f"open, {commits + 64:,} commits, checkpoint 63 commits before", lambda: Lake(files))
    lake = Lake(files)
    row("see that nothing is new, as `--follow` does each time", lake.refresh)
    row(f"list the {commits + 64:,} files", lake.files)
    return rows


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.stores.opening", description=__doc__)
    parser.add_argument("--commits", type=int, default=20_000)
    parser.add_argument("--client", choices=["hadoop", "python"], action="append", help="only this one")
    options = parser.parse_args(arguments)
    print("| client | what | ms |\n| --- | --- | --- |")
    for client in options.client or ("hadoop", "python"):
        with tempfile.TemporaryDirectory(prefix="pylogd-opening-") as folder:
            root = Path(folder) / "lake"
            fill(root, options.commits)
            with opened(FileSystem("local", client, str(root) if client == "python" else root.as_uri())) as files:
                measure(files, client, options.commits)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
