"""Answer Produce requests that append to one partition and wait for nothing, one or many with one append.

Strategy: a request is a batch of one request, unless similar ones were received behind it. It is parsed without a
message object, its partition is looked up, its records are appended, and the response is made of bytes. Several are
appended with one write, as many as the log accepts without a closer look; if it accepts none of them, the first request
is answered by itself. A single request costs a tenth fewer instructions as a batch of one than with a message.

Rules: whatever is refused or waited for is left to the general handler: nothing has been done by then, and the client
is told by that handler, request by request. Only two refusals are answered here: failures of storage, for every request
of the batch alike, since a write that failed is not tried again; and those of full write queues, of which there may be
thousands a second while a disk hangs. tests/property/test_request_batches.py proves that neither the client nor
the disk can tell the difference.
"""

from __future__ import annotations

from typing import Any

from pylogd.api.context import BrokerParts, Connection
from pylogd.api.produce import pause, refusal
from pylogd.errors import PylogdError
from pylogd.log.errors import StorageFailure
from pylogd.metadata.image import INTERNAL_TOPICS
from pylogd.replica.manager import ReplicaManager
from pylogd.replica.partition import Partition
from pylogd.replica.partition_registry import PartitionRegistry
from pylogd.security.authorizer import AclOperation, ResourceType
from pylogd.wire.fast.produce import FIRST_TOPIC_ID
from pylogd.wire.fast.request_batch import ProduceRequestBatch, parse_request
from pylogd.wire.messages.produce import ProduceResponse, TopicProduceResponse
from pylogd.wire.schema import response_codec
from pylogd.wire.session import NOT_ANSWERED, BatchReply, ServerSession

_NO_TIMESTAMP = -1


def answer_batch(
    broker: BrokerParts, connection: Connection, frame: memoryview, session: ServerSession, most: int
) -> BatchReply:
    """Append what the request in `frame`, and up to `most - 1` similar ones unread in `session`, hold; answer them."""
    batch = parse_request(frame)
    if batch is None:
        return NOT_ANSWERED
    replicas = broker.replicas
    partition = _find_partition(broker.partitions, batch)
    if partition is None:
        return NOT_ANSWERED
    if broker.authorizer is not None and not broker.authorizer.authorize(
        connection.principal, connection.host, AclOperation.WRITE, ResourceType.TOPIC, partition.topic
    ):
        return NOT_ANSWERED
    if partition in replicas.append_queues:
        return _refuse_if_full(replicas, connection, partition, batch)
    if batch.acks == -1 and (partition.flush_visible or not partition.alone):
        return NOT_ANSWERED
    if most > 1:
        chunk, at, max_bytes = session.unread()
        if at < len(chunk):
            batch.collect(chunk, at, max_bytes, most)
    acks_all, records, append_time = batch.acks == -1, batch.records, _NO_TIMESTAMP
    try:
        bases = replicas.append_batches(partition, records, acks_all) if len(records) > 1 else None
        if not bases:
            base, _, append_time, _, _ = replicas.append(partition, records[0], acks_all)
            bases = [base]
    except StorageFailure as failure:
        return BatchReply(_refuse(partition, batch, failure), batch.ends[-1], 0)
    except PylogdError:
        return BatchReply(b"", 0, len(records) - 1)
    replies = batch.encode_responses(bases, append_time, partition.log.log_start_offset)
    appended = len(bases)
    partition.produced += appended
    return BatchReply(replies, batch.ends[appended - 1], len(records) - appended)


def _find_partition(hosted: PartitionRegistry, batch: ProduceRequestBatch) -> Partition | None:
    """Return the partition, or None where an append to it may be refused."""
    acks = batch.acks
    if acks != -1 and acks != 1:
        return None
    if batch.version >= FIRST_TOPIC_ID:
        partition = hosted.by_id.get((batch.topic_id, batch.index))
    else:
        partition = hosted.by_name.get((batch.topic, batch.index))
    if partition is None or partition.topic in INTERNAL_TOPICS:
        return None
    return partition


def _refuse_if_full(
    replicas: ReplicaManager, connection: Connection, partition: Partition, batch: ProduceRequestBatch
) -> BatchReply:
    """Refuse the request in `batch` if the write queue of its partition is full; else leave it to the handler."""
    full = replicas.refusal(partition, batch.records[0])
    if full is None:
        return NOT_ANSWERED
    return BatchReply(_refuse(partition, batch, full, pause(connection, full)), batch.ends[-1], 0)


def _refuse(partition: Partition, batch: ProduceRequestBatch, error: PylogdError, throttle_ms: int = 0) -> bytes:
    """Return the responses to all requests of `batch`, of which none was appended."""
    partition.produced += len(batch.records)
    answer = refusal(partition, batch.index, error)
    response = ProduceResponse([TopicProduceResponse(batch.topic, batch.topic_id, [answer])], throttle_ms)
    parts: list[Any] = response_codec(ProduceResponse.API_KEY, batch.version).encode(response)
    return batch.encode_refusals(b"".join(parts))
