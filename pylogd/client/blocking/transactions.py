"""Transactions of the blocking producer: methods that wait for the coordinator, and a context manager.

Rules: a method waits up to `timeout` seconds, by default `max_block`, then raises RequestTimedOut. The operation that
it started continues: repeat the same call to wait for its result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pylogd.base.errors import PylogdError
from pylogd.client.blocking.sender import Sender
from pylogd.client.core.consumer.options import Offsets
from pylogd.client.core.errors import RequestTimedOut
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.producer import ProducerCore
from pylogd.client.core.producer.transaction_model import OffsetsSource, Operation, as_offsets

_log = logging.getLogger(__name__)


class TransactionMethods:
    """The methods of a producer that concern transactions."""

    options: ProducerOptions
    _core: ProducerCore
    _sender: Sender

    def transaction(self, timeout: float | None = None) -> Transaction:
        """Return a context manager that begins a transaction, commits it at the end, and aborts it on an exception.

            with producer.transaction() as transaction:
                producer.send("orders", b"...")
                transaction.send_offsets(consumer)

        Leaving the `with` block raises TransactionAborted if the transaction could not be committed and was aborted;
        ProducerFailed (such as ProducerFenced) if this producer can't be used any more; RequestTimedOut after `timeout`
        seconds (default: `max_block`). After RequestTimedOut, call `commit_transaction` again to wait for the outcome.
        """
        return Transaction(self, timeout)

    def init_transactions(self, timeout: float | None = None) -> None:
        """Get a producer id. Fence earlier producers with this transactional id, and end their transactions.

        Optional: `begin_transaction` does this if it was not done before. Raises ProducerFailed, RequestTimedOut.
        """
        self._finish(self._core.transactions.prepare, timeout, "no producer id")

    def begin_transaction(self, timeout: float | None = None) -> None:
        """Begin a transaction. Raises TransactionError if one is open, and the errors of `init_transactions`."""
        self.init_transactions(timeout)
        with self._sender.lock:
            self._core.begin_transaction()

    def send_offsets(
        self, source: OffsetsSource | Offsets, group: GroupMetadata | None = None, timeout: float | None = None
    ) -> None:
        """Commit a consumer's offsets with the transaction: in each partition, the offset after the last returned
        record.

        source: the consumer, or offsets by partition; offsets need `group`, the consumer's `group_metadata()`.

        Raises TransactionAborted if the consumer is no longer a member of its group; ProducerFailed; RequestTimedOut;
        ValueError if the consumer commits automatically.
        """
        offsets, metadata = as_offsets(source, group)
        self._finish(lambda: self._core.transactions.send_offsets(offsets, metadata), timeout, "offsets not sent yet")

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Send all queued records and commit. Raises TransactionAborted if `abort_transaction` is the only call that is
        possible now; ProducerFailed. After RequestTimedOut the outcome is unknown: call this method again.
        """
        self._finish(lambda: self._core.transactions.end(committed=True), timeout, "not committed yet")

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Drop the records that are not sent yet, and abort.

        Raises ProducerFailed. After RequestTimedOut, call it again.
        """
        self._finish(lambda: self._core.transactions.end(committed=False), timeout, "not aborted yet")

    def _finish(self, start: Callable[[], Operation], timeout: float | None, late: str) -> None:
        """Start an operation and wait for it. Raises its error; RequestTimedOut with the text `late`."""
        sender, core = self._sender, self._core
        with sender.lock:
            if core.failure is not None:
                raise core.failure
            operation = start()
            if not operation.done:
                sender.start()
                if not sender.wait(lambda: operation.done, self.options.max_block if timeout is None else timeout):
                    raise RequestTimedOut(f"transactional id {core.transactions.transactional_id!r}: {late}")
        if operation.error is not None:
            raise operation.error

    def _abort_open(self, timeout: float | None) -> None:
        """Abort the open transaction, if there is one, when the producer is closed."""
        if self.options.transactional_id is not None and self._core.transactions.can_abort:
            self.abort_transaction(timeout)


class Transaction:
    """One transaction, for a `with` statement."""

    def __init__(self, producer: TransactionMethods, timeout: float | None) -> None:
        """It begins when the `with` statement is entered."""
        self._producer = producer
        self._timeout = timeout

    def __enter__(self) -> Transaction:
        self._producer.begin_transaction(self._timeout)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        producer = self._producer
        if kind is None:
            try:
                producer.commit_transaction(self._timeout)
            except PylogdError:
                self._abort()
                raise
        else:
            self._abort()

    def _abort(self) -> None:
        """Abort if possible. An error that prevents it was already raised to the application."""
        if not self._producer._core.transactions.can_abort:
            return
        try:
            self._producer.abort_transaction(self._timeout)
        except PylogdError as error:
            _log.warning("a transaction could not be aborted; the coordinator aborts it after its timeout: %s", error)

    def send_offsets(self, source: OffsetsSource | Offsets, group: GroupMetadata | None = None) -> None:
        """Call `Producer.send_offsets`."""
        self._producer.send_offsets(source, group, self._timeout)
