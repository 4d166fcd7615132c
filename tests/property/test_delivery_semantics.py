"""What an application that copies a topic may rely on, wherever it is killed: exactly, at least or at most once.

A process reads, writes and saves its position, in steps; it may be left at any of them, and another one goes on from
the saved position. In transactions, outputs and position are one: what is visible is always what was read up to the
position, even if processes that have a successor go on. Without them it depends on the order: output first may repeat
what was not saved, position first may leave out what was not written.

Source: "Message delivery semantics" in Kafka's documentation; KIP-98, KIP-447.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts
from tests.unit.broker.api.test_whole_transactions import Producer, committed_offset, read

NONE = ErrorCode.NONE
SOURCE = [b"%d" % number for number in range(7)]
AT_ONCE = 3
#: Each step either begins another process, or lets one of those that there are take a step.
NEW = -1
Steps = list[int]


@contextmanager
def broker() -> Iterator[Parts]:
    with TemporaryDirectory() as folder:
        parts = Parts(Path(folder), transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
        parts.verifier = parts.transaction_parts.verifier
        parts.create("t")
        for kind, key in ((0, "g"), (1, "x")):
            assert parts.call(FindCoordinatorRequest(key, kind), 3).error_code == NONE
        yield parts
        parts.close()


def position(parts: Parts) -> int:
    return max(committed_offset(parts), 0)


def output(parts: Parts) -> list[bytes | None]:
    return read(parts)[1] if parts.partitions.by_name["t", 0].log.log_end_offset else []


def copy_in_transactions(parts: Parts, newer: bool) -> Iterator[None]:
    """Copy what is left. Ends when it is fenced."""
    while parts.call(InitProducerIdRequest("x", 60_000)).error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
        pass  # the transaction of a predecessor is ended first
    producer = Producer(parts, newer)
    offset = position(parts)
    yield
    while offset < len(SOURCE):
        some = SOURCE[offset : offset + AT_ONCE]
        if not newer:
            group = "__consumer_offsets", 0
            added = parts.transactions.add("x", producer.producer_id, producer.epoch, [("t", 0), group], 0)
            if result_of(added) != NONE:
                return
            yield
        for value in some:
            if producer.send(value):
                return
            yield
        offset += len(some)
        if producer.send_offset(offset):
            return
        yield
        if producer.end(commit=True):
            return
        yield


def save(parts: Parts, offset: int) -> None:
    topic = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, offset)])
    assert not parts.call(OffsetCommitRequest("g", topics=[topic]), 8).topics[0].partitions[0].error_code


def copy_without(parts: Parts, *, save_first: bool) -> Iterator[None]:
    """Copy what is left, with the position saved before or after the output."""
    offset = position(parts)
    while offset < len(SOURCE):
        some = SOURCE[offset : offset + AT_ONCE]
        offset += len(some)
        if save_first:
            save(parts, offset)
            yield
        for value in some:
            parts.append("t", value)
            yield
        if not save_first:
            save(parts, offset)
            yield


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.integers(NEW, 2), max_size=60), newer=st.booleans())
def test_in_transactions_each_record_is_processed_exactly_once(steps: Steps, newer: bool) -> None:
    with broker() as parts:
        processes: list[Iterator[None]] = []
        for step in [NEW, *steps]:
            if step == NEW:
                processes.append(copy_in_transactions(parts, newer))
            next(processes[-1 - max(step, 0) % len(processes)], None)
            assert output(parts) == SOURCE[: position(parts)]
        for _ in copy_in_transactions(parts, newer):
            assert output(parts) == SOURCE[: position(parts)]
        assert output(parts) == SOURCE


@settings(max_examples=20, deadline=None)
@given(left_after=st.lists(st.integers(0, 12), max_size=6))
def test_output_before_the_position_is_at_least_once(left_after: Steps) -> None:
    with broker() as parts:
        for steps in [*left_after, 1000]:
            process = copy_without(parts, save_first=False)
            for _ in range(steps):
                if next(process, NEW) is NEW:
                    break
                assert set(output(parts)) >= set(SOURCE[: position(parts)])
        assert set(output(parts)) == set(SOURCE)


@settings(max_examples=20, deadline=None)
@given(left_after=st.lists(st.integers(0, 12), max_size=6))
def test_the_position_before_the_output_is_at_most_once(left_after: Steps) -> None:
    with broker() as parts:
        for steps in [*left_after, 1000]:
            process = copy_without(parts, save_first=True)
            for _ in range(steps):
                if next(process, NEW) is NEW:
                    break
        assert position(parts) == len(SOURCE)
        assert max(Counter(output(parts)).values(), default=1) == 1
