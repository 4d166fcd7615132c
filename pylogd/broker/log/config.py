"""The settings of one log. `replica` builds them from the table of settings.
Times are in milliseconds, sizes in bytes.

The defaults here are for tests and tools only: the broker passes every value.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from pylogd.wire.compression import CompressionType

_DAY_MS = 24 * 60 * 60 * 1000
_GIB = 1 << 30
NO_LIMIT = (1 << 63) - 1
#: At this value `max.decompressed.message.bytes` limits nothing.
LARGEST_RECORD: Final = (1 << 31) - 9
#: The codec for each value of `compression.type`. None means that each batch keeps its codec.
_CODECS: Final = {
    "producer": None,
    "uncompressed": CompressionType.NONE,
    **{codec.name.lower(): codec for codec in CompressionType if codec},
}


class TimestampType(Enum):
    """The clock that sets the time stamps of records. The values are those of `message.timestamp.type`."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class LogConfig(NamedTuple):
    """The settings, named like those of topics, with underscores. A retention limit of -1 means no limit.

    validate_records: whether a client's records are inspected before they are appended.
    validate_compressed: whether a client's compressed records are inspected too. Some logs, such as compacted ones,
        require an inspection in any case.
    compression_gzip_level, compression_lz4_level, compression_zstd_level: see `recompression.level_of`.
    """

    segment_bytes: int = _GIB
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = NO_LIMIT
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    max_decompressed_message_bytes: int = LARGEST_RECORD
    file_delete_delay_ms: int = 60_000
    flush_messages: int = NO_LIMIT
    flush_ms: int = NO_LIMIT
    flush_visible: bool = False
    producer_id_expiration_ms: int = _DAY_MS
    producer_ids_max: int = 10_000
    delete_retention_ms: int = _DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NO_LIMIT
    min_cleanable_dirty_ratio: float = 0.5
    validate_records: bool = True
    validate_compressed: bool = False

    @property
    def codec(self) -> CompressionType | None:
        """The codec that all batches of clients get; None if each batch keeps its own codec."""
        return _CODECS[self.compression_type]

    @property
    def inspects_compressed(self) -> bool:
        """Whether the records of all compressed batches are inspected."""
        return self.validate_compressed or self.max_decompressed_message_bytes < LARGEST_RECORD

    @property
    def limits_age(self) -> bool:
        """Whether records that are too old are refused. If so, the time stamp of every record is checked."""
        created = self.message_timestamp_type is TimestampType.CREATE_TIME
        return created and self.message_timestamp_before_max_ms < NO_LIMIT

    @property
    def deletes(self) -> bool:
        """Whether old segments are deleted by age and size."""
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Whether the log is compacted by key."""
        return "compact" in self.cleanup_policy

    def roll_ms(self, topic_id: bytes, partition: int) -> int:
        """Return `segment.ms` less a jitter that depends on the partition, so that not all partitions roll at once.

        A compacted log uses `max.compaction.lag.ms` instead if that is less, since the active segment is never
        compacted.
        """
        limit = min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms
        jitter = self.segment_jitter_ms
        share = (int.from_bytes(topic_id, "big") + partition * 7919) % jitter if jitter > 0 else 0
        return max(limit - share, 0) if share else limit
