"""For how long a partition has been behind is never told too small, and at most twice as large as it is."""

from __future__ import annotations

from pylogd.services.mirror.partition_copy import LagMark


def test_without_records_that_wait_it_is_zero() -> None:
    mark = LagMark(100.0)
    assert [mark.look(0, 0, 200.0), mark.look(5, 5, 300.0), mark.look(5, 5, 400.0)] == [0.0, 0.0, 0.0]


def test_it_grows_while_nothing_is_committed() -> None:
    mark = LagMark(0.0)
    mark.look(5, 5, 10.0)
    assert [mark.look(5, 6, 11.0), mark.look(5, 90, 30.0), mark.look(5, 900, 110.0)] == [1.0, 20.0, 100.0]


def test_it_counts_from_the_last_checkpoint_of_an_earlier_worker() -> None:
    assert LagMark(-3600.0).look(5, 6, 0.0) == 3600.0


def test_with_a_constant_delay_it_is_that_to_twice_that() -> None:
    mark, delay = LagMark(0.0), 7
    for second in range(200):
        found = mark.look(max(0, second - delay), second, float(second))
        assert min(second, delay) <= found <= 2 * delay + 1


def test_a_partition_that_catches_up_is_at_zero_again() -> None:
    mark = LagMark(0.0)
    assert mark.look(0, 1000, 60.0) == 60.0
    assert mark.look(400, 1000, 61.0) == 61.0
    assert mark.look(1000, 1000, 62.0) == 0.0
    assert mark.look(1000, 1001, 63.0) == 1.0
