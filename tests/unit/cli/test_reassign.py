"""What `pylogd reassign` tells beyond the progress of moves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from pylogd.cli.moves import note_late_groups
from pylogd.client import TopicPartition
from pylogd.client.core.model import GroupListing, OffsetAndMetadata

PLACE = TopicPartition("events", 0)


class Groups:
    """An admin client of a cluster with these groups and their offsets of PLACE."""

    def __init__(self, offsets: dict[str, int]) -> None:
        self._offsets = offsets

    def list_groups(self) -> list[GroupListing]:
        return [GroupListing(name, "Stable", "consumer", 1) for name in self._offsets]

    def group_offsets(self, group_id: str, partitions: Iterable[Any]) -> dict[TopicPartition, OffsetAndMetadata]:
        offset = self._offsets[group_id]
        return {} if offset < 0 else {place: OffsetAndMetadata(offset) for place in partitions}


def test_groups_behind_the_new_replicas_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    note_late_groups(cast(Any, Groups({"late": 9, "there": 10, "ahead": 11, "none": -1})), {PLACE: 10})
    [line] = capsys.readouterr().err.splitlines()
    assert line == (
        "not waited for: group late is at offset 9 of events-0, and replicas that begin at 10 or later are in sync now"
    )


def test_nothing_is_asked_about_a_move_that_copies_everything(capsys: pytest.CaptureFixture[str]) -> None:
    note_late_groups(cast(Any, None), {})
    assert capsys.readouterr().err == ""
