"""Keep the order of a producer's batches while its transaction is being verified.

The first batch of a transaction on a partition waits for the transaction coordinator. Later batches of the producer to
that partition wait until it is appended. Otherwise a later batch, which needs no verification or is verified sooner,
would be appended first, and the earlier batch would be out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeAlias

from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from pylogd.broker.replica.partition import Partition

#: The partition of a batch, and its producer id.
Sender: TypeAlias = "tuple[Partition, int]"


class PendingVerifications:
    """The requests that wait for a verification, or for the requests before them."""

    def __init__(self) -> None:
        self._last: dict[Sender, Deferred[None]] = {}  # by sender; fires when its last request is done

    def __len__(self) -> int:
        return len(self._last)

    def busy(self, senders: Collection[Sender]) -> bool:
        """Return whether requests of any of the senders wait."""
        return any(sender in self._last for sender in senders)

    async def take_turn(self, senders: Collection[Sender]) -> Callable[[], None]:
        """Wait until all earlier requests of the senders are done.

        Return the function to call when the batches of this request were appended, or refused.
        """
        before = {id(last): last for last in (self._last.get(sender) for sender in senders) if last is not None}
        done: Deferred[None] = Deferred()
        for sender in senders:
            self._last[sender] = done
        for last in before.values():
            if not last.called:
                turn: Deferred[None] = Deferred()
                last.addCallback(_pass_on, turn)
                await turn

        def finish() -> None:
            for sender in senders:
                if self._last.get(sender) is done:
                    del self._last[sender]
            done.callback(None)

        return finish


def _pass_on(result: None, turn: Deferred[None]) -> None:
    turn.callback(None)
