"""The short way through Produce (`produce.py`), for the request that carries the load.

Strategy: one partition that is appended to and done is a look-up, an append, a look-up of who waits, and the bytes of
the answer. Everything else is left to the general way before anything was done, and batches that are refused too: that
has changed nothing, and they are refused there once more, in words. Only what the disk did is not asked for twice.
tests/property/test_produce_one.py proves that both answer alike.
"""

from __future__ import annotations

from pylogd.api.context import RequestContext
from pylogd.api.errors import explain
from pylogd.errors import ErrorCode, PylogdError
from pylogd.log.errors import StorageFailure
from pylogd.metadata.image import INTERNAL_TOPICS
from pylogd.wire.hot import FIRST_PRODUCED, produced
from pylogd.wire.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

_FIRST_WITH_TOPIC_ID = 13
NO_LEADER = LeaderIdAndEpoch()  # shared by all answers that have nothing to say there; never changed


def produce_one(context: RequestContext, request: ProduceRequest) -> bytes | ProduceResponse | None:
    """The body of the answer of `produce_all` to the usual request: a client's batches for one partition, all is well.

    None where anything else is asked for or found, where replicas or the disk are to be waited for, or where the
    append is refused. A message where the disk failed.
    """
    acks, version, topics = request.acks, context.version, request.topic_data
    if (
        version < FIRST_PRODUCED
        or len(topics) != 1
        or len(topics[0].partition_data) != 1
        or request.transactional_id is not None
        or (acks != -1 and acks != 1)
    ):
        return None
    (topic,) = topics
    (data,) = topic.partition_data
    replicas, records, index, name = context.broker.replicas, data.records, data.index, topic.name
    if version >= _FIRST_WITH_TOPIC_ID:
        partition = replicas.partitions_by_id.get((topic.topic_id, index))
    else:
        partition = replicas.partitions.get((name, index))
    if partition is None or not records or partition.topic in INTERNAL_TOPICS:
        return None
    if acks == -1 and (partition.flush_visible or not partition.alone):
        return None
    try:
        base, _, append_time, log_start, _ = replicas.append(partition, records, acks == -1)
    except StorageFailure as error:
        return ProduceResponse([TopicProduceResponse(name, topic.topic_id, [failure(index, *explain(error))])])
    except PylogdError:
        return None
    return produced(version, name, topic.topic_id, index, base, append_time, log_start)


def failure(index: int, code: ErrorCode, message: str) -> PartitionProduceResponse:
    """The answer for a partition that was not appended to."""
    return PartitionProduceResponse(
        index=index, error_code=code, base_offset=-1, error_message=message, current_leader=NO_LEADER
    )
