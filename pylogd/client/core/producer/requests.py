"""Make Produce requests from batches, and read the responses. Without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pylogd.base.errors import KafkaError, PylogdError, error_for
from pylogd.client.core.errors import RequestTimedOut
from pylogd.client.core.producer.accumulator import Batch
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.send_queue import SendQueue
from pylogd.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pylogd.wire.values import ZERO_UUID

_TOPIC_IDS_FROM = 13

BatchesByPartition = dict[tuple[str | bytes, int], Batch]  # by topic (name or id) and partition


def highest_version(topic_ids: Mapping[str, bytes], until: int | None = None) -> int | None:
    """Return the highest version for topics with these ids, at most `until`; None for any.

    Versions with ids need the ids of all topics.
    """
    return _TOPIC_IDS_FROM - 1 if until is None and ZERO_UUID in topic_ids.values() else until


def produce_request(
    batches: Sequence[Batch], topic_ids: Mapping[str, bytes], version: int, options: ProducerOptions
) -> tuple[ProduceRequest, BatchesByPartition]:
    """Return the request with encoded batches, and the batches by topic and partition as an answer names them."""
    topics: dict[str, TopicProduceData] = {}
    by_partition: BatchesByPartition = {}
    for batch in batches:
        name, index = batch.partition
        key: Any = topic_ids[name] if version >= _TOPIC_IDS_FROM else name
        if name not in topics:
            topics[name] = TopicProduceData(**{"topic_id" if version >= _TOPIC_IDS_FROM else "name": key})
        topics[name].partition_data.append(PartitionProduceData(index=index, records=batch.encoded))
        by_partition[key, index] = batch
    timeout_ms = int(options.request_timeout * 1000)
    request = ProduceRequest(options.transactional_id, options.required_acks, timeout_ms, list(topics.values()))
    return request, by_partition


def complete(
    queue: SendQueue,
    by_partition: BatchesByPartition,
    response: ProduceResponse | None,
    error: PylogdError | None,
    now: float,
) -> list[PylogdError]:
    """Report the result of each batch to the queue: from the response; from `error` if the whole request failed; or,
    with neither, as written (acks=0). Return the errors, which may mean that metadata is outdated.
    """
    if response is None:
        for batch in by_partition.values():
            if error is None:
                queue.written(batch, -1)
            else:
                queue.failed(batch, error, now)
        return [] if error is None else [error]
    errors: list[PylogdError] = []
    left = dict(by_partition)
    for topic in response.responses:
        for answer in topic.partition_responses:
            key = (topic.name or topic.topic_id, answer.index)
            if key not in left:
                continue
            batch = left.pop(key)
            if answer.error_code:
                errors.append(_error(batch, answer))
                queue.failed(batch, errors[-1], now)
            else:
                queue.written(batch, answer.base_offset, answer.log_append_time_ms)
    for batch in left.values():
        errors.append(RequestTimedOut(f"{batch.partition}: the broker's reply leaves the partition out"))
        queue.failed(batch, errors[-1], now)
    return errors


def _error(batch: Batch, answer: PartitionProduceResponse) -> KafkaError:
    code = error_for(answer.error_code)
    return KafkaError(code, f"{batch.partition}: {answer.error_message or code.text}")
