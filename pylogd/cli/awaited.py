"""Say what the new replicas of a smooth expansion wait for (`--from-latest`): consumer groups, idempotent producers."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

from pylogd.base.errors import KafkaError
from pylogd.cli.common import format_time
from pylogd.cli.output import note
from pylogd.client import Admin, TopicPartition

#: The seconds between two looks; leaders check as often whether they still have to wait.
_LOOK_SECONDS: Final = 5.0


class Waits:
    """Prints each producer and group that the leaders wait for, once.

    begins: for each partition, an offset at or before which the new replicas begin.
    """

    def __init__(self, begins: Mapping[TopicPartition, int]) -> None:
        self._begins = begins
        self._told: set[object] = set()
        self._next = time.monotonic() + _LOOK_SECONDS

    def look(self, admin: Admin, moving: Collection[TopicPartition]) -> None:
        """Print new producers and groups, if it is time to look again.

        moving: the partitions whose moves are not done.
        """
        now = time.monotonic()
        if now < self._next or not moving:
            return
        self._next = now + _LOOK_SECONDS
        try:
            self._producers(admin, moving)
            self._groups(admin, {place: self._begins[place] for place in moving if place in self._begins})
        except KafkaError as error:  # a leader that changes, or an operation that the user may not do
            self._tell(error.code, f"what is waited for can't be told now: {error}")

    def _producers(self, admin: Admin, moving: Collection[TopicPartition]) -> None:
        for place, producers in sorted(admin.describe_producers(moving).items()):
            for one in producers:
                if one.awaited_until >= 0:
                    seen, until = format_time(one.last_timestamp), format_time(one.awaited_until)
                    self._tell(
                        (place, one.producer_id),
                        f"{place} waits until {until} for the idempotent producer {one.producer_id} "
                        f"(epoch {one.epoch}, last batch {seen}). It wrote before the new replicas began, and they "
                        "could not recognize a batch that it sends again; the wait ends if it writes",
                    )

    def _groups(self, admin: Admin, begins: Mapping[TopicPartition, int]) -> None:
        for group in admin.list_groups():
            for place, committed in sorted(admin.group_offsets(group.group_id, begins).items()):
                if 0 <= committed.offset < begins[place]:
                    self._tell(
                        (place, group.group_id),
                        f"{place} waits for group {group.group_id}, which is at offset {committed.offset}, to read up "
                        f"to {begins[place]}",
                    )

    def _tell(self, what: object, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            note(text)
