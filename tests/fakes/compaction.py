"""Helpers of compaction tests: storage with compacted logs, and the dict that a log should equal."""

from __future__ import annotations

from typing import Any

from pylogd.broker.log.append.result import AppendResult
from pylogd.broker.log.compaction.cleaner import Cleaner, CleanerConfig
from pylogd.broker.log.compaction.jobs import CompactionResult
from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.log import Log
from pylogd.broker.log.validator import AppendOrigin
from pylogd.wire.records import Header, Record, encode_batch
from tests.fakes.filesystem import MemoryFileSystem
from tests.fakes.storage import MemoryStorage, read_all

COMPACT = frozenset({"compact"})
Pair = tuple[bytes, bytes | None]
Rows = list[tuple[bytes | None, bytes | None, int, tuple[Header, ...]]]


class CompactedStorage(MemoryStorage):
    """Storage with compacted logs of small segments, and a cleaner that tests call."""

    def __init__(self, fs: MemoryFileSystem | None = None, *, keys: int = 1000, **settings: Any) -> None:
        base = LogConfig(
            segment_bytes=400, index_interval_bytes=80, cleanup_policy=COMPACT, min_cleanable_dirty_ratio=0.0
        )
        self.cleaner_config = CleanerConfig(dedupe_buffer_bytes=24 * keys, io_buffer_bytes=256)
        super().__init__(base, fs, **settings)

    def clean(self) -> list[CompactionResult]:
        """Compact until there is nothing to compact; return the results."""
        cleaner = Cleaner(self.manager, self.cleaner_config, now_ms=lambda: self.now_ms, seconds=lambda: 0.0)
        self.cleaner = cleaner
        runner = cleaner.new_runner()
        done = []
        while (result := cleaner.clean_one(runner)) is not None:
            done.append(result)
        return done

    def configure(self, log: Log, **settings: Any) -> None:
        """Change settings while the log is in use."""
        self.config = self.config._replace(**settings)
        log.config = self.config


def put(
    storage: CompactedStorage, log: Log, *pairs: Pair, origin: AppendOrigin = AppendOrigin.CLIENT, **options: Any
) -> AppendResult:
    """Append the pairs as one batch."""
    rows: Rows = [(key, value, storage.now_ms + at, ()) for at, (key, value) in enumerate(pairs)]
    return log.append(encode_batch(rows, **options), leader_epoch=0, origin=origin)


def final(records: list[Record]) -> dict[bytes | None, bytes]:
    """Return the last value of each key, the state of a reader of all records."""
    state: dict[bytes | None, bytes] = {}
    for record in records:
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


def contents_of(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return offset, key and value of each record."""
    return [(record.offset, record.key, record.value) for record in read_all(log)]
