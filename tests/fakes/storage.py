"""Helpers of storage tests: batches, a log manager on a memory file system, corruption, and the final check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pylogd.broker.log.append.result import AppendResult
from pylogd.broker.log.caching import BlockCache
from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.files import read_file, write_file
from pylogd.broker.log.log import Log
from pylogd.broker.log.manager import LogManager
from pylogd.broker.log.verify import Finding, Severity, verify_log_dir
from pylogd.wire.records import CRC_START, HEADER, BatchHeader, Record, crc32c, decode_batch, encode_batch, iter_batches
from tests.fakes.filesystem import MemoryFileSystem

DATA = "/data"
TOPIC_ID = bytes(range(16))
START_MS = 1_700_000_000_000


def batch(*values: bytes, timestamp: int = START_MS, key: bytes | None = b"k", **options: int) -> bytes:
    """Return a batch as a client sends it, with one record per value, and time stamps one millisecond apart."""
    records = [(key, value, timestamp + at, ()) for at, value in enumerate(values or (b"v",))]
    return encode_batch(records, **options)


def with_header(data: bytes, **fields: int) -> bytes:
    """Return the batch with other header fields and the right CRC."""
    header = BatchHeader._make(HEADER.unpack_from(data))._replace(**fields)
    return fix_crc(HEADER.pack(*header) + data[HEADER.size :])


def fix_crc(data: bytes) -> bytes:
    """Return the batch with the right CRC for its bytes."""
    return data[: CRC_START - 4] + crc32c(data[CRC_START:]).to_bytes(4, "big") + data[CRC_START:]


def flip_byte(fs: MemoryFileSystem, path: str, position: int) -> None:
    """Damage one byte of a file, as another program might."""
    fs.files[path].data[position] ^= 0xFF
    fs.note_change(path)


def truncate(fs: MemoryFileSystem, path: str, size: int) -> None:
    """Truncate a file."""
    del fs.files[path].data[size:]


class MemoryStorage:
    """A log manager on a memory file system with clocks of its own, which can be restarted, killed and damaged."""

    def __init__(
        self, config: LogConfig | None = None, fs: MemoryFileSystem | None = None,
        make_cache: Callable[[], BlockCache] | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.make_cache = make_cache
        self.fs = MemoryFileSystem() if fs is None else fs
        self.now_ms = START_MS  # the wall clock
        self.seconds = 1000.0  # the monotonic one
        self.fs.now_ms = self.now_ms
        self.config = (config or LogConfig())._replace(**settings)
        self.manager = self.start()

    def start(self) -> LogManager:
        """Start: load the logs by a new manager."""
        manager = LogManager(
            [DATA], config=self.config, fs=self.fs, now_ms=lambda: self.now_ms, seconds=lambda: self.seconds, node_id=1,
            cluster_id="c", recovery_threads=1, cache=None if self.make_cache is None else self.make_cache(),
        )  # fmt: skip
        manager.load()
        self.manager = manager
        return manager

    def pass_time(self, milliseconds: int) -> None:
        """Advance both clocks."""
        self.seconds += milliseconds / 1000
        self.step_wall(milliseconds)

    def step_wall(self, milliseconds: int) -> None:
        """Change the wall clock, forward or back, without any time passing."""
        self.now_ms += milliseconds
        self.fs.now_ms = self.now_ms

    def create(self, topic: str = "t", partition: int = 0) -> Log:
        """Create a partition."""
        return self.manager.create(topic, partition, TOPIC_ID, self.config)

    def restart(self) -> Log:
        """Stop cleanly and start again."""
        self.manager.close()
        return self.start().logs["t", 0]

    def kill(self) -> Log:
        """Kill the process and start again."""
        self.fs.kill()
        return self.start().logs["t", 0]

    def lose_power(self, torn: int = 0, *, zeros: bool = False) -> None:
        """Lose power and start again: what was not synced is lost, as `MemoryFileSystem.lose_power` says."""
        self.fs.lose_power(torn, zeros=zeros)
        self.start()

    def check(self, *, records: bool = True) -> None:
        """Check that the files are consistent, and with `records` that all records can be decoded. Ends every test."""
        for log in self.manager.logs.values():
            log.seal()
        for entry in self.manager.directories:
            bad = [finding for finding in verify_log_dir(entry.path, records=records, fs=self.fs) if is_bad(finding)]
            assert not bad, bad


def is_bad(finding: Finding) -> bool:
    """Return whether a finding should not occur in a log that was not damaged."""
    return finding.severity is not Severity.INFO


def append(log: Log, *values: bytes, epoch: int = 0, **options: Any) -> AppendResult:
    """Append one batch; the options are those of `batch`."""
    return log.append(batch(*values, **options), leader_epoch=epoch)


def read_all(log: Log, start: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    """Return all records from `start` on, fetched as a consumer does."""
    offset = log.log_start_offset if start is None else start
    records: list[Record] = []
    while (found := log.read(offset, max_bytes, allow_cold=True)) is not None:
        batches = list(iter_batches(found.read(), allow_partial=True))
        assert batches, "a fetch brings at least one whole batch"
        for header, data in batches:
            records += [record for record in decode_batch(data, header) if record.offset >= offset]
        offset = batches[-1][0].next_offset
    return records


def values(log: Log, start: int | None = None) -> list[bytes | None]:
    """Return the values of all records from `start` on."""
    return [record.value for record in read_all(log, start)]


def contents(fs: MemoryFileSystem, path: str) -> bytes:
    """Return the contents of a file."""
    return read_file(fs, path)


def overwrite(fs: MemoryFileSystem, path: str, data: bytes) -> None:
    """Replace the contents of a file."""
    write_file(fs, path, data, sync=True)


def names(fs: MemoryFileSystem, suffix: str = "", directory: str = f"{DATA}/t-0") -> Sequence[str]:
    """Return the names in a directory that end with a suffix, sorted."""
    return sorted(name for name in fs.listdir(directory) if name.endswith(suffix))
