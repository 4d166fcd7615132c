"""Symbolic links in a data directory are reported and not followed, and other users can't read its files."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path

import pytest

from pylogd.broker.log import checkpoints
from pylogd.broker.log.errors import CorruptLog, StorageFailure
from pylogd.broker.log.files import RealFileSystem, write_atomically
from pylogd.broker.log.manager import LogManager
from pylogd.broker.log.verify import Severity, verify_log_dir
from pylogd.store.errors import StoreFailure
from pylogd.store.sqlite import SqliteStore
from tests.fakes.metadata import InlineWorker, result_of
from tests.fakes.storage import TOPIC_ID, append

NOW_MS = 1_700_000_000_000


def load(path: Path) -> LogManager:
    """Return a manager that has loaded the logs in a directory."""
    manager = LogManager([str(path)], now_ms=lambda: NOW_MS, node_id=1)
    manager.load()
    return manager


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data directory with two partitions, after a clean stop."""
    path = tmp_path / "data"
    manager = load(path)
    for topic in ("t", "u"):
        append(manager.create(topic, 0, TOPIC_ID), b"value")
    manager.close()
    return path


def test_a_link_in_place_of_a_partition_takes_only_that_one_offline(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data / "t-0").rename(tmp_path / "elsewhere")
    (data / "t-0").symlink_to(tmp_path / "elsewhere")
    manager = load(data)
    assert manager.healthy == [str(data)]
    assert set(manager.logs) == {("u", 0)}
    assert "t-0: it is a symbolic link" in str(manager.offline["t", 0])
    with pytest.raises(CorruptLog):
        manager.create("t", 0, TOPIC_ID)
    append(manager.logs["u", 0], b"more")
    manager.close()
    assert (data / checkpoints.CLEAN_SHUTDOWN).exists()
    (finding,) = verify_log_dir(str(data))
    assert (finding.path, finding.severity) == (str(data / "t-0"), Severity.WARNING)
    assert any("t-0 is offline" in record.getMessage() for record in caplog.records)


def test_a_link_that_appears_later_is_not_used_for_a_new_partition(data: Path, tmp_path: Path) -> None:
    manager = load(data)
    (tmp_path / "elsewhere").mkdir()
    (data / "new-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageFailure, match="new-0: it is a symbolic link"):
        manager.create("new", 0, TOPIC_ID)
    assert manager.healthy
    assert not list((tmp_path / "elsewhere").iterdir())
    manager.close()


def test_the_target_of_a_link_is_not_removed(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    link = data / "t-0.0123456789abcdef-delete"
    link.symlink_to(precious)
    inside = data / "u-0.0123456789abcdef-delete"
    inside.mkdir()
    (inside / "link").symlink_to(precious)
    load(data).close()
    assert (precious / "file").read_text() == "kept"
    assert link.is_symlink()
    assert not inside.exists()
    assert any(str(link) in record.getMessage() for record in caplog.records)


def test_a_link_at_a_temporary_name_is_replaced(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.CLEAN_SHUTDOWN, checkpoints.META_PROPERTIES):
        (data / f"{name}.tmp").symlink_to(target)
    manager = load(data)
    append(manager.logs["t", 0], b"more")
    manager.close()
    assert target.read_text() == "kept"
    assert not (data / checkpoints.RECOVERY_POINTS).is_symlink()
    assert any(
        "was a symbolic link" in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    )
    write_atomically(RealFileSystem(), str(data / "plain"), b"text")


def test_a_checkpoint_that_is_a_link_is_not_read(data: Path, tmp_path: Path) -> None:
    path = data / checkpoints.RECOVERY_POINTS
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    before = (tmp_path / "moved").read_bytes()
    manager = load(data)
    assert set(manager.logs) == {("t", 0), ("u", 0)}
    manager.close()
    assert not path.is_symlink()
    assert (tmp_path / "moved").read_bytes() == before


def test_a_segment_that_is_a_link_takes_only_its_partition_offline(data: Path, tmp_path: Path) -> None:
    path = data / "t-0" / f"{0:020d}.log"
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    manager = load(data)
    assert set(manager.logs) == {("u", 0)}
    assert "it is a symbolic link" in str(manager.offline["t", 0])
    assert manager.healthy
    manager.close()


def test_the_data_directory_itself_may_be_a_link(data: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data)
    manager = load(tmp_path / "link")
    assert set(manager.logs) == {("t", 0), ("u", 0)}
    manager.close()


def test_files_are_readable_by_owner_and_group_only(data: Path) -> None:
    before = os.umask(0)
    try:
        manager = load(data)
        append(manager.create("new", 0, TOPIC_ID), b"value")
        manager.close()
    finally:
        os.umask(before)
    made = [data / "new-0", *(data / "new-0").iterdir(), data / checkpoints.RECOVERY_POINTS]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in made}
    assert modes == {0o640, 0o750}


def test_the_metadata_store_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    path.touch(0o644)  # as earlier releases did
    store = SqliteStore(path, worker=InlineWorker())
    result_of(store.start())
    result_of(store.ensure("/a"))
    assert {stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()} == {0o600}
    result_of(store.close())
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(StoreFailure, match="it is a symbolic link"):
        result_of(SqliteStore(path, worker=InlineWorker()).start())


def test_a_link_is_not_a_disk_failure() -> None:
    assert not StorageFailure("/data/t-0", OSError(errno.ELOOP, "Too many levels of symbolic links")).is_fatal
