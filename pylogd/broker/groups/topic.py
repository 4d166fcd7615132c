"""The offsets topic `__consumer_offsets`, in which groups and their offsets are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pylogd.base.errors import ErrorCode
from pylogd.broker.replica.internal_topic import InternalTopicOptions
from pylogd.config import Settings, internal_segment_size
from pylogd.store.paths import OFFSETS_TOPIC


def _configs(settings: Settings) -> Mapping[str, str]:
    return {"cleanup.policy": "compact", **internal_segment_size(settings.integer("offsets.topic.segment.bytes"))}


OFFSETS: Final = InternalTopicOptions(
    OFFSETS_TOPIC,
    partitions="offsets.topic.num.partitions",
    replication_factor="offsets.topic.replication.factor",
    timeout="offsets.commit.timeout.ms",
    configs=_configs,
    too_large=ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
)
