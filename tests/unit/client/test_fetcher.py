"""The fetcher's decisions: near replicas, bounded buffers, aborted transactions; and which records are returned."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client import CorruptRecords, TopicPartition
from pylogd.client.core.call import Call
from pylogd.client.core.consumer.fetcher import AbortedTransactions, Fetcher, FetchSettings
from pylogd.client.core.consumer.reader import Reader
from pylogd.client.core.errors import BrokerUnavailable
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import Broker, Partition, Topic
from pylogd.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pylogd.wire.records import CONTROL, TRANSACTIONAL, encode_batch, parse_header
from pylogd.wire.values import ZERO_UUID
from tests.fakes.reading import gather

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LEADER, NEAR = 1, 2


def batch(base: int, count: int, **options: int) -> bytes:
    return encode_batch([(None, b"%d" % n, 0, ()) for n in range(base, base + count)], base_offset=base, **options)


def known() -> Metadata:
    """Return metadata in which one broker leads all partitions."""
    metadata = Metadata([("h", 1)])
    metadata.brokers = {node: Broker(node, "h", node) for node in (LEADER, NEAR)}
    partitions = tuple(Partition(index, LEADER, 0, (LEADER,), (LEADER,), ()) for index in range(2))
    metadata.topics = {"t": Topic("t", ZERO_UUID, False, partitions)}
    return metadata


def ask(fetcher: Fetcher, now: float = 0.0) -> tuple[int, FetchRequest, Call]:
    """Return the fetch that is sent when one broker leads all partitions."""
    [call] = fetcher.calls(now, known())
    assert isinstance(call.target, int) and call.highest == 12
    return call.target, call.build(12), call


def answer(fetcher: Fetcher, call: Call, *parts: PartitionData, now: float = 0.0) -> None:
    call.answered(FetchResponse(responses=[FetchableTopicResponse("t", partitions=list(parts))]), now)


def make(*partitions: TopicPartition, **settings: object) -> Fetcher:
    fetcher = Fetcher(FetchSettings(**settings), 30.0)  # type: ignore[arg-type]
    for partition in partitions:
        fetcher.move(partition, 0)
    return fetcher


def test_a_nearer_replica_is_used_until_there_is_trouble_with_it() -> None:
    fetcher = make(T0, rack="here")
    node, request, asked = ask(fetcher)
    assert (node, request.rack_id) == (LEADER, "here")
    answer(fetcher, asked, PartitionData(0, preferred_read_replica=NEAR))
    node, _, asked = ask(fetcher)
    assert node == NEAR
    answer(fetcher, asked, PartitionData(0, ErrorCode.OFFSET_OUT_OF_RANGE))
    assert fetcher.failed_partition() is None  # the leader is asked before the position is reset
    assert not fetcher.due(0.0)
    node, _, asked = ask(fetcher, now=10.0)
    assert node == LEADER
    answer(fetcher, asked, PartitionData(0, ErrorCode.OFFSET_OUT_OF_RANGE), now=10.0)
    failed = fetcher.failed_partition()
    assert failed is not None and isinstance(failed.error, KafkaError)


def test_a_nearer_replica_is_left_after_a_while() -> None:
    fetcher = make(T0)
    _, _, asked = ask(fetcher)
    answer(fetcher, asked, PartitionData(0, preferred_read_replica=NEAR))
    node, _, asked = ask(fetcher, now=299.0)
    assert node == NEAR
    asked.failed(BrokerUnavailable("gone"), 299.0)
    assert ask(fetcher, now=310.0)[0] == LEADER


def test_no_more_is_asked_for_than_fits() -> None:
    fetcher = make(T0, T1, buffer_bytes=400_000, max_bytes=1_000_000, partition_max_bytes=1_000_000)
    _, request, asked = ask(fetcher)
    assert request.max_bytes == 200_000  # the same amount again may be in flight
    assert {p.partition_max_bytes for p in request.topics[0].partitions} == {200_000}
    assert fetcher.request_bytes == 200_000
    big = encode_batch([(None, b"x" * 390_000, 0, ())])  # the first batch is returned whole, whatever the limit
    answer(fetcher, asked, PartitionData(0, records=big))
    assert fetcher.request_bytes == 0
    fetched = fetcher.take()
    assert fetched is not None
    assert fetcher.request_bytes == 0
    fetcher.used(fetched)
    assert fetcher.request_bytes == 200_000


def test_dropped_partitions_free_their_buffers_and_late_responses_are_ignored() -> None:
    fetcher = make(T0, T1)
    free = fetcher.request_bytes
    _, _, asked = ask(fetcher)
    fetcher.move(T0, 5)
    assert not fetcher.calls(0.0, known())  # another fetch to its broker is in flight
    answer(fetcher, asked, PartitionData(0, records=batch(0, 3)), PartitionData(1, records=batch(0, 3)))
    assert [fetch.offset for fetch in (fetcher.partitions[T0], fetcher.partitions[T1])] == [5, 3]
    fetcher.drop(T1)
    assert fetcher.take() is None
    assert fetcher.request_bytes == free


def test_a_partition_that_gave_records_is_named_last() -> None:
    """Brokers serve in the request's order: in a fixed one a busy partition would starve those behind it."""
    fetcher, order = make(T0, T1), [0, 1]
    for _ in range(3):
        _, request, asked = ask(fetcher)
        assert [partition.partition for partition in request.topics[0].partitions] == order
        first = fetcher.partitions[TopicPartition("t", order[0])]
        answer(fetcher, asked, PartitionData(order[0], records=batch(first.offset, 3)), PartitionData(order[1]))
        fetched = fetcher.take()
        assert fetched is not None
        fetcher.used(fetched)
        order.reverse()


