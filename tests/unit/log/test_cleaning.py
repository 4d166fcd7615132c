"""The passes of a compaction in a process of their own: the same files as in a thread, nothing left of a lost one."""

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
from pylogd.log.cleaner import Cleaner, CleanerConfig, CleanerStopped, cleanable
from pylogd.log.cleaning import CleaningProcess, ProcessLost
from pylogd.log.compaction import Check, Cleaned, KeyMapTooSmall, Passes, SourcesChanged, compact, run_passes
from pylogd.log.config import LogConfig
from pylogd.log.errors import CorruptLog, StorageFailure
from pylogd.log.files import RealFileSystem
from pylogd.log.keymap import KeyMap
from pylogd.log.log import Log
from pylogd.log.manager import LogManager
from pylogd.log.segment import Storage
from pylogd.wire.records import encode_batch
from tests.conftest import CHECKOUT

NOW = 1_700_000_000_000
COMPACT = frozenset({"compact", "delete"})
SECONDS = 120


@pytest.fixture
def process() -> Iterator[CleaningProcess]:
    cleaning = CleaningProcess(1 << 20, 0.9)
    yield cleaning
    cleaning.close()


def filled(directory: Path, codec: int = 0, records: int = 600) -> tuple[LogManager, Log]:
    """A log of several segments on real files, the same each time, sealed."""
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


def run(log: Log, passes: Passes, check: Check = lambda count: None) -> Cleaned:
    found = cleanable(log, NOW)
    assert found is not None
    return compact(log, found.first_dirty, found.end, passes, now_ms=NOW, check=check, check_bytes=10_000)


def files(directory: Path) -> dict[str, bytes]:
    """What the partition's directory holds."""
    return {path.name: path.read_bytes() for path in sorted((directory / "t-0").iterdir())}


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_process_makes_the_same_files_as_a_thread(tmp_path: Path, process: CleaningProcess, codec: int) -> None:
    results = []
    for name in ("thread", "process"):
        manager, log = filled(tmp_path / name, codec)
        keys = KeyMap(1 << 20)

        def here(stretch, check, place, keys=keys):  # type: ignore[no-untyped-def]
            return run_passes(Storage(RealFileSystem()), keys, stretch, check, place)

        told: list[int] = []
        cleaned = run(log, here if name == "thread" else process.passes, told.append)
        assert log.cleaned_offset == cleaned.end == 600
        found = {key: value for key, value in files(tmp_path / name).items() if not key.endswith(".deleted")}
        results.append((cleaned, found, sum(told)))
        manager.close()
    assert results[0] == results[1]
    assert results[0][0].records_kept < 60


def test_one_process_does_one_log_after_the_other(tmp_path: Path, process: CleaningProcess) -> None:
    for name in "ab":
        manager, log = filled(tmp_path / name)
        assert run(log, process.passes).end == 600
        manager.close()


def test_a_process_that_is_killed_has_changed_nothing(tmp_path: Path, process: CleaningProcess) -> None:
    manager, log = filled(tmp_path)
    before = files(tmp_path)

    def kill(count: int) -> None:
        if any(".cleaned" in name for name in files(tmp_path)):
            assert process._process is not None
            process._process.send_signal(signal.SIGKILL)

    with pytest.raises(ProcessLost, match="status -9"):
        run(log, process.passes, kill)
    assert not log.cleaned_offset
    assert {name: data for name, data in files(tmp_path).items() if ".cleaned" not in name} == before
    assert run(log, process.passes).end == 600, "with a new process"
    manager.close()


def test_a_stop_leaves_nothing_half_written(tmp_path: Path, process: CleaningProcess) -> None:
    manager, log = filled(tmp_path)
    for stop in range(100):
        left = [stop]

        def check(count: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise CleanerStopped

        try:
            done = run(log, process.passes, check)
        except CleanerStopped:
            assert not [name for name in files(tmp_path) if ".cleaned" in name or ".swap" in name]
            assert not log.cleaned_offset
        else:
            break
    assert stop > 5
    assert done.end == 600
    manager.close()


def test_sources_that_were_taken_away_refuse_the_swap(tmp_path: Path, process: CleaningProcess) -> None:
    manager, log = filled(tmp_path)

    def meddle(count: int) -> None:
        if any(".cleaned" in name for name in files(tmp_path)):
            log.delete_records_before(590)
            manager.tick()

    with pytest.raises(SourcesChanged):
        run(log, process.passes, meddle)
    assert not [name for name in files(tmp_path) if ".cleaned" in name]
    manager.close()


def test_failures_are_raised_as_they_happened_there(tmp_path: Path, process: CleaningProcess) -> None:
    manager, log = filled(tmp_path)
    segment = log.segments[1]
    data = Path(segment.path).read_bytes()
    Path(segment.path).write_bytes(data[:100] + b"\xff" + data[101:])
    with pytest.raises(CorruptLog, match=r"can't be compacted: byte 0: .* fails its CRC"):
        run(log, process.passes)
    Path(segment.path).unlink()
    with pytest.raises(StorageFailure) as caught:
        run(log, process.passes)
    assert isinstance(caught.value.cause, FileNotFoundError)
    assert caught.value.path == segment.path
    Path(segment.path).write_bytes(data)
    small = CleaningProcess(24 * 3, 0.9)
    with pytest.raises(KeyMapTooSmall, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        run(log, small.passes)
    small.close()
    assert run(log, process.passes).end == 600
    manager.close()


def test_a_cleaner_uses_a_process_for_what_takes_a_while_and_ends_it(tmp_path: Path) -> None:
    manager, log = filled(tmp_path, records=12_000)
    assert log.size > 1 << 20
    before = set(children())  # of other tests, if any
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
    until(lambda: cleaner.cleaned > 0)
    until(lambda: not pids & set(children()))
    assert len(pids) == 1
    cleaner.stop()
    assert log.cleaned_offset == 12_000
    manager.close()


def test_a_killed_broker_leaves_no_process(tmp_path: Path) -> None:
    """The script is a broker as far as this goes: it dies with -9 while its process compacts."""
    script = (
        "import sys; from pathlib import Path; from tests.unit.log import test_cleaning as t; "
        "from pylogd.log.cleaning import CleaningProcess\n"
        "manager, log = t.filled(Path(sys.argv[1]))\n"
        "def check(count): print(t.children()[0], flush=True); sys.stdin.read()\n"
        "t.run(log, CleaningProcess(1 << 20, 0.9).passes, check)\n"
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
    """The cleaning processes of this process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == os.getpid() and b"pylogd.log.cleaning" in command:
                found.append(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], bool]) -> None:
    """Wait for it, within bounds."""
    pause = threading.Event()
    for _ in range(SECONDS * 100):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come to that")
