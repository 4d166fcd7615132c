"""A second topic, whose replicas move by smooth expansions, with the promise that these make.

Replicas that are added begin with the latest offset. A consumer group, whose offsets are in ZooKeeper, reads the topic
from its start. Whatever fails meanwhile, it has to read every acknowledged message once and in order: a replica without
messages that the group has yet to read must not lead. Messages that it has read may be gone.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from tests.chaos.logs import bytes_of, lost, messages_in, out_of_order
from tests.chaos.workload import ConfluentWriter, Reader, Worker
from tests.clusters import BrokerCluster

TOPIC = "smooth"
PARTITIONS = 2
FACTOR = 2
PLACES = [(TOPIC, index) for index in range(PARTITIONS)]
#: Longer than any run: the replicas join because the group has read far enough, not because the time is over.
LATEST_WAIT = 36_000.0
_COMMIT_SECONDS = 1.0
_GROUP_PATH = "/consumers/smooth/offsets/" + TOPIC
_ERRORS = (KazooException, KazooTimeoutError, OSError)


class GroupReader(Reader):
    """A consumer of all partitions, from their start, which commits its offsets to ZooKeeper."""

    def __init__(self, bootstrap: str, hosts: str) -> None:
        super().__init__(bootstrap, TOPIC, PARTITIONS, 100)
        self._client = KazooClient(hosts, timeout=10.0)
        self._client.start(timeout=60)
        for index in range(PARTITIONS):  # groups without an offset are not waited for
            self._client.ensure_path(f"{_GROUP_PATH}/{index}")
            self._client.set(f"{_GROUP_PATH}/{index}", b"0")

    def work(self) -> None:
        due = time.monotonic()
        while not self.stopping.is_set():
            self.read(0.2)
            if time.monotonic() >= due:
                self._commit()
                due = time.monotonic() + _COMMIT_SECONDS
        self._client.stop()
        self._client.close()
        self._consumer.close()

    def _commit(self) -> None:
        with contextlib.suppress(*_ERRORS):  # ZooKeeper is restarted meanwhile
            for index in self.seen:
                self._client.set(f"{_GROUP_PATH}/{index}", b"%d" % self.next_offset(index))


class SmoothTopic:
    """The topic, its producers and its group."""

    def __init__(self, cluster: BrokerCluster, hosts: str) -> None:
        self._cluster = cluster
        cluster.ask(lambda admin: admin.create_topic(TOPIC, PARTITIONS, FACTOR))
        cluster.wait_for_isr(TOPIC, FACTOR)
        self.writers = [ConfluentWriter(cluster.bootstrap, TOPIC, index, index) for index in range(PARTITIONS)]
        self.reader = GroupReader(cluster.bootstrap, hosts)
        self.workers: list[Worker] = [*self.writers, self.reader]

    def whole(self) -> bool:
        """Return whether all brokers report that no replica moves, and that all are in sync."""
        found, *others = (self._cluster.partitions(TOPIC, node) for node in self._cluster.ports)
        alike = all(seen == found for seen in others)
        level = all(len(one.isr) == len(one.replicas) == FACTOR and one.leader >= 0 for one in found)
        return alike and level and not self._cluster.ask(lambda admin: admin.reassignments(PLACES))

    def compare(self, directories: Callable[[int], Sequence[Path]], seconds: float) -> list[str]:
        """Stop all, and return what is wrong. directories: the log directories of a broker."""
        deadline = time.monotonic() + seconds
        acked = {writer.partition: max(filter(None, writer.acked.values()), default=-1) for writer in self.writers}
        while time.monotonic() < deadline and not self.reader.failure:
            if all(self.reader.next_offset(index) > last for index, last in acked.items()):
                break
            time.sleep(0.1)
        self.reader.stopping.set()
        self.reader.join(seconds)
        faults = [worker.failure for worker in self.workers if worker.failure]
        for writer in self.writers:
            seen = self.reader.seen[writer.partition]
            faults += [f"smooth: {writer.name} was refused {text}" for text in writer.refused[:3]]
            faults += [f"smooth, as the group saw it: {text}" for text in lost(writer, dict(seen))]
            faults += out_of_order(writer.partition, seen)
            values = Counter(value for _, value in seen)
            faults += [f"smooth: the group saw {value!r} {n} times" for value, n in values.items() if n > 1][:3]
        for state in self._cluster.partitions(TOPIC):
            copies = [messages_in(bytes_of(directories(node), TOPIC, state.index)) for node in state.replicas]
            begin = max((copy[0][0] for copy in copies if copy), default=0)
            ends = [[pair for pair in copy if pair[0] >= begin] for copy in copies]
            if any(end != ends[0] for end in ends):
                faults.append(f"smooth, partition {state.index}: the replicas differ from offset {begin} on")
        return faults
