"""Load the transactional ids of one partition of `__transaction_state` when this broker becomes its leader."""

from __future__ import annotations

from pylogd.broker.replica.internal_loader import InternalTopicLoader
from pylogd.broker.replica.partition import Partition
from pylogd.broker.transactions.records import read_key, read_value
from pylogd.broker.transactions.values import TransactionValue
from pylogd.wire.records import BatchHeader, Record


class TransactionLoader(InternalTopicLoader[dict[str, TransactionValue]]):
    """Loads one partition once. It may be used by one thread at a time.

    end: the offset after the last record that was loaded.
    """

    contents = "the transactional id in it"

    def __init__(self, partition: Partition, slice_bytes: int) -> None:
        super().__init__(partition, slice_bytes)
        self.end = partition.log.log_end_offset
        self._values: dict[str, TransactionValue] = {}

    def apply(self, header: BatchHeader, record: Record) -> None:
        """Note the state in a record."""
        transactional_id = None if record.key is None else read_key(record.key)
        if transactional_id is None:
            return  # a kind of record that only newer brokers write
        if record.value is None:
            self._values.pop(transactional_id, None)
        else:
            self._values[transactional_id] = read_value(record.value)

    def make(self) -> dict[str, TransactionValue]:
        """Return the state of every transactional id."""
        return self._values
