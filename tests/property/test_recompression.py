"""A topic's `compression.type` changes the codec of batches, and nothing of what consumers read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from pylogd.broker.log.config import LogConfig, TimestampType
from pylogd.broker.log.errors import InspectionNeeded, InvalidRecord, RecordTooLarge
from pylogd.broker.log.log import Log
from pylogd.broker.log.recompression import level_of
from pylogd.broker.log.transactions import VERIFICATION_OFF
from pylogd.wire.compression import CompressionType
from pylogd.wire.records import TRANSACTIONAL, BatchHeader, NewRecord, encode_batch, iter_batches
from tests.fakes.storage import START_MS, MemoryStorage, batch, read_all

TYPES = {
    "uncompressed": CompressionType.NONE,
    "gzip": CompressionType.GZIP,
    "snappy": CompressionType.SNAPPY,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
}
VALUES = st.none() | st.binary(max_size=30) | st.sampled_from([100, 5_000]).map(lambda size: b"abcdefg" * size)
RECORDS = st.lists(
    st.builds(
        NewRecord,
        VALUES,
        VALUES,
        st.integers(START_MS - 10, START_MS + 10),
        st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=9)), max_size=2),
    ),
    min_size=1,
    max_size=6,
)
#: Records, the producer's codec, and whether the batch is idempotent.
BATCHES = st.lists(st.tuples(RECORDS, st.sampled_from(CompressionType), st.booleans()), min_size=1, max_size=5)


def headers(log: Log) -> list[BatchHeader]:
    found = log.read(0, 1 << 24, allow_cold=True)
    return [] if found is None else [header for header, _ in iter_batches(found.read())]


def append(log: Log, data: bytes) -> None:
    """Append as the broker does: what takes long is done by `inspect`, in a thread."""
    try:
        log.append(data, leader_epoch=0, may_inspect=False)
    except InspectionNeeded:
        log.append(data, leader_epoch=0, may_inspect=False, inspections=log.inspect(data))


@examples(max_examples=60, deadline=None)
@given(
    some=BATCHES,
    name=st.sampled_from(sorted(TYPES)),
    stamps=st.sampled_from(TimestampType),
    policy=st.sampled_from([frozenset({"delete"}), frozenset({"compact"})]),
)
def test_consumers_read_the_same_with_every_codec(
    some: list[tuple[list[NewRecord], CompressionType, bool]],
    name: str,
    stamps: TimestampType,
    policy: frozenset[str],
) -> None:
    stores = [
        MemoryStorage(compression_type=one, message_timestamp_type=stamps, cleanup_policy=policy)
        for one in ("producer", name)
    ]
    kept, changed = (storage.create() for storage in stores)
    sequence = 0
    for made, codec, idempotent in some:
        records = [one._replace(key=one.key or b"k") for one in made] if "compact" in policy else made
        options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence} if idempotent else {}
        sequence += len(records) if idempotent else 0
        data = encode_batch(records, compression=codec, **options)
        for log in (kept, changed):
            append(log, data)
        if idempotent:  # a repetition is recognized, although the stored bytes are others
            append(changed, data)
    assert changed.log_end_offset == kept.log_end_offset
    assert read_all(changed) == read_all(kept)  # which checks the CRCs
    for before, after in zip(headers(kept), headers(changed), strict=True):
        assert after.compression == TYPES[name]
        same = before._replace(batch_length=0, crc=0, attributes=0)
        assert after._replace(batch_length=0, crc=0, attributes=0) == same
        assert after.attributes & ~7 == before.attributes & ~7
        if before.compression == after.compression:
            assert after == before
    assert changed.producers.to_snapshot() == kept.producers.to_snapshot()
    for storage in stores:
        storage.check()


@pytest.mark.parametrize("name", TYPES)
def test_a_batch_in_the_codec_of_the_topic_is_stored_as_it_is(name: str) -> None:
    """As in Kafka: another level is no reason to compress anew."""
    log = MemoryStorage(compression_type=name, compression_gzip_level=9, compression_zstd_level=19).create()
    data = encode_batch([NewRecord(b"k", b"some text " * 100, START_MS)], compression=TYPES[name])
    log.append(data, leader_epoch=0, may_inspect=False)  # the first goes the general way, the second the fast one
    log.append(data, leader_epoch=0, may_inspect=False)
    found = log.read(0, 1 << 20, allow_cold=True)
    assert found is not None
    assert [stored[16:] for _, stored in iter_batches(found.read())] == [data[16:]] * 2


def test_a_transactional_batch_keeps_its_producer() -> None:
    log = MemoryStorage(compression_type="zstd").create()
    data = batch(b"a" * 500, producer_id=3, producer_epoch=1, base_sequence=0, attributes=TRANSACTIONAL)
    log.append(data, leader_epoch=0, terms=VERIFICATION_OFF)
    (header,) = headers(log)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 1, 0)
    assert header.attributes == TRANSACTIONAL | CompressionType.ZSTD
    assert log.producers.unstable.first_open == 0


def test_a_codec_that_changes_while_a_thread_compresses_holds() -> None:
    log = MemoryStorage(compression_type="gzip").create()
    data = batch(b"a" * 500)
    inspections = log.inspect(data)
    log.config = log.config._replace(compression_type="zstd")
    with pytest.raises(InspectionNeeded):
        log.append(data, leader_epoch=0, inspections=inspections, may_inspect=False)
    append(log, data)
    log.config = log.config._replace(compression_type="producer")
    log.append(data, leader_epoch=0, inspections=inspections, may_inspect=False)
    assert [header.compression for header in headers(log)] == [CompressionType.ZSTD, CompressionType.NONE]


def test_a_batch_that_grows_too_large_is_refused() -> None:
    log = MemoryStorage(compression_type="uncompressed", max_message_bytes=1000).create()
    data = encode_batch([NewRecord(b"k", b"a" * 5000, START_MS)], compression=CompressionType.ZSTD)
    assert len(data) < 1000
    with pytest.raises(RecordTooLarge, match=r"compression\.type uncompressed"):
        append(log, data)
    assert log.log_end_offset == 0


@pytest.mark.parametrize(
    ("name", "low", "high"), [("gzip", 1, 9), ("zstd", 1, 19), ("lz4", 3, 12), ("zstd", -131072, 22), ("lz4", 1, 17)]
)
def test_levels_have_an_effect(name: str, low: int, high: int) -> None:
    text = b" ".join(b"%d is the number %d" % (number * number, number) for number in range(3_000))
    sizes = []
    for level in (low, high):
        settings: dict[str, Any] = {f"compression_{name}_level": level}
        log = MemoryStorage(compression_type=name, **settings).create()
        append(log, batch(text))
        (header,) = headers(log)
        sizes.append(header.batch_length)
        assert [record.value for record in read_all(log)] == [text]
    assert sizes[1] < sizes[0]


def test_default_levels_are_those_of_kafka() -> None:
    config = LogConfig()
    assert [level_of(codec, config) for codec in CompressionType] == [None, None, None, None, 3]


def test_a_record_larger_than_the_limit_is_refused_if_it_is_compressed() -> None:
    log = MemoryStorage(max_decompressed_message_bytes=1000).create()
    rows = [NewRecord(b"k", b"v", START_MS), NewRecord(b"k", b"a" * 2000, START_MS)]
    for codec in CompressionType:
        data = encode_batch(rows, compression=codec)
        if codec is CompressionType.NONE:
            append(log, data)
            continue
        with pytest.raises(InvalidRecord, match=r"record 1 of 2 .*max\.decompressed\.message\.bytes") as caught:
            append(log, data)
        assert caught.value.record_indexes == [1]
    many = encode_batch([NewRecord(b"k", b"a" * 900, START_MS)] * 5, compression=CompressionType.GZIP)
    append(log, many)
    assert log.log_end_offset == 7
