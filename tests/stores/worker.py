"""A process that works on a lake: `python -m tests.stores.worker PLACE ROLE ...`; it prints what it did as JSON.

PLACE is a `FileSystem` as JSON. The roles: `load TOPIC GOAL STEP` commits until the topic's partition 0 is at GOAL;
`tidy STOP` compacts and expires until the file STOP exists; `create COUNT NAME` races for COUNT files, one
each 200 ms, from the time on that it reads from its standard input.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from pylogd.base.clock import wall_ms
from pylogd.lake.tables.errors import CommitConflict, TableError
from pylogd.lake.tables.parquet.expiry import expire
from pylogd.lake.tables.parquet.files import Files
from pylogd.lake.tables.parquet.history import CommitExpired
from pylogd.lake.tables.parquet.lake import Lake
from tests.stores.filesystems import FileSystem, opened
from tests.unit.lake.tables.parquet.lakes import compact_all, load_once

EVERY = 8
KEEP = 20
PACE_SECONDS = 0.2
_PAUSE_SECONDS = 0.2


def load(files: Files, topic: str, goal: int, step: int) -> dict[str, int]:
    """Commit until a topic is loaded up to `goal`."""
    counts: Counter[str] = Counter()
    partition = (topic, 0)
    while (done := Lake(files, every=EVERY).position.offsets.get(partition, 0)) < goal:
        try:
            if load_once(files, min(done + step, goal), partition, every=EVERY, at_ms=wall_ms()):
                counts["commits"] += 1
        except CommitConflict:
            counts["conflicts"] += 1
        except TableError:  # the staging directory of a load that others were faster with is deleted
            if done == Lake(files, every=EVERY).position.offsets.get(partition, 0):
                raise
            counts["conflicts"] += 1
    return dict(counts)


def tidy(files: Files, stop: Path) -> dict[str, int]:
    """Compact and expire until the file `stop` exists."""
    counts: Counter[str] = Counter()
    while not stop.exists():
        try:
            counts["commits"] += len(compact_all(files))
            expire(files, older_than_ms=wall_ms(), keep=KEEP)
        except (CommitConflict, CommitExpired):
            counts["conflicts"] += 1
        time.sleep(_PAUSE_SECONDS)
    return dict(counts)


def create(files: Files, count: int, name: str, start: float) -> dict[str, int]:
    """Create files at the same times as other processes do. Return how many this one created, and which."""
    won = {}
    for number in range(count):
        time.sleep(max(start + number * PACE_SECONDS - time.time(), 0.0))
        if files.create(f"race/{number:06d}", name.encode()):
            won[f"{number:06d}"] = 1
    return won


def main(arguments: list[str]) -> None:
    """Run as the command line says."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    text, role, *rest = arguments
    with opened(FileSystem(**json.loads(text))) as files:
        print("ready", flush=True)
        if role == "load":
            done = load(files, rest[0], int(rest[1]), int(rest[2]))
        elif role == "tidy":
            done = tidy(files, Path(rest[0]))
        else:
            done = create(files, int(rest[0]), rest[1], float(sys.stdin.readline()))
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
