"""The topic `__transaction_state`, in which transactional ids are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pylogd.base.errors import ErrorCode
from pylogd.broker.replica.internal_topic import InternalTopicOptions
from pylogd.config import Settings, internal_segment_size
from pylogd.store.paths import TRANSACTIONS_TOPIC


def _configs(settings: Settings) -> Mapping[str, str]:
    return {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(settings.integer("transaction.state.log.min.isr")),
        **internal_segment_size(settings.integer("transaction.state.log.segment.bytes")),
        "unclean.leader.election.enable": "false",
    }


TRANSACTIONS: Final = InternalTopicOptions(
    TRANSACTIONS_TOPIC,
    partitions="transaction.state.log.num.partitions",
    replication_factor="transaction.state.log.replication.factor",
    timeout="request.timeout.ms",
    configs=_configs,
    too_large=ErrorCode.UNKNOWN_SERVER_ERROR,
)
