"""The compiled loops over records, keys and rows (`wire/_speedups.c`) against the same in Python, on hostile input.

Strategy: real batches are made of random records, then damaged and cut; counts, offsets and times are usual or extreme.
`agree_on_records` asserts that every loop returns what its specification in Python returns, or refuses what that
refuses. Columns go into memory that is exactly as large as measured, or smaller, so that a sanitizer sees what is
written behind it. `agree_on_rows` has columns in Arrow's layout: those that are valid become the records of the same
rows; those of any bytes are refused, or become records that can be decoded.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from pylogd.broker.log.segment import PROBE
from pylogd.client.core.producer import partitioner
from pylogd.wire import records, timestamps
from pylogd.wire.crc import append_zeros
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import HEADER_SIZE, LENGTH_OVERHEAD, NewRecord, Record, encode_batch
from pylogd.wire.validation import batch_is_valid_slowly, inspect_slowly
from tests.fakes.storage import START_MS

_INT64 = (1 << 63) - 1
_INT64_LEAST = -(1 << 63)
_TIMES = (0, 0, 5, START_MS, START_MS, -1, _INT64, _INT64_LEAST)
_PLACES = (0, 0, 0, 1, 7, -1, 1 << 31, _INT64 // 8, _INT64, _INT64_LEAST)
_SIZES = (0, 1, 3, 60, 130, 3000)
_ANY_SIZE = 90
_NOT_RECORDS: tuple[Any, ...] = (None, 7, [1], [()], [(b"k", b"v", 0)], [("k", b"v", 0, ())], [(b"k", b"v", "now", ())])
_LEAST_RECORD = 7  # bytes


def agree_on_records(number: int, module: Any) -> bool:
    """Assert that the loops of `module` do with input `number` as Python does; return whether it is well-formed."""
    chance = random.Random(number)
    some = [_record(chance) for _ in range(chance.choice((1, 2, 3, 70)))]
    batch = _damaged(chance, encode_batch(some, base_offset=chance.choice((0, 1000, 1 << 40))))
    earliest = chance.choice(_TIMES)
    assert module.batch_is_valid(_ending(batch), earliest) == batch_is_valid_slowly(batch, earliest), number
    payload = batch[HEADER_SIZE:] if chance.random() < 0.9 else chance.randbytes(chance.randrange(_ANY_SIZE))
    count = chance.choice((*[len(some)] * 7, len(some) - 1, -1, _INT64))
    base = chance.choice(_TIMES)
    inspected = (count, base, earliest, chance.choice(_TIMES))
    assert module.inspect_records(_ending(payload), *inspected) == tuple(inspect_slowly(payload, *inspected)), number
    searched = (count, base, chance.choice(_TIMES), chance.choice((0, 1, len(some), _INT64, -1)), chance.random() < 0.5)
    _same(
        number, lambda: module.search_timestamps(_ending(payload), *searched),
        lambda: timestamps.search_timestamps(payload, *searched),
    )  # fmt: skip
    plain = _same(
        number, lambda: module.decode_records(_ending(payload), count, 9, base, "t", 3, Record, None),
        lambda: records.decode_records(payload, count, 9, base, topic="t", partition=3),
    )  # fmt: skip
    _agree_on_columns(chance, number, module, payload, count, base)
    _agree_on_stamps(chance, number, module, payload, count, base)
    _agree_on_encoding(chance, number, module, some)
    _agree_on_walk(chance, number, module, batch)
    return bool(plain)


def _record(chance: random.Random) -> NewRecord:
    key, value = (chance.choice((None, chance.randbytes(chance.choice(_SIZES)))) for _ in range(2))
    stamp = chance.choice((START_MS, START_MS + 1, 0, -1, 1 << 60, -(1 << 60)))
    audited = b"%d/p/%d/here" % (START_MS, chance.randrange(99))
    values = (value, value, audited)
    headers = [
        (chance.choice(("", "a", "\udcff", "é" * 40)), chance.choice(values))
        for _ in range(chance.choice((0, 0, 0, 1, 3)))
    ]
    return NewRecord(key, value, stamp, headers)


def _same(number: int, compiled: Callable[[], Any], plain: Callable[[], Any]) -> Any:
    """Assert that both return the same, or refuse the records. Return what they return, None for an error."""
    found = []
    with patch.object(records, "speedups", None):
        for work in (compiled, plain):
            try:
                found.append(work())
            except InvalidRecordBatch:
                found.append(InvalidRecordBatch)
    assert found[0] == found[1], f"input {number}: {found[0]!r:.200} instead of {found[1]!r:.200}"
    return found[0] if found[0] is not InvalidRecordBatch else None


def _agree_on_columns(chance: random.Random, number: int, module: Any, payload: bytes, count: int, base: int) -> None:
    """Measure and fill the columns of records, from an offset delta on."""
    first, row = chance.choice((0, 0, 1, 40, -1, _INT64)), chance.choice(_PLACES)
    try:
        measured = module.measure(_ending(payload), count, first, base)
    except InvalidRecordBatch:
        sizes = [chance.choice((0, 1, 8, 64)) for _ in range(8)]
        _fill(module, payload, count, first, base, row, sizes)
        return
    found = [one for one in records.decode_records(payload, count, 0, base) if one.offset >= first]
    headers = [pair for one in found for pair in one.headers]
    rows, key_bytes, value_bytes, no_key, no_value, pairs, header_keys, header_values, _last = measured
    assert (rows, no_key, no_value, pairs) == (
        len(found), sum(one.key is None for one in found), sum(one.value is None for one in found), len(headers)
    ), f"input {number}"  # fmt: skip
    sizes = [8 * rows, 8 * rows, *_string_sizes(rows, key_bytes), *_string_sizes(rows, value_bytes)]
    if chance.random() < 0.3:  # too small
        at = chance.randrange(len(sizes))
        sizes[at] = max(0, sizes[at] - chance.randint(1, 9))
        _fill(module, payload, count, first, base, row, sizes)
        return
    buffers = _fill(module, payload, count, first, base, 0, sizes)
    assert buffers is not None, f"input {number}: what was measured does not fit"
    offsets, stamps, ends, _valid, keys, *_ = buffers
    assert struct.unpack(f"={rows}q", offsets) == tuple(one.offset for one in found), f"input {number}"
    assert struct.unpack(f"={rows}q", stamps) == tuple(one.timestamp for one in found), f"input {number}"
    assert bytes(keys) == b"".join(one.key or b"" for one in found), f"input {number}"
    assert struct.unpack_from("=i", ends, 4 * rows) == (len(keys),), f"input {number}"
    sizes = [4 * (rows + 1), *_string_sizes(pairs, header_keys), *_string_sizes(pairs, header_values)]
    if chance.random() < 0.3:
        at = chance.randrange(len(sizes))
        sizes[at] = max(0, sizes[at] - chance.randint(1, 9))
    _try(lambda *memory: module.fill_headers(payload, count, first, chance.choice((0, row)), *memory), sizes)


def _agree_on_stamps(chance: random.Random, number: int, module: Any, payload: bytes, count: int, base: int) -> None:
    """Count the stamps of records, from an offset delta on. `tests/property/test_audit_batches.py` compares groups."""
    first, width = chance.choice((0, 0, 1, 40, -1, _INT64)), chance.choice((1, 1000, _INT64))
    stamp, latest = chance.choice((None, *_TIMES)), chance.choice(_TIMES)

    def count_rows() -> tuple[int, int]:
        found = module.count_stamps(_ending(payload), count, first, 9, base, stamp, b"a", width, latest)
        groups, odd, unstamped, impossible, _last = found
        assert impossible + sum(group[3] for group in groups if group[1] is None) == unstamped, f"input {number}"
        return unstamped, len(odd) + sum(group[3] for group in groups if group[1] is not None)

    def count_plainly() -> tuple[int, int]:
        every = records.decode_records(payload, count, 9, base)
        if any(not _INT64_LEAST <= one.timestamp <= _INT64 for one in every):
            raise InvalidRecordBatch("a time stamp of more than 64 bits")
        found = [any(name == "a" for name, _ in one.headers) for one in every if one.offset - 9 >= first]
        return found.count(False), found.count(True)

    _same(number, count_rows, count_plainly)


def _string_sizes(rows: int, size: int) -> list[int]:
    return [4 * (rows + 1), (rows + 7) // 8, size]


def _fill(
    module: Any, payload: bytes, count: int, first: int, base: int, row: int, sizes: list[int]
) -> list[bytearray] | None:
    """Return the buffers of these sizes, filled; None if the records are malformed or do not fit."""
    return _try(lambda *memory: module.fill(payload, count, first, 0, base, None, row, *memory), sizes)


def _try(fill: Callable[..., Any], sizes: list[int]) -> list[bytearray] | None:
    buffers = [bytearray(size) for size in sizes]
    try:
        fill(*buffers)
    except InvalidRecordBatch:
        return None
    return buffers


def _agree_on_encoding(chance: random.Random, number: int, module: Any, some: list[NewRecord]) -> None:
    with patch.object(records, "speedups", None):
        for base in (some[0].timestamp, 0):
            assert module.encode_records(some, base) == records.encode_records(some, base), f"input {number}"
        headers = some[-1].headers
        assert module.encode_headers(headers) == records.encode_headers(headers), f"input {number}"
    key, value, size = chance.randbytes(chance.randrange(20)), chance.getrandbits(32), chance.choice((0, 1, 1 << 40))
    with patch.object(partitioner, "speedups", None):
        assert module.murmur2(_ending(key)) == partitioner.murmur2(key), f"input {number}"
    assert module.append_zeros(value, size) == append_zeros(value, size), f"input {number}"
    for function in (lambda odd: module.encode_records(odd, 0), module.encode_headers):
        odd = chance.choice(_NOT_RECORDS)
        try:
            function(odd)
        except (TypeError, ValueError, AttributeError):
            continue
        raise AssertionError(f"input {number}: {odd!r} was encoded")


def _agree_on_walk(chance: random.Random, number: int, module: Any, batch: bytes) -> None:
    """Skip batches in a window that ends within one."""
    window = batch * chance.randint(1, 3)
    window = window[: len(window) - chance.choice((0, 0, 1, 50, 70))]
    offset, beyond = chance.choice((0, 1, 1001, _INT64, -1)), chance.choice((-1, 0, len(batch), _INT64, _INT64_LEAST))
    at = 0
    while at + HEADER_SIZE <= len(window):
        base, length, delta, _ = PROBE.unpack_from(window, at)
        last, size = base + delta, length + LENGTH_OVERHEAD
        if length <= 0 or not _INT64_LEAST <= last <= _INT64 or (last >= offset and at + size > beyond):
            break
        at += size
    assert module.skip_batches(_ending(window), offset, beyond) == at, f"input {number}"


# Rows of columns ------------------------------------------------------------------------------------------------------


def agree_on_rows(number: int, module: Any) -> bool:
    """Assert that `module` groups and encodes rows as their records are, or refuses them; return whether any."""
    chance = random.Random(number)
    if chance.random() < 0.5:
        return _wild_rows(chance, number, module)
    some = [_record(chance) for _ in range(chance.choice((1, 2, 9, 70)))]
    rows, groups = len(some), chance.choice((1, 3, 5))
    pairs = [pair for one in some for pair in one.headers]
    order, ends = module.group_rows(rows, groups, None, _strings([one.key for one in some]))
    places = struct.unpack(f"={rows}i", order)
    hashed = [groups if one.key is None else (module.murmur2(one.key) & 0x7FFFFFFF) % groups for one in some]
    assert list(places) == sorted(range(rows), key=lambda row: (hashed[row], row)), f"input {number}"
    assert ends == [sum(group <= most for group in hashed) for most in range(groups + 1)], f"input {number}"
    columns = (
        _strings([one.key for one in some]), _strings([one.value for one in some]),
        _lists([len(one.headers) for one in some]),
        _strings([name.encode("utf-8", "surrogateescape") for name, _ in pairs]),
        _strings([value for _, value in pairs]),
    )  # fmt: skip
    stamps = struct.pack(f"={rows}q", *(one.timestamp for one in some))
    most = chance.choice((0, 100, 5000, 1 << 20))
    encoded, end, base, latest = module.encode_rows(order, 0, rows, most, columns, stamps)
    chosen = [some[row] for row in places[:end]]
    assert (base, latest) == (chosen[0].timestamp, max(one.timestamp for one in chosen)), f"input {number}"
    with patch.object(records, "speedups", None):
        assert encoded == records.encode_records(chosen, base), f"input {number}"
    assert len(encoded) <= most or end == 1, f"input {number}"
    return True


def _strings(values: list[bytes | None]) -> tuple[bytes, bytes, bytes, int, int]:
    """Return a column of byte strings."""
    valid = bytearray((len(values) + 7) // 8)
    for at, value in enumerate(values):
        valid[at // 8] |= (value is not None) << at % 8
    lengths = [len(value or b"") for value in values]
    return bytes(valid), _ends(lengths), b"".join(value or b"" for value in values), 0, len(values)


def _lists(lengths: list[int]) -> tuple[None, bytes, None, int, int]:
    return None, _ends(lengths), None, 0, len(lengths)


def _ends(lengths: list[int]) -> bytes:
    return struct.pack(f"={len(lengths) + 1}i", 0, *(sum(lengths[: at + 1]) for at in range(len(lengths))))


def _wild_rows(chance: random.Random, number: int, module: Any) -> bool:
    """Group and encode rows whose columns are any bytes."""
    order, rows, groups = _numbers(chance), chance.randint(-1, 8), chance.randint(-1, 8)
    given = (
        None if chance.random() < 0.5
        else (chance.choice((None, chance.randbytes(2))), _numbers(chance), chance.choice((0, 0, 1, -1, _INT64)))
    )  # fmt: skip
    taken = False
    try:
        found, ends = module.group_rows(rows, groups, given, _wild_column(chance))
    except (ValueError, TypeError):
        pass
    else:
        assert sorted(struct.unpack(f"={rows}i", found)) == list(range(rows)), f"input {number}"
        assert ends[-1] == rows, f"input {number}"
        taken = True
    first, stop, columns = (
        chance.randint(-1, 4),
        chance.choice((1, 4, 7, _INT64)),
        tuple(_wild_column(chance) for _ in range(5)),
    )
    stamps = chance.choice((None, chance.randbytes(8 * chance.randrange(8))))
    try:
        encoded, end, _, _ = module.encode_rows(order, first, stop, chance.choice((-1, 50, _INT64)), columns, stamps)
    except (ValueError, TypeError):
        return taken
    with patch.object(records, "speedups", None):
        assert len(records.decode_records(encoded, end - first)) == end - first, f"input {number}"
    return True


def _wild_column(chance: random.Random) -> Any:
    if chance.random() < 0.3:
        return chance.choice((None, None, (), "text"))
    places = (0, 0, 0, 1, 5, 8, -1, 1 << 31, _INT64 // 4, _INT64)
    return (
        chance.choice((None, chance.randbytes(2))), chance.choice((_numbers(chance), _numbers(chance), None)),
        chance.choice((chance.randbytes(30), None)), chance.choice(places), chance.choice(places),
    )  # fmt: skip


def _numbers(chance: random.Random) -> bytes:
    """Return numbers of 32 bits, which mostly ascend."""
    numbers = [chance.randrange(8) for _ in range(chance.randrange(9))]
    if chance.random() < 0.7:
        numbers.sort()
    if numbers and chance.random() < 0.2:
        numbers[chance.randrange(len(numbers))] = chance.choice((-1, 31, (1 << 31) - 1, -(1 << 31)))
    return struct.pack(f"={len(numbers)}i", *numbers)


def _ending(data: bytes) -> memoryview:
    """Return the bytes in memory of their own, so that a sanitizer sees what is read behind them."""
    return memoryview(bytearray(data))


def _damaged(chance: random.Random, batch: bytes) -> bytes:
    """Return a batch with other bytes behind its length, or without its last ones, or as it is."""
    if chance.random() < 0.4:
        return batch
    changed = bytearray(batch)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(LENGTH_OVERHEAD, len(changed))
        junk = chance.choice((b"\0", b"\1", b"\x7f", b"\xff", b"\xff" * 9 + b"\1", b"\x80\0", chance.randbytes(4)))
        changed[at : at + len(junk)] = junk[: len(changed) - at]
    if chance.random() < 0.2:
        del changed[max(HEADER_SIZE, len(changed) - chance.randint(1, 40)) :]
    return bytes(changed)
