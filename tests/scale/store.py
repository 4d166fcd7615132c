"""ZooKeeper for large simulations: servers with a limited capacity, and counts of what they are asked.

A request takes time on the way, waits for those before it, and takes time at the server: so a thousand brokers that
read at once wait for each other, as they do in front of a real server. `tests.scale.latencies` measures the
latencies on a real ZooKeeper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime

from pylogd.store.errors import InvalidNode, StoreError
from pylogd.store.interfaces import ANY_VERSION, Create, Delete, Node, Operation, Result, SetData, Watch, WatchEvent
from pylogd.store.zookeeper import MAX_MULTI_BYTES, READ_NODES
from tests.simulation.store import SimStore, SimTree


@dataclass(frozen=True, slots=True)
class Latencies:
    """What a server takes, in seconds. `tests.scale.latencies` measured these, but for `way`.

    way: of a message between broker and server. request: of a request to read. node, byte: of each node that it reads,
    and each byte of these. name: of each name of a child. write, operation: of a write, and of each of its operations.
    commit: until a write is on the disks, during which the server does other things.
    """

    way: float = 0.000_2
    request: float = 0.000_1
    node: float = 7e-7
    byte: float = 5e-10
    name: float = 1e-7
    write: float = 0.000_1
    operation: float = 7e-6
    commit: float = 0.001_6


class Server:
    """The queues of all servers, and counts since the last `reset`. Each session is at one server, which it reads from.

    counts: `reads` of nodes, `requests` to read, `bytes` read, `writes`, `refused` ones of these, `events` of watches.
    largest: the most bytes that a write has had.
    """

    def __init__(self, clock: IReactorTime, latencies: Latencies, servers: int = 1) -> None:
        self.tree = SimTree()
        self.counts: Counter[str] = Counter()
        self.largest = 0
        self.latencies = latencies
        self._clock = clock
        self._free = [0.0] * servers
        self._connected = 0

    def reset(self) -> None:
        """Begin to count anew."""
        self.counts.clear()
        self.largest = 0

    @property
    def watches(self) -> int:
        """How many watches are set."""
        return sum(map(len, self.tree._watches.values()))

    def connect(self) -> int:
        """Return the server of a new client."""
        self._connected += 1
        return self._connected % len(self._free)

    def take(self, seconds: float, at: int) -> float:
        """Let a request take so many seconds of a server; return how long it takes until its answer leaves."""
        now = self._clock.seconds()
        self._free[at] = max(self._free[at], now) + seconds
        return self._free[at] - now

    def read(self, at: int, nodes: Sequence[Node], children: int = 0) -> float:
        """Count a read of nodes, and of the names of so many children, at a server; return how long it takes."""
        size = sum(len(node.data) for node in nodes)
        requests = max(-(-len(nodes) // READ_NODES), 1)
        self.counts["reads"] += len(nodes) or 1
        self.counts["requests"] += requests
        self.counts["bytes"] += size
        costs = self.latencies
        seconds = costs.request * requests + costs.node * len(nodes) + costs.name * children + costs.byte * size
        return self.take(seconds, at)

    def write(self, operations: Sequence[Operation]) -> float:
        """Count a write, which every server does; return how long it takes."""
        size = written_bytes(operations)
        self.counts["writes"] += 1
        self.largest = max(self.largest, size)
        costs = self.latencies
        seconds = costs.write + costs.operation * len(operations) + costs.byte * size
        return max(self.take(seconds, at) for at in range(len(self._free))) + costs.commit


def written_bytes(operations: Sequence[Operation]) -> int:
    """Return the bytes of a write as `ZooKeeperStore.multi` counts them."""
    return sum(len(one.path) + 64 + (len(one.data) if isinstance(one, Create | SetData) else 0) for one in operations)


class _Work:
    """What a request does at the server. cost: counts it when it arrives, and returns how long it takes."""

    __slots__ = ("_do", "cost")

    def __init__(self, do: Callable[[], Any], cost: Callable[[], float]) -> None:
        self._do, self.cost = do, cost

    def __call__(self) -> Any:
        return self._do()


class ScaleStore(SimStore):
    """A client of a `Server`, with a session of its own."""

    def __init__(self, server: Server, clock: IReactorTime, server_clock: IReactorTime, timeout: float) -> None:
        super().__init__(server.tree, clock, server_clock, lambda: server.latencies.way, timeout)
        self._of = server
        self._at = server.connect()
        self._in_order = 0.0

    def _arrive(self, number: int, session: int, work: Callable[[], Any]) -> None:
        done = work.cost() if isinstance(work, _Work) else self._of.read(self._at, ())
        now = self._server.seconds()
        self._in_order = max(self._in_order, now + done)  # the requests of a session are answered in order
        self._server.callLater(self._in_order - now, super()._arrive, number, session, work)

    def event(self, session: int, watch: Watch, event: WatchEvent) -> None:
        self._of.counts["events"] += 1
        super().event(session, watch, event)

    def _nodes(self, path: str) -> Sequence[Node]:
        node = self._tree.nodes.get(path)
        return () if node is None else (node,)

    def get(self, path: str, watch: Watch | None = None) -> Deferred[Node]:
        def work() -> Node:
            node = self._tree.get(path)
            self._tree.watch("data", path, self, watch)
            return node

        return self._call(_Work(work, lambda: self._of.read(self._at, self._nodes(path))))

    def get_many(self, paths: Sequence[str]) -> Deferred[Sequence[Node | None]]:
        found: list[Node | None] = []

        def cost() -> float:
            found.extend(map(self._tree.nodes.get, paths))
            return self._of.read(self._at, [node for node in found if node is not None])

        return self._call(_Work(lambda: found, cost))

    def children(self, path: str, watch: Watch | None = None) -> Deferred[Sequence[str]]:
        tree = self._tree

        def work() -> list[str]:
            names = tree.names(path)
            tree.watch("children", path, self, watch)
            return names

        return self._call(_Work(work, lambda: self._of.read(self._at, (), len(tree._leader.tree.names.get(path, ())))))

    def children_data(self, path: str) -> Deferred[Mapping[str, Node]]:
        """Return the children's nodes: a read of the names, then of many children at a time, as a real client does."""
        tree, base = self._tree, path.rstrip("/")
        found: dict[str, Node] = {}

        def work() -> dict[str, Node]:
            tree.get(path)
            return found

        def cost() -> float:
            if path in tree.nodes:
                found.update((name, tree.nodes[f"{base}/{name}"]) for name in tree.names(path))
            return self._of.read(self._at, (), len(found)) + self._of.read(self._at, list(found.values()))

        return self._call(_Work(work, cost))

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> Deferred[str]:
        return self.multi([Create(path, data, ephemeral, sequence)]).addCallback(_only)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Deferred[int]:
        return self.multi([SetData(path, data, version)]).addCallback(_only)

    def delete(self, path: str, version: int = ANY_VERSION) -> Deferred[None]:
        return self.multi([Delete(path, version)]).addCallback(_only)

    def multi(self, operations: Sequence[Operation]) -> Deferred[Sequence[Result]]:
        asked = list(operations)
        if written_bytes(asked) > MAX_MULTI_BYTES:
            return fail(InvalidNode(asked[-1].path))

        def work() -> Sequence[Result]:
            try:
                return self._tree.multi(asked, self.session_id)
            except StoreError:
                self._of.counts["refused"] += 1
                raise

        return self._call(_Work(work, lambda: self._of.write(asked)))


def _only(results: Sequence[Result]) -> Any:
    """Return the result of a write of one operation."""
    return results[0]
