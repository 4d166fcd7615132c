"""Several threads use the data directories at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pylogd.broker.log.append.staged import AppendRequest, StagedAppend, prepare
from pylogd.broker.log.checkpoints import RECOVERY_POINTS, read_offsets
from pylogd.broker.log.files import RealFileSystem
from pylogd.broker.log.log import Log
from pylogd.broker.log.manager import LogManager
from tests.fakes.parts import NOW_MS, batch


def test_several_threads_truncate_logs(tmp_path: Path) -> None:
    """After a failover many logs are truncated at the same time, and share one write of the checkpoints."""
    manager = LogManager([str(tmp_path)], now_ms=lambda: NOW_MS)
    manager.load()
    keys = [("t", index) for index in range(24)]
    for key in keys:
        log = manager.create(*key, b"i" * 16)
        for _ in range(3):
            log.append(batch(b"v"), leader_epoch=0)
        log.flush()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda key: manager.truncate_to(key[0], key[1], 1), keys)) == [1] * len(keys)
    assert manager.healthy
    points = read_offsets(RealFileSystem(), str(tmp_path), RECOVERY_POINTS)
    assert points == dict.fromkeys(keys, 1)
    manager.close()


def begin_write(log: Log) -> StagedAppend:
    """Prepare the write of a batch, which `end_write` makes."""
    log.writing.acquire()
    return prepare(log, [AppendRequest(batch(b"of the old log"), 0)])


def end_write(log: Log, staged: StagedAppend) -> None:
    staged.write()
    staged.commit()
    log.writing.release()


@pytest.mark.parametrize("name", ["delete", "keep_aside"])
def test_a_new_log_waits_until_a_write_of_the_removed_one_is_done(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = LogManager([str(tmp_path)], now_ms=lambda: NOW_MS, staged_appends=True)
    manager.load()
    old = manager.create("t", 0, b"i" * 16)
    staged = begin_write(old)
    removing, creating = threading.Event(), threading.Event()
    exclude_appends, wait_until_removed = Log.exclude_appends, manager._registry.wait_until_removed

    def exclude(log: Log) -> Any:
        removing.set()
        return exclude_appends(log)

    def wait(key: tuple[str, int]) -> None:
        creating.set()
        wait_until_removed(key)

    monkeypatch.setattr(Log, "exclude_appends", exclude)
    with ThreadPoolExecutor(2) as pool:
        removed = pool.submit(getattr(manager, name), "t", 0)
        assert removing.wait(10)
        monkeypatch.setattr(manager._registry, "wait_until_removed", wait)
        created = pool.submit(manager.create, "t", 0, b"j" * 16)
        assert creating.wait(10)
        assert manager.logs["t", 0] is old
        assert not removed.done()
        assert not created.done()
        end_write(old, staged)
        removed.result(10)
        new = created.result(10)
    assert new is not old
    assert (new.log_end_offset, new.size) == (0, 0)
    assert manager.logs["t", 0] is new
    (aside,) = (path for path in tmp_path.iterdir() if path.is_dir() and path.name != "t-0")
    assert b"of the old log" in (aside / f"{0:020d}.log").read_bytes()
    manager.close()


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("name", ["delete", "keep_aside"])
def test_a_removal_changes_nothing_before_writes_are_done(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = LogManager([str(tmp_path)], now_ms=lambda: NOW_MS, staged_appends=True)
    manager.load()
    log = manager.create("t", 0, b"i" * 16)

    def exclude(log: Log) -> Any:
        raise Interrupted

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(Log, "exclude_appends", exclude)
        getattr(manager, name)("t", 0)
    assert manager.logs["t", 0] is log
    assert not log.closed
    getattr(manager, name)("t", 0)
    assert manager.create("t", 0, b"j" * 16) is not log
    manager.close()
