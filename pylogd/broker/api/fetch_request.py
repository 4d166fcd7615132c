"""The partitions that a Fetch request asks for, alone or together with its session, and the client that sent it."""

from __future__ import annotations

from typing import Any, TypeAlias

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.replica.partition import NO_EPOCH
from pylogd.broker.replica.session_cache import FetchSessions
from pylogd.broker.replica.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSession,
    SessionOwner,
    SessionPartition,
    TopicKey,
)
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest

_FIRST_WITH_TOPIC_ID = 13
_FIRST_WITH_REPLICA_STATE = 15

Entry: TypeAlias = SessionPartition[FetchPartition]


def replica_id_of(context: RequestContext, request: FetchRequest) -> int:
    """Return the node id of the follower that fetches, -1 for any other client."""
    by_state = context.version >= _FIRST_WITH_REPLICA_STATE
    return request.replica_state.replica_id if by_state else request.replica_id


def broker_epoch_of(context: RequestContext, request: FetchRequest) -> int:
    """Return the broker epoch of the follower that fetches; `NO_EPOCH` if it sends none."""
    return request.replica_state.replica_epoch if context.version >= _FIRST_WITH_REPLICA_STATE else NO_EPOCH


def check_sender(context: RequestContext, request: FetchRequest) -> None:
    """Raise KafkaError for a follower of another cluster, and for a replica id that is not the sender's.

    As in Kafka, the cluster id of other clients is ignored.
    """
    follower = replica_id_of(context, request)
    if follower < 0:
        return
    if request.cluster_id is not None and request.cluster_id != context.broker.cluster.cluster_id:
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)
    if not context.is_broker(follower):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def wanted_entries(
    context: RequestContext, request: FetchRequest
) -> tuple[list[Entry] | FetchSession[FetchPartition], FetchSession[FetchPartition] | None, bool]:
    """Return the requested entries, the session that the request continues, and whether it opens one.

    Raises KafkaError for a request that is refused as a whole.
    """
    check_sender(context, request)
    by_id = context.version >= _FIRST_WITH_TOPIC_ID
    sessions = context.broker.fetch_sessions
    epoch = request.session_epoch
    if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if request.session_id:
            sessions.close_for(request.session_id, context.connection)
        return named_entries(request, by_id), None, epoch == INITIAL_EPOCH
    session = continued_session(sessions, request, by_id, context.connection)
    return ([], None, False) if session is None else (session, session, False)


def named_entries(request: FetchRequest, by_id: bool) -> list[Entry]:
    """Return an entry for each partition that the request names. As in Kafka, the last of duplicate entries counts."""
    entries: dict[tuple[TopicKey, int], Entry] = {}
    for topic in request.topics:
        key = topic.topic_id if by_id else topic.topic
        for wanted in topic.partitions:
            entries[key, wanted.partition] = SessionPartition(key, wanted)
    return list(entries.values())


def continued_session(
    sessions: FetchSessions[Any], request: FetchRequest, by_id: bool, asking: SessionOwner
) -> FetchSession[FetchPartition] | None:
    """Return the session of a request, with the request's changes; None if its client has dropped all partitions.

    asking: the connection of the request.

    Raises KafkaError for an unknown session or epoch, a session of another principal, and a session that has grown too
    large.
    """
    session: FetchSession[FetchPartition] = sessions.resume(request.session_id, request.session_epoch, by_id, asking)
    before = len(session)
    for gone in request.forgotten_topics_data:
        session.forget(gone.topic_id if by_id else gone.topic, gone.partitions)
    for topic in request.topics:
        for wanted in topic.partitions:
            session.want(topic.topic_id if by_id else topic.topic, wanted)
    if not session.partitions:
        sessions.close(session.session_id)  # without partitions there is nothing to be incremental about
        return None
    if len(session) != before:
        sessions.resized(session)
    return session
