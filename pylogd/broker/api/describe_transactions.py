"""DescribeTransactions (65), version 0: the state of transactional ids, from their coordinators (KIP-664).

Behaviour: an id that is named more than once is answered once. An id without a state gets TRANSACTIONAL_ID_NOT_FOUND. A
client needs DESCRIBE for each id, and is shown the topics that it may DESCRIBE. Ids that no longer fit into
`response.max.bytes` get INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.answers import AnswerBudget
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import answer_budget, in_slices
from pylogd.broker.api.transactions import may_use_transactional_id
from pylogd.broker.security.authorizer import AclOperation
from pylogd.broker.transactions.values import TransactionValue
from pylogd.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

_ID_WORK = 100  # the work for an id, as bytes of an answer whose encoding takes as long
_PARTITION_BYTES = 4


@handles(DescribeTransactionsRequest, 0, 0)
def describe_transactions(
    context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse | Deferred[Any]:
    """Return the state of each transactional id of the request."""
    response = DescribeTransactionsResponse()
    return in_slices(context, request.API_KEY, _describe_all(context, request, response), response)


def _describe_all(
    context: RequestContext, request: DescribeTransactionsRequest, response: DescribeTransactionsResponse
) -> Iterator[int]:
    budget = answer_budget(context)
    for name in dict.fromkeys(request.transactional_ids):
        before = budget.spent
        response.transaction_states.append(_describe(context, name, budget))
        yield budget.spent - before + _ID_WORK


def _describe(context: RequestContext, name: str, budget: AnswerBudget) -> TransactionState:
    if not may_use_transactional_id(context, AclOperation.DESCRIBE, name):
        return TransactionState(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, name)
    found = context.broker.transactions.describe(name)
    if isinstance(found, ErrorCode):
        return TransactionState(found, name)
    if not budget.take(_ID_WORK + len(name) + _PARTITION_BYTES * len(found.partitions)):
        return TransactionState(ErrorCode.INVALID_REQUEST, name)
    return TransactionState(
        ErrorCode.NONE, name, found.state.kafka_name, found.timeout_ms, found.started_ms, found.producer_id,
        found.epoch, list(_topics(context, found)),
    )  # fmt: skip


def _topics(context: RequestContext, value: TransactionValue) -> Iterator[TopicData]:
    for name, found in groupby(sorted(value.partitions), lambda partition: partition[0]):
        if context.may_use_topic(AclOperation.DESCRIBE, name, audited=False):
            yield TopicData(name, [index for _, index in found])
