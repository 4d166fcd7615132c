"""The short way through Fetch (`fetch.py`), for the request that carries the load.

Strategy: a client that reads one partition, without a session, where enough lies warm, is answered by one function and
three objects; where there is nothing to read yet, that is said, and the job need not look for itself. Everything else,
errors included, is left to the job, which looks at it anew: what is not decided here has no second rule here.
tests/property/test_fast_fetch.py proves that both answer alike.
"""

from __future__ import annotations

from pylogd.api.context import RequestContext
from pylogd.errors import PylogdError
from pylogd.replica.partition import NO_EPOCH, Role
from pylogd.replica.sessions import FINAL_EPOCH
from pylogd.wire.fast.fetch import NO_DIVERGENCE, NO_LEADER, NO_SNAPSHOT
from pylogd.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

#: Topics go by id and a follower says so in a field of its own.
FIRST_VERSION = 15
READ_COMMITTED = 1
NONE_ABORTED: list[AbortedTransaction] = []  # shared, never changed
#: The answer where all is well, and nothing there to read. Never sent.
NOTHING_YET = FetchResponse()


def fetch_one(context: RequestContext, request: FetchRequest) -> FetchResponse | None:
    """The answer of `FetchJob` to the usual request: a client reads one partition, without a session, and all is well.

    `NOTHING_YET` at the end of the partition; None where anything else is asked for, or found, or too little.
    """
    topics = request.topics
    if (
        context.version < FIRST_VERSION
        or request.session_epoch != FINAL_EPOCH
        or request.session_id
        or len(topics) != 1
        or len(topics[0].partitions) != 1
        or request.replica_state.replica_id >= 0
        or request.rack_id
        or request.cluster_id is not None
    ):
        return None
    (topic,) = topics
    (wanted,) = topic.partitions
    broker = context.broker
    partition = broker.replicas.partitions_by_id.get((topic.topic_id, wanted.partition))
    if partition is None or partition.role is not Role.LEADING or wanted.last_fetched_epoch >= 0:
        return None
    if wanted.current_leader_epoch not in (partition.leader_epoch, NO_EPOCH):
        return None
    most = min(request.max_bytes, broker.settings["fetch.max.bytes"])
    limit = max(min(most, wanted.partition_max_bytes), 0)
    try:
        log_start = partition.log.log_start_offset
        records = partition.read(wanted.fetch_offset, limit, min_one=True, allow_cold=False)
    except PylogdError:
        return None
    if records is None:
        return NOTHING_YET
    if len(records) < min(request.min_bytes, most):
        return None
    end = partition.high_watermark
    aborted = NONE_ABORTED if request.isolation_level == READ_COMMITTED else None
    data = PartitionData(
        wanted.partition, 0, end, end, log_start, NO_DIVERGENCE, NO_LEADER, NO_SNAPSHOT, aborted, -1, records
    )
    return FetchResponse(0, 0, 0, [FetchableTopicResponse("", topic.topic_id, [data])], [])
