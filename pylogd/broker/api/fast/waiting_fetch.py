"""Fetch requests that wait for records at the end of the log, without a message, a job or a Deferred for each.

Strategy: a consumer that has read all of a log waits most of the time. So a request that is known by its bytes
(`fast.fetch`, `fast.session_fetch`) waits as an object in the purgatory. When its partition has changed, or its time is
up, the object makes the reply, with the functions that answer requests without a wait. The pipeline sends the reply at
once.

Rules: a wait ends for the same reasons as `api.fetch_wait.FetchWait`. If its end is unusual, it is left to the general
handler, which reads again (`AfterWait`). So is every request if a quota has been set meanwhile.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

from twisted.internet.defer import fail

from pylogd.broker.api.context import BrokerParts, Connection
from pylogd.broker.api.statistics import FETCH
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.purgatory import OperationState, Wait
from pylogd.broker.replica.sessions import FetchSession
from pylogd.wire.messages.fetch import FetchPartition
from pylogd.wire.session import DirectReply, RequestReceived

#: Returned in place of a reply if there are no records yet, and nothing else to tell. Compared by identity.
NOTHING = cast(DirectReply, ())

_WAITING = OperationState.WAITING

#: Answers a request whose wait has ended. The arguments are the broker, the connection, the request's bytes, and the
#: session, which is already advanced; None without a session. Returns a response, or a Deferred of it.
AfterWait: TypeAlias = Callable[[BrokerParts, Connection, bytes, "FetchSession[FetchPartition] | None"], Any]


class KnownRequest(Protocol):
    """A request that the next ones of its connection are compared with.

    committed: see `KnownFetch`.
    """

    @property
    def committed(self) -> bool: ...


K = TypeVar("K", bound=KnownRequest)


class WaitingFetch(Wait[None], Generic[K]):
    """A request that waits. It is a `LaterReply`.

    data: the request's bytes.
    known: the request with which it was compared.
    after_wait: see `AfterWait`.
    """

    __slots__ = ("_early_reply", "_take", "_version", "_what", "after_wait", "broker", "connection", "data", "known")

    def __init__(
        self, broker: BrokerParts, connection: Connection, known: K, data: bytes, after_wait: AfterWait, version: int
    ) -> None:
        super().__init__()
        self.broker, self.connection, self.known, self.data = broker, connection, known, data
        self.after_wait = after_wait
        self._version = version
        self._take: Callable[[Any, Any], object] | None = None

    @property
    def event(self) -> RequestReceived:
        """The request, without its message."""
        return RequestReceived(FETCH, self._version, int.from_bytes(self.data[8:12], "big", signed=True), None, None)

    def then(self, take: Callable[[Any, Any], object], what: Any) -> None:
        """See `LaterReply`. The wait may have ended as soon as it began."""
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
        """Return the reply of the general handler after the wait: a response, or a Deferred of one."""

    def ends_with(self, partition: Partition, leader_epoch: int, offset: int) -> bool:
        """Return whether a partition has a record at `offset`, or is no longer led here in the same epoch."""
        if partition.leader_epoch != leader_epoch or not partition.online:
            return True
        return (partition.last_stable_offset if self.known.committed else partition.high_watermark) > offset

    def on_expire(self) -> None:
        """Do nothing: the reply has the available records."""

    def ended(self, _result: None) -> None:
        """Make the reply and give it to the pipeline. If the wait ended as soon as it began, keep it until `then`."""
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
        """Tell the pipeline that this error prevents a reply."""
        if self._take is None:
            self._early_reply = fail(error)
        else:
            self._take(fail(error), self._what)
