"""Answer Fetch requests that continue a session, as clients send them, where one partition has changed.

Strategy: a consumer that has got records of one partition names it in its next request, with another offset. Such a
request is not decoded into a message (`wire.fast.known_session`), and its answer is made of bytes, as for a request
without a session (`fast.fetch`), by the same objects: session, entry, partition and log.

Rules: nothing is changed until the answer is certain. Anything else is left to the general handler (`api.fetch`), which
begins anew: other partitions that have changed, a partition that is new to the session, no records, too few, or records
on the disk only, any error, and followers. tests/property/test_session_fetches.py proves that both answer alike, and
leave the session alike.
"""

from __future__ import annotations

from pylogd.api.context import BrokerParts, Connection
from pylogd.api.statistics import FETCH, STATISTICS
from pylogd.errors import PylogdError
from pylogd.replica.partition import NO_EPOCH, Partition
from pylogd.replica.sessions import FetchSession, SessionPartition
from pylogd.security.authorizer import AclOperation, ResourceType
from pylogd.wire.fast import compiled
from pylogd.wire.fast.fetch import NOT_KNOWN, response_body
from pylogd.wire.fast.known_fetch import END
from pylogd.wire.fast.known_session import KnownSessionFetch, NamedPartition
from pylogd.wire.messages.fetch import FetchPartition
from pylogd.wire.session import RepeatReply
from pylogd.wire.values import ZERO_UUID

_requests = STATISTICS.requests


def answer_in_session(
    broker: BrokerParts, connection: Connection, known: KnownSessionFetch, data: bytes
) -> RepeatReply | None:
    """Return the reply to the request in `data` if it is like `known`; None where the general handler has to answer."""
    found = known.named_in(data)
    if found is None:
        return None
    _, topic_id, index, leader_epoch, offset, last_epoch, log_start, limit = found
    changed = _only_change(broker, connection, known, found)
    if changed is None or (log := changed[2].led_log) is None:
        return None
    session, entry, partition = changed
    end = stable = partition.high_watermark
    try:
        if log.producers.unstable.active:
            stable = partition.last_stable_offset
        most, committed = known.max_bytes, known.committed
        if limit < most:
            most = limit
        visible = stable if committed else end
        records = log.read_again(offset, most, visible)
        if records is None and most > 0:
            records = log.read(offset, most, end_offset=visible)
        if records is None or (size := records.length) < known.least:
            return None
        if committed and log.aborted_in(offset, records, stable):
            return None
    except PylogdError:
        return None
    start = log.log_start_offset
    module = compiled.fast
    assert module is not None  # or there was no `known`
    body = response_body(topic_id, index, committed, known.session_id)
    head: bytes = module.fetch_head(body, data, end, stable, start, size)
    broker.fetch_sessions.advance(session)
    wanted = FetchPartition(index, leader_epoch, offset, last_epoch, log_start, limit, ZERO_UUID, NOT_KNOWN)
    session.answered(entry, wanted, partition, end, start)
    _requests[FETCH] += 1
    partition.fetches += 1
    partition.fetched_bytes += size
    return head, records, END, -1


def _only_change(
    broker: BrokerParts, connection: Connection, known: KnownSessionFetch, found: NamedPartition
) -> tuple[FetchSession[FetchPartition], SessionPartition[FetchPartition], Partition] | None:
    """Return the session, and the partition that is named, if the client may read it and no other one has changed."""
    epoch, topic_id, index, leader_epoch, _, last_epoch, _, _ = found
    session: FetchSession[FetchPartition] | None = broker.fetch_sessions.expecting(known.session_id, epoch, connection)
    if session is None or last_epoch >= 0:
        return None
    key = topic_id, index
    entry, partition = session.partitions.get(key), broker.partitions.by_id.get(key)
    if entry is None or partition is None or len(session.dirty) > (entry in session.dirty):
        return None
    if leader_epoch != NO_EPOCH and leader_epoch != partition.leader_epoch:
        return None
    authorizer = broker.authorizer
    if not session.saw((*known.view, None, 0 if authorizer is None else authorizer.version)):
        return None
    if authorizer is not None and not authorizer.authorize(
        connection.principal, connection.host, AclOperation.READ, ResourceType.TOPIC, partition.topic
    ):
        return None
    return session, entry, partition
