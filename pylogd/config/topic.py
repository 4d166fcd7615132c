"""The table of topic settings, each with the broker settings whose values it takes if it is not set.

Strategy: the default, type, limits and choices of a topic setting are those of its broker synonym, so nothing is
written twice. If a synonym is in coarser units, `Setting.synonyms` has the factor (Kafka's
`ServerTopicConfigSynonyms`). Some settings have no synonym: `placement.label`, on which all brokers have to agree;
`coordinator.labels`, which can't change; and the settings that have no effect here (`tiered`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pylogd.config.broker import SETTINGS
from pylogd.config.compression import COMPRESSION_SETTINGS
from pylogd.config.coordinators import TOPIC_COORDINATOR_LABELS, parse_coordinators
from pylogd.config.labels import PLACEMENT_LABEL, check_label
from pylogd.config.replication import check_throttled
from pylogd.config.tiered import UNUSED_SETTINGS, check_unused
from pylogd.config.values import Mode, Setting, Value


def fallback_value(factor: int, value: Value) -> Value:
    """Return a synonym's value in the unit of the setting that takes it. Negative numbers mean "no limit"."""
    if factor == 1 or not isinstance(value, int):
        return value
    return value * factor if value >= 0 else -1


def _shipped_default(setting: Setting) -> Value:
    """Return the default of a broker setting, or of its first synonym that has one."""
    candidates = [
        setting.default,
        *(fallback_value(factor, SETTINGS[name].default) for name, factor in setting.synonyms),
    ]
    return next(value for value in candidates if value is not None)


def _topic(name: str, broker_name: str, doc: str) -> Setting:
    broker = SETTINGS[broker_name]
    return broker._replace(
        name=name,
        default=_shipped_default(broker),
        doc=doc,
        group="Topic",
        mode=Mode.DYNAMIC,
        nullable=False,
        synonyms=((broker_name, 1), *broker.synonyms),
    )


_TABLE: Final = (
    _topic(
        "cleanup.policy",
        "log.cleanup.policy",
        "How old data is removed: `delete` removes it by age and size, `compact` keeps the last value of "
        "each key, or both.",
    ),
    *(_topic(setting.name, setting.name, setting.doc) for setting in COMPRESSION_SETTINGS),
    _topic(
        "delete.retention.ms",
        "log.cleaner.delete.retention.ms",
        "How long the tombstone of a key can be read from a compacted topic.",
    ),
    _topic(
        "file.delete.delay.ms",
        "log.segment.delete.delay.ms",
        "Time between a segment's removal from the log and the removal of its files.",
    ),
    _topic(
        "flush.messages",
        "log.flush.interval.messages",
        "Messages appended to a partition before they are flushed to the disk.",
    ),
    _topic(
        "flush.ms",
        "log.flush.interval.ms",
        "Longest time before an appended message is flushed to the disk.",
    ),
    _topic(
        "flush.visible",
        "log.flush.visible",
        "Whether consumers see a message only after it was flushed to the disk; acks=all is then also "
        "answered after the flush.",
    ),
    _topic(
        "follower.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "Replicas that throttle their own fetches: `partition:broker, ...`, or `*` for all.",
    ),
    _topic(
        "index.interval.bytes",
        "log.index.interval.bytes",
        "Bytes of log between two entries of the offset index.",
    ),
    SETTINGS["internal.segment.bytes"]._replace(
        doc="For tests: as `segment.bytes`, which it overrides, but it may be smaller. Listed only if it is set.",
        group="Topic",
        synonyms=(("internal.segment.bytes", 1),),
    ),
    _topic(
        "leader.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "Replicas whose fetches are throttled by their leader: `partition:broker, ...`, or `*` for all.",
    ),
    _topic(
        "max.compaction.lag.ms",
        "log.cleaner.max.compaction.lag.ms",
        "Time after which a message is compacted regardless of the uncompacted share of its log.",
    ),
    _topic("max.message.bytes", "message.max.bytes", "Largest record batch in bytes, as stored."),
    _topic(
        "message.timestamp.after.max.ms",
        "log.message.timestamp.after.max.ms",
        "With CreateTime: how far a message's time stamp may lie ahead of the broker's clock.",
    ),
    _topic(
        "message.timestamp.before.max.ms",
        "log.message.timestamp.before.max.ms",
        "With CreateTime: how far a message's time stamp may lie before the broker's clock.",
    ),
    _topic(
        "message.timestamp.type",
        "log.message.timestamp.type",
        "Whose time stamp a message carries: the producer's (CreateTime) or the broker's (LogAppendTime).",
    ),
    _topic(
        "min.cleanable.dirty.ratio",
        "log.cleaner.min.cleanable.ratio",
        "Uncompacted share of a log at which it is compacted again.",
    ),
    _topic(
        "min.compaction.lag.ms",
        "log.cleaner.min.compaction.lag.ms",
        "Shortest time that a message stays uncompacted.",
    ),
    _topic(
        "min.insync.replicas",
        "min.insync.replicas",
        "In-sync replicas that must have a message before acks=all is answered (all of them if a partition "
        "has fewer replicas).",
    ),
    PLACEMENT_LABEL,
    TOPIC_COORDINATOR_LABELS,
    _topic(
        "preallocate",
        "log.preallocate",
        "Accepted for tools that set it, but without effect: files always grow as they are written.",
    ),
    _topic(
        "retention.bytes",
        "log.retention.bytes",
        "Size of a partition above which its oldest segments are deleted; -1 for no limit.",
    ),
    _topic("retention.ms", "log.retention.ms", "Age at which a closed segment is deleted; -1 for never.")._replace(
        minimum=-1, special=()
    ),
    _topic("segment.bytes", "log.segment.bytes", "Size at which a segment file is closed and the next one started."),
    _topic(
        "segment.index.bytes",
        "log.index.size.max.bytes",
        "Largest index file of a segment; a full one rolls the segment.",
    ),
    _topic(
        "segment.jitter.ms",
        "log.roll.jitter.ms",
        "A random time up to this is subtracted from the maximum age of a segment.",
    ),
    _topic(
        "segment.ms",
        "log.roll.ms",
        "Age at which a segment is closed and the next one started, even if it is not full.",
    ),
    _topic(
        "unclean.leader.election.enable",
        "unclean.leader.election.enable",
        "Whether a replica that is not in sync may become leader when no other is left.",
    ),
    *UNUSED_SETTINGS,
)

#: Every topic setting by name, in alphabetical order.
TOPIC_SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {setting.name: setting for setting in sorted(_TABLE, key=lambda setting: setting.name)}
)


def check_topic_values(values: Mapping[str, str]) -> None:
    """Raise ConfigError if settings of a topic (as text) have values that a broker refuses although their types allow
    them.
    """
    if label := values.get(PLACEMENT_LABEL.name):
        check_label(label, PLACEMENT_LABEL.name)
    parse_coordinators(values.get(TOPIC_COORDINATOR_LABELS.name) or "")
    check_unused(values)
    check_throttled(values)


def internal_segment_size(size: int) -> dict[str, str]:
    """Return the settings of an internal topic that give it segments of `size` bytes, even if this is very small."""
    lowest = TOPIC_SETTINGS["segment.bytes"].minimum
    name = "segment.bytes" if lowest is None or size >= lowest else "internal.segment.bytes"
    return {name: str(size)}
