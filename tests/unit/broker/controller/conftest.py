"""Brokers' metadata and controllers on one embedded store that answers at once, and a clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock

from pylogd.broker.controller.controller import Controller
from pylogd.broker.metadata.image import Broker, Endpoint, PartitionState, Topic
from pylogd.broker.metadata.layout import encode_broker
from pylogd.store.interfaces import Create, Delete
from pylogd.store.paths import BROKERS, CONTROLLER
from pylogd.store.sqlite import SqliteStore
from tests.fakes.metadata import InlineStore, result_of
from tests.unit.broker.metadata.conftest import Peer


class FakeCluster:
    """Brokers on one store, and so in one session. A broker fails when the test deletes its ephemeral nodes."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.clock = Clock()
        self.peers: dict[int, Peer] = {}
        self.controllers: dict[int, Controller] = {}

    def start(self, node: int, **settings: Any) -> Peer:
        """Start a broker, and let the controller process its registration."""
        peer = Peer(self.store, node, **settings)
        controller = Controller(
            self.store,
            peer.cluster,
            peer.topics,
            peer.settings,
            cast(IReactorTime, self.clock),
            lambda: 1_700_000_000_000,
        )
        self.peers[node], self.controllers[node] = peer, controller
        # All brokers share one session here, so only the broker that created the controller's node may check whose it
        # is.
        result_of(controller.start()) if not self.active else controller.stop()
        self.settle()
        return peer

    @property
    def active(self) -> Controller | None:
        """Return the active controller."""
        return next((one for one in self.controllers.values() if one.active), None)

    def settle(self) -> None:
        """Run the calls that are due."""
        self.clock.advance(0)

    def die(self, node: int) -> None:
        """Expire a broker's session."""
        result_of(self.store.delete(f"{BROKERS}/{node}"))
        self.settle()

    def bounce(self, node: int) -> None:
        """Let a broker fail and register again before the controller notices."""
        path = f"{BROKERS}/{node}"
        broker = Broker(node, (Endpoint("PLAINTEXT", f"host{node}", 9092),))
        result_of(self.store.multi([Delete(path), Create(path, encode_broker(broker), ephemeral=True)]))
        self.settle()

    def come(self, node: int) -> None:
        """Register a failed broker again."""
        broker = Broker(node, (Endpoint("PLAINTEXT", f"host{node}", 9092),))
        result_of(self.store.create(f"{BROKERS}/{node}", encode_broker(broker), ephemeral=True))
        self.settle()

    def topic(self, name: str = "t") -> Topic:
        """Return the topic as the first broker knows it."""
        found = next(iter(self.peers.values())).topics.get(name)
        assert found is not None
        return found

    def state(self, name: str = "t", index: int = 0) -> PartitionState:
        """Return a partition's state."""
        return self.topic(name).partitions[index]

    def make(self, name: str = "t", replicas: tuple[int, ...] = (1, 2, 3), **configs: str) -> Topic:
        """Create a topic of one partition."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        peer = next(iter(self.peers.values()))
        return result_of(peer.topic_admin.create_topic(name, assignment={0: replicas}, configs=named))

    def lose_controller(self) -> None:
        """Delete the controller's node, as if its session had expired."""
        result_of(self.store.delete(CONTROLLER))
        self.settle()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    store = InlineStore(tmp_path / "metadata.sqlite")
    result_of(store.start())
    made = FakeCluster(store)
    yield made
    for controller in made.controllers.values():
        result_of(controller.stop())
    assert not made.clock.getDelayedCalls()
    result_of(store.close())


@pytest.fixture
def three(cluster: FakeCluster) -> FakeCluster:
    """Return three brokers, the first of which is the controller."""
    for node in (1, 2, 3):
        cluster.start(node)
    return cluster
