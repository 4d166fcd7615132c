"""The ends of transactions beside a disk that hangs: those of other partitions do not wait for it."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.log.markers import read_marker
from pylogd.broker.log.transactions import TransactionTerms
from pylogd.wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from pylogd.wire.records import TRANSACTIONAL, iter_batches
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch
from tests.fakes.workers import HeldWorkers


def open_transactions(parts: Parts) -> HeldWorkers:
    """Begin a transaction of producer 7 in both partitions of "t", of which the disk of the first one then hangs."""
    parts.create("t", partitions=2)
    partitions = [parts.partitions.by_name["t", index] for index in range(2)]
    assert len({one.log.directory.split("/")[1] for one in partitions}) == 2
    for partition in partitions:
        data = batch(producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
        result_of(parts.replicas.append_in_turn(partition, data, False, terms=TransactionTerms(verified=True)))
    assert parts.disks is not None
    writer = parts.disks.at(partitions[0].log.directory).queue_of("t").writer
    assert isinstance(writer, HeldWorkers)
    writer.hold = True
    return writer


def end(parts: Parts, *indexes: int) -> Deferred[Any]:
    """Ask for the markers of the transaction in these partitions."""
    marker = WritableTxnMarker(7, 0, True, [WritableTxnMarkerTopic("t", list(indexes))], 0, 0)
    answer = parts.ask(WriteTxnMarkersRequest([marker]), 2)
    assert isinstance(answer, Deferred)
    return answer


def codes(answer: Any) -> dict[int, int]:
    (result,) = answer.markers
    return {one.partition_index: one.error_code for one in result.topics[0].partitions}


def markers(parts: Parts, index: int) -> int:
    """Return how many markers a partition has."""
    found = parts.partitions.by_name["t", index].read(0, 1 << 20, min_one=True, allow_cold=True)
    assert found is not None
    return sum(
        read_marker(header, data) is not None for header, data in iter_batches(found.read()) if header.is_control
    )


def test_a_partition_that_is_late_is_timed_out_and_the_others_are_written(parts: Parts) -> None:
    writer = open_transactions(parts)
    answer = end(parts, 0, 1)
    assert not answer.called
    assert markers(parts, 1) == 1
    parts.time.advance(1)
    assert codes(result_of(answer)) == {0: ErrorCode.REQUEST_TIMED_OUT, 1: ErrorCode.NONE}
    assert parts.partitions.by_name["t", 1].last_stable_offset == 2
    again = end(parts, 0)
    writer.hold = False
    writer.release()
    assert codes(result_of(again)) == {0: ErrorCode.NONE}
    assert markers(parts, 0) == 2
    assert parts.partitions.by_name["t", 0].last_stable_offset == 3


def test_all_are_written_at_once_while_the_disks_are_well(parts: Parts) -> None:
    writer = open_transactions(parts)
    writer.hold = False
    answer = end(parts, 0, 1)
    assert codes(result_of(answer)) == {0: ErrorCode.NONE, 1: ErrorCode.NONE}
    assert (markers(parts, 0), markers(parts, 1)) == (1, 1)
