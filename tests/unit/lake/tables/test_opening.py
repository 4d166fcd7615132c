"""Tables are looked at as loaders open them, and nothing is changed by it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.lake.tables.errors import LayoutChanged, TableError
from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.opening import check_directory, open_table, probe_table
from pylogd.lake.tables.parquet.files import STAGING
from pylogd.lake.tables.position import LoadRange, Position
from tests.fakes.s3 import KEY, REGION, SECRET, S3Server

LAYOUT = Layout("hour")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def s3_properties(server: S3Server, **other: str) -> dict[str, str]:
    return {
        "s3.endpoint": server.address, "s3.region": REGION, "s3.access-key-id": KEY, "s3.secret-access-key": SECRET,
        **other,
    }  # fmt: skip


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def names(folder: Path) -> list[str]:
    return [
        f"parquet:{folder}/lake", f"delta:{folder}/delta", f"iceberg:{folder}/warehouse/demo.events",
        f"iceberg:file://{folder}/other/demo.events",
    ]  # fmt: skip


def test_a_table_that_can_be_made_is_not_made(tmp_path: Path) -> None:
    for name in names(tmp_path):
        probe_table(name, LAYOUT, {})
    assert content(tmp_path) == {}


def test_a_table_that_exists_stays_as_it_is(tmp_path: Path) -> None:
    loading = LoadRange({("t", 0): 0}, {("t", 0): 5})
    for name in names(tmp_path):
        table = open_table(name)
        table.create(LAYOUT)
        table.commit(Position(), loading, (), at_ms=1)
    before = content(tmp_path)
    for name in names(tmp_path):
        probe_table(name, LAYOUT, {})
        with pytest.raises(LayoutChanged):
            probe_table(name, Layout("day"), {})
        assert open_table(name, read_only=True).position.offsets == {("t", 0): 5}
    assert content(tmp_path) == before


def test_what_a_dead_loader_left_in_a_lake_is_left(tmp_path: Path) -> None:
    stale = tmp_path / STAGING / "attempt" / "a.parquet"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"rows")
    probe_table(str(tmp_path), LAYOUT, {})
    assert stale.exists()
    open_table(str(tmp_path))
    assert not stale.exists()


def test_a_file_where_a_directory_is_needed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in names(tmp_path / "file"):
        with pytest.raises(TableError, match="file is a file, where a directory is needed"):
            probe_table(name, LAYOUT, {})


def test_a_directory_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write anywhere
    with pytest.raises(TableError, match=r"is not writable for this user .* can't be made in it: change"):
        check_directory(tmp_path / "a" / "b")
    with pytest.raises(TableError, match="so files can't be written there: change"):
        check_directory(tmp_path)
    (tmp_path / "a").mkdir()
    check_directory(tmp_path / "a")


def test_a_lake_on_s3_is_asked_whether_it_can_be_written_to(server: S3Server) -> None:
    probe_table(f"s3://{S3Server.bucket}/new", LAYOUT, s3_properties(server))
    client = server.client()
    assert "Contents" not in client.list_objects_v2(Bucket=S3Server.bucket)
    assert "Uploads" not in client.list_multipart_uploads(Bucket=S3Server.bucket)
    with pytest.raises(TableError, match="bucket"):
        probe_table("s3://missing/new", LAYOUT, s3_properties(server))


@pytest.mark.parametrize(
    ("name", "properties", "said"),
    [
        ("delta:hdfs://127.0.0.1:1/t", {}, "Connection refused"),
        ("iceberg:demo.t", {"type": "rest", "uri": "http://127.0.0.1:1"}, "Connection refused"),
        ("iceberg:demo.t", {}, "no catalog is known"),
        ("iceberg:s3://bucket/demo.t", {}, "catalog can't be a file in it"),
    ],
)
def test_places_that_do_not_answer_are_named(name: str, properties: dict[str, str], said: str) -> None:
    with pytest.raises(TableError, match=said):
        probe_table(name, LAYOUT, properties)
