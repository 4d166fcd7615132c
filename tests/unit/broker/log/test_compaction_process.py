"""Compaction in a child process: it writes the same files as in a thread, and leaves nothing if it is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pylogd
from pylogd.broker.log.compaction.candidates import log_to_clean
from pylogd.broker.log.compaction.cleaner import Cleaner, CleanerConfig
from pylogd.broker.log.compaction.jobs import (
    CleanerStopped,
    CompactionJob,
    CompactionResult,
    InstallSegment,
    OffsetMapTooSmall,
    OnProgress,
    RunJob,
    SourcesChanged,
)
from pylogd.broker.log.compaction.log_compaction import compact
from pylogd.broker.log.compaction.offset_map import OffsetMap
from pylogd.broker.log.compaction.passes import run_job
from pylogd.broker.log.compaction.process import CompactionProcess, ProcessLost
from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.errors import CorruptLog, StorageFailure
from pylogd.broker.log.files import RealFileSystem
from pylogd.broker.log.log import Log
from pylogd.broker.log.manager import LogManager
from pylogd.broker.log.storage import Storage
from pylogd.wire.records import encode_batch
from tests.conftest import CHECKOUT

NOW = 1_700_000_000_000
COMPACT = frozenset({"compact", "delete"})
SECONDS = 120


@pytest.fixture
def process() -> Iterator[CompactionProcess]:
    cleaning = CompactionProcess(1 << 20, 0.9)
    yield cleaning
    cleaning.close()


def filled(directory: Path, codec: int = 0, records: int = 600) -> tuple[LogManager, Log]:
    """Return a log with several sealed segments on real files, with the same contents each time."""
    config = LogConfig(segment_bytes=20_000, index_interval_bytes=1000, cleanup_policy=COMPACT, delete_retention_ms=0)
    manager = LogManager([str(directory)], config=config, now_ms=lambda: NOW, node_id=1, cluster_id="c")
    manager.load()
    log = manager.create("t", 0, bytes(range(16)))
    chance = random.Random(7)
    for at in range(0, records, 5):
        rows = [
            (b"k%d" % chance.randrange(50), None if (at + n) % 9 == 0 else chance.randbytes(100), NOW + at + n, ())
            for n in range(5)
        ]
        log.append(encode_batch(rows, compression=codec), leader_epoch=0)
    with log.lock:
        log.roll(log.log_end_offset, NOW)
    log.seal()
    return manager, log


def run(log: Log, run_job: RunJob, on_progress: OnProgress = lambda count: None) -> CompactionResult:
    found = log_to_clean(log, NOW)
    assert found is not None
    return compact(
        log,
        found.first_dirty_offset,
        found.end_offset,
        run_job,
        now_ms=NOW,
        on_progress=on_progress,
        check_bytes=10_000,
    )


def files(directory: Path) -> dict[str, bytes]:
    """Return the contents of the files in the directory of the partition, by name."""
    return {path.name: path.read_bytes() for path in sorted((directory / "t-0").iterdir())}


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_process_writes_the_same_files_as_a_thread(tmp_path: Path, process: CompactionProcess, codec: int) -> None:
    results = []
    for name in ("thread", "process"):
        manager, log = filled(tmp_path / name, codec)
        offset_map = OffsetMap(1 << 20)

        def in_thread(
            job: CompactionJob, on_progress: OnProgress, install: InstallSegment, offset_map: OffsetMap = offset_map
        ) -> CompactionResult:
            return run_job(Storage(RealFileSystem()), offset_map, job, on_progress, install)

        told: list[int] = []
        cleaned = run(log, in_thread if name == "thread" else process.run, told.append)
        assert log.cleaned_offset == cleaned.end_offset == 600
        found = {key: value for key, value in files(tmp_path / name).items() if not key.endswith(".deleted")}
        results.append((cleaned, found, sum(told)))
        manager.close()
    assert results[0] == results[1]
    assert results[0][0].records_kept < 60


def test_one_process_does_several_jobs(tmp_path: Path, process: CompactionProcess) -> None:
    for name in "ab":
        manager, log = filled(tmp_path / name)
        assert run(log, process.run).end_offset == 600
        manager.close()


def test_a_process_that_is_killed_has_changed_nothing(tmp_path: Path, process: CompactionProcess) -> None:
    manager, log = filled(tmp_path)
    before = files(tmp_path)

    def kill(count: int) -> None:
        if any(".cleaned" in name for name in files(tmp_path)):
            assert process._process is not None
            process._process.send_signal(signal.SIGKILL)

    with pytest.raises(ProcessLost, match="status -9"):
        run(log, process.run, kill)
    assert not log.cleaned_offset
    assert {name: data for name, data in files(tmp_path).items() if ".cleaned" not in name} == before
    assert run(log, process.run).end_offset == 600, "with a new process"
    manager.close()


def test_a_stop_leaves_no_incomplete_files(tmp_path: Path, process: CompactionProcess) -> None:
    manager, log = filled(tmp_path)
    for stop in range(100):
        left = [stop]

        def check(count: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise CleanerStopped

        try:
            done = run(log, process.run, check)
        except CleanerStopped:
            assert not [name for name in files(tmp_path) if ".cleaned" in name or ".swap" in name]
            assert not log.cleaned_offset
        else:
            break
    assert stop > 5
    assert done.end_offset == 600
    manager.close()


def test_segments_deleted_meanwhile_prevent_the_swap(tmp_path: Path, process: CompactionProcess) -> None:
    manager, log = filled(tmp_path)

    def meddle(count: int) -> None:
        if any(".cleaned" in name for name in files(tmp_path)):
            log.delete_records_before(590)
            manager.tick()

    with pytest.raises(SourcesChanged):
        run(log, process.run, meddle)
    assert not [name for name in files(tmp_path) if ".cleaned" in name]
    manager.close()


def test_errors_in_the_process_are_raised_in_the_thread(tmp_path: Path, process: CompactionProcess) -> None:
    manager, log = filled(tmp_path)
    segment = log.segments[1]
    data = Path(segment.path).read_bytes()
    Path(segment.path).write_bytes(data[:100] + b"\xff" + data[101:])
    with pytest.raises(CorruptLog, match=r"can't be compacted: byte 0: .* fails its CRC"):
        run(log, process.run)
    Path(segment.path).unlink()
    with pytest.raises(StorageFailure) as caught:
        run(log, process.run)
    assert isinstance(caught.value.cause, FileNotFoundError)
    assert caught.value.path == segment.path
    Path(segment.path).write_bytes(data)
    small = CompactionProcess(24 * 3, 0.9)
    with pytest.raises(OffsetMapTooSmall, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        run(log, small.run)
    small.close()
    assert run(log, process.run).end_offset == 600
    manager.close()


def test_a_cleaner_starts_a_process_for_a_large_job_and_ends_it(tmp_path: Path) -> None:
    manager, log = filled(tmp_path, records=12_000)
    assert log.size > 1 << 20
    before = set(children())  # of other tests
    pids: set[int] = set()
    seen = threading.Event()
    cleaner = Cleaner(manager, CleanerConfig(dedupe_buffer_bytes=1 << 20, backoff_ms=1), now_ms=lambda: NOW)
    take = cleaner._throttle.take

    def watch(count: int) -> None:
        pids.update(set(children()) - before)
        seen.set()
        take(count)

    cleaner._throttle.take = watch  # type: ignore[method-assign]
    cleaner.start()
    assert seen.wait(SECONDS)
    until(lambda: cleaner.completed > 0)
    until(lambda: not pids & set(children()))
    assert len(pids) == 1
    cleaner.stop()
    assert log.cleaned_offset == 12_000
    manager.close()


def test_a_killed_broker_leaves_no_process(tmp_path: Path) -> None:
    """The script acts as the broker: it is killed while its child process compacts."""
    script = (
        "import sys; from pathlib import Path; from tests.unit.broker.log import test_compaction_process as t; "
        "from pylogd.broker.log.compaction.process import CompactionProcess\n"
        "manager, log = t.filled(Path(sys.argv[1]))\n"
        "def check(count): print(t.children()[0], flush=True); sys.stdin.read()\n"
        "t.run(log, CompactionProcess(1 << 20, 0.9).run, check)\n"
    )
    command = [sys.executable, "-P", "-c", script, str(tmp_path)]
    path = os.pathsep.join([str(Path(pylogd.__file__).resolve().parents[1]), str(CHECKOUT)])
    env = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as broker:
        assert broker.stdout is not None
        pid = int(broker.stdout.readline())
        broker.kill()
    until(lambda: not is_running(pid))


def children() -> list[int]:
    """Return the ids of the compaction processes that are children of this process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == os.getpid() and b"pylogd.broker.log.compaction.process" in command:
                found.append(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail after a while."""
    pause = threading.Event()
    for _ in range(SECONDS * 100):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("the condition was not met in time")
