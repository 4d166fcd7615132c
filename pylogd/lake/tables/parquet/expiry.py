"""Let old commits of a lake expire: their documents, and the files that compactions have replaced, are deleted.

Strategy: the oldest commit to keep gets a checkpoint in `floors/`, and is the lake's floor from then on. Only then are
files deleted: first the replaced files that no commit from the floor on has, then the documents below the floor, the
oldest first. Each step may be repeated, so the next expiry completes one that was killed.

The data files of the lake and of its quarantine are not deleted. Time travel goes back to the floor. A process that
last read the lake before commits expired can't commit in their place, because `Lake.commit` then checks the floor.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from pylogd.lake.tables.parquet import checkpoints
from pylogd.lake.tables.parquet.checkpoints import CheckpointPath
from pylogd.lake.tables.parquet.commits import Commit
from pylogd.lake.tables.parquet.files import CHECKPOINTS, COMMITS, DRAFTS, FLOORS, Files, each, numbered, numbers
from pylogd.lake.tables.parquet.history import CommitExpired, History
from pylogd.lake.tables.parquet.lake import Lake, replaced_path

_BATCH: Final = 64


@dataclass(frozen=True, slots=True)
class Expired:
    """The result of an expiry.

    floor: the oldest commit that is kept.
    commits, files: the numbers of deleted commits and files.
    """

    floor: int
    commits: int
    files: int


def expire(files: Files, *, older_than_ms: int, keep: int) -> Expired:
    """Delete the commits that were made before a time, in milliseconds since 1970, but not the last `keep` ones.

    At least the last commit is kept. Raises TableError.
    """
    lake = Lake(files)  # this completes all commits
    history = History(files)
    applied = 0 if lake.last is None else lake.last.number
    floor = _new_floor(history, older_than_ms, min(history.number - max(keep, 1) + 1, applied))
    if floor > history.floor:
        lake.write_checkpoint(CheckpointPath(floor, FLOORS))
    for name in files.names(DRAFTS):  # drafts of processes that died; live ones write theirs again
        files.delete(f"{DRAFTS}/{name}")
    floor = history.floor
    if floor == 1:
        return Expired(floor, 0, 0)
    try:
        kept = history.snapshot(floor).files.keys()
    except CommitExpired:  # another expiry has a higher floor, and deletes everything below it
        return Expired(floor, 0, 0)
    return _delete_below(files, floor, kept)


def _new_floor(history: History, older_than_ms: int, high: int) -> int:
    """Return the number of the first commit to keep, at most `high`.

    The commit is found by bisection, since a long history takes long to read.
    """
    low = history.floor
    while low < high:
        middle = (low + high) // 2
        if history.read(middle).at_ms < older_than_ms:
            low = middle + 1
        else:
            high = middle
    return low


def _delete_below(files: Files, floor: int, kept: Collection[str]) -> Expired:
    """Delete everything below the floor.

    kept: the files of the lake as of the floor.

    A process that stalled may have made a document below the floor, which never took effect. This document may name
    files of a later commit as replaced, so `kept` files are never deleted.
    """
    names = files.names(COMMITS)
    gone = [number for number in numbers(names, ".json") if number <= floor]
    replaced = 0
    for at in range(0, len(gone), _BATCH):
        batch = gone[at : at + _BATCH]
        replaced += sum(each(files, lambda number: _delete_replaced(files, number, kept), batch))
        each(files, lambda number: _delete_documents(files, number), [each for each in batch if each < floor])
    for number in numbers(names, ".done"):  # marks whose documents a killed expiry had deleted
        if number < floor and number not in gone:
            files.delete(numbered(COMMITS, number, ".done"))
    for place in (*checkpoints.found(files, CHECKPOINTS), *checkpoints.found(files, FLOORS)):
        if place.number < floor:
            checkpoints.delete(files, place)
    return Expired(floor, sum(number < floor for number in gone), replaced)


def _delete_replaced(files: Files, number: int, kept: Collection[str]) -> int:
    """Delete the files that a commit replaced, except the `kept` ones. Return how many were deleted."""
    path = numbered(COMMITS, number, ".json")
    try:
        removed: Sequence[str] = Commit.from_bytes(path, files.read(path)).removed
    except FileNotFoundError:  # another expiry was faster
        return 0
    gone = [each_path for each_path in removed if each_path not in kept]
    for each_path in gone:
        files.delete(replaced_path(each_path))
    return len(gone)


def _delete_documents(files: Files, number: int) -> None:
    files.delete(numbered(COMMITS, number, ".done"))
    files.delete(numbered(COMMITS, number, ".json"))
