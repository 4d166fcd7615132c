"""A cleaner for each data directory: a disk that hangs holds up only its own logs, and not the stop of the broker."""

from __future__ import annotations

import errno
import threading

import pytest

from pylogd.broker.log.compaction import cleaner as cleaner_module
from pylogd.broker.log.compaction import log_compaction
from pylogd.broker.log.compaction.cleaner import CleanerConfig
from pylogd.broker.log.compaction.cleaners import Cleaners
from pylogd.broker.log.compaction.jobs import CompactionResult
from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.log import Log
from pylogd.broker.log.manager import LogManager
from tests.fakes.compaction import COMPACT
from tests.fakes.filesystem import Fault, MemoryFileSystem
from tests.fakes.storage import START_MS, TOPIC_ID, batch
from tests.rawclient import wait_until

SICK, SOUND = "/sick", "/sound"
CONFIG = CleanerConfig(dedupe_buffer_bytes=1 << 16, backoff_ms=1)
SECONDS = 60


class HangingFileSystem(MemoryFileSystem):
    """Files whose writes hang below one directory. hanging: set while a write hangs. thawed: lets writes return."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self.hanging, self.thawed = threading.Event(), threading.Event()
        self.thawed.set()

    def _call(self, operation: str, path: str) -> Fault | None:
        if operation == "pwritev" and path.startswith(f"{self._path}/"):
            if not self.thawed.is_set():
                self.hanging.set()
            assert self.thawed.wait(SECONDS)
        return super()._call(operation, path)


class Broker:
    """Two data directories with one compacted log each, and the cleaners of both."""

    def __init__(self, config: CleanerConfig = CONFIG) -> None:
        self.fs = HangingFileSystem(SICK)
        logs = LogConfig(
            segment_bytes=400, index_interval_bytes=80, cleanup_policy=COMPACT, min_cleanable_dirty_ratio=0.0
        )
        self.manager = LogManager(
            [SICK, SOUND], config=logs, fs=self.fs, now_ms=lambda: START_MS, node_id=1, cluster_id="c"
        )
        self.manager.load()
        self.logs = {
            path: self.manager.create("t", at, TOPIC_ID, directory=path) for at, path in enumerate((SICK, SOUND))
        }
        self.looks: list[int] = []  # the threads that looked at the clock, as each does that looks for a log
        self.cleaners = Cleaners(self.manager, config, (SICK, SOUND), self._looks_at_clock)

    def _looks_at_clock(self) -> int:
        self.looks.append(threading.get_ident())
        return START_MS

    def fill(self, path: str) -> Log:
        """Append records of one key to the log in a directory, and seal its segments."""
        log = self.logs[path]
        for at in range(30):
            log.append(batch(b"%d" % at), leader_epoch=0)
        log.seal()
        return log


def test_a_disk_that_hangs_holds_up_only_its_own_logs() -> None:
    broker = Broker()
    sick, sound = broker.fill(SICK), broker.fill(SOUND)
    broker.fs.thawed.clear()
    broker.cleaners.start()
    assert broker.fs.hanging.wait(SECONDS)
    wait_until(lambda: sound.cleaned_offset, "the sound log to be compacted")
    assert broker.cleaners.working_at(SICK) == 1
    assert (broker.cleaners.completed, sick.cleaned_offset) == (1, 0)
    cleaned = sound.cleaned_offset
    broker.fill(SOUND)
    wait_until(lambda: sound.cleaned_offset > cleaned, "the sound log to be compacted again")
    broker.fs.thawed.set()
    wait_until(lambda: sick.cleaned_offset, "the other log to be compacted after the thaw")
    broker.cleaners.stop()
    assert broker.cleaners.working_at(SICK) == 0
    broker.manager.close()


def test_a_stop_leaves_threads_behind_that_hang_in_a_failed_directory() -> None:
    broker = Broker()
    broker.fill(SICK)
    broker.fs.thawed.clear()
    broker.cleaners.start()
    assert broker.fs.hanging.wait(SECONDS)
    stopping = threading.Thread(target=broker.cleaners.stop)
    stopping.start()
    assert broker.manager.storage_failed(StorageFailure(SICK, OSError(errno.ETIMEDOUT, "it hangs")))
    stopping.join(SECONDS)
    assert not stopping.is_alive()
    assert broker.cleaners.working_at(SICK) == 1
    broker.fs.thawed.set()
    wait_until(lambda: not broker.cleaners.working_at(SICK), "the thread to be free")


def test_a_compaction_of_a_log_that_was_closed_meanwhile_is_given_up() -> None:
    """The thread of a directory that failed is free again when its disk answers, and takes what was reopened."""
    broker = Broker()
    old = broker.fill(SICK)
    broker.fs.thawed.clear()
    broker.cleaners.start()
    assert broker.fs.hanging.wait(SECONDS)
    assert broker.manager.storage_failed(StorageFailure(SICK, OSError(errno.ETIMEDOUT, "it hangs")))
    broker.fs.thawed.set()
    wait_until(lambda: not broker.cleaners.working_at(SICK), "the thread to be free")
    assert broker.manager.reopen(SICK) == [("t", 0)]
    again = broker.manager.logs["t", 0]
    wait_until(lambda: again.cleaned_offset, "the reopened log to be compacted")
    assert (old.cleaned_offset, again.log_end_offset) == (0, 30)
    broker.cleaners.stop()
    broker.manager.close()


@pytest.mark.parametrize("parts", [(None,), (SICK, SOUND)])
def test_all_cleaners_share_the_memory_of_the_offset_maps(parts: tuple[str | None, ...]) -> None:
    cleaners = Cleaners(Broker().manager, CONFIG, parts, lambda: START_MS)
    of_each = [cleaner.new_runner().offset_map.capacity for cleaner in cleaners._cleaners.values()]
    alone = (
        Cleaners(Broker().manager, CONFIG, (None,), lambda: START_MS)._cleaners[None].new_runner().offset_map.capacity
    )
    assert sum(of_each) <= alone
    assert min(of_each) >= alone // len(parts) - 8  # the whole of memory is for a whole number of keys


class TestConfigure:
    """Settings that are changed while the threads run."""

    def test_a_thread_that_sleeps_for_long_is_woken(self) -> None:
        broker = Broker(CONFIG._replace(backoff_ms=1_000_000_000))
        log = broker.logs[SOUND]
        broker.cleaners.start()
        wait_until(lambda: len(broker.looks) == 2 and not broker.cleaners.working, "both threads to have nothing to do")
        broker.fill(SOUND)
        assert not log.cleaned_offset
        broker.cleaners.configure(CONFIG)
        wait_until(lambda: log.cleaned_offset, "the log to be compacted")
        broker.cleaners.stop()
        broker.manager.close()

    def test_threads_are_added_and_end(self) -> None:
        def running() -> int:
            return sum(thread.name.startswith("log-cleaner-sound-") for thread in threading.enumerate())

        broker = Broker(CONFIG)
        broker.cleaners.configure(CONFIG._replace(threads=2))
        assert not running()  # not before the start
        broker.cleaners.start()
        assert running() == 2
        for threads in (5, 1, 3):
            broker.cleaners.configure(CONFIG._replace(threads=threads))
            wait_until(lambda threads=threads: running() == threads, f"{threads} threads")  # type: ignore[misc]
        broker.fill(SOUND)
        wait_until(lambda: broker.logs[SOUND].cleaned_offset, "the log to be compacted")
        broker.cleaners.stop()
        assert not running()
        broker.cleaners.configure(CONFIG._replace(threads=4))
        assert not running()
        broker.manager.close()

    def test_the_limit_of_bytes_ends_a_sleep(self) -> None:
        broker = Broker(CONFIG._replace(max_bytes_per_second=0.001))
        broker.fill(SOUND)
        broker.cleaners.start()
        wait_until(
            lambda: broker.cleaners.working_at(SOUND) and not broker.cleaners.working_at(SICK), "a thread to work"
        )
        assert not broker.cleaners.completed
        broker.cleaners.configure(CONFIG)
        wait_until(lambda: broker.cleaners.completed, "the log to be compacted")
        broker.cleaners.stop()
        broker.manager.close()

    def test_a_runner_gets_the_memory_and_the_load_factor(self) -> None:
        broker = Broker(CONFIG)
        broker.cleaners.configure(CONFIG._replace(threads=2, dedupe_buffer_bytes=96_000, load_factor=0.5))
        (cleaner, _) = broker.cleaners.all
        # 96,000 bytes for two directories with two threads each, with 24 bytes for a key
        assert cleaner.new_runner().offset_map.capacity == 498  # half of the slots, whose number is a prime
        broker.manager.close()

    def test_the_size_of_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes: list[int] = []

        def compact(*_arguments: object, io_buffer_bytes: int, **_options: object) -> CompactionResult:
            sizes.append(io_buffer_bytes)
            return original(*_arguments, io_buffer_bytes=io_buffer_bytes, **_options)  # type: ignore[arg-type]

        original = log_compaction.compact
        monkeypatch.setattr(cleaner_module, "compact", compact)
        broker = Broker(CONFIG)
        broker.fill(SOUND)
        broker.cleaners.configure(CONFIG._replace(io_buffer_bytes=777))
        broker.cleaners.start()
        wait_until(lambda: broker.cleaners.completed, "the log to be compacted")
        broker.cleaners.stop()
        assert sizes[-1] == 777
        broker.manager.close()
