"""Loads, compactions and expiries of several processes in any order, with kills: no row is lost or there twice."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import pytest

from pylogd.lake.tables.errors import CommitConflict, TableError
from pylogd.lake.tables.parquet.expiry import expire
from pylogd.lake.tables.parquet.history import CommitExpired
from pylogd.lake.tables.parquet.lake import Lake
from pylogd.lake.tables.position import by_partition
from tests.unit.lake.tables.parquet.lakes import EVERY, T0, compact_all, expected, load_once, records
from tests.unit.lake.tables.parquet.memory import Actor, Crash, MemoryFiles, Turns, run_until_done

GOAL = 8
U0 = ("u", 0)
AGAIN = (Crash, CommitConflict, TableError)


def history(seed: int) -> tuple[MemoryFiles, bool]:
    """Run five processes on a lake in an order that the seed determines, until all is loaded."""
    rng = random.Random(seed)
    files, turns = MemoryFiles(), Turns(rng, rng.choice([1, 5, 40]))
    copies, unsure = rng.random() < 0.3, rng.random() < 0.5
    crashes = rng.choice([0, 0, 1, 3])

    def actor(name: str, work: Callable[[MemoryFiles], None]) -> Callable[[], None]:
        seen = Actor(files, turns, name, crashes=crashes, copies=copies, unsure=unsure)
        return lambda: run_until_done(lambda: work(seen), AGAIN)

    def loader(partition: tuple[str, int], step: int) -> Callable[[MemoryFiles], None]:
        def work(seen: MemoryFiles) -> None:
            while (done := Lake(seen, every=EVERY).position.offsets.get(partition, 0)) < GOAL:
                load_once(seen, min(done + step, GOAL), partition)

        return work

    def compactor(seen: MemoryFiles) -> None:
        for _ in range(2):
            compact_all(seen)

    def expirer(seen: MemoryFiles) -> None:
        for keep in (3, 1, 5):
            expire(seen, older_than_ms=10**6, keep=keep)

    turns.run(
        {
            "load t": actor("load t", loader(T0, 2)),
            "load t too": actor("load t too", loader(T0, 3)),
            "load u": actor("load u", loader(U0, 1)),
            "compact": actor("compact", compactor),
            "compact too": actor("compact too", compactor),
            "expire": actor("expire", expirer),
        }
    )
    return files, copies


def check(files: MemoryFiles, copies: bool) -> None:
    """Check that the lake has each row once, as of each commit that is kept."""
    lake = Lake(files, every=EVERY)
    assert lake.position.offsets == {T0: GOAL, U0: GOAL}
    assert records({path: files.content[path] for path in lake.files()}) == expected({T0: GOAL, U0: GOAL})
    if not copies:  # a move that copies may leave a copy that no commit names, if its process was overtaken
        assert sorted(lake.files()) == sorted(files.data())
    numbers = []
    for commit in lake.history():
        numbers.append(commit.number)
        rows = {path: files.content[path] for path in lake.files(commit.number)}
        assert records(rows) == expected(by_partition(commit.offsets)), f"as of commit {commit.number}"
    assert lake.last is not None and numbers == list(range(numbers[0], lake.last.number + 1))
    with pytest.raises(CommitExpired):
        lake.files(lake.last.number + 1)
    assert lake.snapshot().begins == {"t": {"0": 0}, "u": {"0": 0}}


@pytest.mark.parametrize("block", range(5))
def test_no_row_is_lost_or_there_twice(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        try:
            check(*history(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


if __name__ == "__main__":  # python -m tests.unit.lake.tables.parquet.test_interleavings FIRST LAST: many more of them
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        check(*history(number))
    print(f"{sys.argv[2]} histories, nothing lost or there twice")
