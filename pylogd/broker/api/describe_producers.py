"""DescribeProducers (61), version 0: list the idempotent producers that write to partitions (KIP-664).

Behaviour: each replica, leader or not, answers for the partitions that it has. Its log remembers producer ids with a
batch within `producer.id.expiration.ms`. A partition that is named twice is answered once. If the answer would have
more than `response.max.bytes`, the remaining partitions get INVALID_REQUEST. A client needs READ for each topic. The
answer has the first offset of each open transaction, and the coordinator epoch of each producer's last marker. pylogd's
own tagged field has the time until which a smooth expansion waits for a producer, if this broker leads the partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.base.limits.answers import AnswerBudget
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain, why_absent
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import answer_budget, in_slices
from pylogd.broker.log.producers import Producers
from pylogd.broker.metadata.image import check_topic_name
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

_PARTITION_BYTES: Final = 16  # about how many bytes a partition without producers takes in an answer
_PRODUCER_BYTES: Final = 39


@handles(DescribeProducersRequest, 0, 0)
def describe_producers(
    context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse | Deferred[Any]:
    """Return the producers of every partition of the request."""
    response = DescribeProducersResponse()
    return in_slices(context, request.API_KEY, _answer_all(context, request, response), response)


def _answer_all(
    context: RequestContext, request: DescribeProducersRequest, response: DescribeProducersResponse
) -> Iterator[int]:
    budget = answer_budget(context)
    answered: set[tuple[str, int]] = set()
    for topic in request.topics:
        answers: list[PartitionResponse] = []
        response.topics.append(TopicResponse(topic.name, answers))
        may_read = context.may_use_topic(AclOperation.READ, topic.name)
        for index in topic.partition_indexes:
            if (topic.name, index) in answered:
                continue
            answered.add((topic.name, index))
            answer = PartitionResponse(index)
            answers.append(answer)
            if not may_read:
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            else:
                yield from _answer(context, budget, topic.name, answer)
            yield _PARTITION_BYTES


def _answer(context: RequestContext, budget: AnswerBudget, topic: str, answer: PartitionResponse) -> Iterator[int]:
    """Yield the steps that fill the answer for one partition."""
    try:
        producers = _producers(context, topic, answer.partition_index)
        if not budget.take(_PARTITION_BYTES + len(producers) * _PRODUCER_BYTES):
            raise KafkaError(ErrorCode.INVALID_REQUEST, budget.refusal)
    except PylogdError as error:
        answer.error_code, answer.error_message = explain(error)
        return
    awaited = context.broker.smooth_joins.awaited_producers((topic, answer.partition_index))
    for producer_id in list(producers.by_id):
        producer = producers.by_id.get(producer_id)  # it may have expired between two slices
        if producer is not None:
            last = producer.last_batch
            answer.active_producers.append(
                ProducerState(
                    producer_id, producer.epoch, -1 if last is None else last.last_sequence, producer.last_seen_ms,
                    producer.coordinator_epoch, producer.transaction_first_offset,
                    -1 if awaited is None or producer.last_offset >= awaited.before else awaited.until_ms,
                )
            )  # fmt: skip
        yield _PRODUCER_BYTES


def _producers(context: RequestContext, topic: str, index: int) -> Producers:
    """Return the producers of a partition that this broker has. Raises PylogdError."""
    partition = context.broker.partitions.by_name.get((topic, index))
    if partition is None:
        check_topic_name(topic)
        raise KafkaError(why_absent(context.broker, topic, index))
    return partition.log.producers
