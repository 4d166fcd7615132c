"""The short ways through Produce (`produce.py`), for the request that carries the load, and for many such at once.

Strategy: one partition that is appended to and done is a look-up, an append, a look-up of who waits, and the bytes of
the answer. Everything else is left to the general way before anything was done, and batches that are refused too: that
has changed nothing, and they are refused there once more, in words. Only what the disk did is not asked for twice.
tests/property/test_fast_produce.py proves that both answer alike.

Requests that came together and differ in their records only (`wire.runs`) are appended with one write and answered
with one string of bytes. Those from the first on with which that can't be done are left to go one by one; after a
failed write all are, since nothing was appended: each is told by itself what the disk did.
tests/property/test_request_batches.py proves that a client can't tell the difference.
"""

from __future__ import annotations

from pylogd.api.context import RequestContext
from pylogd.api.errors import explain
from pylogd.errors import ErrorCode, PylogdError
from pylogd.log.errors import StorageFailure
from pylogd.metadata.image import INTERNAL_TOPICS
from pylogd.replica.partition import Partition
from pylogd.wire.fast.produce import FIRST_PRODUCED, FIRST_TOPIC_ID, produced, produced_run
from pylogd.wire.fast.request_batch import ProduceRun
from pylogd.wire.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

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
    records, index, name = data.records, data.index, topic.name
    partition = _find(context, name, topic.topic_id, index, acks)
    if partition is None or not records:
        return None
    try:
        base, _, append_time, log_start, _ = context.broker.replicas.append(partition, records, acks == -1)
    except StorageFailure as error:
        return ProduceResponse([TopicProduceResponse(name, topic.topic_id, [failure(index, *explain(error))])])
    except PylogdError:
        return None
    return produced(version, name, topic.topic_id, index, base, append_time, log_start)


def produce_run(context: RequestContext, run: ProduceRun) -> tuple[int, bytes]:
    """How many of the run are answered, from its first on, and their replies; to those behind nothing was done."""
    acks, name, topic_id, index = run.acks, run.topic, run.topic_id, run.index
    partition = _find(context, name, topic_id, index, acks) if acks in (-1, 1) else None
    if partition is None or not partition.takes_runs:
        return 0, b""
    run.collect()
    bases = context.broker.replicas.append_run(partition, run.records, acks == -1)
    if not bases:
        return 0, b""
    start = partition.log.log_start_offset
    return len(bases), produced_run(run.version, name, topic_id, index, start, run.correlation_ids, bases)


def _find(context: RequestContext, name: str, topic_id: bytes, index: int, acks: int) -> Partition | None:
    """The partition, where what is appended to it is answered at once."""
    replicas = context.broker.replicas
    if context.version >= FIRST_TOPIC_ID:
        partition = replicas.partitions_by_id.get((topic_id, index))
    else:
        partition = replicas.partitions.get((name, index))
    if partition is None or partition.topic in INTERNAL_TOPICS:
        return None
    if replicas.append_queues and partition in replicas.append_queues:
        return None
    return None if acks == -1 and (partition.flush_visible or not partition.alone) else partition


def failure(index: int, code: ErrorCode, message: str) -> PartitionProduceResponse:
    """The answer for a partition that was not appended to."""
    return PartitionProduceResponse(
        index=index, error_code=code, base_offset=-1, error_message=message, current_leader=NO_LEADER
    )
