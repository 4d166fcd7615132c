"""Limits of a transaction."""

from __future__ import annotations

from typing import Final

#: Partitions of one transaction. All of them are in each record of its state, which is written anew when one is added.
#: More are answered INVALID_REQUEST. Kafka's bound is the size of a record.
MAX_TRANSACTION_PARTITIONS: Final = 20_000