def test_nothing_is_fetched_from_the_end_of_a_range_on() -> None:
    fetcher = make(T0, T1)
    fetcher.ends = {T0: 4, T1: 2}
    _, _, asked = ask(fetcher)
    records = batch(0, 3) + batch(3, 3) + batch(6, 3)
    late = batch(5, 3) + batch(8, 3)  # compaction has removed what the range had
    answer(fetcher, asked, PartitionData(0, records=records), PartitionData(1, records=late))
    taken = [fetcher.take(), fetcher.take()]
    assert [[header.base_offset for header, _ in each.batches] for each in taken if each] == [[0, 3], [5]]
    assert [fetcher.partitions[each].offset for each in (T0, T1)] == [6, 8]
    assert not fetcher.calls(0.0, known())
    fetcher.ends = {}
    assert ask(fetcher)


def test_a_paused_partition_waits_with_what_has_come() -> None:
    fetcher = make(T0, T1)
    _, _, asked = ask(fetcher)
    fetcher.pause(T0, True)
    answer(fetcher, asked, PartitionData(0, records=batch(0, 3)), PartitionData(1, records=batch(0, 3)))
    taken = fetcher.take()
    assert taken is not None and taken.fetch.partition == T1
    assert not fetcher.ready and fetcher.take() is None
    assert [fetch.partition for fetch in fetcher.due(0.0)] == [T1]
    fetcher.pause(T0, False)
    taken = fetcher.take()
    assert taken is not None and taken.fetch.partition == T0


def test_paused_partitions_give_up_what_they_hold_when_others_need_the_room() -> None:
    fetcher = make(buffer_bytes=1000)
    reader = Reader(fetcher, fetcher.take)
    reader.move(T0, 0)
    _, _, asked = ask(fetcher)
    answer(fetcher, asked, PartitionData(0, records=batch(0, 100)))
    assert gather(reader, 5)
    reader.pause(T0, True)
    reader.move(T1, 0)
    assert fetcher.starved
    assert not fetcher.calls(0.0, known())
    reader.drop_paused()
    _, request, asked = ask(fetcher)
    assert [p.partition for p in request.topics[0].partitions] == [1]
    reader.pause(T0, False)
    asked.answered(FetchResponse(), 0.0)
    _, request, _ = ask(fetcher)
    assert {p.partition: p.fetch_offset for p in request.topics[0].partitions} == {1: 0, 0: 5}


def test_aborted_transactions() -> None:
    marker = struct.pack(">hh", 0, 0)
    data = [
        batch(0, 2, producer_id=7, attributes=TRANSACTIONAL),
        batch(2, 2, producer_id=8, attributes=TRANSACTIONAL),
        batch(4, 1),
        encode_batch([(marker, b"", 0, ())], base_offset=5, producer_id=7, attributes=TRANSACTIONAL | CONTROL),
        batch(6, 1, producer_id=7, attributes=TRANSACTIONAL),
    ]
    aborted = AbortedTransactions([AbortedTransaction(7, 0)])
    assert [aborted.skips(parse_header(b), memoryview(b)) for b in data] == [True, False, False, True, False]
    fetcher = make(T0, read_committed=True)
    reader = Reader(fetcher, fetcher.take)
    reader.move(T0, 0)
    _, request, asked = ask(fetcher)
    assert request.isolation_level == 1
    part = PartitionData(0, aborted_transactions=[AbortedTransaction(7, 0)], records=b"".join(data))
    answer(fetcher, asked, part)
    assert [r.offset for _, records in gather(reader, 100) for r in records] == [2, 3, 4, 6]
    assert reader.positions[T0] == 7


# Decoding


def reading(*parts: tuple[TopicPartition, Sequence[bytes]], aborted: list[AbortedTransaction] | None = None) -> Reader:
    fetcher = make(read_committed=aborted is not None)
    reader = Reader(fetcher, fetcher.take)
    for partition, _ in parts:
        reader.move(partition, 0)
    _, _, asked = ask(fetcher)
    answer(fetcher, asked, *(
        PartitionData(p.partition, records=b"".join(batches), aborted_transactions=aborted) for p, batches in parts
    ))  # fmt: skip
    return reader


