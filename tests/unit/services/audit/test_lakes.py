"""A lake is read as of its last commit, without Spark, and without a change to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.parquet.commits import Commit, DataFile
from pylogd.lake.tables.parquet.files import COMMITS, QUARANTINE, numbered
from pylogd.services.audit.lakes import LakeReader, ReadOnlyFiles


def commit(root: Path, number: int, *, added: tuple[str, ...] = (), removed: tuple[str, ...] = ()) -> None:
    """Write the document of a commit, as a loader does before it moves the files."""
    document = Commit(
        number, "load", 0, {"t": {"0": 10 * number}}, added=tuple(DataFile(path, f"s/{path}", 1, 10) for path in added),
        removed=removed, quarantined=(DataFile(f"{QUARANTINE}/q{number}", "s/q", 1, 1),),
    )  # fmt: skip
    path = root / numbered(COMMITS, number, ".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(document.as_bytes())


def names(lake: LakeReader) -> tuple[list[str], list[str]]:
    return [Path(file.path).name for file in lake.files()], [Path(file.path).name for file in lake.quarantined()]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_commits_are_seen_one_after_the_other(tmp_path: Path, scheme: str) -> None:
    lake = LakeReader(f"{scheme}{tmp_path}")
    lake.refresh()
    assert (lake.position.offsets, names(lake)) == ({}, ([], []))
    commit(tmp_path, 1, added=("a", "b"))
    before = sorted(tmp_path.rglob("*"))
    lake.refresh()
    assert (lake.position.offsets, names(lake)) == ({("t", 0): 10}, (["a", "b"], ["q1"]))
    commit(tmp_path, 2, added=("ab", "c"), removed=("a", "b"))
    commit(tmp_path, 3)
    lake.refresh()
    lake.refresh()
    assert (lake.position.offsets, names(lake)) == ({("t", 0): 30}, (["ab", "c"], ["q1", "q2", "q3"]))
    assert lake.files()[0].path == f"{scheme}{tmp_path}/ab"
    again = LakeReader(f"{scheme}{tmp_path}")
    again.refresh()
    assert names(again) == names(lake)
    assert set(before) <= set(tmp_path.rglob("*"))
    assert not list(tmp_path.rglob("*.done")), "reading completes no commit"


def test_nothing_is_written(tmp_path: Path) -> None:
    files = ReadOnlyFiles(str(tmp_path))
    for change in (
        lambda: files.create("a", b""), lambda: files.move("a", "b"), lambda: files.delete("a")
    ):  # fmt: skip
        with pytest.raises(TableError, match="only read"):
            change()


def test_a_location_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(TableError, match="can't open odd://x"):
        LakeReader("odd://x")
