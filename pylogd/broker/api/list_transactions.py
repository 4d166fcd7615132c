"""ListTransactions (66), versions 0 to 2: list the transactional ids that this broker coordinates (KIP-664).

Behaviour: a client that wants all ids of a cluster asks every broker. The answer has COORDINATOR_LOAD_IN_PROGRESS while
some ids are still being loaded. Filters select by state, by producer id, by how long the transaction has been open
(version 1, KIP-994), and by a regular expression for the whole id (version 2, KIP-1152). States that do not exist are
named in the answer. A client gets only the ids that it may DESCRIBE.

Version 2 is served if the package google-re2 is installed. Expressions have RE2's syntax and are matched in a thread.
An expression that can't be read, or takes too long, gets INVALID_REGULAR_EXPRESSION.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.expressions import InvalidExpression, check, is_available
from pylogd.base.limits.shares import Crowded
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import fill, in_slices
from pylogd.broker.api.transactions import may_use_transactional_id
from pylogd.broker.security.authorizer import AclOperation
from pylogd.broker.transactions.shards import Transaction
from pylogd.broker.transactions.states import BY_NAME
from pylogd.broker.transactions.states import TransactionState as State
from pylogd.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

_ID_WORK = 60  # the work for an id, as bytes of an answer whose encoding takes as long


@handles(ListTransactionsRequest, 0, 2 if is_available() else 1)
def list_transactions(
    context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse | Deferred[Any]:
    """Return the transactional ids that match the filters of the request."""
    error, transactions = context.broker.transactions.transactions()
    if error:
        return ListTransactionsResponse(error_code=error)
    pattern = request.transactional_id_pattern
    if not pattern:
        return _list(context, request, transactions)
    try:
        check(pattern)
    except InvalidExpression:
        return _invalid()
    known = {transaction.name: transaction for transaction in transactions}
    matched = context.broker.expressions.among(pattern, known.keys(), context.share.name)
    matched.addCallbacks(lambda names: _list(context, request, (known[name] for name in names)), _invalid_if_slow)
    return matched


def _list(
    context: RequestContext, request: ListTransactionsRequest, transactions: Iterable[Transaction]
) -> ListTransactionsResponse | Deferred[Any]:
    unknown = [name for name in dict.fromkeys(request.state_filters) if name not in BY_NAME]
    states = {BY_NAME[name] for name in request.state_filters if name in BY_NAME}
    producer_ids = set(request.producer_id_filters)
    now_ms = context.broker.transactions.now_ms

    def listed(transaction: Transaction) -> TransactionState | None:
        name, value = transaction.name, transaction.value
        if transaction.pending is State.DEAD or (request.state_filters and value.state not in states):
            return None
        if producer_ids and value.producer_id not in producer_ids:
            return None
        if request.duration_filter >= 0 and now_ms - value.started_ms <= request.duration_filter:
            return None
        if not may_use_transactional_id(context, AclOperation.DESCRIBE, name, audited=False):
            return None
        return TransactionState(name, value.producer_id, value.state.kafka_name)

    response = ListTransactionsResponse(unknown_state_filters=unknown)
    steps = fill(response.transaction_states, transactions, listed, _ID_WORK)
    return in_slices(context, request.API_KEY, steps, response)


def _invalid_if_slow(failure: Failure) -> ListTransactionsResponse:
    if failure.check(Crowded):
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    failure.trap(InvalidExpression)
    return _invalid()


def _invalid() -> ListTransactionsResponse:
    return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
