"""Answer clients' Fetch requests that continue a session if at most one partition has changed.

Strategy: a consumer that has got records of one partition names it in its next request, with another offset. If it has
got none, it names no partition. Such a request is not decoded into a message (`wire.fast.known_session`). As for a
request without a session (`fast.fetch`), its answer is made of bytes, by the same objects: session, entry, partition
and log. If there are no records yet, the request waits in the purgatory (`SessionFetchWait`).

Rules: nothing is changed until it is certain that the request is answered, or waits, here. All other cases are left to
the general handler (`api.fetch`), which begins anew: other partitions have changed, a partition is new to the session,
there are too few records, records are on the disk only, an error, a follower. A wait that ends with anything but
records of one partition is left to it too. tests/property/test_session_fetches.py and test_waiting_fetches.py prove
that both give the same answers and leave the session in the same state.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias, cast

from pylogd.base.errors import PylogdError
from pylogd.broker.api.context import BrokerParts, Connection
from pylogd.broker.api.fast.waiting_fetch import NOTHING, AfterWait, WaitingFetch
from pylogd.broker.api.statistics import FETCH, STATISTICS
from pylogd.broker.replica.partition import NO_EPOCH, Partition
from pylogd.broker.replica.sessions import FetchSession, SessionPartition, SessionWait
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.wire.fast import compiled
from pylogd.wire.fast.fetch import NOT_KNOWN, empty_response, response_body
from pylogd.wire.fast.known_fetch import END
from pylogd.wire.fast.known_session import KnownSessionFetch
from pylogd.wire.messages.fetch import FetchPartition
from pylogd.wire.session import DirectReply, RepeatReply
from pylogd.wire.values import ZERO_UUID

Session: TypeAlias = FetchSession[FetchPartition]
Entry: TypeAlias = SessionPartition[FetchPartition]

_requests = STATISTICS.requests


def answer_in_session(
    broker: BrokerParts, connection: Connection, known: KnownSessionFetch, data: bytes, after_wait: AfterWait | None
) -> RepeatReply | None:
    """Return the reply to the request in `data` if it is like `known`; None if the general handler has to answer.

    after_wait: answers the request if its wait does not end as usual; None if it must not wait.
    """
    named = known.named_in(data)
    if named is None:
        return None
    session: Session | None = broker.fetch_sessions.expecting(known.session_id, named[0], connection)
    if session is None:
        return None
    dirty = session.dirty
    if len(named) == 1:
        if len(dirty) > 1:
            return None
        entry = next(iter(dirty), None)
        if entry is None:
            return _wait(broker, connection, session, known, data, after_wait)
        wanted = entry.wanted
    else:
        _, _, topic_id, _, index, leader_epoch, offset, last_epoch, log_start, limit, _ = named
        entry = session.partitions.get((topic_id, index))
        if entry is None or len(dirty) > (entry in dirty):
            return None
        wanted = FetchPartition(index, leader_epoch, offset, last_epoch, log_start, limit, ZERO_UUID, NOT_KNOWN)
    reply = _read(broker, connection, session, known, entry, wanted, data)
    if reply is not NOTHING:
        if reply is not None:
            broker.fetch_sessions.advance(session)
            _requests[FETCH] += 1
        return reply
    return _wait(broker, connection, session, known, data, after_wait, entry, wanted)


def _read(
    broker: BrokerParts, connection: Connection, session: Session, known: KnownSessionFetch, entry: Entry,
    wanted: FetchPartition, data: bytes,
) -> DirectReply | None:  # fmt: skip
    """Return the reply with records of one partition; None for the general handler; NOTHING if there are none yet.

    With a reply, the session knows that it gave records, but its epoch is not raised.
    """
    partition = _readable(broker, connection, session, known, entry, wanted)
    if partition is None or (log := partition.led_log) is None:
        return None
    end = stable = partition.high_watermark
    offset, start = wanted.fetch_offset, log.log_start_offset
    try:
        if log.producers.unstable.active:
            stable = partition.last_stable_offset
        most, committed = known.max_bytes, known.committed
        if wanted.partition_max_bytes < most:
            most = wanted.partition_max_bytes
        visible = stable if committed else end
        if visible <= offset <= log.log_end_offset and not entry.is_news(end, start):
            return NOTHING
        records = log.read_again(offset, most, visible)
        if records is None and most > 0:
            records = log.read(offset, most, end_offset=visible)
        if records is None or (size := records.length) < known.least:
            return None
        if committed and log.aborted_in(offset, records, stable):
            return None
    except PylogdError:
        return None
    module = compiled.fast
    assert module is not None  # without it there would be no `known`
    body = response_body(partition.topic_id, wanted.partition, committed, known.session_id)
    head: bytes = module.fetch_head(body, data, end, stable, start, size)
    session.answered(entry, wanted, partition, end, start)
    partition.fetches += 1
    partition.fetched_bytes += size
    return head, records, END, -1


def _readable(
    broker: BrokerParts, connection: Connection, session: Session, known: KnownSessionFetch, entry: Entry,
    wanted: FetchPartition,
) -> Partition | None:  # fmt: skip
    """Return the partition that an entry names, if the client may read it at the requested offset and epoch."""
    if wanted.last_fetched_epoch >= 0:
        return None
    partition = broker.partitions.by_id.get((cast(bytes, entry.topic), wanted.partition))
    if partition is None:
        return None
    leader_epoch = wanted.current_leader_epoch
    if leader_epoch != NO_EPOCH and leader_epoch != partition.leader_epoch:
        return None
    authorizer = broker.authorizer
    if not session.saw((*known.view, None, 0 if authorizer is None else authorizer.version)):
        return None
    if authorizer is not None and not authorizer.authorize(
        connection.principal, connection.host, AclOperation.READ, ResourceType.TOPIC, partition.topic
    ):
        return None
    return partition


def _wait(
    broker: BrokerParts, connection: Connection, session: Session, known: KnownSessionFetch, data: bytes,
    after_wait: AfterWait | None, entry: Entry | None = None, wanted: FetchPartition | None = None,
) -> SessionFetchWait | None:  # fmt: skip
    """Have the request wait; None if it does not want to wait.

    entry: an entry without news, at the position in `wanted`.
    """
    if after_wait is None or known.wait_seconds <= 0 or not 0 < known.least <= 1:
        return None
    authorizer = broker.authorizer
    if entry is None and not session.saw((*known.view, None, 0 if authorizer is None else authorizer.version)):
        return None
    broker.fetch_sessions.advance(session)
    if entry is not None and wanted is not None:
        partition = broker.partitions.by_id[cast(bytes, entry.topic), wanted.partition]
        session.has_nothing(entry, wanted, partition)
    _requests[FETCH] += 1
    wait = SessionFetchWait(broker, connection, known, data, after_wait, session)
    session.park(wait, known.wait_seconds)
    return wait


class SessionFetchWait(WaitingFetch[KnownSessionFetch], SessionWait):
    """A Fetch of a session that waits until one of its partitions has a record to give, or an error to report."""

    __slots__ = ("_session",)

    def __init__(
        self, broker: BrokerParts, connection: Connection, known: KnownSessionFetch, data: bytes, after_wait: AfterWait,
        session: Session,
    ) -> None:  # fmt: skip
        super().__init__(broker, connection, known, data, after_wait, known.view[0])
        self._session = session

    def look(self) -> bool:
        """Look at all partitions that may have changed since the request looked at them."""
        return self._session.look_at_dirty(self)

    def try_complete(self, key: Hashable) -> bool:
        """Continue to wait: the entries of the session call `look_again`."""
        return False

    def look_again(self, entry: Entry) -> bool:
        """Look at a partition that has changed; return whether the wait is over."""
        partition = entry.partition
        if partition is None:
            return False
        return self.ends_with(partition, entry.leader_epoch, entry.wanted.fetch_offset) and self.complete(None)

    def reply(self) -> object:
        """Return the reply with records of the one partition that has changed, or the reply of the general handler."""
        session = self._session
        session.wait = None
        dirty = session.dirty
        if not dirty:
            return empty_response(session.session_id)
        if len(dirty) == 1:
            (entry,) = dirty
            found = _read(self.broker, self.connection, session, self.known, entry, entry.wanted, self.data)
            if found is not None and found is not NOTHING:
                return found
        return self.general_reply()

    def general_reply(self) -> object:
        """See `WaitingFetch`."""
        session = self._session
        session.wait = None
        return self.after_wait(self.broker, self.connection, self.data, session)
