"""Rows of columns become the same batches by the compiled loops, in Python, and record by record."""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.accumulator import Accumulator
from pylogd.client.core.producer.columns import ColumnEncoder, EncodedBatch, records_of
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.partitioner import crc32_partitioner, positive_murmur2
from pylogd.wire import records
from pylogd.wire.records import HEADER_SIZE, Record, decode_batch

pa = pytest.importorskip("pyarrow")
compiled = pytest.importorskip("pylogd.wire._speedups", reason="there was no compiler")

NOW_MS = 1_700_000_000_000
PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()), ("headers", pa.list_(PAIR)), ("partition", pa.int32()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
    ]
)  # fmt: skip

some_bytes = st.none() | st.binary(max_size=12) | st.integers(60, 9000).map(bytes)
headers = st.none() | st.lists(st.fixed_dictionaries({"key": st.text(max_size=5), "value": some_bytes}), max_size=3)
stamps = st.none() | st.integers(-1, 5) | st.integers(NOW_MS - 1000, NOW_MS + 1000) | st.integers(-(2**61), 2**61)
rows = st.lists(
    st.fixed_dictionaries(
        {"key": some_bytes, "value": some_bytes, "headers": headers, "partition": st.none() | st.integers(0, 4),
         "timestamp": stamps}
    ),
    max_size=60,
)  # fmt: skip
columns = st.sets(st.sampled_from(["key", "headers", "partition", "timestamp"])).map(
    lambda names: sorted({"value", *names})
)


@contextmanager
def loops(which: Any) -> Iterator[None]:
    before, records.speedups = records.speedups, which
    try:
        yield
    finally:
        records.speedups = before


def partitions(topic: str, partition: int | None) -> int:
    assert topic == "t"
    if partition is not None and not 0 <= partition < 5:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such partition")
    return 5


def encode(found: Any, which: Any = compiled, **options: Any) -> list[EncodedBatch]:
    with loops(which):
        return list(ColumnEncoder(ProducerOptions(**options), partitions).encode("t", found, NOW_MS))


@settings(deadline=None)
@given(rows, columns, st.integers(100, 20_000), st.integers(1, 30), st.integers(0, 5), st.integers(0, 5))
def test_both_ways_give_the_same_batches(
    given_rows: list[dict[str, Any]], names: list[str], batch_bytes: int, batch_records: int, first: int, cut: int
) -> None:
    table = pa.RecordBatch.from_pylist(given_rows, schema=SCHEMA).select(names)
    found = table.slice(first, max(0, table.num_rows - first - cut))
    options: dict[str, Any] = {"batch_bytes": batch_bytes, "batch_records": batch_records}
    batches = encode(found, **options)
    assert batches == encode(found, None, **options)
    expected: dict[int | None, list[Any]] = defaultdict(list)
    for row in plain_rows(found):
        key, partition = row.get("key"), row.get("partition")
        if partition is None and key is not None:
            partition = positive_murmur2(key) % 5
        pairs = tuple((each["key"], each["value"]) for each in row.get("headers") or ())
        stamp = NOW_MS if row.get("timestamp") in (None, -1) else row["timestamp"]
        expected[partition].append((stamp, key, row["value"], pairs))
    got: dict[int | None, list[Any]] = defaultdict(list)
    for batch in batches:
        decoded = decode_batch(batch.encoded)
        assert len(decoded) <= batch_records
        assert len(batch.encoded) <= batch_bytes or len(decoded) == 1
        got[batch.partition] += [(each.timestamp, each.key, each.value, each.headers) for each in decoded]
    assert got == expected


def plain_rows(found: Any) -> list[dict[str, Any]]:
    """Rows with their time stamps as numbers: `datetime` does not have all of them."""
    names = found.schema.names
    if "timestamp" in names:
        at = names.index("timestamp")
        found = found.set_column(at, "timestamp", found.column(at).cast(pa.int64()))
    plain: list[dict[str, Any]] = found.to_pylist()
    return plain


@settings(deadline=None)
@given(rows, st.integers(1, 30), st.sampled_from([1, 5]), st.sampled_from([None, 0]), st.sampled_from(["none", "gzip"]))
def test_batches_are_those_of_the_same_records(
    given_rows: list[dict[str, Any]], batch_records: int, count: int, partition: int | None, compression: str
) -> None:
    """But for rows that may go to any of several partitions."""
    for number, row in enumerate(given_rows):
        if row["key"] is None or row["partition"] is not None:
            row["partition"] = number % count
    table = pa.RecordBatch.from_pylist(given_rows, schema=SCHEMA)
    options = ProducerOptions(batch_records=batch_records, batch_bytes=10_000_000, compression=compression)
    encoder = ColumnEncoder(options, lambda _topic, _partition: count)
    encoded: dict[TopicPartition, list[bytes]] = defaultdict(list)
    for batch in encoder.encode("t", table, NOW_MS, partition):
        assert batch.partition is not None
        encoded[TopicPartition("t", batch.partition)].append(batch.encoded)
    accumulator = Accumulator(options, float)
    for record in records_of("t", table, partition):
        stamp = NOW_MS if record.timestamp is None else record.timestamp
        accumulator.add("t", count, record.partition, record.key, record.value, stamp, record.headers)
    accumulator.seal_all()
    wanted: dict[TopicPartition, list[bytes]] = defaultdict(list)
    for each in accumulator.take_sealed():
        wanted[each.partition].append(bytes(each.encode(options.compression_type, None)))
    assert encoded == wanted


