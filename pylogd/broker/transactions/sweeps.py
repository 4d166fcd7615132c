"""Check the transactional ids of a coordinator at intervals: end transactions that are late, remove unused ids.

Strategy: each sweep checks `_AT_ONCE` ids in a turn of the reactor. An error with one id is logged, and does not stop
the sweep.

Rules: an id with a change under way is left to the next sweep. If an error ended the writing of a decided transaction's
markers, the sweep starts it again, so no transaction stays in this state for longer than one interval.
Must not know: requests.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any, Final

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.limits.log_lines import LimitedLog
from pylogd.broker.replica.internal_topic import MOST_RECORDS, KeyValue
from pylogd.broker.transactions.records import transaction_key
from pylogd.broker.transactions.shards import Shard, Transaction, TransactionShards
from pylogd.broker.transactions.states import TransactionState
from pylogd.config import Settings

log = Logger()
limited = LimitedLog(log)  # unknown clients can begin transactions that they never end

#: How many transactional ids one turn of the reactor checks.
_AT_ONCE: Final = 500


class TransactionSweeps:
    """The sweeps of one coordinator."""

    def __init__(
        self,
        shards: TransactionShards,
        settings: Settings,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        abort: Callable[[Shard, Transaction], Coroutine[Any, Any, object]],
        send_markers: Callable[[Shard, Transaction], object],
    ) -> None:
        """Arguments:

        now_ms: the wall clock.
        abort: aborts a transaction.
        send_markers: writes the markers of a decided one.
        """
        self._shards = shards
        self._settings = settings
        self._clock = clock
        self._now_ms = now_ms
        self._abort = abort
        self._send_markers = send_markers
        self._timers: set[IDelayedCall] = set()

    def start(self) -> None:
        """Start to sweep at intervals."""
        self._every("transaction.abort.timed.out.transaction.cleanup.interval.ms", self._end_late)
        self._every("transaction.remove.expired.transaction.cleanup.interval.ms", self._remove_expired)

    def stop(self) -> None:
        """Stop sweeping."""
        for call in self._timers:
            call.cancel()
        self._timers.clear()

    def _later(self, seconds: float, function: Callable[[], object]) -> None:
        def run() -> None:
            self._timers.discard(call)
            function()

        call = self._clock.callLater(seconds, run)
        self._timers.add(call)

    def _every(self, setting: str, function: Callable[[], object]) -> None:
        def run() -> None:
            self._every(setting, function)
            function()

        self._later(self._settings.integer(setting) / 1000, run)

    def _end_late(self) -> None:
        """Abort transactions that have been open for longer than their producer's timeout; continue decided ones."""

        def end(shard: Shard, transactions: list[Transaction]) -> None:
            now_ms = self._now_ms()
            for transaction in transactions:
                value = transaction.value
                if transaction.pending is not None:
                    continue
                if value.state is TransactionState.ONGOING and value.started_ms + value.timeout_ms < now_ms:
                    limited.info(
                        "{name}: aborting the transaction, which was not ended within {seconds:g} s",
                        event="transactions timed out", name=transaction.name, seconds=value.timeout_ms / 1000,
                    )  # fmt: skip
                    _logged(self._abort, shard, transaction)
                elif value.state.prepared:
                    _logged(self._send_markers, shard, transaction)

        self._sweep(end)

    def _remove_expired(self) -> None:
        """Remove transactional ids without changes for `transactional.id.expiration.ms`."""

        def remove(shard: Shard, transactions: list[Transaction]) -> None:
            before = self._now_ms() - self._settings.integer("transactional.id.expiration.ms")
            expired = [
                one for one in transactions
                if one.pending is None and one.value.state.may_expire and one.value.updated_ms <= before
            ]  # fmt: skip
            for at in range(0, len(expired), MOST_RECORDS):
                Deferred.fromCoroutine(self._remove(shard, expired[at : at + MOST_RECORDS]))  # the append never fails

        self._sweep(remove)

    async def _remove(self, shard: Shard, transactions: list[Transaction]) -> None:
        records: list[KeyValue] = [(transaction_key(one.name), None) for one in transactions]
        with ExitStack() as changes:
            for transaction in transactions:
                changes.enter_context(transaction.change(TransactionState.DEAD))
            error = await self._shards.append(shard, records)
        for transaction in transactions:
            if not error:
                self._shards.forget(shard, transaction.name)
            transaction.settle()

    def _sweep(self, work: Callable[[Shard, list[Transaction]], None]) -> None:
        """Call `work` with all transactional ids, `_AT_ONCE` in each turn of the reactor."""
        shards = [(shard, iter(list(shard.transactions.values()))) for shard in self._shards.led()]
        self._sweep_some(shards, work)

    def _sweep_some(
        self, shards: list[tuple[Shard, Iterator[Transaction]]], work: Callable[[Shard, list[Transaction]], None]
    ) -> None:
        left = _AT_ONCE
        while shards and left > 0:
            shard, rest = shards[-1]
            some = list(islice(rest, left))
            left -= len(some)
            if some and self._shards.current(shard):
                work(shard, some)
            else:
                shards.pop()
        if shards:
            self._later(0, lambda: self._sweep_some(shards, work))


def _logged(change: Callable[[Shard, Transaction], object], shard: Shard, transaction: Transaction) -> None:
    """Make a change. If it fails, log the error."""

    def failed(failure: Failure) -> None:
        log.failure("{name}: unexpected error while ending the transaction", failure, name=transaction.name)

    maybeDeferred(change, shard, transaction).addErrback(failed)
