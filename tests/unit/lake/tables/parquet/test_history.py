"""Checkpoints, time travel and expiry."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict

import pytest

from pylogd.lake.tables.errors import CommitConflict, TableError
from pylogd.lake.tables.parquet import checkpoints
from pylogd.lake.tables.parquet.attempts import Claim
from pylogd.lake.tables.parquet.changes import Load
from pylogd.lake.tables.parquet.commits import Commit, DataFile
from pylogd.lake.tables.parquet.expiry import Expired, expire
from pylogd.lake.tables.parquet.files import CHECKPOINTS, COMMITS, FLOORS, numbered
from pylogd.lake.tables.parquet.history import CommitExpired, History
from pylogd.lake.tables.parquet.lake import Lake
from pylogd.lake.tables.position import LoadRange, by_partition
from tests.unit.lake.tables.parquet.lakes import T0, compact_all, expected, load_once, records, stage
from tests.unit.lake.tables.parquet.memory import MemoryFiles

MANY = 2_000


def long_lake(version: int) -> MemoryFiles:
    """Return a lake of many commits of one small file each, without checkpoints."""
    files = MemoryFiles()
    for number in range(1, MANY + 1):
        path = f"topic=t/{number:06d}-part-0"
        commit = Commit(
            number, "load", number, {"t": {"0": number}}, {"t": {"0": 1}}, (DataFile(path, "", 4, 1),), version=version,
            applied=number - 1 if version == 3 else None,
        )  # fmt: skip
        files.content[numbered(COMMITS, number, ".json")] = json.dumps(asdict(commit)).encode()
        files.content[numbered(COMMITS, number, ".done")] = b""
    return files


def checkpoint_numbers(files: MemoryFiles, directory: str = CHECKPOINTS) -> list[int]:
    return [place.number for place in checkpoints.found(files, directory)]


def test_opening_a_lake_of_many_commits_reads_a_few() -> None:
    files = long_lake(3)
    load_once(files, MANY + 1, every=64)  # a lake without checkpoints is listed, and gets one
    assert checkpoint_numbers(files) == [MANY + 1]
    for until in range(MANY + 2, MANY + 64):
        load_once(files, until, every=64)
    before = files.calls
    lake = Lake(files)
    assert lake.position.offsets == {T0: MANY + 63}
    assert files.calls - before < 64 + 12
    assert len(lake.files()) == MANY + 63
    assert files.calls - before < 2 * 64 + 20


def test_a_checkpoint_is_written_every_so_many_commits_and_old_ones_are_deleted() -> None:
    files = MemoryFiles()
    for until in range(1, 40):
        load_once(files, until)
    assert checkpoint_numbers(files) == [32, 36]
    for until in range(40, 150):
        load_once(files, until)
    assert checkpoint_numbers(files) == [64, 128, 144, 148], "one in 16 stays for time travel"
    lake = Lake(files)
    for number in (1, 63, 64, 65, 148, 149):
        rows = {path: files.content[path] for path in lake.files(number)}
        assert records(rows) == expected({T0: number})


def test_a_lake_without_its_newest_checkpoint_is_read_from_the_one_before() -> None:
    files = MemoryFiles()
    for until in range(1, 15):
        load_once(files, until)
    whole = Lake(files).snapshot()
    for number in (12, 8):
        files.delete(numbered(CHECKPOINTS, number, ".json"))  # as if a crash came between the two files of one
        assert Lake(files).snapshot() == whole
        assert Lake(files).position.offsets == {T0: 14}


@pytest.mark.parametrize("suffix", [".json", ".parquet"])
@pytest.mark.parametrize("garbage", [b"", b"{}", b'{"version": 9}'])
def test_a_damaged_checkpoint_is_an_error(suffix: str, garbage: bytes) -> None:
    files = MemoryFiles()
    for until in range(1, 6):
        load_once(files, until)
    files.content[numbered(CHECKPOINTS, 4, suffix)] = garbage
    with pytest.raises(TableError, match=rf"0004\{suffix} is not a checkpoint of a pylogd lake"):
        Lake(files).files()


def test_a_checkpoint_that_can_not_be_written_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Full(MemoryFiles):
        def create(self, path: str, data: bytes) -> bool:
            if path.startswith(CHECKPOINTS):
                raise TableError("the disk is full")
            return super().create(path, data)

    files = Full()
    with caplog.at_level(logging.WARNING):
        for until in range(1, 5):
            load_once(files, until)
    assert "Commit 4 took effect, but its checkpoint was not written: the disk is full" in caplog.text
    assert Lake(files).position.offsets == {T0: 4}


def test_a_lake_as_of_an_earlier_commit_has_the_files_that_were_replaced_since() -> None:
    files = MemoryFiles()
    for until in (2, 4):
        load_once(files, until)
    compact_all(files)
    load_once(files, 6)
    compact_all(files)
    lake = Lake(files)
    for number, rows, count in ((1, 2, 2), (2, 4, 4), (3, 4, 1), (4, 6, 3), (5, 6, 1)):
        found = lake.files(number)
        assert records({path: files.content[path] for path in found}) == expected({T0: rows})
        assert len(found) == count
    assert sorted(files.data()) == sorted(lake.files())
    for number in (0, 6):
        with pytest.raises(CommitExpired, match=f"there is no commit {number} in the lake: kept are 1 to 5"):
            lake.files(number)


# Expiry


def test_expired_commits_are_deleted_and_the_others_stay() -> None:
    files = MemoryFiles()
    for until in range(1, 11):
        load_once(files, until, at_ms=until)
        if until % 2 == 0:
            compact_all(files)
    lake = Lake(files)
    assert lake.last is not None and lake.last.number == 15
    before = {number: sorted(lake.files(number)) for number in range(9, 16)}
    done = expire(files, older_than_ms=7, keep=1)
    assert done.floor == 9  # commits 3, 6 and 9 are compactions, made at 5000: their order decides, not their time
    lake = Lake(files)
    assert [commit.number for commit in lake.history()] == list(range(9, 16))
    assert {number: sorted(lake.files(number)) for number in range(9, 16)} == before
    assert done.commits == 8 and done.files
    assert checkpoint_numbers(files, FLOORS) == [9]
    assert lake.snapshot().begins == {"t": {"0": 0}}
    with pytest.raises(CommitExpired, match="there is no commit 8 in the lake: kept are 9 to 15"):
        lake.files(8)
    assert records(files.data()) == expected({T0: 10})


@pytest.mark.parametrize(
    ("older_than_ms", "keep", "floor"),
    [(0, 1, 1), (5, 1, 5), (5, 8, 3), (100, 3, 8), (100, 0, 10)],
)
def test_commits_are_kept_by_age_and_by_number(older_than_ms: int, keep: int, floor: int) -> None:
    files = MemoryFiles()
    for until in range(1, 11):
        load_once(files, until, at_ms=until)
    assert expire(files, older_than_ms=older_than_ms, keep=keep) == Expired(floor, floor - 1, 0)
    assert next(Lake(files).history()).number == floor
    assert expire(files, older_than_ms=older_than_ms, keep=keep) == Expired(floor, 0, 0)
    load_once(files, 12)
    assert records(files.data()) == expected({T0: 12})


def test_an_empty_lake_has_nothing_to_expire() -> None:
    assert expire(MemoryFiles(), older_than_ms=10, keep=1) == Expired(1, 0, 0)


def test_replaced_files_are_deleted_when_no_commit_that_is_kept_has_them() -> None:
    files = MemoryFiles()
    load_once(files, 3)
    compact_all(files)
    load_once(files, 6)
    compact_all(files)

    def replaced() -> int:
        return sum("/replaced/" in path for path in files.content)

    assert replaced() == 3 + 4
    expire(files, older_than_ms=10**6, keep=3)
    assert replaced() == 4, "those of commit 2, since commit 2 is the oldest one kept"
    expire(files, older_than_ms=10**6, keep=1)
    assert replaced() == 0
    assert records(files.data()) == expected({T0: 6})


def test_a_process_that_slept_while_commits_expired_can_not_commit_in_their_place() -> None:
    files = MemoryFiles()
    load_once(files, 1)
    sleeper = Lake(files)
    planned, loading = sleeper.position, LoadRange({("u", 0): 0}, {("u", 0): 1})
    attempt = sleeper.attempt(Claim.of_load(planned, loading))
    staged = stage(files, attempt, "topic=u", b"u0:0")
    for until in range(2, 10):
        load_once(files, until)
    expire(files, older_than_ms=10**6, keep=1)
    with pytest.raises(
        CommitConflict, match="commit 2 had been made, and has expired since this process read the lake"
    ):
        sleeper.commit(Load(planned, loading, staged, (), 1, sleeper.layout or pytest.fail()), [attempt])
    lake = Lake(files)
    assert lake.position.offsets == {T0: 9}
    assert [commit.number for commit in lake.history()] == [9]
    load_once(files, 1, ("u", 0))
    expire(files, older_than_ms=10**6, keep=1)
    assert records(files.data()) == expected({T0: 9, ("u", 0): 1})
    assert files.names(COMMITS) == [f"{10:020}.done", f"{10:020}.json"], "what it wrote is deleted by the next expiry"


def test_a_lake_with_a_floor_and_no_other_checkpoint_is_opened_from_it() -> None:
    files = MemoryFiles()
    for until in range(1, 4):
        load_once(files, until)
    expire(files, older_than_ms=10**6, keep=2)
    assert checkpoint_numbers(files) == [] and checkpoint_numbers(files, FLOORS) == [2]
    history = History(files)
    assert history.checkpoint is not None and history.checkpoint.commit.number == 2
    assert [by_partition(commit.offsets) for commit in Lake(files).history()] == [{T0: 2}, {T0: 3}]
