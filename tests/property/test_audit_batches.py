"""The audit counts batches as it counts their records one by one: compiled, plainly and as columns, on any bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.client.core.audit import HEADER, Stamp
from pylogd.client.core.consumer.columns import decode_batches
from pylogd.services.audit.batches import Batches, Progress, count_batches
from pylogd.services.audit.counting import AHEAD_MS, Counted, Skip
from pylogd.services.audit.tables import count_columns
from pylogd.wire import records
from pylogd.wire.records import HEADER_SIZE, LOG_APPEND_TIME, NewRecord, encode_batch, parse_header
from tests.audits import START, WIDTH

compiled = pytest.importorskip("pylogd.wire._speedups", reason="there was no compiler")

PARTITION = 3
times = st.integers(START, START + 3 * WIDTH - 1) | st.sampled_from([0, -1, START + AHEAD_MS, START + AHEAD_MS + 1])
stamps = st.builds(
    lambda time, server, producer, number: Stamp(time, server, producer, number).encode(),
    times, st.sampled_from(["here", "", "a/b", "dört"]), st.sampled_from(["p", "q", "", "é"]),
    st.integers(0, 30) | st.sampled_from([10**18 - 1, 10**18, (1 << 63) - 1, 1 << 63]),
)  # fmt: skip
odd = st.sampled_from(
    [None, b"", b"1/p/0", b"/p/0/s", b"1/p//s", b"+5/p/0/s", b" 5/p/0/s", b"1_0/p/0/s", b"05/p/007/s", b"\xff/p/0/s",
     b"5/\xff/0/s", b"5/p/0/\xff", b"5/p/\xd9\xa3/s"]
)  # fmt: skip
names = st.sampled_from(["other", HEADER + "s", "pylogd.audiT"])
header = st.tuples(st.just(HEADER), stamps | odd) | st.tuples(names, odd)
one = st.builds(NewRecord, st.none(), st.just(b"v"), times, st.lists(header, max_size=3))
#: Of an audited producer: one stamp each, and mostly consecutive numbers.
usual = st.builds(
    lambda first, count, step: [
        NewRecord(None, b"v", START, [(HEADER, Stamp(START + at, "here", "p", first + at * step).encode())])
        for at in range(count)
    ],
    st.integers(0, 5), st.integers(1, 100), st.integers(1, 2),
)  # fmt: skip
skips = st.dictionaries(
    st.sampled_from([START, START + WIDTH]), st.dictionaries(st.just(PARTITION), st.integers(0, 60)), max_size=2
)


def batches_of(parts: Sequence[Sequence[NewRecord]], appended: Sequence[bool]) -> Batches:
    found = []
    base = 0
    for part, is_appended in zip(parts, appended, strict=False):
        batch = encode_batch(part, base_offset=base)
        header_ = parse_header(batch)
        if is_appended:
            header_ = header_._replace(attributes=header_.attributes | LOG_APPEND_TIME)
        found.append((header_, memoryview(batch)))
        base += len(part)
    return found


def counted_with(loops: Any, batches: Batches, position: int, skip: Skip) -> tuple[Counted, tuple[int, int, bool]]:
    before, records.speedups = records.speedups, loops
    try:
        found = Counted()
        done: Progress = count_batches(found, PARTITION, batches, position, WIDTH, START, skip, 1 << 20)
    finally:
        records.speedups = before
    return found, (done.reached, done.batches, done.damage is None)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(one, min_size=1, max_size=20) | usual, min_size=1, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3), st.integers(0, 40), skips,
)  # fmt: skip
def test_all_ways_to_count_come_to_the_same(
    parts: list[list[NewRecord]], appended: list[bool], position: int, skip: dict[int, dict[int, int]]
) -> None:
    batches = batches_of(parts, appended)
    plain, fast = counted_with(None, batches, position, skip), counted_with(compiled, batches, position, skip)
    assert plain == fast
    assert plain[1][1:] == (len(batches), True)
    as_columns = Counted()
    columns = decode_batches(batches, from_offset=position, headers=True, check_crcs=False).records
    if columns.num_rows:
        count_columns(as_columns, PARTITION, columns, WIDTH, START, skip)
    assert as_columns == fast[0]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(one, min_size=1, max_size=8), min_size=1, max_size=3), st.integers(0, 1 << 32))
def test_damaged_batches_are_counted_up_to_the_damage(parts: list[list[NewRecord]], seed: int) -> None:
    chance = random.Random(seed)
    batches = []
    for header_, batch in batches_of(parts, [False] * 3):
        data = bytearray(batch)
        for _ in range(chance.randrange(3)):
            data[chance.randrange(HEADER_SIZE, len(data))] = chance.choice((0, 1, 127, 128, 255))
        batches.append((header_, memoryview(data)))
    assert counted_with(None, batches, 0, {}) == counted_with(compiled, batches, 0, {})


def test_producers_by_turns_take_linear_time() -> None:
    """Each row is of another group than the one before it."""
    part = [
        NewRecord(None, b"v", START, [(HEADER, Stamp(START, "here", f"p{at % 5000}", at // 5000).encode())])
        for at in range(20_000)
    ]
    batches = batches_of([part], [False])
    fast = counted_with(compiled, batches, 0, {})
    assert len(fast[0].windows[START].tallies) == 5000
    assert fast == counted_with(None, batches, 0, {})


def test_a_bounded_number_of_bytes_is_counted_at_once() -> None:
    batches = batches_of([[NewRecord(None, bytes(1000), START, ())]] * 3, [False] * 3)
    found = Counted()
    assert count_batches(found, PARTITION, batches, 0, WIDTH, START, {}, 1500) == Progress(2, 2)
    assert count_batches(found, PARTITION, batches[2:], 2, WIDTH, START, {}, 1500) == Progress(3, 1)
    assert found.windows[START].unstamped == 3
