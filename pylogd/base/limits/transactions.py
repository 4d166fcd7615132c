"""Limits of a transaction."""

from __future__ import annotations

from typing import Final

#: The most partitions of one transaction. Each record of its state has all of them, and is written again when one is
#: added. More partitions get INVALID_REQUEST. Kafka's bound is the size of a record.
MAX_TRANSACTION_PARTITIONS: Final = 20_000
