"""ZooKeeper for large simulations: one server with a limited capacity, and counts of what it is asked.

A request takes time on the way, waits for those before it, and takes time at the server: so a thousand brokers that
read at once wait for each other, as they do in front of a real server. The latencies are `Latencies`, which
`tests.scale.latencies` measures on a real ZooKeeper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from pylogd.metadata.interfaces import ANY_VERSION, Create, Delete, Node, Operation, Result, SetData, Watch, WatchEvent
from tests.simulation.store import SimStore, SimTree


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds: of one way between broker and server; of the server for a read, and for each operation of a write; and
    how long a write waits for the disks, during which the server does other things.
    """

    way: float = 0.000_2
    read: float = 0.000_02
    operation: float = 0.000_05
    commit: float = 0.002


class Server:
    """The server's queue, and counts since the last `reset`: `reads`, `writes`, `events` of watches."""

    def __init__(self, clock: IReactorTime, latencies: Latencies) -> None:
        self.tree = SimTree()
        self.counts: Counter[str] = Counter()
        self.latencies = latencies
        self._clock = clock
        self._free = 0.0

    def reset(self) -> None:
        """Begin to count anew."""
        self.counts.clear()

    def take(self, seconds: float) -> float:
        """Let a request take so many seconds of the server; return how long it takes until its answer leaves."""
        now = self._clock.seconds()
        self._free = max(self._free, now) + seconds
        return self._free - now


class _Work:
    """What a request does at the server, and what it costs there."""

    __slots__ = ("_do", "reads", "writes")

    def __init__(self, do: Callable[[], Any], reads: int = 0, writes: int = 0) -> None:
        self._do, self.reads, self.writes = do, reads, writes

    def __call__(self) -> Any:
        return self._do()


class ScaleStore(SimStore):
    """A client of a `Server`, with a session of its own."""

    def __init__(self, server: Server, clock: IReactorTime, server_clock: IReactorTime, timeout: float) -> None:
        super().__init__(server.tree, clock, server_clock, lambda: server.latencies.way, timeout)
        self._of = server
        self._in_order = 0.0

    def _arrive(self, number: int, session: int, work: Callable[[], Any]) -> None:
        reads, writes = (work.reads, work.writes) if isinstance(work, _Work) else (1, 0)
        self._of.counts["reads"] += reads
        self._of.counts["writes"] += bool(writes)
        costs = self._of.latencies
        done = self._of.take(reads * costs.read + writes * costs.operation) + (costs.commit if writes else 0.0)
        now = self._server.seconds()
        self._in_order = max(self._in_order, now + done)  # the requests of a session are answered in order
        self._server.callLater(self._in_order - now, super()._arrive, number, session, work)

    def event(self, session: int, watch: Watch, event: WatchEvent) -> None:
        self._of.counts["events"] += 1
        super().event(session, watch, event)

    def children_data(self, path: str) -> Deferred[Mapping[str, Node]]:
        """Return the children's nodes: a read of the names, and one of each child, as a real client does it."""
        tree, base = self._tree, path.rstrip("/")

        def work() -> dict[str, Node]:
            return {name: tree.nodes[f"{base}/{name}"] for name in tree.names(path)}

        names = tree.names(path) if path in tree.nodes else ()
        return self._call(_Work(work, reads=1 + len(names)))

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> Deferred[str]:
        operation = Create(path, data, ephemeral, sequence)
        return self._call(_Work(lambda: self._tree.multi([operation], self.session_id)[0], writes=1))

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Deferred[int]:
        operation = SetData(path, data, version)
        return self._call(_Work(lambda: self._tree.multi([operation], self.session_id)[0], writes=1))

    def delete(self, path: str, version: int = ANY_VERSION) -> Deferred[None]:
        operation = Delete(path, version)
        return self._call(_Work(lambda: self._tree.multi([operation], self.session_id)[0], writes=1))

    def multi(self, operations: Sequence[Operation]) -> Deferred[Sequence[Result]]:
        asked = list(operations)
        return self._call(_Work(lambda: self._tree.multi(asked, self.session_id), writes=len(asked)))
