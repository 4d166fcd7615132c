"""What a lake needs of a file system, checked on a local directory and on S3's protocol."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import s3fs  # type: ignore[import-untyped]
from fsspec.implementations.memory import MemoryFileSystem

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.parquet import hdfs
from pylogd.lake.tables.parquet.files import COMMITS, DRAFTS, Files, numbered
from pylogd.lake.tables.parquet.lake import Lake
from pylogd.lake.tables.parquet.local import LocalFiles
from pylogd.lake.tables.parquet.remote import FsspecFiles
from tests.fakes import s3
from tests.fakes.s3 import S3Server
from tests.unit.lake.tables.parquet.lakes import compact_all, expected, load_once, records
from tests.unit.lake.tables.parquet.memory import MemoryFiles

Opener = Callable[[], Files]
RACES = 10


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(scope="module")
def clients(server: S3Server) -> list[Any]:
    """Clients with connections of their own, as several processes have them."""
    return [s3_client(server) for _ in range(3)]


def s3_client(server: S3Server) -> Any:
    return s3fs.S3FileSystem(
        key=s3.KEY, secret=s3.SECRET, endpoint_url=server.address, skip_instance_cache=True,
        client_kwargs={"region_name": s3.REGION},
    )  # fmt: skip


class HdfsLike(MemoryFileSystem):  # type: ignore[misc]
    """fsspec's file system in memory, with the renames of HDFS: never over a file, nor into a missing directory."""

    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    protocol = "hdfs"
    lock = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("hdfs://nn:8020").strip("/")

    def unstrip_protocol(self, name: str) -> str:
        return f"hdfs://nn:8020{name}"

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        with self.lock:
            if path2 in self.store:
                raise RuntimeError(f"org.apache.hadoop.fs.FileAlreadyExistsException: rename destination {path2}")
            if path1 not in self.store or not self.isdir(path2.rpartition("/")[0]):
                raise RuntimeError(f"java.io.FileNotFoundException: {path1} or the parent of {path2}")
            self.store[path2] = self.store.pop(path1)

    def find(self, path: str, **more: Any) -> Any:
        return super().find(path, **more) if self.isdir(path) else {}


