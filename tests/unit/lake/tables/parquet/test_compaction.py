"""Compaction of a lake on a file system in memory, beside loads and other compactions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.parquet.attempts import Claim
from pylogd.lake.tables.parquet.changes import Compaction, FileGroup, GroupsReplaced
from pylogd.lake.tables.parquet.commits import DataFile
from pylogd.lake.tables.parquet.compaction import CompactionConflict, compact, small_files
from pylogd.lake.tables.parquet.files import ATTEMPTS, STAGING
from pylogd.lake.tables.parquet.lake import Lake
from tests.unit.lake.tables.parquet.lakes import T0, compact_all, expected, load_once, records, stage
from tests.unit.lake.tables.parquet.memory import MemoryFiles


def leftovers(files: MemoryFiles) -> list[str]:
    return files.names(STAGING) + files.names(ATTEMPTS)


def test_a_compaction_goes_on_when_loads_are_committed_meanwhile() -> None:
    files = MemoryFiles()
    load_once(files, 3)

    def rewrite(attempt: str, directory: str, small: Sequence[DataFile]) -> list[DataFile]:
        load_once(files, 5)
        return stage(files, attempt, directory, b",".join(files.read(file.path) for file in small))

    (done,) = compact(files, 1000, rewrite, now_ms=lambda: 5)
    assert (done.number, len(done.removed)) == (3, 3)
    assert records(files.data()) == expected({T0: 5})
    assert len(files.data()) == 3


def test_a_compaction_overtaken_by_another_is_planned_anew() -> None:
    files = MemoryFiles()
    load_once(files, 3)
    load_once(files, 2, ("u", 0))
    calls = []

    def rewrite(attempt: str, directory: str, small: Sequence[DataFile]) -> list[DataFile]:
        calls.append(directory)
        text = b",".join(files.read(file.path) for file in small)
        if calls == ["topic=t"]:
            compact_all(files)
            load_once(files, 6)
        return stage(files, attempt, directory, text)

    done = list(compact(files, 1000, rewrite, now_ms=lambda: 5))
    assert calls == ["topic=t", "topic=u", "topic=t"]
    assert [len(commit.removed) for commit in done] == [4]
    assert records(files.data()) == expected({T0: 6, ("u", 0): 2})
    assert len(files.data()) == 2
    assert not leftovers(files)


def test_a_compaction_that_is_always_overtaken_ends_with_an_error() -> None:
    files = MemoryFiles()
    loaded = iter(range(3, 100, 3))
    load_once(files, next(loaded))

    def rewrite(attempt: str, directory: str, small: Sequence[DataFile]) -> list[DataFile]:
        text = b",".join(files.read(file.path) for file in small)
        compact_all(files)
        load_once(files, next(loaded))
        return stage(files, attempt, directory, text)

    with pytest.raises(
        CompactionConflict, match="compacted 1 directories, such as topic=t, 4 times while this one did"
    ):
        list(compact(files, 1000, rewrite, now_ms=lambda: 5))
    assert records(files.data()) == expected(Lake(files).position.offsets)
    assert not leftovers(files)


def test_an_error_in_a_rewrite_is_raised_and_leaves_nothing() -> None:
    files = MemoryFiles()
    load_once(files, 3)

    def fail(attempt: str, directory: str, small: Sequence[DataFile]) -> list[DataFile]:
        stage(files, attempt, directory, b"half")
        raise ZeroDivisionError

    def lose(attempt: str, directory: str, small: Sequence[DataFile]) -> list[DataFile]:
        return stage(files, attempt, directory, files.read(small[0].path))

    with pytest.raises(ZeroDivisionError):
        list(compact(files, 1000, fail, now_ms=lambda: 5))
    with pytest.raises(TableError, match="compacting 3 rows of topic=t wrote 1: nothing was committed"):
        list(compact(files, 1000, lose, now_ms=lambda: 5))
    assert records(files.data()) == expected({T0: 3})
    assert not leftovers(files)


def test_groups_are_compacted_in_threads_and_committed_as_they_finish() -> None:
    files = MemoryFiles()
    for number in range(6):
        load_once(files, 3, (f"t{number}", 0))

    def rewrite(attempt: str, directory: str, small: Sequence[DataFile]) -> list[DataFile]:
        return stage(files, attempt, directory, b",".join(files.read(file.path) for file in small))

    done = list(compact(files, 1000, rewrite, now_ms=lambda: 5, threads=3))
    assert sum(len(commit.added) for commit in done) == 6
    assert records(files.data()) == expected({(f"t{number}", 0): 3 for number in range(6)})
    assert len(files.data()) == 6
    assert not leftovers(files)


def test_replaced_files_can_not_be_replaced_again() -> None:
    files = MemoryFiles()
    load_once(files, 2)
    lake = Lake(files)
    small = list(lake.files().values())
    attempt = lake.attempt(Claim(replaces=[file.path for file in small]))
    added = stage(files, attempt, "topic=t", b"t0:0,t0:1")
    compact_all(files)
    with pytest.raises(GroupsReplaced):
        lake.commit(Compaction([FileGroup(attempt, added, small)], 1), [attempt])


def test_small_files_are_those_below_half_of_the_size_where_there_are_several() -> None:
    sizes = {"a/1": 10, "a/2": 49, "a/3": 50, "b/1": 1, "1": 1, "2": 2}
    found = small_files({path: DataFile(path, "", size, 1) for path, size in sizes.items()}, 100)
    assert {name: [file.path for file in small] for name, small in found.items()} == {
        "": ["1", "2"],
        "a": ["a/1", "a/2"],
    }
