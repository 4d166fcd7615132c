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
from collections.abc import Collection, Sequence

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from pylogd.metadata.image import PartitionState
from pylogd.metadata.layout import decode_states, decode_topic, state_path, topic_path

_LOOK_SECONDS = 0.1
logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # ZooKeeper is restarted meanwhile
_ERRORS = (KazooException, KazooTimeoutError, OSError)


class Copies:
    """The replicas of one topic, read from ZooKeeper directly, since brokers may have an outdated view."""

    def __init__(self, hosts: str, topic: str) -> None:
        self._topic = topic
        self._client = KazooClient(hosts, timeout=10.0)
        self._client.start(timeout=60)
        self._lock = threading.Lock()
        self._states: Sequence[PartitionState] = ()  # at the last reading
        self._destroyed: dict[tuple[int, int], bool] = {}  # (broker, partition): whether it was seen out of sync since
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no longer."""
        self._ended.set()
        self._thread.join()
        self._client.stop()
        self._client.close()

    def may_lose(self, nodes: Collection[int], indexes: Collection[int] | None = None) -> bool:
        """Return whether each partition keeps a copy with all acknowledged records if these brokers lose theirs.

        indexes: the partitions whose copies are lost, by default all.
        """
        with self._lock:
            try:
                self._states = self._read()
            except _ERRORS:
                return False
            self._note(self._states)
            return all(self._kept(state, nodes) for state in self._states if indexes is None or state.index in indexes)

    def _kept(self, state: PartitionState, lost: Collection[int]) -> bool:
        complete = (*state.isr, *state.elr)
        return any(node not in lost and (node, state.index) not in self._destroyed for node in complete)

    def lose(self, nodes: Collection[int], indexes: Collection[int] | None = None) -> None:
        """Record that these brokers lose their copies, which was allowed just before. They must be dead or paused."""
        with self._lock:
            for state in self._states:
                for node in state.replicas:
                    if node in nodes and (indexes is None or state.index in indexes):
                        self._destroyed[node, state.index] = False

    def _follow(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            with self._lock:
                try:
                    self._note(self._read())
                except _ERRORS:
                    continue

    def _note(self, states: Sequence[PartitionState]) -> None:
        for state in states:
            for node, index in list(self._destroyed):
                if index != state.index:
                    continue
                if node not in state.isr:
                    self._destroyed[node, index] = True
                elif self._destroyed[node, index]:
                    del self._destroyed[node, index]

    def _read(self) -> Sequence[PartitionState]:
        path = topic_path(self._topic)
        assignment = decode_topic(path, self._client.get(path)[0])
        path = state_path(self._topic, assignment.topic_id)
        return decode_states(path, self._client.get(path)[0], assignment)[1]
