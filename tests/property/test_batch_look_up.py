"""Batches are found in a segment alike with and without the compiled walk over their headers."""

from __future__ import annotations

import struct
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.broker.log.errors import CorruptLog
from pylogd.broker.log.segment import BatchLocation, Segment
from pylogd.wire import records
from pylogd.wire.records import HEADER_SIZE, LENGTH_OVERHEAD
from tests.fakes.storage import MemoryStorage

pytestmark = pytest.mark.skipif(records.speedups is None, reason="there was no compiler")

_int64 = st.integers(0, 100) | st.integers(-(1 << 63), (1 << 63) - 1)
#: Base offset, size and last offset delta of a batch.
_BATCHES = st.lists(
    st.tuples(_int64, st.integers(HEADER_SIZE, 400), st.integers(0, 9) | st.integers(-(1 << 31), (1 << 31) - 1)),
    max_size=60,
)


def _header(base: int, size: int, delta: int) -> bytes:
    data = bytearray(size)
    struct.pack_into(">qi", data, 0, base, size - LENGTH_OVERHEAD)
    struct.pack_into(">i", data, 23, delta)
    return bytes(data)


def _found(segment: Segment, position: int, offset: int, beyond: int) -> object:
    try:
        found: BatchLocation | None = segment._walk(position, offset, beyond, allow_cold=True)
    except CorruptLog as error:
        return str(error)
    return found and (found.position, found.size, found.base_offset, found.last_offset, found.empty)


@settings(max_examples=300, deadline=None)
@given(
    batches=_BATCHES, offset=_int64, beyond=st.integers(0, 20_000), cut=st.integers(0, 70),
    lengths=st.lists(st.tuples(st.integers(0, 60), st.integers(-20, 20)), max_size=1),
)  # fmt: skip
def test_both_walks_find_the_same(
    batches: list[tuple[int, int, int]], offset: int, beyond: int, cut: int, lengths: list[tuple[int, int]]
) -> None:
    parts = [bytearray(_header(*one)) for one in batches]
    for number, length in lengths:
        if number < len(parts):
            struct.pack_into(">i", parts[number], 8, length)
    data = b"".join(map(bytes, parts))
    data = data[: len(data) - cut]
    storage = MemoryStorage()
    segment = storage.create().active
    assert segment.file is not None
    if data:
        segment.write([data], len(data))
    segment.size = len(data)
    quick = _found(segment, 0, offset, beyond)
    with patch.object(records, "speedups", None):
        assert _found(segment, 0, offset, beyond) == quick


@given(window=st.binary(max_size=300), offset=_int64, beyond=st.integers(-(1 << 63), (1 << 63) - 1))
def test_any_bytes_are_walked(window: bytes, offset: int, beyond: int) -> None:
    speedups = records.speedups
    assert speedups is not None
    assert speedups.skip_batches(memoryview(bytearray(window)), offset, beyond) >= 0


def test_bad_arguments_raise() -> None:
    speedups = records.speedups
    assert speedups is not None
    for arguments in ((b"", 0), ("text", 0, 0), (b"", None, 0), (b"", 0, "1")):
        with pytest.raises(TypeError):
            speedups.skip_batches(*arguments)
    with pytest.raises(OverflowError):
        speedups.skip_batches(b"", 1 << 63, 0)
