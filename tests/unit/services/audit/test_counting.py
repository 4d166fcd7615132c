"""Stamps are counted by window, producer and chain of producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from pylogd.client.core.audit import HEADER, InvalidReport, Report, Stamp
from pylogd.lake.tables.records import HEADERS
from pylogd.services.audit.counting import Counted, Origin, Row
from pylogd.services.audit.tables import count_columns
from tests.audits import START, WIDTH, header, report

ALICE = Origin(("alice",), 0, "here")


def counted(*rows: Row, skip: dict[int, dict[int, int]] | None = None) -> Counted:
    found = Counted()
    found.count(3, rows, WIDTH, START, skip or {})
    return found


def test_rows_and_distinct_messages_are_counted_by_window() -> None:
    rows = [(10 + at, [header("alice", number, START + 400 * number)]) for at, number in enumerate([0, 1, 2, 2, 3])]
    found = counted(*rows)
    assert sorted(found.windows) == [START, START + WIDTH]
    first, second = found.windows[START], found.windows[START + WIDTH]
    assert (first.tallies[ALICE].rows, first.tallies[ALICE].numbers) == (4, BitMap64([0, 1, 2]))
    assert (second.tallies[ALICE].rows, second.tallies[ALICE].numbers) == (1, BitMap64([3]))
    assert (first.begins, first.ends, second.begins, second.ends) == ({3: 10}, {3: 14}, {3: 14}, {3: 15})


def test_rows_that_are_counted_already_are_skipped_by_window() -> None:
    rows = [(at, [header("alice", at, START + WIDTH * (at % 2))]) for at in range(6)]
    found = counted(*rows, skip={START: {3: 4}})
    assert found.windows[START].tallies[ALICE].numbers == BitMap64([4])
    assert found.windows[START + WIDTH].tallies[ALICE].numbers == BitMap64([1, 3, 5])


@pytest.mark.parametrize(
    "value",
    [None, b"", b"1/p/0", b"x/p/0/s", b"-5/p/0/s", b"5/p/-1/s", b"5/p/9223372036854775808/s", b"\xff/p/0/s",
     b"%d/p/0/s" % (START + 90_000_000)],
)  # fmt: skip
def test_what_is_no_stamp_is_counted_as_invalid(value: bytes | None) -> None:
    found = counted((0, [(HEADER, value)]), (1, [("other", b"x")]), (2, []))
    assert (found.windows, found.invalid) == ({}, 1)


def test_a_message_with_several_stamps_counts_in_the_window_of_each() -> None:
    stamps = [header("alice", 5), header("bob", 7, START + WIDTH, "there")]
    found = counted((0, [("a", b"1"), stamps[0], stamps[1]]))
    chain = ("alice", "bob")
    assert list(found.windows[START].tallies) == [Origin(chain, 0, "here")]
    assert list(found.windows[START + WIDTH].tallies) == [Origin(chain, 1, "there")]
    assert [each.producer for window in found.windows.values() for each in window.tallies] == ["alice", "bob"]


def test_a_report_survives_encoding() -> None:
    told = report("alice", 5, 9, failed=((6, 7),), recovered=True)
    assert Report.decode(told.encode()) == told


@pytest.mark.parametrize(
    "change",
    [
        b"", b"[]", b"null", b"{}", b'{"count":-1}', b'{"count":1.5}', b'{"count":true}', b'{"producer":7}',
        b'{"window_ms":0}', b'{"first":0,"last":9999999999999}', b'{"first":5,"last":4}', b'{"failed":[[1]]}',
        b'{"failed":[[0,99999999999]]}', b'{"failed":7}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_report_is_refused(change: bytes) -> None:
    text = report("alice", 5, 9).encode()
    value = text[:-1] + b"," + change[1:] if change.startswith(b'{"') else change
    with pytest.raises(InvalidReport):
        Report.decode(value)
    with pytest.raises(InvalidReport):
        Report.decode(None)


def columns(rows: Sequence[Row], times: Sequence[int | None] | None = None, kind: int = 0) -> pa.RecordBatch:
    """Return rows as a consumer returns them."""
    headers = [[{"key": key, "value": value} for key, value in each] for _, each in rows]
    stamps = [START] * len(rows) if times is None else times
    return pa.record_batch({
        "offset": pa.array([offset for offset, _ in rows], pa.int64()),
        "timestamp": pa.array(stamps, pa.timestamp("ms", "UTC")),
        "timestampType": pa.array([kind] * len(rows), pa.int32()),
        "headers": pa.array(headers, HEADERS),
    })  # fmt: skip


ODD = st.sampled_from([b"", b"x", b"1/p/2", b"0x1/p/2/s", b"1/p/+2/s", b"1/p/0x2/s", b"\xff/p/1/s", b"-1/p/1/s",
                       b"%d/p/1/s" % (START * 9), b"1/p/99999999999999999999/s", b"01/p/002/s/t", None])  # fmt: skip
GOOD = st.builds(
    lambda producer, number, time, server: Stamp(time, server, producer, number).encode(),
    st.sampled_from(["alice", "bob", ""]), st.integers(0, 200), st.integers(START, START + 5 * WIDTH),
    st.sampled_from(["here", "a/b"]),
)  # fmt: skip
HEADER_LISTS = st.lists(
    st.tuples(st.just("other"), st.binary(max_size=2)) | st.tuples(st.just(HEADER), GOOD), max_size=3
)
SKIPS = st.dictionaries(st.sampled_from([START, START + WIDTH]), st.just({3: 60}), max_size=2)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.just(HEADER), GOOD), min_size=300, max_size=320), st.lists(HEADER_LISTS, max_size=9),
       st.lists(ODD, max_size=1), SKIPS)  # fmt: skip
def test_columns_are_counted_as_rows_are(
    single: list[Any], others: list[Any], odd: list[bytes | None], skip: dict[int, dict[int, int]]
) -> None:
    lists = [*others, *([each] for each in single), *([(HEADER, value)] for value in odd)]
    rows = list(enumerate(lists))
    for some in (rows, [row for row in rows if len(row[1]) == 1]):
        plain, quick = Counted(), Counted()
        plain.count(3, some, WIDTH, START, skip)
        count_columns(quick, 3, columns(some), WIDTH, START, skip)
        assert quick.invalid == plain.invalid
        there = {start: window for start, window in quick.windows.items() if window.tallies}
        assert {start: window.tallies for start, window in there.items()} == {
            start: window.tallies for start, window in plain.windows.items()
        }
        unstamped = sum(window.unstamped for window in quick.windows.values())
        plainly = [o for o, headers in some if all(name != HEADER for name, _ in headers)]
        assert unstamped == sum(o >= skip.get(START, {}).get(3, 0) for o in plainly)


def test_rows_without_stamps_are_counted_by_window() -> None:
    rows: list[Row] = [(at, []) for at in range(6)]
    times = [START, START + 1, START + WIDTH, None, -1, START + 2 * 86_400_000]
    found = Counted()
    count_columns(found, 3, columns(rows, times), WIDTH, START, {START: {3: 1}})
    assert {start: window.unstamped for start, window in found.windows.items()} == {START: 1, START + WIDTH: 1}
    assert (found.windows[START].begins, found.windows[START].ends) == ({3: 1}, {3: 2})
    assert (found.invalid, found.restamped) == (3, False)
    count_columns(found, 3, columns(rows, kind=1), WIDTH, START, {})
    assert found.restamped, "a broker has given them their time stamps"
