"""Transactions of the producers on event loops: the code that they share, as coroutines.

Rules: a method waits up to `timeout` seconds, by default `max_block`, then raises RequestTimedOut. The operation that
it started continues: repeat the same call to wait for its result.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from pylogd.base.errors import PylogdError
from pylogd.client.core.consumer.options import Offsets
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.producer.transaction_model import OffsetsSource, as_offsets
from pylogd.client.evented.producer import EventedProducer

_log = logging.getLogger(__name__)


class TransactionMethods:
    """The methods of a producer that concern transactions, as coroutine methods. Times are in seconds."""

    def __init__(self, producer: EventedProducer[Any]) -> None:
        """`producer` does the work."""
        self._producer = producer

    def transaction(self, timeout: float | None = None) -> Transaction:
        """Return an asynchronous context manager that begins a transaction, commits it at the end, and aborts it on an
        exception.

            async with producer.transaction() as transaction:
                await producer.send("orders", b"...")
                await transaction.send_offsets(consumer)

        Leaving the block raises TransactionAborted if the transaction could not be committed and was aborted;
        ProducerFailed (such as ProducerFenced) if this producer can't be used any more; RequestTimedOut after `timeout`
        seconds (default: `max_block`). After RequestTimedOut, call `commit_transaction` again to wait for the outcome.
        """
        return Transaction(self._producer, timeout)

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Get a producer id. Fence earlier producers with this transactional id, and end their transactions.

        Optional: `begin_transaction` does this if it was not done before. Raises ProducerFailed, RequestTimedOut.
        """
        await self._producer.finish(self._producer.transactions.prepare, timeout, "no producer id")

    async def begin_transaction(self, timeout: float | None = None) -> None:
        """Begin a transaction. Raises TransactionError if one is open, and the errors of `init_transactions`."""
        await self._producer.begin_transaction(timeout)

    async def send_offsets(
        self, source: OffsetsSource | Offsets, group: GroupMetadata | None = None, timeout: float | None = None
    ) -> None:
        """Commit a consumer's offsets with the transaction: in each partition, the offset after the last returned
        record.

        source: the consumer, or offsets by partition; offsets need `group`, the consumer's `group_metadata()`.

        Raises TransactionAborted if the consumer is no longer a member of its group; ProducerFailed; RequestTimedOut;
        ValueError if the consumer commits automatically.
        """
        await _send_offsets(self._producer, source, group, timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Send all queued records and commit. Raises TransactionAborted if `abort_transaction` is the only call that is
        possible now; ProducerFailed. After RequestTimedOut the outcome is unknown: call this method again.
        """
        await _commit(self._producer, timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Drop the records that are not sent yet, and abort.

        Raises ProducerFailed. After RequestTimedOut, call it again.
        """
        end = partial(self._producer.transactions.end, committed=False)
        await self._producer.finish(end, timeout, "not aborted yet")


class Transaction:
    """One transaction, for an `async with` statement."""

    def __init__(self, producer: EventedProducer[Any], timeout: float | None) -> None:
        """It begins when the `async with` statement is entered."""
        self._producer = producer
        self._timeout = timeout

    async def __aenter__(self) -> Transaction:
        await self._producer.begin_transaction(self._timeout)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                await _commit(self._producer, self._timeout)
            except PylogdError:
                await self._abort()
                raise
        else:
            await self._abort()

    async def _abort(self) -> None:
        """Abort if possible. An error that prevents it was already raised to the application."""
        try:
            await self._producer.abort_open(self._timeout)
        except PylogdError as error:
            _log.warning("a transaction could not be aborted; the coordinator aborts it after its timeout: %s", error)

    async def send_offsets(self, source: OffsetsSource | Offsets, group: GroupMetadata | None = None) -> None:
        """Call `Producer.send_offsets`."""
        await _send_offsets(self._producer, source, group, self._timeout)


async def _commit(producer: EventedProducer[Any], timeout: float | None) -> None:
    await producer.finish(partial(producer.transactions.end, committed=True), timeout, "not committed yet")


async def _send_offsets(
    producer: EventedProducer[Any], source: OffsetsSource | Offsets, group: GroupMetadata | None, timeout: float | None
) -> None:
    offsets, metadata = as_offsets(source, group)
    send = partial(producer.transactions.send_offsets, offsets, metadata)
    await producer.finish(send, timeout, "offsets not sent yet")
