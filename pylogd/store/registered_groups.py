"""Read the groups of consumers that coordinate through ZooKeeper, for their lag, only on the controller's broker.

Strategy: each reading reads at most `_GROUPS_PER_READING` groups, in turn; the last readings of the other groups are
kept. So with many groups the offsets are older, but a reading is never larger. The first `_MOST_GROUPS` groups by name
are read; the others count as groups of an unknown state.

Must not know: log ends, and groups that brokers coordinate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Final

from twisted.logger import Logger

from pylogd.store.consumers import RegisteredGroup, group_names, read_group
from pylogd.store.errors import StoreError
from pylogd.store.interfaces import IMetadataStore

log = Logger()

#: The value in place of the protocol of a group's members, which need no broker.
ZOOKEEPER: Final = "zookeeper"
_MOST_GROUPS: Final = 2000
_GROUPS_PER_READING: Final = 100


class RegisteredGroups:
    """The groups in ZooKeeper, from the last readings.

    found: the groups by name; empty unless this broker is the controller.
    problem: the reason why the last reading failed, or "".
    """

    def __init__(
        self, store: IMetadataStore, topics: Callable[[], Container[str]], is_controller: Callable[[], bool]
    ) -> None:
        """`topics` returns the names of existing topics."""
        self._store = store
        self._topics = topics
        self._is_controller = is_controller
        self._last = ""  # the group that was read last
        self._unread = 0
        self.found: dict[str, RegisteredGroup] = {}
        self.problem = ""

    @property
    def members(self) -> int:
        """The members of all groups."""
        return sum(group.members for group in self.found.values())

    async def read(self) -> None:
        """Read the next groups. If ZooKeeper does not answer, the earlier readings are kept."""
        if not self._is_controller():
            self.found, self._unread = {}, 0
            return
        try:
            names = await group_names(self._store)
            self._unread = max(len(names) - _MOST_GROUPS, 0)
            known = names[:_MOST_GROUPS]
            there = set(known)
            self.found = {name: group for name, group in self.found.items() if name in there}
            created: dict[str, int | None] = {}
            topics = self._topics()
            for name in self._next(known):
                self.found[name] = await read_group(self._store, name, topics, created)
                self._last = name
            self.problem = ""
        except StoreError as error:
            self.problem = str(error)
            log.debug("Can't read the groups in ZooKeeper: {error}", error=error)

    def _next(self, names: Sequence[str]) -> Sequence[str]:
        """Return the groups to read now: those after the last one, continued with the first ones."""
        later = [name for name in names if name > self._last]
        return [*later, *names[: len(names) - len(later)]][:_GROUPS_PER_READING]

    def count(self, states: Counter[tuple[str, str]], wanted: set[tuple[str, int]]) -> Iterator[None]:
        """Count the groups by type and state, and add the partitions with offsets. Yield after each group."""
        if self._unread:
            states[ZOOKEEPER, "Unknown"] += self._unread
        for group in self.found.values():
            states[ZOOKEEPER, "Stable" if group.members else "Empty"] += 1
            wanted.update(group.offsets)
            yield
