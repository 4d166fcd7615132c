"""Make the configurations of logs, partitions and the cleaner from settings. Only here settings become fields.

`follow_settings` lets the numbers of threads, and the cleaner, follow their settings at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from pylogd.broker.log.compaction.cleaner import CleanerConfig
from pylogd.broker.log.compaction.cleaners import Cleaners
from pylogd.broker.log.config import LogConfig, TimestampType
from pylogd.broker.log.manager import LogManager
from pylogd.config import Settings
from pylogd.wire.records import speedups

_FIELDS: Final = frozenset(LogConfig._fields)
_THREADS: Final = "background.threads"
_RECOVERY: Final = "num.recovery.threads.per.data.dir"
_CLEANER: Final = "log.cleaner."


def log_config(settings: Settings, overrides: Mapping[str, str]) -> LogConfig:
    """Return the configuration of a topic's logs. Raises ConfigError.

    overrides: the topic's own settings.
    """
    given: dict[str, Any] = settings.log_config_values(overrides)
    values = {name: value for name, value in given.items() if name in _FIELDS}
    small = given["internal_segment_bytes"]
    if small is not None and ("segment.bytes" not in overrides or "internal.segment.bytes" in overrides):
        values["segment_bytes"] = small
    values["message_timestamp_type"] = TimestampType(values["message_timestamp_type"])
    values["cleanup_policy"] = frozenset(values["cleanup_policy"])
    values["producer_id_expiration_ms"] = settings.integer("producer.id.expiration.ms")
    values["producer_ids_max"] = settings.integer("producer.ids.max.per.partition")
    wanted = settings.text("log.validate.records")
    values["validate_records"] = speedups is not None if wanted == "auto" else wanted == "true"
    values["validate_compressed"] = settings.flag("log.validate.compressed")
    return LogConfig(**values)


def cleaner_config(settings: Settings) -> CleanerConfig:
    """Return the configuration of the cleaner."""
    return CleanerConfig(
        enabled=settings.flag("log.cleaner.enable"),
        threads=settings.integer("log.cleaner.threads"),
        dedupe_buffer_bytes=settings.integer("log.cleaner.dedupe.buffer.size"),
        load_factor=settings.number("log.cleaner.io.buffer.load.factor"),
        io_buffer_bytes=settings.integer("log.cleaner.io.buffer.size"),
        max_bytes_per_second=settings.number("log.cleaner.io.max.bytes.per.second"),
        backoff_ms=settings.integer("log.cleaner.backoff.ms"),
    )


class HostedConfig(NamedTuple):
    """The configuration of a topic's partitions.

    log: the configuration of each log.
    leader_throttled, follower_throttled: replicas whose rate is limited; see `throttle`.
    """

    log: LogConfig
    min_insync_replicas: int
    leader_throttled: tuple[str, ...] = ()
    follower_throttled: tuple[str, ...] = ()


def hosted_config(settings: Settings, overrides: Mapping[str, str]) -> HostedConfig:
    """Return the configuration of a topic's partitions. Raises ConfigError.

    overrides: the topic's own settings.
    """
    values = settings.topic_config(overrides)
    in_sync = values["min.insync.replicas"]
    by_leader = values["leader.replication.throttled.replicas"]
    by_follower = values["follower.replication.throttled.replicas"]
    assert isinstance(in_sync, int) and isinstance(by_leader, tuple) and isinstance(by_follower, tuple)
    return HostedConfig(log_config(settings, overrides), in_sync, by_leader, by_follower)


class Resizable(Protocol):
    """Threads whose number can change."""

    def resize(self, most: int, /) -> None:
        """Use up to this many threads from now on."""


def follow_settings(
    settings: Settings, cleaners: Cleaners, logs: LogManager, threads: Sequence[Resizable | None]
) -> Callable[[], None]:
    """Apply the settings as they are now, and each change of them. Return a function that ends this.

    threads: what has up to `background.threads` threads; None is ignored. The parts were made before settings that were
    changed at run time had been read.
    """

    def apply(names: frozenset[str]) -> None:
        if _THREADS in names:
            for one in threads:
                if one is not None:
                    one.resize(settings.integer(_THREADS))
        if _RECOVERY in names:
            logs.use_threads(settings.integer(_RECOVERY))
        if any(name.startswith(_CLEANER) for name in names):
            cleaners.configure(cleaner_config(settings))

    apply(frozenset({_THREADS, _RECOVERY, _CLEANER}))
    return settings.subscribe(apply)
