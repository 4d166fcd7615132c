"""Track which replicas have every acknowledged record, by the state in ZooKeeper, to limit what the nemesis destroys.

The guarantee under test (acks=all, `min.insync.replicas` = 2): an acknowledged record is not lost while one in-sync or
eligible (KIP-966) broker keeps a working disk. Each such broker has every acknowledged record, unless its disk was
destroyed or its log directory failed and it has not left and rejoined the in-sync set since: such a copy counts as
*destroyed*. More may be destroyed if every partition keeps another copy that is not destroyed.

Rules: a destruction is recorded before it is done. A copy that is seen outside the in-sync set, and in it again later,
has caught up. If the state can't be read, nothing may be destroyed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from pylogd.broker.metadata.image import PartitionState
from pylogd.broker.metadata.layout import decode_states, decode_topic, state_path
from pylogd.store.paths import topic_path

_LOOK_SECONDS = 0.1
logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # ZooKeeper is restarted meanwhile
_ERRORS = (KazooException, KazooTimeoutError, OSError)


#: (topic, partition)
Place = tuple[str, int]


class Copies:
    """The replicas of some topics, read from ZooKeeper directly, since brokers may have an outdated view.

    A topic that is not there yet, such as that of the groups' offsets, has no replicas.
    """

    def __init__(self, hosts: str, topics: Sequence[str]) -> None:
        self._topics = topics
        self._client = KazooClient(hosts, timeout=10.0)
        self._client.start(timeout=60)
        self._lock = threading.Lock()
        self._states = self._read()  # at the last reading
        self._destroyed: dict[tuple[int, Place], bool] = {}  # whether it was seen out of sync since
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no longer."""
        self._ended.set()
        self._thread.join()
        self._client.stop()
        self._client.close()

    def places(self) -> list[Place]:
        """Return the partitions of all topics, as they were read last."""
        with self._lock:
            return list(self._states)

    def may_lose(self, nodes: Collection[int], places: Collection[Place] | None = None) -> bool:
        """Return whether each partition keeps a copy with all acknowledged records if these brokers lose theirs.

        places: the partitions whose copies are lost, by default all.
        """
        with self._lock:
            try:
                self._states = self._read()
            except _ERRORS:
                return False
            self._note(self._states)
            return all(
                self._kept(place, state, nodes)
                for place, state in self._states.items()
                if places is None or place in places
            )

    def _kept(self, place: Place, state: PartitionState, lost: Collection[int]) -> bool:
        complete = (*state.isr, *state.elr)
        return any(node not in lost and (node, place) not in self._destroyed for node in complete)

    def lose(self, nodes: Collection[int], places: Collection[Place] | None = None) -> None:
        """Record that these brokers lose their copies, which was allowed just before. They must be dead or paused."""
        with self._lock:
            for place, state in self._states.items():
                for node in state.replicas:
                    if node in nodes and (places is None or place in places):
                        self._destroyed[node, place] = False

    def _follow(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            with self._lock:
                try:
                    self._note(self._read())
                except _ERRORS:
                    continue

    def _note(self, states: Mapping[Place, PartitionState]) -> None:
        for node, place in list(self._destroyed):
            if node not in states[place].isr:
                self._destroyed[node, place] = True
            elif self._destroyed[node, place]:
                del self._destroyed[node, place]

    def _read(self) -> Mapping[Place, PartitionState]:
        found = {}
        for topic in self._topics:
            path = topic_path(topic)
            if self._client.exists(path) is None:
                continue
            assignment = decode_topic(path, self._client.get(path)[0])
            path = state_path(topic, assignment.topic_id)
            for state in decode_states(path, self._client.get(path)[0], assignment)[1]:
                found[topic, state.index] = state
        return found
