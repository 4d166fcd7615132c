"""The operating system's file system, and the classes and functions of storage that use it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pylogd.broker.log import checkpoints
from pylogd.broker.log.errors import CorruptFile, LogDirLocked
from pylogd.broker.log.files import FileSlice, RealFileSystem, SegmentFile, read_file, write_all, write_atomically
from pylogd.broker.log.index import IndexCorrupt, OffsetIndex, TimeIndex
from pylogd.broker.log.manager import LogManager
from pylogd.broker.log.storage import LruCache
from pylogd.broker.log.verify import verify_log_dir
from tests.fakes.filesystem import MemoryFileSystem
from tests.fakes.storage import START_MS, TOPIC_ID, append, values

FS = RealFileSystem()


def test_a_real_log(tmp_path: Path) -> None:
    manager = LogManager([str(tmp_path)], now_ms=lambda: START_MS)
    manager.load()
    log = manager.create("t", 0, TOPIC_ID)
    for at in range(100):
        append(log, b"%d" % at)
    found = log.read(50, 1000)
    assert found is not None
    assert found.is_warm(found.position, found.length)
    assert os.pread(found.fileno(), found.length, found.position) == found.read()
    manager.tick()
    with pytest.raises(LogDirLocked):
        LogManager([str(tmp_path)], now_ms=lambda: START_MS).load()
    assert manager.usage()[0].total_bytes > manager.usage()[0].usable_bytes > 0
    manager.close()
    manager = LogManager([str(tmp_path)], now_ms=lambda: START_MS)
    manager.load()
    assert values(manager.logs["t", 0]) == [b"%d" % at for at in range(100)]
    manager.delete("t", 0)
    manager.close()
    assert next(verify_log_dir(str(tmp_path))).message.startswith("a deleted partition")


def test_a_descriptor_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    file = SegmentFile(FS, str(path))
    part = FileSlice(file, 2, 5)
    del file
    path.unlink()
    gc.collect()
    assert (part.read(), len(part)) == (b"23456", 5)
    fd = part.fileno()
    del part
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_truncated_file_returns_fewer_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123")
    file = SegmentFile(FS, str(path))
    assert FileSlice(file, 2, 5).read() == b"23"
    assert file.read_warm(2, 5) == bytearray(b"23")
    assert not FileSlice(file, 2, 5).is_warm(1 << 20, 1)


def test_a_missing_file_holds_no_descriptor(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SegmentFile(FS, str(tmp_path / "none"))


def test_an_atomic_write_leaves_the_old_or_the_new() -> None:
    fs = MemoryFileSystem()
    fs.mkdir("/d")
    write_atomically(fs, "/d/f", b"old")
    for operation in ("open", "pwritev", "fsync", "rename"):
        with fs.failing(operation, 5), pytest.raises(OSError):
            write_atomically(fs, "/d/f", b"new")
        assert read_file(fs, "/d/f") == b"old"
        assert fs.listdir("/d") == ["f"]
    write_atomically(fs, "/d/f", b"new")
    fs.fsync_dir("/")
    fs.lose_power()
    assert read_file(fs, "/d/f") == b"new"


def test_all_bytes_are_written_in_several_calls() -> None:
    fs = MemoryFileSystem()
    fd = fs.open("/f", os.O_CREAT)
    with fs.failing("pwritev", 0, partial=3):
        write_all(fs, fd, b"0123456789")
    assert fs.files["/f"].data == b"0123456789"
    with fs.failing("pwritev", 0, partial=0, lasting=True), pytest.raises(OSError):
        write_all(fs, fd, b"x")


def test_the_cache_drops_the_least_recently_used() -> None:
    cache: LruCache[str] = LruCache(4, len)
    cache.put("a", "aa")
    cache.put("b", "bb")
    assert cache.get("a") == "aa"
    cache.put("c", "c")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("aa", None, "c")
    cache.put("d", "ddddddd")
    assert (cache.get("a"), cache.get("d"), cache.weight) == (None, "ddddddd", 7)
    cache.discard("d")
    cache.discard("d")
    assert cache.weight == 0


def test_offset_index() -> None:
    index = OffsetIndex(100)
    assert index.lookup(100) == 0
    for offset, position in ((104, 50), (110, 90), (120, 300)):
        index.append(offset, position)
    assert [index.lookup(offset) for offset in (100, 103, 104, 109, 110, 119, 120, 500)] == [
        0,
        0,
        50,
        50,
        90,
        90,
        300,
        300,
    ]
    data = index.to_bytes()
    assert data.hex() == "00000004000000320000000a0000005a000000140000012c"
    assert OffsetIndex.from_bytes(data, 100, 301).pairs() == index.pairs()
    with pytest.raises(IndexCorrupt):
        OffsetIndex.from_bytes(data, 100, 300)
    index.truncate(115, 90)
    assert index.pairs() == [(104, 50)]


def test_time_index() -> None:
    index = TimeIndex(100)
    for stamp, offset in ((5, 101), (5, 103), (4, 104), (9, 106), (12, 106)):
        index.append(stamp, offset)
    assert index.pairs() == [(5, 101), (9, 106)]
    assert [index.lookup(stamp) for stamp in (4, 5, 8, 9, 99)] == [100, 101, 101, 106, 106]
    assert index.to_bytes().hex() == "000000000000000500000001000000000000000900000006"
    assert TimeIndex.from_bytes(index.to_bytes(), 100).pairs() == index.pairs()
    index.truncate(102)
    assert index.last() == (5, 101)


def test_checkpoints_are_kafkas() -> None:
    fs = MemoryFileSystem()
    fs.mkdir("/d")
    checkpoints.write_offsets(fs, "/d", checkpoints.RECOVERY_POINTS, {("b", 1): 7, ("a", 0): 3})
    assert read_file(fs, "/d/recovery-point-offset-checkpoint") == b"0\n2\na 0 3\nb 1 7\n"
    assert checkpoints.read_offsets(fs, "/d", checkpoints.RECOVERY_POINTS) == {("a", 0): 3, ("b", 1): 7}
    checkpoints.write_leader_epochs(fs, "/d", [(0, 0), (4, 10)])
    assert read_file(fs, "/d/leader-epoch-checkpoint") == b"0\n2\n0 0\n4 10\n"
    checkpoints.prepare_partition_metadata(fs, "/d", TOPIC_ID)
    assert checkpoints.read_partition_metadata(fs, "/d") is None
    checkpoints.complete_partition_metadata(fs, "/d")
    assert read_file(fs, "/d/partition.metadata") == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert checkpoints.read_partition_metadata(fs, "/d") == TOPIC_ID
    checkpoints.write_clean_shutdown(fs, "/d")
    assert read_file(fs, "/d/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":-1}'
    assert checkpoints.take_clean_shutdown(fs, "/d")
    assert not checkpoints.take_clean_shutdown(fs, "/d")


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("partition.metadata", b"version: 1\n", checkpoints.read_partition_metadata),
        ("partition.metadata", b"version: 0\ntopic_id: short\n", checkpoints.read_partition_metadata),
        ("meta.properties", b"node.id=x\n", checkpoints.read_meta_properties),
        ("leader-epoch-checkpoint", b"0\n2\n1 5\n1 6\n", checkpoints.read_leader_epochs),
        ("leader-epoch-checkpoint", b"0\n1\na b\n", checkpoints.read_leader_epochs),
    ],
)
def test_small_files_of_garbage(name: str, content: bytes, read: Callable[[MemoryFileSystem, str], object]) -> None:
    fs = MemoryFileSystem()
    fs.mkdir("/d")
    assert not read(fs, "/d")
    write_atomically(fs, f"/d/{name}", content)
    with pytest.raises(CorruptFile, match=name):
        read(fs, "/d")
