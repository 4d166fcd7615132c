"""Topics that are deleted and created again while groups have committed offsets in them, and what holds for these.

A committed offset belongs to the topic that it was committed for. A topic that is created later under the same name is
another topic: no group has an offset in it until the group commits one. This holds whichever broker coordinated the
group when the topic was deleted, also if that broker was dead, cut off or paused, and whatever its clock said.

Rules: an offset is compared only if it is certain which topic it was committed for. The name of a topic is all that a
commit says, so a commit that took long, failed, or was answered while the topic changed may still take effect later,
for the next topic. Its group is not used any more.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Mapping

from pylogd.base.errors import PylogdError
from pylogd.client import Admin
from pylogd.client import Cluster as Connection
from pylogd.client.core.model import TopicPartition
from tests.chaos.workload import Worker
from tests.clusters import BrokerCluster

NAMES = ("again-0", "again-1")
_PARTITIONS = 2
_FACTOR = 3
#: Groups that commit to each topic. A group has a number, which changes when its last commit is uncertain.
_GROUPS = 6
_GROUP = "again"
#: A commit that took longer may have been sent twice: the client repeats requests that are not answered.
_CERTAIN_SECONDS = 3.0
_REQUEST_SECONDS = 5.0
_RETRY_SECONDS = 8.0
_COMPARE_SECONDS = 120.0

#: An offset, and the id of the topic that it was committed for.
_Committed = tuple[int, bytes]


class RecreatedTopics(Worker):
    """Commit offsets, delete topics and create them again, until stopped. `cycles` counts the deletions."""

    def __init__(self, cluster: BrokerCluster, rng: random.Random) -> None:
        super().__init__("the topics that are recreated")
        self._cluster = cluster
        self._rng = random.Random(rng.random())
        self._due = threading.Event()
        self._groups = [f"{_GROUP}-{number}" for number in range(_GROUPS)]
        self._retired = 0
        self._committed: dict[tuple[str, TopicPartition], _Committed] = {}
        self.cycles = 0
        cluster.ask(self._start)

    def delete_soon(self) -> None:
        """Delete the next topic now instead of later: the coordinator of one of the groups has just failed."""
        self._due.set()

    def coordinator(self) -> tuple[str, int]:
        """Return one of the groups, and the broker that coordinates it. Raises PylogdError, after a few seconds."""
        group = self._groups[0]
        with self._connection() as connection:
            return group, Admin(connection).describe_group(group).coordinator

    def work(self) -> None:
        while not self.stopping.is_set():
            name = self._rng.choice(NAMES)
            with contextlib.suppress(PylogdError, OSError):
                self._commit(name)
            self._due.wait(self._rng.uniform(0.5, 6.0))
            self._due.clear()
            self._recreate(name)

    def compare(self) -> list[str]:
        """Return what is wrong. The cluster must be whole, and the thread must have ended."""
        deadline = time.monotonic() + _COMPARE_SECONDS
        while True:
            faults = self._wrong()
            if not faults or time.monotonic() > deadline:
                return faults
            time.sleep(0.5)

    # -- the work

    def _start(self, admin: Admin) -> None:
        """Create the topics, and with the first commits the topic of the groups' offsets, while all brokers live."""
        for name in NAMES:
            admin.create_topic(name, _PARTITIONS, _FACTOR)
            self._cluster.wait_for_isr(name, _FACTOR)
            self._commit(name)

    def _commit(self, name: str) -> None:
        """Commit a random offset for each group, and note it if it is certain which topic it was committed for."""
        with self._connection() as connection:
            admin = Admin(connection)
            for index, group in enumerate(self._groups):
                offset, began = self._rng.randrange(1, 1_000_000), time.monotonic()
                place = TopicPartition(name, self._rng.randrange(_PARTITIONS))
                try:
                    before = admin.describe_topic(name).topic_id
                    admin.alter_group_offsets(group, {place: offset})
                    after = admin.describe_topic(name).topic_id
                except (PylogdError, OSError):
                    self._retire(index)
                    continue
                if before != after or time.monotonic() - began > _CERTAIN_SECONDS:
                    self._retire(index)
                else:
                    self._committed[group, place] = (offset, after)

    def _retire(self, index: int) -> None:
        """Use another group from now on: the last commit of this one may still take effect."""
        group = self._groups[index]
        self._committed = {key: value for key, value in self._committed.items() if key[0] != group}
        self._retired += 1
        self._groups[index] = f"{_GROUP}-{_GROUPS + self._retired}"

    def _recreate(self, name: str) -> None:
        """Delete a topic, and create it again. An error of either leaves the work to the next cycle."""
        with contextlib.suppress(PylogdError, OSError), self._connection() as connection:
            Admin(connection).delete_topic(name)
            self.cycles += 1
        time.sleep(self._rng.choice((0.0, 0.0, 2.0, 8.0)))
        with contextlib.suppress(PylogdError, OSError), self._connection() as connection:
            Admin(connection).create_topic(name, _PARTITIONS, min(_FACTOR, len(self._cluster.brokers)))

    def _connection(self) -> Connection:
        return Connection(
            self._cluster.bootstrap, request_timeout=_REQUEST_SECONDS, retry_timeout=_RETRY_SECONDS,
            bootstrap_timeout=_REQUEST_SECONDS,
        )  # fmt: skip

    # -- checks

    def _wrong(self) -> list[str]:
        try:
            return self._cluster.ask(self._differences)
        except (PylogdError, OSError) as error:
            return [f"committed offsets of recreated topics can't be read: {error}"]

    def _differences(self, admin: Admin) -> list[str]:
        ids = {topic.name: topic.topic_id for topic in admin.list_topics()}
        wanted = [TopicPartition(name, index) for name in NAMES if name in ids for index in range(_PARTITIONS)]
        faults = []
        for group in self._groups:
            found = {place: value.offset for place, value in admin.group_offsets(group, wanted).items()}
            expected = self._expected(group, ids)
            if found != expected:
                faults.append(f"{group} has committed {found}, expected {expected}")
        return faults

    def _expected(self, group: str, ids: Mapping[str, bytes]) -> dict[TopicPartition, int]:
        return {
            place: offset
            for (owner, place), (offset, topic_id) in self._committed.items()
            if owner == group and ids.get(place.topic) == topic_id
        }
