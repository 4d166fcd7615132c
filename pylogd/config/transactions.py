"""The table of broker settings of transactions.

This is a part of the table in `broker`, which explains it.
"""

from __future__ import annotations

from typing import Final

from pylogd.config.storage import HOUR_MS, MIB, MINUTE_MS
from pylogd.config.values import INT_MAX, ConfigType, Mode, Setting

_BOOLEAN, _INT = ConfigType.BOOLEAN, ConfigType.INT
_DYNAMIC: Final = Mode.DYNAMIC
_TRANSACTIONS: Final = "Transactions"

TRANSACTION_SETTINGS: Final = [
    Setting(
        "transaction.max.timeout.ms",
        _INT,
        15 * MINUTE_MS,
        "Longest timeout that a producer may set for its transactions. A transaction that is open for longer is "
        "aborted, because read_committed consumers wait for it.",
        _TRANSACTIONS,
        minimum=1,
    ),
    Setting(
        "transactional.id.expiration.ms",
        _INT,
        7 * 24 * HOUR_MS,
        "Time without changes after which a transactional id without an open transaction is removed.",
        _TRANSACTIONS,
        minimum=1,
    ),
    Setting(
        "transactional.ids.max",
        _INT,
        50_000,
        "Most transactional ids that this broker coordinates. A producer with a further one gets "
        "COORDINATOR_NOT_AVAILABLE, and the broker's log says so. Half of them are left to clients that authenticate. "
        "(Only in pylogd.)",
        _TRANSACTIONS,
        minimum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "transactional.ids.max.per.principal",
        _INT,
        10_000,
        "Most transactional ids on this broker that one principal has made since the broker has coordinated them; of "
        "clients that have not authenticated, one address. Beyond it as with transactional.ids.max. (Only in pylogd.)",
        _TRANSACTIONS,
        minimum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        _INT,
        10_000,
        "How often the coordinator looks for transactions that have been open for too long.",
        _TRANSACTIONS,
        minimum=1,
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _INT,
        HOUR_MS,
        "How often the coordinator looks for transactional ids that have expired.",
        _TRANSACTIONS,
        minimum=1,
    ),
    Setting(
        "transaction.partition.verification.enable",
        _BOOLEAN,
        True,
        "Whether the leader of a partition asks the coordinator, before the first batch of a transaction, whether "
        "the partition is in the transaction. Without this check a late batch may open a transaction that nobody "
        "ends.",
        _TRANSACTIONS,
        mode=_DYNAMIC,
    ),
    Setting(
        "transaction.state.log.num.partitions",
        _INT,
        50,
        "Partitions of `__transaction_state`, which is created at the first use of a transactional id. Each id is kept "
        "in one partition.",
        _TRANSACTIONS,
        minimum=1,
    ),
    Setting(
        "transaction.state.log.replication.factor",
        _INT,
        3,
        "Replicas of each partition of `__transaction_state`. If there are fewer live brokers, the topic is created "
        "with one replica on each, and gets more as brokers join. (Kafka waits for that many brokers before it "
        "creates the topic.)",
        _TRANSACTIONS,
        minimum=1,
        maximum=32767,
    ),
    Setting(
        "transaction.state.log.min.isr",
        _INT,
        2,
        "`min.insync.replicas` of `__transaction_state`, set when it is created.",
        _TRANSACTIONS,
        minimum=1,
    ),
    Setting(
        "transaction.state.log.segment.bytes",
        _INT,
        100 * MIB,
        "Segment size of `__transaction_state`. It is small, so that compaction is quick, and so that a new leader "
        "loads a partition quickly.",
        _TRANSACTIONS,
        minimum=1024,
    ),
    Setting(
        "transaction.state.log.load.buffer.size",
        _INT,
        5 * MIB,
        "Bytes read at a time from a partition of `__transaction_state` when this broker becomes its leader.",
        _TRANSACTIONS,
        minimum=1024,
    ),
    Setting(
        "request.timeout.ms",
        _INT,
        30_000,
        "Longest time that a change of a transaction waits for the replicas of `__transaction_state`, and that a "
        "request about transactions waits for another broker.",
        _TRANSACTIONS,
        minimum=1,
        maximum=INT_MAX,
    ),
]
