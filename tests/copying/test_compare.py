"""The comparison of a copy finds what is missing, what is there twice, and another order."""

from tests.copying.comparison import compare

ROWS = [(0, b"a"), (1, b"b"), (2, b"c")]


def test_a_copy_at_other_offsets_is_whole() -> None:
    assert compare(0, ROWS, [(5, b"a"), (9, b"b"), (10, b"c")]) == []


def test_what_is_missing() -> None:
    assert compare(2, ROWS, ROWS[:2]) == ["partition 2: b'c' was not copied"]


def test_what_is_there_twice() -> None:
    assert compare(0, ROWS, [*ROWS, (3, b"b")]) == ["partition 0: b'b' was copied 2 times"]


def test_another_order() -> None:
    assert compare(1, ROWS, ROWS[::-1]) == ["partition 1: the copy is in another order"]
