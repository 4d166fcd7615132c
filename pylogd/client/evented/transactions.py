"""Transactions of the producers on event loops: the code that they share, as coroutines.

Rules: what waits, waits up to `max_block` seconds unless it is told otherwise, and raises RequestTimedOut then. What
was asked for continues: the same call can be repeated to wait again.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from pylogd.client.core.consumer.options import Offsets
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.producer.transaction_model import OffsetsSource, as_offsets
from pylogd.client.evented.producer import EventedProducer
from pylogd.errors import PylogdError

_log = logging.getLogger(__name__)


class TransactionMethods:
    """The methods of a producer that concern transactions, as coroutine methods. Times in seconds."""

    def __init__(self, producer: EventedProducer[Any]) -> None:
        """`producer` does the work."""
        self._producer = producer

    def transaction(self, timeout: float | None = None) -> Transaction:
        """Return an asynchronous context manager that begins a transaction, commits it at the end, and aborts it on an
        exception.

            async with producer.transaction() as transaction:
                await producer.send("orders", b"...")
                await transaction.send_offsets(consumer)

        The end raises TransactionAborted if the transaction could not be committed and was aborted; ProducerFailed, as
        ProducerFenced, if this producer can do nothing more; RequestTimedOut after `timeout` seconds (`max_block` by
        default): then `commit_transaction` can be called again to wait for the outcome.
        """
        return Transaction(self._producer, timeout)

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Get a producer id. Earlier producers with this transactional id are fenced, and their transactions ended.

        `begin_transaction` does so too, if it was not done. Raises ProducerFailed, RequestTimedOut.
        """
        await self._producer.finish(self._producer.transactions.prepare, timeout, "no producer id")

    async def begin_transaction(self, timeout: float | None = None) -> None:
        """Begin a transaction. Raises TransactionError if one is open, and as `init_transactions`."""
        await self._producer.begin_transaction(timeout)

    async def send_offsets(
        self, source: OffsetsSource | Offsets, group: GroupMetadata | None = None, timeout: float | None = None
    ) -> None:
        """Commit a consumer's offsets with the transaction: the offsets after the last returned records.

        In place of a consumer, offsets with the `group_metadata` of their consumer. Raises TransactionAborted if the
        consumer is no longer a member of its group, ProducerFailed, RequestTimedOut, ValueError for a consumer that
        commits by itself.
        """
        await _send_offsets(self._producer, source, group, timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Send everything and commit. Raises TransactionAborted if only `abort_transaction` is possible now, and
        ProducerFailed. After RequestTimedOut the outcome is open: call it again.
        """
        await _commit(self._producer, timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Drop the records that are not sent yet, and abort.

        Raises ProducerFailed. After RequestTimedOut, call it again.
        """
        end = partial(self._producer.transactions.end, committed=False)
        await self._producer.finish(end, timeout, "not aborted yet")


class Transaction:
    """One transaction, as `async with` has it."""

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
        """Abort if possible. Other errors were raised to the application already."""
        try:
            await self._producer.abort_open(self._timeout)
        except PylogdError as error:
            _log.warning("a transaction could not be aborted; the coordinator aborts it after its timeout: %s", error)

    async def send_offsets(self, source: OffsetsSource | Offsets, group: GroupMetadata | None = None) -> None:
        """As `Producer.send_offsets`."""
        await _send_offsets(self._producer, source, group, self._timeout)


async def _commit(producer: EventedProducer[Any], timeout: float | None) -> None:
    await producer.finish(partial(producer.transactions.end, committed=True), timeout, "not committed yet")


async def _send_offsets(
    producer: EventedProducer[Any], source: OffsetsSource | Offsets, group: GroupMetadata | None, timeout: float | None
) -> None:
    offsets, metadata = as_offsets(source, group)
    send = partial(producer.transactions.send_offsets, offsets, metadata)
    await producer.finish(send, timeout, "offsets not sent yet")
