"""The table of broker settings of logs: files, retention, flushing, compaction.

This is a part of the table in `broker`, which explains it. A topic may set most of these settings too (`topic`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from pylogd.config.compression import COMPRESSION_SETTINGS
from pylogd.config.values import LONG_MAX, ConfigError, ConfigType, Mode, Setting

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_DOUBLE, _LIST = ConfigType.DOUBLE, ConfigType.LIST
_DYNAMIC: Final = Mode.DYNAMIC

MIB: Final = 1024 * 1024
HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
#: The value of `cordoned.log.dirs` for all directories.
ALL_DIRECTORIES: Final = "*"

_LOG: Final = "Log"
_RETENTION: Final = "Retention"
_FLUSH: Final = "Flush"
_COMPACTION: Final = "Compaction"

_LOG_SETTINGS: Final = [
    Setting(
        "log.dirs",
        _LIST,
        ("/var/lib/pylogd",),
        "Data directories, ideally one per disk. A new partition goes to the directory with the fewest partitions. "
        "(Kafka's default is /tmp/kafka-logs.)",
        _LOG,
    ),
    Setting(
        "cordoned.log.dirs",
        _LIST,
        (),
        "Directories in `log.dirs` that get no new partitions; their existing partitions stay in use. `*` means all "
        "directories: the broker then gets no new replicas. Use it to empty a disk or a broker (KIP-1066).",
        _LOG,
        mode=_DYNAMIC,
    ),
    Setting(
        "message.max.bytes",
        _INT,
        MIB + 12,
        "Largest record batch in bytes, as stored.",
        _LOG,
        minimum=0,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.segment.bytes",
        _INT,
        1024 * MIB,
        "Size at which a segment file is closed and the next one started.",
        _LOG,
        minimum=MIB,
        mode=_DYNAMIC,
    ),
    Setting(
        "internal.segment.bytes",
        _INT,
        None,
        "For tests: a segment size that may be smaller than `log.segment.bytes` allows. It holds for topics that do "
        "not set `segment.bytes`. (In Kafka only topics have it.)",
        _LOG,
        minimum=14,
        mode=_DYNAMIC,
        nullable=True,
        internal=True,
    ),
    Setting(
        "log.roll.ms",
        _LONG,
        None,
        "Age at which a segment is closed and the next one started, even if it is not full. Unset: `log.roll.hours`.",
        _LOG,
        minimum=1,
        mode=_DYNAMIC,
        nullable=True,
        synonyms=(("log.roll.hours", HOUR_MS),),
    ),
    Setting("log.roll.hours", _INT, 168, "As `log.roll.ms`, in hours.", _LOG, minimum=1),
    Setting(
        "log.roll.jitter.ms",
        _LONG,
        None,
        "A random time up to this is subtracted from the maximum age of a segment, so that partitions don't all roll "
        "at the same moment. Unset: `log.roll.jitter.hours`.",
        _LOG,
        minimum=0,
        mode=_DYNAMIC,
        nullable=True,
        synonyms=(("log.roll.jitter.hours", HOUR_MS),),
    ),
    Setting("log.roll.jitter.hours", _INT, 0, "As `log.roll.jitter.ms`, in hours.", _LOG, minimum=0),
    Setting(
        "log.dir.check.interval.ms",
        _LONG,
        500,
        "How often the broker checks that the data directories exist and can be written to. Failures are also found "
        "at any use of a directory; this check finds failures of directories that are not in use at the moment.",
        _LOG,
        minimum=100,
    ),
    Setting(
        "log.index.interval.bytes",
        _INT,
        4096,
        "Bytes of log between two entries of the offset index.",
        _LOG,
        minimum=0,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.index.size.max.bytes",
        _INT,
        10 * MIB,
        "Largest index file of a segment; a full one rolls the segment.",
        _LOG,
        minimum=4,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.preallocate",
        _BOOLEAN,
        False,
        "Accepted for tools that set it, but without effect: files always grow as they are written.",
        _LOG,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.message.timestamp.type",
        _STRING,
        "CreateTime",
        "Whose time stamp a message carries: the producer's (CreateTime) or the broker's (LogAppendTime).",
        _LOG,
        choices=("CreateTime", "LogAppendTime"),
        mode=_DYNAMIC,
    ),
    Setting(
        "log.message.timestamp.before.max.ms",
        _LONG,
        LONG_MAX,
        "With CreateTime: how far a message's time stamp may lie before the broker's clock. Older messages are "
        "refused.",
        _LOG,
        minimum=0,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.message.timestamp.after.max.ms",
        _LONG,
        HOUR_MS,
        "With CreateTime: how far a message's time stamp may lie ahead of the broker's clock. Later messages are "
        "refused.",
        _LOG,
        minimum=0,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.validate.records",
        _STRING,
        "auto",
        "Whether the broker checks each record of a producer's uncompressed batch before it appends the batch: "
        "structure, offsets and time stamps. `auto` checks records if pylogd was built with its compiled loop (by a "
        "C compiler); `true` checks them without it too, which takes a thousand times as long. Batch headers are "
        "always checked. Records are always checked if the topic needs it (compaction, "
        "`message.timestamp.before.max.ms`). (Only in pylogd.)",
        _LOG,
        choices=("auto", "true", "false"),
        mode=_DYNAMIC,
    ),
    Setting(
        "log.validate.compressed",
        _BOOLEAN,
        False,
        "Whether compressed batches are decompressed, in a thread, to check their records too. Otherwise the broker "
        "checks only the header, and that the compressed records start like the codec's frames. (Only in pylogd; "
        "Kafka always decompresses.)",
        _LOG,
        mode=_DYNAMIC,
    ),
    *COMPRESSION_SETTINGS,
    Setting(
        "log.block.cache.bytes",
        _LONG,
        0,
        "Memory for the block cache. It keeps the records appended last for consumers and followers; followers' "
        "writes and reads of lagging consumers do not evict them: see `docs/block-cache.md`. 0: no block cache, only "
        "the kernel's page cache. (Kafka has no such setting.)",
        _LOG,
        minimum=0,
    ),
]

_RETENTION_SETTINGS: Final = [
    Setting(
        "log.retention.ms",
        _LONG,
        None,
        "Age at which a closed segment is deleted; -1 for never. Unset: `log.retention.minutes`.",
        _RETENTION,
        minimum=1,
        special=(-1,),
        mode=_DYNAMIC,
        nullable=True,
        synonyms=(("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)),
    ),
    Setting(
        "log.retention.minutes",
        _INT,
        None,
        "As `log.retention.ms`, in minutes. Unset: `log.retention.hours`.",
        _RETENTION,
        minimum=1,
        special=(-1,),
        nullable=True,
    ),
    Setting("log.retention.hours", _INT, 168, "As `log.retention.ms`, in hours.", _RETENTION, minimum=1, special=(-1,)),
    Setting(
        "log.retention.bytes",
        _LONG,
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 for no limit.",
        _RETENTION,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.retention.check.interval.ms",
        _LONG,
        5 * MINUTE_MS,
        "How often the broker checks for segments to delete.",
        _RETENTION,
        minimum=1,
    ),
    Setting(
        "log.cleanup.policy",
        _LIST,
        ("delete",),
        "How old data is removed: `delete` removes it by age and size, `compact` keeps the last value of each key, "
        "or both.",
        _RETENTION,
        choices=("compact", "delete"),
        mode=_DYNAMIC,
    ),
    Setting(
        "log.segment.delete.delay.ms",
        _LONG,
        MINUTE_MS,
        "Time between a segment's removal from the log and the removal of its files.",
        _RETENTION,
        minimum=0,
        mode=_DYNAMIC,
    ),
]

_FLUSH_SETTINGS: Final = [
    Setting(
        "log.flush.interval.messages",
        _LONG,
        LONG_MAX,
        "Messages appended to a partition before they are flushed to the disk. With the default the operating system "
        "decides when to write.",
        _FLUSH,
        minimum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.flush.interval.ms",
        _LONG,
        None,
        "Longest time before an appended message is flushed to the disk. Unset: `log.flush.scheduler.interval.ms`.",
        _FLUSH,
        minimum=0,
        mode=_DYNAMIC,
        nullable=True,
        synonyms=(("log.flush.scheduler.interval.ms", 1),),
    ),
    Setting(
        "log.flush.visible",
        _BOOLEAN,
        False,
        "Whether consumers see a message only after it was flushed to the disk; acks=all is then also answered after "
        "the flush. Each append is followed by a flush, which covers all appends before it. (Only in pylogd.)",
        _FLUSH,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.flush.scheduler.interval.ms",
        _LONG,
        LONG_MAX,
        "How often the broker checks for partitions to flush.",
        _FLUSH,
        minimum=1,
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        MINUTE_MS,
        "How often the recovery points and the log start offsets are written. After a crash, recovery scans only the "
        "records after the recovery point.",
        _FLUSH,
        minimum=1,
    ),
]

_COMPACTION_SETTINGS: Final = [
    Setting(
        "log.cleaner.enable",
        _BOOLEAN,
        True,
        "Whether logs of topics with `cleanup.policy=compact` are compacted. If not, these logs only grow.",
        _COMPACTION,
    ),
    Setting(
        "log.cleaner.threads",
        _INT,
        1,
        "Threads that compact logs. Each works on one log at a time. With `log.write.queues` each data directory has "
        "this number of threads, and no thread waits for the disk of another directory.",
        _COMPACTION,
        minimum=0,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        _DOUBLE,
        float(LONG_MAX),
        "Most bytes per second that all cleaner threads together read and write. (Kafka's default is the largest "
        "double; both mean no limit.)",
        _COMPACTION,
        minimum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        128 * MIB,
        "Memory for the key maps of all cleaner threads together, 24 bytes per key. A log with more keys is "
        "compacted in several rounds. Changes hold for the next log of each thread.",
        _COMPACTION,
        minimum=1024,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.io.buffer.size",
        _INT,
        512 * 1024,
        "Bytes that a cleaner thread collects before it writes them.",
        _COMPACTION,
        minimum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor",
        _DOUBLE,
        0.9,
        "How full a key map may get. A fuller map holds more keys, but finds each more slowly.",
        _COMPACTION,
        minimum=0.1,
        maximum=0.99,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.backoff.ms",
        _LONG,
        15_000,
        "How long a cleaner thread sleeps when there is no log to compact.",
        _COMPACTION,
        minimum=0,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.min.cleanable.ratio",
        _DOUBLE,
        0.5,
        "Uncompacted share of a log at which it is compacted again.",
        _COMPACTION,
        minimum=0,
        maximum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.min.compaction.lag.ms",
        _LONG,
        0,
        "Shortest time that a message stays uncompacted.",
        _COMPACTION,
        minimum=0,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.max.compaction.lag.ms",
        _LONG,
        LONG_MAX,
        "Time after which a message is compacted regardless of the uncompacted share of its log.",
        _COMPACTION,
        minimum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "log.cleaner.delete.retention.ms",
        _LONG,
        24 * HOUR_MS,
        "How long the tombstone of a key can be read from a compacted log.",
        _COMPACTION,
        minimum=0,
        mode=_DYNAMIC,
    ),
]

#: The settings in the order of the manual.
STORAGE_SETTINGS: Final = (*_LOG_SETTINGS, *_RETENTION_SETTINGS, *_FLUSH_SETTINGS, *_COMPACTION_SETTINGS)


def cordoned_directories(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the absolute paths of the data directories that take no new partitions."""
    cordoned = values["cordoned.log.dirs"]
    return frozenset(map(os.path.abspath, values["log.dirs"] if ALL_DIRECTORIES in cordoned else cordoned))


def check_cordoned(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if a directory is cordoned that is not in `log.dirs`."""
    known = {os.path.abspath(path) for path in values["log.dirs"]}
    for path in values["cordoned.log.dirs"]:
        if path != ALL_DIRECTORIES and os.path.abspath(path) not in known:
            raise ConfigError(
                f"cordoned.log.dirs names {path}, which is not in log.dirs: name data directories of this broker, "
                f"or {ALL_DIRECTORIES} for all",
                "cordoned.log.dirs",
            )


def check_cleaner(dynamic: Mapping[str, str]) -> None:
    """Raise ConfigError if the cleaner would be stopped at run time."""
    if dynamic.get("log.cleaner.threads") == "0":
        raise ConfigError(
            "log.cleaner.threads has to be at least 1 where it is set at run time: no log would be compacted any more",
            "log.cleaner.threads",
        )