@pytest.fixture(params=["memory", "local", "s3", "hdfs"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
    """Return a function that opens the same directory again, as another process would."""
    if request.param == "memory":
        shared = MemoryFiles()
        return lambda: shared
    if request.param == "local":
        return lambda: LocalFiles(tmp_path / "a lake")
    if request.param == "hdfs":
        monkeypatch.setattr(hdfs, "hdfs_client", lambda *_: HdfsLike(skip_instance_cache=True))
        return lambda: hdfs.HdfsFiles(f"hdfs://nn:8020{tmp_path}/lake", {})
    clients = itertools.cycle(request.getfixturevalue("clients"))
    return lambda: FsspecFiles(next(clients), f"lake/{tmp_path.name}")


def test_the_operations(opened: Opener) -> None:
    files, other = opened(), opened()
    assert files.names("x") == [] and not files.exists("x") and not files.exists("x/one")
    assert files.create("x/one", b"one\n")
    assert other.names("x") == ["one"] and other.exists("x/one") and other.exists("x")
    assert not other.create("x/one", b"another")
    assert files.create("x/deep/two", b"")
    assert other.names("x") == ["deep", "one"]
    assert (other.read("x/one"), other.read("x/deep/two")) == (b"one\n", b"")
    assert files.move("x/one", "y/z/two")
    assert not other.exists("x/one") and other.read("y/z/two") == b"one\n"
    assert files.create("x/one", b"again")
    assert not other.move("x/one", "y/z/two")
    assert files.read("y/z/two") == b"one\n" and files.read("x/one") == b"again"
    with pytest.raises(FileNotFoundError):
        files.read("x/none")
    with pytest.raises(FileNotFoundError):
        files.move("x/none", "y/none")
    for _ in range(2):
        other.delete("x")
        other.delete("y/z/two")
    assert files.names("x") == [] and files.names("y/z") == []
    assert Lake(files).last is None


def race(openers: list[Callable[[str], bool]], names: list[str]) -> list[int]:
    """Let each function create each name at the same time as the others. Return how many were told that they did."""
    wins = [0] * len(names)
    lock, barrier = threading.Lock(), threading.Barrier(len(openers))

    def take_part(create: Callable[[str], bool]) -> None:
        for at, name in enumerate(names):
            barrier.wait(30)
            if create(name):
                with lock:
                    wins[at] += 1

    threads = [threading.Thread(target=take_part, args=(each,)) for each in openers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wins


def creator(files: Files, number: int) -> Callable[[str], bool]:
    return lambda name: files.create(name, b"of %d" % number)


def test_of_several_that_create_a_file_one_does(opened: Opener) -> None:
    names = [numbered(COMMITS, number, ".json") for number in range(RACES)]
    wins = race([creator(opened(), number) for number in range(3)], names)
    assert wins == [1] * RACES
    assert opened().names(DRAFTS) == []


def test_a_store_that_ignores_the_condition_is_found_out_by_the_race() -> None:
    with S3Server(honours=False) as server:
        wins = race([creator(FsspecFiles(s3_client(server), "lake/one"), number) for number in range(3)], ["x"])
    assert wins == [3]


def test_the_server_refuses_what_exists(server: S3Server) -> None:
    client: Any = server.client()
    client.put_object(Bucket=server.bucket, Key="there", Body=b"1", IfNoneMatch="*")
    with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=server.bucket, Key="there", Body=b"2", IfNoneMatch="*")
    assert client.get_object(Bucket=server.bucket, Key="there")["Body"].read() == b"1"


def test_an_object_that_marks_a_directory_is_no_file_in_it(server: S3Server, clients: list[Any]) -> None:
    """Hadoop's S3A keeps empty directories as such objects."""
    for key in ("marked/_pylogd/staging/", "marked/_pylogd/attempts/", "marked/_pylogd/attempts/one.json"):
        server.client().put_object(Bucket=server.bucket, Key=key, Body=b"")
    files = FsspecFiles(clients[0], "lake/marked")
    assert files.names("_pylogd/staging") == []
    assert files.names("_pylogd/attempts") == ["one.json"]
    assert files.names("_pylogd") == ["attempts", "staging"]


def test_a_lake_is_loaded_compacted_and_read(opened: Opener) -> None:
    for until in (2, 4, 5):
        load_once(opened(), until)
    files = opened()
    assert records({path: files.read(path) for path in Lake(files).files()}) == expected({("t", 0): 5})
    compact_all(opened())
    lake = Lake(files)
    (path,) = lake.files()
    assert records({path: files.read(path)}) == expected({("t", 0): 5})
    assert records({each: files.read(each) for each in lake.files(2)}) == expected({("t", 0): 4})
    assert lake.layout is not None and lake.last is not None and lake.last.number == 4


# The local file system


def test_a_draft_that_others_delete_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LocalFiles(tmp_path)
    left = 3

    def deleted(draft: Path, target: Path) -> bool:
        nonlocal left
        left -= 1
        if left >= 0:
            draft.unlink()
        draft.rename(target)
        return True

    monkeypatch.setattr("pylogd.lake.tables.parquet.local._link", deleted)
    assert files.create("x", b"1")
    left = 100
    with pytest.raises(TableError, match="y: its draft in _pylogd/drafts was deleted 10 times"):
        files.create("y", b"1")


def test_local_errors_say_which_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TableError, match="file is a file, where a lake is a directory"):
        LocalFiles(tmp_path / "file")
    with pytest.raises(TableError, match=r"^file/x: "):
        LocalFiles(tmp_path).create("file/x", b"")
    with pytest.raises(TableError, match=r"^file: "):
        LocalFiles(tmp_path).names("file")


def test_a_store_that_is_not_there_is_an_error() -> None:
    with S3Server() as server:
        files = FsspecFiles(s3_client(server), "no-such-bucket/lake")
        with pytest.raises((TableError, FileNotFoundError)):
            files.create("x", b"1")
