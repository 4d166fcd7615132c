"""The largest requests to the coordinators of transactions and of the newer groups, which need state to be large.

Each function makes the state by requests, and yields what each of them, or all together, cost the broker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from pylogd.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from pylogd.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pylogd.wire.messages.describe_transactions import DescribeTransactionsRequest
from pylogd.wire.messages.end_txn import EndTxnRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.list_transactions import ListTransactionsRequest
from tests.extreme.attacks import encoded, slow_expression
from tests.extreme.messages import Extreme
from tests.rawclient import RawClient, wait_until

#: Measures a request, or what is done while a context lasts.
Measure = Callable[[Extreme], Any]
MeasureWhile = Callable[[str, Callable[[], contextlib.AbstractContextManager[None]]], Any]

_PRODUCER: Final = "other-producer"
_LASTS_MS: Final = 900_000
_MEMBERS: Final = 200


def transactions(client: RawClient, measure: Measure, measure_while: MeasureWhile, *, topic: str, partitions: int,
                 ids: int) -> Iterator[Any]:  # fmt: skip
    """Yield the costs of a transaction with all partitions of a topic, and of listing so many transactional ids."""
    for number in range(ids):
        client.request(InitProducerIdRequest(f"other-{number}", _LASTS_MS), 4)
    made = client.request(InitProducerIdRequest(_PRODUCER, _LASTS_MS), 4)
    assert not made.error_code, made
    names = [AddPartitionsToTxnTopic(topic, [*range(partitions)])]
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=_PRODUCER, v3_and_below_producer_id=made.producer_id,
        v3_and_below_producer_epoch=made.producer_epoch, v3_and_below_topics=names,
    )  # fmt: skip
    yield measure(encoded(add, 3, f"{partitions:,} partitions"))
    yield measure(encoded(add, 3, f"the same {partitions:,} partitions"))
    yield measure(encoded(DescribeTransactionsRequest([_PRODUCER]), 0, f"{partitions:,} partitions"))
    end = EndTxnRequest(_PRODUCER, made.producer_id, made.producer_epoch, True)
    yield measure_while(
        f"EndTxn 3: {partitions:,} partitions, until all have their markers", lambda: _until_ended(client, end)
    )
    yield measure(encoded(ListTransactionsRequest(), 2, f"all {ids:,}"))
    slow = ListTransactionsRequest(transactional_id_pattern=slow_expression())
    yield measure(encoded(slow, 2, f"all {ids:,}, by an expression that is slow to match"))
    named = DescribeTransactionsRequest([f"other-{number}" for number in range(ids)])
    yield measure(encoded(named, 0, f"all {ids:,}"))


@contextlib.contextmanager
def _until_ended(client: RawClient, request: EndTxnRequest) -> Iterator[None]:
    assert not client.request(request, 3).error_code
    wanted = DescribeTransactionsRequest([_PRODUCER])

    def ended() -> bool:
        found = client.request(wanted, 0).transaction_states[0]
        return bool(found.transaction_state == "CompleteCommit")

    wait_until(ended, "all partitions have their markers")
    yield


def consumers(measure: Measure, measure_while: MeasureWhile, connect: Callable[[], RawClient], *, names: int,
              topic: str) -> Iterator[Any]:  # fmt: skip
    """Yield the costs of members that subscribe to very much."""
    many = [f"narrow-{number}" for number in range(names)]
    yield measure(encoded(join("by-name", "one", many), 1, f"a member of {names:,} topics joins"))
    yield measure(encoded(join("by-name", "two", many), 1, f"another member of {names:,} topics joins"))
    yield measure(encoded(join("wide", "one", [topic]), 1, "a member of the wide topic joins"))
    yield measure(encoded(join("wide", "two", [topic]), 1, "another member of the wide topic joins"))
    yield measure(encoded(join("all", "one", [], ".*"), 1, "a member of all topics joins"))
    yield measure(encoded(join("slow", "one", [], slow_expression()), 1, "an expression that is slow to match"))
    what = f"ConsumerGroupHeartbeat 1: {_MEMBERS} members, each of 100 other topics and the wide one"
    yield measure_while(what, lambda: _join_differently(connect, many, topic))
    groups = ConsumerGroupDescribeRequest(["by-name", "wide", "all", "slow", "differing"])
    yield measure(encoded(groups, 1, "these groups"))


def join(group: str, member: str, topics: list[str], expression: str | None = None) -> ConsumerGroupHeartbeatRequest:
    """Return the heartbeat by which a member joins."""
    return ConsumerGroupHeartbeatRequest(
        group, member, 0, rebalance_timeout_ms=1000, subscribed_topic_names=topics, subscribed_topic_regex=expression,
        topic_partitions=[],
    )  # fmt: skip


@contextlib.contextmanager
def _join_differently(connect: Callable[[], RawClient], names: list[str], topic: str) -> Iterator[None]:
    with connect() as client:
        for number in range(_MEMBERS):
            some = [names[(number * 37 + each * 13) % len(names)] for each in range(100)]
            answer = client.request(join("differing", f"member-{number}", [*some, topic]), 1)
            assert not answer.error_code, answer
        yield
