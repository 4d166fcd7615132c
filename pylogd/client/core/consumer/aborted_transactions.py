"""Find the batches of aborted transactions in the answer to a fetch (KIP-98), for consumers with read_committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from pylogd.wire.records import BatchHeader, ControlType, control_type, decode_batch


class AbortedTransactions:
    """Tells which batches of an answer belong to aborted transactions (KIP-98)."""

    def __init__(self, transactions: Iterable[Any]) -> None:
        """`transactions` are those of the answer: producer ids, and the first offsets of their transactions."""
        self._ahead = deque(sorted((t.first_offset, t.producer_id) for t in transactions))
        self._producers: set[int] = set()

    def skips(self, header: BatchHeader, batch: memoryview) -> bool:
        """Return whether to skip a batch of an aborted transaction. Batches must be passed in order.

        Raises InvalidRecordBatch.
        """
        while self._ahead and self._ahead[0][0] <= header.last_offset:
            self._producers.add(self._ahead.popleft()[1])
        if header.producer_id not in self._producers:
            return False
        if header.is_control:
            records = decode_batch(batch, header)
            if records and control_type(records[0]) == ControlType.ABORT:
                self._producers.discard(header.producer_id)
            return True
        return header.is_transactional
