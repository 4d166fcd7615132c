"""Batches as columns: their contents, what is omitted, and damaged batches."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pylogd.client import CorruptRecords, KafkaError, Producer
from pylogd.client.core.consumer import columns
from pylogd.client.core.producer.interceptors import ProducerInterceptor, ProducerRecord, RecordMetadata
from pylogd.wire import records
from pylogd.wire.records import CONTROL, LOG_APPEND_TIME, NewRecord, decode_batch, encode_batch, iter_batches
from tests.fakes.broker import FakeBroker


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(records, "speedups", None)
    elif records.speedups is None:
        pytest.skip("there was no compiler")


def batch(base: int, *values: bytes | None, **options: int) -> bytes:
    return encode_batch(
        [(b"k%d" % n, value, 1000 + n, ()) for n, value in enumerate(values)], base_offset=base, **options
    )


def test_columns_have_the_records_values() -> None:
    data = batch(5, b"a", None, b"") + batch(20, b"d", attributes=LOG_APPEND_TIME, compression=4)
    found = columns.decode(data)
    found.validate(full=True)
    assert found.schema == columns.schema()
    assert found.column("key").to_pylist() == [b"k0", b"k1", b"k2", b"k0"]
    assert found.column("value").to_pylist() == [b"a", None, b"", b"d"]
    assert found.column("offset").to_pylist() == [5, 6, 7, 20]
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [1000, 1001, 1002, 1000]
    assert found.column("timestampType").to_pylist() == [0, 0, 0, 1]


def test_headers_are_there_if_asked_for() -> None:
    data = encode_batch(
        [(None, b"v", 0, [("a", b"1"), ("b", None)]), (None, b"w", 0, ()), (None, b"x", 0, [("\udcff", b"")])]
    )
    found = columns.decode(data, headers=True)
    found.validate(full=True)
    assert found.schema == columns.schema(headers=True)
    assert found.column("headers").to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}], [], [{"key": "\ufffd", "value": b""}],
    ]  # fmt: skip


def test_records_outside_the_range_are_left_out() -> None:
    data = batch(0, b"a", b"b") + batch(2, b"c", b"d") + batch(4, b"marker", attributes=CONTROL)
    assert columns.decode(data, from_offset=3).column("value").to_pylist() == [b"d"]
    found = columns.decode_batches(iter_batches(data), from_offset=4)
    assert (found.records.num_rows, found.next_offset) == (0, 5)
    cut = columns.decode(data + batch(5, b"e")[:-1])
    assert cut.num_rows == 4
    assert columns.decode(b"").num_rows == 0


def test_a_limit_of_bytes_ends_them_behind_the_batch_that_reaches_it() -> None:
    batches = iter_batches(batch(0, bytes(100)) + batch(1, bytes(100)) + batch(2, bytes(100)))
    for limit, rows, behind, ended in ((150, 2, 2, False), (1, 1, 3, False), (1, 0, 0, True)):
        found = columns.decode_batches(batches, max_bytes=limit)
        assert (found.records.num_rows, found.next_offset, found.ended) == (rows, behind, ended)


def test_damage_ends_the_columns_and_is_said_when_it_comes_first() -> None:
    bad = bytearray(batch(2, b"c", b"d"))
    bad[-1] ^= 1
    found = columns.decode_batches(iter_batches(batch(0, b"a", b"b") + bad))
    assert (found.records.num_rows, found.next_offset) == (2, 2)
    with pytest.raises(CorruptRecords, match=r"t-3: at offset 2: .*CRC") as raised:
        columns.decode(bytes(bad), topic="t", partition=3)
    assert raised.value.next_offset == 4
    assert columns.decode(batch(0, b"a") + b"\xff" * 100).num_rows == 1
    with pytest.raises(CorruptRecords, match="at offset 7: "):
        columns.decode(b"\xff" * 100, from_offset=7)


@pytest.mark.parametrize("place", [(">q", 0, 2**63 - 1), (">q", 27, 2**63 - 1), (">i", 57, 1000), (">i", 23, 0)])
def test_numbers_that_can_not_be(place: tuple[str, int, int]) -> None:
    bad = bytearray(encode_batch([(None, b"v", n * 10, ()) for n in range(3)]))
    struct.pack_into(place[0], bad, place[1], place[2])
    with pytest.raises(CorruptRecords):
        columns.decode(bytes(bad), check_crcs=False)


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(columns.PyArrowMissing, match=r"pip install 'pylogd-broker\[arrow\]'"):
        columns.decode(b"")


@pytest.fixture
def server() -> Iterator[FakeBroker]:
    with FakeBroker() as server:
        yield server


def test_round_trip(server: FakeBroker) -> None:
    rows = pa.record_batch(
        {
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array(["text", None], pa.string()),
            "timestamp": pa.array([1_700_000_000_000_000, None], pa.timestamp("us", tz="UTC")),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}], None], columns.schema(headers=True).field("headers").type
            ),
            "other": pa.array([1, 2]),
        }
    )
    with Producer(server.address) as producer:
        assert [delivery.result() for delivery in producer.send_columns("t", rows)] == [0, 1]
        producer.send_columns("t", pa.record_batch({"value": pa.array([b"alone"])}))
        with pytest.raises(KeyError):
            producer.send_columns("t", pa.record_batch({"valu": pa.array([b"v"])}))
    stored = [record for data in server.logs[0] for record in decode_batch(data)]
    assert [NewRecord(r.key, r.value, 0, r.headers) for r in stored] == [
        (b"k", b"text", 0, (("h", b"1"),)), (None, None, 0, ()), (None, b"alone", 0, ()),
    ]  # fmt: skip
    assert stored[0].timestamp == 1_700_000_000_000 and stored[1].timestamp > 1_700_000_000_000


def many(count: int, **more: Any) -> Any:
    return pa.record_batch({"value": [b"%d" % n for n in range(count)], **more})


def test_rows_become_full_batches_with_a_delivery_for_each(server: FakeBroker) -> None:
    stamps = pa.array([1_700_000_000_000 + n for n in range(999)] + [None], pa.timestamp("ms", "UTC"))
    with Producer(server.address, linger_ms=3_600_000, batch_records=300) as producer:
        deliveries = producer.send_columns("t", many(1000, timestamp=stamps))
        assert len(deliveries) == 1000
        assert [each.result() for each in deliveries] == list(range(1000))
        assert [each.offset for each in deliveries[997:]] == [997, 998, 999]
        assert deliveries[-1].offset == 999
        with pytest.raises(IndexError):
            deliveries[1000]
    batches = [decode_batch(data) for data in server.logs[0]]
    assert [len(each) for each in batches] == [300, 300, 300, 100]
    stored = [record for each in batches for record in each]
    assert [record.value for record in stored] == [b"%d" % n for n in range(1000)]
    assert [record.timestamp for record in stored[:999]] == stamps.cast(pa.int64()).to_pylist()[:999]
    assert stored[999].timestamp > 1_700_000_000_999


@pytest.mark.parametrize("count", [3, 1000])
def test_rows_pass_interceptors_but_no_serializer(server: FakeBroker, count: int) -> None:
    class Marks(ProducerInterceptor):
        def __init__(self) -> None:
            self.acknowledged = 0

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record._replace(value=b"<%b>" % record.value)

        def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
            self.acknowledged += error is None

    marks = Marks()
    with Producer(server.address, interceptors=[marks], value_serializer=str.encode) as producer:
        producer.send_columns("t", many(count))
    with Producer(server.address, value_serializer=str.encode) as producer:
        producer.send_columns("t", many(count))
    stored = [record.value for data in server.logs[0] for record in decode_batch(data)]
    assert stored == [b"<%d>" % n for n in range(count)] + [b"%d" % n for n in range(count)]
    assert marks.acknowledged == count


@pytest.mark.parametrize("count", [3, 1000])
def test_rows_that_can_not_be_sent(server: FakeBroker, count: int) -> None:
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    nameless = pa.array([[{"key": None, "value": b"v"}]] * count, pa.list_(pair))
    with Producer(server.address) as producer:
        with pytest.raises(KafkaError, match="there is no partition 7"):
            producer.send_columns("t", many(count), partition=7)
        with pytest.raises(KafkaError, match="there is no partition 7"):
            producer.send_columns("t", many(count, partition=[7] * count))
        with pytest.raises(ValueError, match="a header has no key"):
            producer.send_columns("t", many(count, headers=nameless))
        with pytest.raises(TypeError, match="send a table's `to_batches"):
            producer.send_columns("t", pa.table(many(count)))
    assert server.logs[0] == []