def test_a_limit_cuts_batches_and_pausing_loses_nothing() -> None:
    reader = reading((T0, [batch(0, 5), batch(5, 5)]), (T1, [batch(0, 5)]))
    assert [len(records) for _, records in gather(reader, 3)] == [3]
    reader.pause(T0, True)
    assert [(p, r[0].offset, len(r)) for p, r in gather(reader, 100)] == [(T1, 0, 5)]
    reader.pause(T0, False)
    assert [(p, r[0].offset, len(r)) for p, r in gather(reader, 100)] == [(T0, 3, 7)]
    assert reader.positions == {T0: 10, T1: 5}


def test_valid_batches_are_returned_before_the_damaged_one() -> None:
    damaged = bytearray(batch(5, 5))
    damaged[-1] ^= 1
    reader = reading((T0, [batch(0, 5), bytes(damaged)]))
    assert [len(records) for _, records in gather(reader, 100)] == [5]
    assert reader.positions == {T0: 5}


def test_columns_and_objects_by_turns() -> None:
    pytest.importorskip("pyarrow")
    reader = reading((T0, [batch(0, 5)]), (T1, [batch(0, 5)]))
    assert [len(records) for _, records in gather(reader, 2)] == [2]
    [(partition, position, columns)] = reader.gather_columns(headers=False, max_bytes=1 << 20)
    assert (partition, position, columns.num_rows) == (T1, 0, 5)
    assert reader.positions == {T0: 2, T1: 5}  # the rest of the other partition is fetched again


def test_damage_in_columns() -> None:
    pytest.importorskip("pyarrow")
    damaged = bytearray(batch(0, 5))
    damaged[-1] ^= 1
    reader = reading((T0, [bytes(damaged)]))
    with pytest.raises(CorruptRecords):
        reader.gather_columns(headers=False, max_bytes=1 << 20)
    assert reader.positions == {T0: 0}


def test_columns_have_a_limit_of_bytes_and_go_on_behind_it() -> None:
    """The limit holds for the decompressed size: 40 batches of 256 kB, a few kB each on the wire."""
    pytest.importorskip("pyarrow")
    size, count = 256 * 1024, 40
    squeezed = [encode_batch([(None, bytes(size), 0, ())], base_offset=at, compression=4) for at in range(count)]
    control = encode_batch([(bytes(4), bytes(6), 0, ())], base_offset=count, attributes=CONTROL)
    assert sum(map(len, squeezed)) < size
    reader = reading((T0, [*squeezed, control]))
    held: list[int] = []
    offsets: list[int] = []
    while reader.positions[T0] <= count:
        for partition, position, columns in reader.gather_columns(headers=False, max_bytes=4 * size):
            assert (partition, position) == (T0, len(offsets))
            held.append(columns.nbytes)
            offsets += columns.column("offset").to_pylist()
            assert reader.positions[T0] == (len(offsets) if len(offsets) < count else reader.positions[T0])
    assert offsets == list(range(count))
    assert max(held) < 5 * size
    assert reader.positions == {T0: count + 1}
    assert reader.gather_columns(headers=False, max_bytes=1) == []


def test_objects_go_on_where_columns_ended() -> None:
    pytest.importorskip("pyarrow")
    reader = reading((T0, [batch(0, 5), batch(5, 5)]))
    [(_, _, columns)] = reader.gather_columns(headers=False, max_bytes=1)
    assert columns.num_rows == 5
    assert [record.offset for _, records in gather(reader, 100) for record in records] == [5, 6, 7, 8, 9]


def test_batches_are_taken_as_they_were_received_without_control_and_aborted_ones() -> None:
    first, aborted = batch(0, 5), batch(5, 5, producer_id=7, attributes=TRANSACTIONAL)
    marker = encode_batch([(struct.pack(">hh", 0, 0), bytes(6), 0, ())], base_offset=10, producer_id=7,
                          attributes=TRANSACTIONAL | CONTROL)  # fmt: skip
    reader = reading((T0, [first, aborted, marker, batch(11, 2)]), aborted=[AbortedTransaction(7, 5)])
    taken = reader.take_batches()
    assert taken is not None
    partition, position, batches = taken
    assert (partition, position) == (T0, 0)
    assert [bytes(found) for _, found in batches] == [first, batch(11, 2)]
    assert reader.positions == {T0: 13}
    assert reader.take_batches() is None


def test_batches_before_damage_are_taken_and_the_damage_is_reported_once_it_is_reached() -> None:
    damaged = bytearray(batch(5, 5))
    damaged[-1] ^= 1
    reader = reading((T0, [batch(0, 5), bytes(damaged)]))
    taken = reader.take_batches()
    assert taken is not None and [header.base_offset for header, _ in taken[2]] == [0]
    assert reader.positions == {T0: 5}  # where it is fetched again
    reader = reading((T0, [bytes(damaged)]))
    with pytest.raises(CorruptRecords):
        reader.take_batches()
