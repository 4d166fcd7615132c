"""Offsets of the source become offsets of the copy, whatever gaps there are at both ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from pylogd.client.core.model import OffsetAndMetadata, Topic
from pylogd.services.mirror.describing import RouteView
from pylogd.services.mirror.offset_map import OffsetMap, Run, joined, runs_of
from pylogd.services.mirror.partition_copy import PartitionRoute
from pylogd.services.mirror.starting import LogRange
from pylogd.services.mirror.target import Checkpoint, SourcePartition


def make(*runs: Run, end: tuple[int, int] | None = None) -> OffsetMap:
    found = OffsetMap()
    found.add(runs)
    if end is not None:
        found.copied_to(*end)
    return found


def test_an_offset_inside_a_run_is_exact() -> None:
    assert make(Run(100, 7, 10)).translate(104) == 11


def test_an_offset_in_a_gap_becomes_that_of_the_next_record() -> None:
    offsets = make(Run(100, 7, 10), Run(120, 20, 5), end=(130, 26))
    assert offsets.translate(110) == 20
    assert offsets.translate(115) == 20
    assert offsets.translate(125) == 26
    assert offsets.translate(130) == 26


def test_what_is_not_known_is_not_guessed() -> None:
    offsets = make(Run(100, 7, 10), end=(110, 17))
    assert offsets.translate(99) is None
    assert offsets.translate(111) is None
    assert OffsetMap().translate(0) is None


def test_without_records_the_checkpoint_alone_is_translated() -> None:
    offsets = make(end=(50, 3))
    assert offsets.translate(50) == 3
    assert offsets.translate(49) is None


def test_runs_that_continue_each_other_are_one() -> None:
    assert joined([Run(0, 5, 3), Run(3, 8, 2), Run(5, 11, 1)]) == [Run(0, 5, 5), Run(5, 11, 1)]
    assert make(Run(0, 5, 3), Run(3, 8, 2)).runs == [Run(0, 5, 5)]


def test_offsets_that_were_given_again_replace_those_before() -> None:
    offsets = make(Run(0, 0, 10), Run(10, 11, 10))
    offsets.add([Run(5, 30, 3)])
    assert offsets.runs == [Run(0, 0, 5), Run(5, 30, 3)]
    assert offsets.translate(6) == 31


@given(st.lists(st.integers(1, 5), max_size=20), st.integers(0, 50))
def test_runs_of_offsets_with_gaps_give_each_record_its_place(steps: list[int], target: int) -> None:
    offsets = [sum(steps[: index + 1]) for index in range(len(steps))]
    found = make(*runs_of(offsets, target))
    assert [found.translate(offset) for offset in offsets] == [target + index for index in range(len(offsets))]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=30))
def test_a_consumer_that_moves_over_misses_nothing_and_repeats_nothing(parts: list[tuple[int, int, int]]) -> None:
    """Each part is a gap at the source, a run of records, and a gap at the target behind it."""
    source = target = 0
    runs, copied = [], []
    for gap, length, marker in parts:
        source += gap
        runs.append(Run(source, target, length))
        copied += [(source + index, target + index) for index in range(length)]
        source, target = source + length, target + length + marker
    offsets = make(*runs, end=(source, target))
    for position in range(copied[0][0], source + 1):
        moved = offsets.translate(position)
        assert moved is not None
        left = [at for at, _ in copied if at >= position]
        assert [at for at, there in copied if there >= moved] == left


def test_runs_of_a_copy_that_was_deleted_are_dropped() -> None:
    """The topic at the target was created again: the offsets of its records begin anew."""
    offsets = make(Run(100, 0, 50), Run(150, 60, 50))
    offsets.add([Run(200, 0, 10)])
    assert offsets.runs == [Run(200, 0, 10)]
    assert offsets.translate(120) is None
    assert offsets.translate(205) == 5
    assert make(Run(0, 0, 5), Run(5, 0, 5)).runs == [Run(5, 0, 5)]


def test_a_copy_that_ends_before_the_checkpoint_was_deleted() -> None:
    """Nothing was copied since it was created again."""
    topic = Topic("t", bytes(15) + b"\2", internal=False, partitions=())
    path = PartitionRoute("r", "t", 0, "t")
    key = SourcePartition("c", "t", 0, "t")
    table = SimpleNamespace(maps={key: make(Run(0, 0, 100))}, topic_ids={key: topic.topic_id})
    checkpoint = Checkpoint(topic.topic_id, 100, 0, 100, 7)
    seen = SimpleNamespace(_key=lambda path: key, _checkpoint=lambda path, topic: checkpoint)

    def translated(end: int) -> int:
        committed, log = OffsetAndMetadata(40), LogRange(0, end)
        found = RouteView._translated(cast(Any, seen), path, topic, cast(Any, table), committed, log)
        return found.target

    assert translated(100) == 40
    assert translated(99) == 0