def test_the_order_says_where_each_row_is() -> None:
    table = pa.record_batch({"key": [b"%d" % n for n in range(100)], "value": [b"%d" % n for n in range(100)]})
    encoded = ColumnEncoder(ProducerOptions(batch_records=7), partitions).encode("t", table, NOW_MS)
    values = [record.value for batch in encoded for record in decode_batch(batch.encoded)]
    assert values == [b"%d" % row for row in struct.unpack("=100i", encoded.order)]
    assert set(values) == set(table["value"].to_pylist())
    assert values != table["value"].to_pylist()


def test_batches_are_full() -> None:
    table = pa.RecordBatch.from_pylist([{"value": bytes(100)}] * 1000, schema=pa.schema([("value", pa.binary())]))
    sizes = [len(batch.encoded) for batch in encode(table, batch_bytes=10_000)]
    assert sum(sizes) > 100_000
    assert all(10_000 - 108 < size <= 10_000 for size in sizes[:-1])


def test_text_and_large_types_are_taken_too() -> None:
    for kind in (pa.string(), pa.large_string(), pa.large_binary()):
        table = pa.record_batch({"key": pa.array(["a", None], kind), "value": pa.array(["é", "x"], kind)})
        found = [(each.key, each.value) for batch in encode(table) for each in decode_batch(batch.encoded)]
        assert sorted(found, key=str) == [(None, b"x"), (b"a", "é".encode())]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_batches_are_compressed(compression: str) -> None:
    table = pa.record_batch({"value": pa.array([bytes(1000)] * 50)})
    [batch] = encode(table, compression=compression)
    assert len(batch.encoded) < 1000
    assert decode_batch(batch.encoded)[49] == Record("", -1, 49, NOW_MS, None, bytes(1000))


@pytest.mark.parametrize("which", [compiled, None])
def test_other_partitioners_choose(which: Any) -> None:
    table = pa.record_batch(
        {"key": pa.array([b"a", b"b", None, b"d"]), "value": pa.array([b"1", b"2", b"3", b"4"]),
         "partition": pa.array([None, None, None, 1], pa.int32())}
    )  # fmt: skip
    by_value = {
        decode_batch(batch.encoded)[0].value: batch.partition
        for batch in encode(table, which, partitioner="crc32", batch_records=1)
    }
    assert by_value == {
        b"1": crc32_partitioner("t", b"a", 5),
        b"2": crc32_partitioner("t", b"b", 5),
        b"3": None,
        b"4": 1,
    }
    anywhere = encode(table, which, partitioner="random")
    assert [batch.partition for batch in anywhere] == [1, None]


def test_what_can_not_be_encoded_is_an_error() -> None:
    with pytest.raises(KeyError):
        encode(pa.record_batch({"key": pa.array([b"a"])}))
    for partition in (5, -1):
        with pytest.raises(KafkaError):
            encode(pa.record_batch({"value": pa.array([b"a"]), "partition": pa.array([partition], pa.int32())}))
    for pair in (None, {"key": None, "value": b"v"}):
        table = pa.record_batch({"value": pa.array([b"a"]), "headers": pa.array([[pair]], pa.list_(PAIR))})
        with pytest.raises(ValueError, match="a header has no key"):
            encode(table)


wild_ends = st.lists(st.integers(-3, 40) | st.integers(-(2**31), 2**31 - 1), max_size=8).map(
    lambda numbers: struct.pack(f"={len(numbers)}i", *numbers)
)
wild_column = st.none() | st.tuples(
    st.none() | st.binary(max_size=2),
    st.none() | wild_ends,
    st.none() | st.binary(max_size=30),
    st.integers(-1, 9) | st.just(2**62),
    st.integers(-1, 9) | st.just(2**62),
)
wild_stamps = st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=7).map(
    lambda numbers: struct.pack(f"={len(numbers)}q", *numbers)
)
wild_order = wild_ends | st.lists(st.integers(0, 6), max_size=6).map(lambda it: struct.pack(f"={len(it)}i", *it))


@settings(deadline=None, max_examples=400)
@given(
    wild_order, st.integers(-1, 7), st.integers(-1, 7), st.integers(-1, 60),
    st.tuples(wild_column, wild_column, wild_column, wild_column, wild_column), wild_stamps,
)  # fmt: skip
def test_columns_of_any_bytes_are_encoded_or_refused(
    order: bytes, first: int, stop: int, most: int, wild: Any, stamps: bytes | None
) -> None:
    try:
        encoded, end, base, latest = compiled.encode_rows(order, first, stop, most, wild, stamps)
    except ValueError:
        return
    assert first < end <= stop
    assert base <= latest
    assert (base, latest) == (0, 0) or stamps is not None
    assert len(records.decode_records(encoded, end - first)) == end - first


@settings(deadline=None, max_examples=400)
@given(
    st.integers(-1, 9),
    st.integers(-1, 9),
    st.none() | st.tuples(st.none() | st.binary(max_size=2), wild_order, st.integers(-1, 9)),
    wild_column,
)
def test_rows_of_any_bytes_are_grouped_or_refused(count: int, groups: int, given_groups: Any, key: Any) -> None:
    try:
        order, ends = compiled.group_rows(count, groups, given_groups, key)
    except ValueError:
        return
    assert len(ends) == groups + 1
    assert ends[-1] == count
    assert sorted(struct.unpack(f"={count}i", order)) == list(range(count))


def test_a_record_larger_than_a_batch_is_alone() -> None:
    table = pa.record_batch({"value": pa.array([b"a", bytes(5000), b"b"])})
    assert [len(decode_batch(batch.encoded)) for batch in encode(table, batch_bytes=HEADER_SIZE + 50)] == [1, 1, 1]


def test_random_rows_of_many_partitions() -> None:
    draw = random.Random(1)
    keys = [b"%d" % draw.randrange(1000) for _ in range(20_000)]
    table = pa.record_batch({"key": pa.array(keys), "value": pa.array([bytes(draw.randrange(50)) for _ in keys])})
    assert encode(table) == encode(table, None)
