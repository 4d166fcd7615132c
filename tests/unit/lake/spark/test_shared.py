"""A lake's files by Spark Connect: which directories can be used, and one that Spark does not share."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylogd.lake.spark.errors import NotByConnect
from pylogd.lake.spark.shared import SharedFiles
from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.parquet.files import STAGING


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_paths_have_the_scheme_of_files(tmp_path: Path, form: str) -> None:
    files = SharedFiles(form.format(tmp_path))
    assert files.root == f"file:{tmp_path}"
    assert files.path("a/b c") == f"file:{tmp_path}/a/b c"
    assert files.create("a/b", b"x") and (tmp_path / "a/b").read_bytes() == b"x"


def test_a_relative_path_is_below_the_present_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert SharedFiles("lake").root == f"file:{tmp_path}/lake"


@pytest.mark.parametrize("name", ["hdfs://h/lake", "s3a://b/lake", "abfs://c@a/lake", "hdfs:/lake"])
def test_other_file_systems_need_a_driver_of_ones_own(name: str) -> None:
    with pytest.raises(NotByConnect, match="Use a driver of your own"):
        SharedFiles(name)


def test_a_directory_that_spark_does_not_share(tmp_path: Path) -> None:
    files = SharedFiles(str(tmp_path))
    attempt = f"{STAGING}/1f"
    with pytest.raises(TableError, match="there is no such directory on this machine"):
        files.data_files(f"{attempt}/side=lake")
    (tmp_path / attempt).mkdir(parents=True)
    assert files.data_files(f"{attempt}/side=lake") == []
    (tmp_path / attempt / "side=lake").mkdir()
    (tmp_path / attempt / "side=lake/part.parquet").write_bytes(b"123")
    assert files.data_files(f"{attempt}/side=lake") == [(f"{attempt}/side=lake/part.parquet", 3)]


def test_a_file_is_no_lake(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TableError, match="is a file"):
        SharedFiles(str(tmp_path / "file"))
