"""A seeded history with smooth expansions: replicas that begin with the latest offset, beside faults.

A consumer group reads slowly and commits to ZooKeeper. Reassignments ask for replicas that begin with the latest
offset, and that wait for the group longer than the history lasts. Checked besides, whenever something has changed:

- every in-sync or eligible replica has all records from the group's committed offset on;
- what a replica shows, from the offset on at which it begins, is what was shown before;
- the group's next offset is in the log of every leader.

Other records may be gone: that is what a smooth expansion is for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from pylogd.broker.replica.smooth_expansion import SmoothJoins
from pylogd.store.consumers import committed_offsets
from pylogd.store.interfaces import Create, SetData
from pylogd.store.paths import CONSUMERS
from tests.simulation.history import History, Violation
from tests.simulation.nemesis import TOPIC
from tests.simulation.world import SimBroker

_WAIT_MS = 3_600_000
_LOOK_SECONDS = 0.2
_COMMITS = 0.2  # the share of fetches behind which the group commits


class NoGroups:
    """The groups that brokers coordinate: none, since those of a history are in ZooKeeper."""

    def groups(self) -> tuple[int, list[Any]]:
        return 0, []


class SmoothHistory(History):
    """A history whose reassignments are smooth.

    expanded: replicas that were in sync without the first records: broker, partition, and where they begin.
    """

    latest_wait_ms = _WAIT_MS

    def __init__(self, seed: int, brokers: int = 4, **settings: Any) -> None:
        super().__init__(seed, brokers, **settings)
        self.committed = [0] * self.partitions
        self.expanded: set[tuple[int, int, int]] = set()
        self._session = self.tree.open(cast(Any, None), _WAIT_MS / 1000)  # the group's
        for broker in self.brokers.values():
            broker.groups = NoGroups()  # type: ignore[attr-defined]
            broker.bytes_of = partial(self._completed, broker)  # type: ignore[method-assign]

    def start_clients(self) -> None:
        """Start the group too: its offsets count if they are written once the topic exists."""
        self._start_group()
        super().start_clients()

    # -- what smooth expansions need

    def admitted(self, broker: SimBroker) -> None:
        super().admitted(broker)
        joins = SmoothJoins(
            broker.partitions, broker.cluster, broker.topics, broker._connect,
            partial(committed_offsets, broker.metadata.store), broker.partition_admin.release, broker.clock,
            broker.now_ms, _LOOK_SECONDS, float("inf"),
        )  # fmt: skip
        joins.start()  # its calls end with the process

    def _consume(self) -> None:
        """Go on after the faults: the group has to read up to the begin of every new replica."""
        super()._consume()
        if self.nemesis_over:
            self.clock.callLater(0.05, self._consume)
        self._commit()

    def _commit(self) -> None:
        """Commit the group's offset of a partition to ZooKeeper, now and then."""
        index = self.rng.randrange(self.partitions)
        if self.rng.random() > _COMMITS or self.consumed[index] == self.committed[index]:
            return
        self.committed[index] = self.consumed[index]
        self.tree.multi([SetData(self._offset_path(index), str(self.committed[index]).encode())], self._session)

    def _offset_path(self, index: int) -> str:
        return f"{CONSUMERS}/g/offsets/{TOPIC}/{index}"

    def _start_group(self) -> None:
        """Commit the first offset of each partition: groups without an offset are not waited for."""
        parts = self._offset_path(0).split("/")
        parents = ["/".join(parts[:end]) for end in range(3, len(parts))]  # brokers make the first one
        offsets = [Create(self._offset_path(index), b"0") for index in range(self.partitions)]
        self.tree.multi([*map(Create, parents), *offsets], self._session)

    # -- faults that fall into expansions

    def _joining(self) -> list[tuple[Any, int]]:
        """Return the replicas that are being added: the partition's state, and the broker."""
        self.read_states()
        return [(state, node) for state in self.states for node in state.adding if node not in state.isr]

    def _kill_one(self, nodes: list[int], what: str) -> None:
        alive = [self.brokers[node] for node in nodes if node in self.brokers and self.brokers[node].alive]
        if alive:
            broker = self.rng.choice(alive)
            self.say(f"kill {broker.node_id}, {what}")
            broker.kill()
            self.clock.callLater(self.rng.uniform(0.01, 1.0), self._start, broker)

    def _kill_joining(self) -> None:
        self._kill_one([node for _, node in self._joining()], "which joins")

    def _kill_expanding_leader(self) -> None:
        self._kill_one([state.leader for state, _ in self._joining()], "which leads a partition that expands")

    def _kill_controller(self) -> None:
        if self._joining():
            self._kill_one([node for node, one in self.brokers.items() if one.ready and one.controller.active],
                           "the controller of an expansion")  # fmt: skip

    def _wipe_joining(self) -> None:
        """Empty the disk of a new replica, which is cut off from its leader for a while."""
        joining = [(state, node) for state, node in self._joining() if self.brokers[node].alive]
        if joining:
            state, node = self.rng.choice(joining)
            if self._may_lose(node):
                self.say(f"wipe {node}, which joins {state.index}")
                self._damage(self.brokers[node], wipe=True)
                if state.leader in self.brokers and self.rng.random() < 0.5:
                    self.network.cut(node, state.leader)

    _troubles: tuple[Callable[[Any], None], ...] = (
        *History._troubles, History._move, History._move, _kill_joining, _wipe_joining, _wipe_joining,
        _kill_expanding_leader, _kill_controller,
    )  # fmt: skip

    _harmless: tuple[Callable[[Any], None], ...] = (*History._harmless, _wipe_joining)

    # -- invariants

    def _begin(self, broker: SimBroker, index: int) -> int:
        """Return the offset at which a replica's first segment begins."""
        prefix = f"/data/{TOPIC}-{index}/"
        names = [path for path in broker.fs.files if path.startswith(prefix) and path.endswith(".log")]
        return min((int(path.removeprefix(prefix).removesuffix(".log")) for path in names), default=0)

    def _completed(self, broker: SimBroker, name: str, index: int) -> bytes | bytearray:
        """Return a replica's bytes, behind those that it lacks because it began later."""
        ledger, begin = self.ledgers[index], self._begin(broker, index)
        return ledger.data[: ledger.places.get(begin, 0)] + SimBroker.bytes_of(broker, name, index)

    def _check_replica(self, broker: SimBroker, index: int, high_watermark: int, before: Any, now: Any) -> None:
        if self._begin(broker, index) <= high_watermark:  # otherwise it shows nothing
            super()._check_replica(broker, index, high_watermark, before, now)

    def _check_in_sync(self) -> None:
        for state in self.states:
            for node in (*state.isr, *state.elr):
                begin = self._begin(self.brokers[node], state.index)
                if begin > self.committed[state.index] and node not in self.damaged:
                    raise Violation(
                        f"{node} begins at {begin} and counts as up to date in {state}, and the group is at "
                        f"{self.committed[state.index]}"
                    )
                if begin:
                    self.expanded.add((node, state.index, begin))
        super()._check_in_sync()
