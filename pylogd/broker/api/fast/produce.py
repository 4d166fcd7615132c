"""Answer Produce requests that append to one partition and wait for nothing, one or many with one append.

Strategy: a request and the similar requests that were received after it are a batch of requests; often it has only one.
The request is parsed without a message object, its partition is looked up, its records are appended, and the response
is made of bytes. If the request repeats the shape of the connection's last one, a compiled function reads it without
parsing (`wire.fast.compiled`). Several requests are appended with one write, up to the first that needs the general
path; if that is the first, it is answered by itself. A single request costs a tenth fewer instructions as a batch of
one than with a message.

After such a batch, all bytes of the next read are offered as a whole (`answer_repeated_batch`). A compiled function
(`_repeated.c`) does the work of the functions here and in `replica` and `log`. It looks everything up each time, keeps
nothing between two calls, and leaves unusual requests to Python before it has changed anything.

Rules: a request that is refused, or has to wait, is left to the general handler before anything is changed, and that
handler answers it. Only two refusals are answered here. One is a storage failure, for every request of the batch, since
a failed write is not tried again. The other is a full write queue, since there may be thousands of these a second while
a disk hangs. tests/property/test_request_batches.py proves that neither the client nor the disk can tell the
difference.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from pylogd.base.errors import PylogdError
from pylogd.broker.api.context import BrokerParts, Connection
from pylogd.broker.api.fast.repeated import MOST, ShapedConnection, repeated
from pylogd.broker.api.produce import pause, refusal
from pylogd.broker.log.append.direct import BatchList, CompiledRun
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.replica.manager import ReplicaManager
from pylogd.broker.replica.partition import Partition
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.store.paths import INTERNAL_TOPICS
from pylogd.wire.fast.compiled import KnownShape, known_shape
from pylogd.wire.fast.produce import FIRST_TOPIC_ID
from pylogd.wire.fast.request_batch import ProduceRequestBatch, ProduceShape, parse_request
from pylogd.wire.messages.produce import ProduceResponse, TopicProduceResponse
from pylogd.wire.schema import response_codec
from pylogd.wire.session import NOT_ANSWERED, BatchReply, RepeatedBatch, ServerSession

_repeated = repeated
_NO_TIMESTAMP = -1
_PERMISSION: Final = (AclOperation.WRITE, ResourceType.TOPIC)
_LENGTH: Final = struct.Struct(">i")


class _Received(NamedTuple):
    """Requests that were received.

    frame: the first request, without its length.
    chunk: has the other requests from position `at` on.
    max_bytes: the most bytes of a request.
    """

    frame: memoryview
    chunk: memoryview
    at: int
    max_bytes: int


def answer_batch(
    broker: BrokerParts, connection: ShapedConnection, frame: memoryview, session: ServerSession, most: int
) -> BatchReply:
    """Append the batches of the request in `frame` and of up to `most - 1` similar ones in `session`. Answer them."""
    return _answer(broker, connection, _Received(frame, *session.unread()), most)


def repeated_batch_answers(
    broker: BrokerParts,
) -> Callable[[ShapedConnection, bytes, ServerSession], RepeatedBatch | None]:
    """Return the function that answers requests that repeat the last batch: the compiled one if it is available."""
    in_python, hosted = partial(answer_repeated_batch, broker), broker.partitions
    if _repeated is None:
        return in_python
    return partial(
        _repeated.append_repeated, broker, hosted.by_id, hosted.by_name, INTERNAL_TOPICS, _PERMISSION, in_python,
        partial(_answer_failure, broker),
    )  # fmt: skip


def answer_repeated_batch(
    broker: BrokerParts, connection: ShapedConnection, data: bytes, session: ServerSession
) -> RepeatedBatch | None:
    """Answer the first requests in `data` like `answer_batch`; None if it leaves the first of them."""
    received = _received(data, session.max_frame_bytes)
    if received is None:
        return None
    reply = _answer(broker, connection, received, MOST)
    return (reply.replies, reply.end or received.at) if reply.replies else None


def _answer_failure(
    broker: BrokerParts, _connection: ShapedConnection, data: bytes, session: ServerSession, partition: Partition,
    error: Exception,
) -> RepeatedBatch | None:  # fmt: skip
    """Refuse requests if the compiled function could write none of them. Leave them if the log is closed."""
    if isinstance(error, StorageFailure):
        broker.replicas.append_failed(partition, error)
        received = _received(data, session.max_frame_bytes)
        batch = None if received is None else parse_request(received.frame)
        assert received is not None and batch is not None  # the compiled function has accepted requests
        _collect(batch, received, MOST)
        return _refuse(partition, batch, error), batch.ends[-1] or received.at
    if isinstance(error, PylogdError):
        return None
    raise error


def _received(data: bytes, most: int) -> _Received | None:
    """Return the requests in `data`; None if the first is incomplete, or larger than `most` bytes."""
    length = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else -1
    at = length + _LENGTH.size
    if not 0 <= length <= most or at > len(data):
        return None
    chunk = memoryview(data)
    return _Received(chunk[_LENGTH.size : at], chunk, at, most)


def _answer(broker: BrokerParts, connection: ShapedConnection, received: _Received, most: int) -> BatchReply:
    """Append the batches of the first request and of up to `most - 1` similar ones after it. Answer them."""
    known, batch, frame = connection.produce_shape, None, received.frame
    if known is None or not known.matches(frame):
        batch = parse_request(frame)
        if batch is None:
            return NOT_ANSWERED
        shape = batch.shape
        known = connection.produce_shape = known_shape(shape)
    else:
        shape = known.shape
    partition, replicas = _find_partition(broker, connection, shape), broker.replicas
    if partition is None:
        return NOT_ANSWERED
    queued = partition in replicas.repeats_queued
    if not queued:
        if shape.acks == -1 and (partition.flush_visible or not partition.alone):
            return NOT_ANSWERED
        reply = None if known is None else _append_compiled(replicas, partition, known, received, most)
        if reply is not None:
            return reply
    batch = batch or parse_request(frame)
    if batch is None:
        return NOT_ANSWERED
    if queued:
        return _refuse_if_full(replicas, connection, partition, batch)
    return _append(replicas, partition, batch, received, most)


def _append_compiled(
    replicas: ReplicaManager, partition: Partition, known: KnownShape, received: _Received, most: int
) -> BatchReply | None:
    """Have the compiled function append requests, from the first on; None if it accepted none."""
    run = CompiledRun(known.requests(*received, most), most)
    try:
        count = replicas.append_batches(partition, run, known.shape.acks == -1)
    except StorageFailure as failure:
        batch = parse_request(received.frame)
        assert batch is not None  # the compiled function has accepted requests
        _collect(batch, received, most)
        return BatchReply(_refuse(partition, batch, failure), batch.ends[-1], 0)
    except PylogdError:
        return NOT_ANSWERED
    if not count:
        return None
    partition.produced += count
    return BatchReply(run.replies, run.end, 0, True)


def _append(
    replicas: ReplicaManager, partition: Partition, batch: ProduceRequestBatch, received: _Received, most: int
) -> BatchReply:
    """Append as many requests as the log accepts together, or the one in `batch`, and answer them."""
    _collect(batch, received, most)
    acks_all, records, append_time = batch.shape.acks == -1, batch.records, _NO_TIMESTAMP
    run = BatchList(records)
    try:
        if len(records) == 1 or not replicas.append_batches(partition, run, acks_all):
            base, _, append_time, _, _ = replicas.append(partition, records[0], acks_all)
            run.bases = [base]
    except StorageFailure as failure:
        return BatchReply(_refuse(partition, batch, failure), batch.ends[-1], 0)
    except PylogdError:
        return BatchReply(b"", 0, len(records) - 1)
    replies = batch.encode_responses(run.bases, append_time, partition.log.log_start_offset)
    appended = len(run.bases)
    partition.produced += appended
    return BatchReply(replies, batch.ends[appended - 1], len(records) - appended)


def _collect(batch: ProduceRequestBatch, received: _Received, most: int) -> None:
    """Add similar requests that follow the first one, up to `most` in total."""
    if most > 1 and received.at < len(received.chunk):
        batch.collect(received.chunk, received.at, received.max_bytes, most)


def _find_partition(broker: BrokerParts, connection: Connection, shape: ProduceShape) -> Partition | None:
    """Return the partition; None if an append to it may be refused."""
    acks, hosted = shape.acks, broker.partitions
    if acks != -1 and acks != 1:
        return None
    if shape.version >= FIRST_TOPIC_ID:
        partition = hosted.by_id.get((shape.topic_id, shape.index))
    else:
        partition = hosted.by_name.get((shape.topic, shape.index))
    if partition is None or partition.topic in INTERNAL_TOPICS:
        return None
    if broker.authorizer is not None and not broker.authorizer.authorize(
        connection.principal, connection.host, AclOperation.WRITE, ResourceType.TOPIC, partition.topic
    ):
        return None
    return partition


def _refuse_if_full(
    replicas: ReplicaManager, connection: Connection, partition: Partition, batch: ProduceRequestBatch
) -> BatchReply:
    """Refuse the request in `batch` if the write queue of its partition is full; otherwise leave it to the handler."""
    full = replicas.refusal(partition, batch.records[0])
    if full is None:
        return NOT_ANSWERED
    return BatchReply(_refuse(partition, batch, full, pause(connection, full)), batch.ends[-1], 0)


def _refuse(partition: Partition, batch: ProduceRequestBatch, error: PylogdError, throttle_ms: int = 0) -> bytes:
    """Return the responses to all requests of `batch`, none of which was appended."""
    partition.produced += len(batch.records)
    shape = batch.shape
    answer = refusal(partition, shape.index, error)
    response = ProduceResponse([TopicProduceResponse(shape.topic, shape.topic_id, [answer])], throttle_ms)
    parts: list[Any] = response_codec(ProduceResponse.API_KEY, shape.version).encode(response)
    return batch.encode_refusals(b"".join(parts))
