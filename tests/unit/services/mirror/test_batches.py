"""What is copied of a batch, and which offsets its records have at both ends."""

from __future__ import annotations

from pylogd.services.mirror.batches import copy_of
from pylogd.services.mirror.offset_map import Run
from pylogd.wire.compression import CompressionType
from pylogd.wire.records import HEADER, HEADER_SIZE, NewRecord, crc32c, decode_batch, encode_batch, parse_header


def batch(count: int = 10, offset: int = 100, compression: int = CompressionType.NONE) -> memoryview:
    records = [NewRecord(b"%d" % number, b"v%d" % number, 5000 + number) for number in range(count)]
    return memoryview(encode_batch(records, base_offset=offset, compression=compression))


def with_hole(found: memoryview, last: int) -> memoryview:
    """Return a batch as compaction leaves it if its last records are gone: the offsets go on to `last`."""
    fields = list(HEADER.unpack_from(found))
    fields[6] = last
    head = HEADER.pack(*fields)
    fields[4] = crc32c(head[21:] + bytes(found[HEADER_SIZE:]))
    return memoryview(HEADER.pack(*fields) + bytes(found[HEADER_SIZE:]))


def test_a_whole_batch_is_copied_as_the_very_same_bytes() -> None:
    found = batch()
    copied = copy_of(parse_header(found), found, 100)
    assert copied is not None and copied.batch is found
    assert copied.runs(7) == [Run(100, 7, 10)]


def test_a_batch_with_a_hole_is_encoded_anew_with_the_same_codec() -> None:
    found = with_hole(batch(compression=CompressionType.GZIP), 19)
    copied = copy_of(parse_header(found), found, 100)
    assert copied is not None and copied.records == 10
    header = parse_header(copied.batch)
    assert (header.last_offset_delta, header.compression) == (9, CompressionType.GZIP)
    assert [r.value for r in decode_batch(copied.batch)] == [r.value for r in decode_batch(found)]
    assert copied.runs(7) == [Run(100, 7, 10)]


def test_from_the_middle_only_the_rest_is_copied() -> None:
    found = batch()
    copied = copy_of(parse_header(found), found, 104)
    assert copied is not None
    assert [r.key for r in decode_batch(copied.batch)] == [b"%d" % number for number in range(4, 10)]
    assert [r.timestamp for r in decode_batch(copied.batch)] == [5004 + number for number in range(6)]
    assert copied.runs(0) == [Run(104, 0, 6)]


def test_a_batch_that_compaction_emptied_is_left_out() -> None:
    found = batch()
    assert copy_of(parse_header(found)._replace(record_count=0), found, 100) is None


def test_behind_its_last_record_nothing_is_left_to_copy() -> None:
    found = with_hole(batch(), 19)
    assert copy_of(parse_header(found), found, 115) is None
