"""Stamps are counted by window, producer and chain of producers."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from pylogd.audit.counting import Counted, Origin, Row
from pylogd.client.core.audit import HEADER, InvalidReport, Report
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
