"""Fetch requests that wait for records at the end of the log, without a message, a job or a Deferred for each.

Strategy: a consumer that has read all of a log spends its life in such waits. So a request that is known by its bytes
(`fast.fetch`, `fast.session_fetch`) waits as an object in the purgatory that makes its reply when its partition has
changed, or when its time is up, by the functions that answer it without a wait. The pipeline sends it at once.

Rules: a wait ends for the same reasons as `api.fetch_wait.FetchWait`. What is not as usual at its end is left to the
general handler, which reads anew (`AnswerAnew`); so is every request if a quota has been set meanwhile.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

from twisted.internet.defer import fail

from pylogd.api.context import BrokerParts, Connection
from pylogd.api.statistics import FETCH
from pylogd.replica.partition import Partition
from pylogd.replica.purgatory import OperationState, Wait
from pylogd.replica.sessions import FetchSession
from pylogd.wire.messages.fetch import FetchPartition
from pylogd.wire.session import DirectReply, RequestReceived

#: Stands for a reply where there are no records yet, and nothing else to tell. Compared by identity.
NOTHING = cast(DirectReply, ())

_WAITING = OperationState.WAITING

#: Answers the request in some bytes, whose wait has ended: broker, connection, bytes, and the session, which has been
#: advanced; None without one. Returns a response, or a Deferred of it.
AnswerAnew: TypeAlias = Callable[[BrokerParts, Connection, bytes, "FetchSession[FetchPartition] | None"], Any]


class KnownRequest(Protocol):
    """A request that the next ones of its connection are compared with. committed: see `KnownFetch`."""

    @property
    def committed(self) -> bool: ...


K = TypeVar("K", bound=KnownRequest)


class WaitingFetch(Wait[None], Generic[K]):
    """A request that waits. It is a `LaterReply`.

    data: the request's bytes. known: what it is like. anew: see `AnswerAnew`.
    """

    __slots__ = ("_early_reply", "_take", "_version", "_what", "anew", "broker", "connection", "data", "known")

    def __init__(
        self, broker: BrokerParts, connection: Connection, known: K, data: bytes, anew: AnswerAnew, version: int
    ) -> None:
        super().__init__()
        self.broker, self.connection, self.known, self.data, self.anew = broker, connection, known, data, anew
        self._version = version
        self._take: Callable[[Any, Any], object] | None = None

    @property
    def event(self) -> RequestReceived:
        """The request, without its message."""
        return RequestReceived(FETCH, self._version, int.from_bytes(self.data[8:12], "big", signed=True), None, None)

    def then(self, take: Callable[[Any, Any], object], what: Any) -> None:
        """See `LaterReply`. The wait may have ended as it began."""
        if self.state is _WAITING:
            self._take, self._what = take, what
        else:
            take(self._early_reply, what)

    def cancel(self) -> None:
        """See `LaterReply`."""
        self.withdraw()

    @abstractmethod
    def reply(self) -> object:
        """Return the reply after the wait: a DirectReply, a response, or a Deferred of one."""

    @abstractmethod
    def general_reply(self) -> object:
        """Return the reply after the wait as the general handler makes it: a response, or a Deferred of one."""

    def ends_with(self, partition: Partition, leader_epoch: int, offset: int) -> bool:
        """Return whether a partition has a record at `offset` to give, or is not led here as it was in that epoch."""
        if partition.leader_epoch != leader_epoch or not partition.online:
            return True
        return (partition.last_stable_offset if self.known.committed else partition.high_watermark) > offset

    def on_expire(self) -> None:
        """Do nothing: the reply has what there is."""

    def ended(self, _result: None) -> None:
        """Make the reply and give it to the pipeline; keep it until `then` if the wait has ended as it began."""
        try:
            reply = self.general_reply() if self.broker.client_quotas.active else self.reply()
        except Exception as error:
            reply = fail(error)
        take = self._take
        if take is None:
            self._early_reply = reply
        else:
            take(reply, self._what)

    def failed(self, error: Exception) -> None:
        """Tell the pipeline that there is no reply, because of this error."""
        if self._take is None:
            self._early_reply = fail(error)
        else:
            self._take(fail(error), self._what)
