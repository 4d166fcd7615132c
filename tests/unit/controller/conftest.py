"""Brokers' metadata rooms and controllers on one embedded tree that answers at once, and a clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock

from pylogd.controller.controller import Controller
from pylogd.metadata.image import Broker, Endpoint, PartitionState, Topic
from pylogd.metadata.interfaces import Create, Delete
from pylogd.metadata.layout import BROKERS, CONTROLLER, encode_broker
from pylogd.metadata.sqlite import SqliteStore
from tests.fakes.metadata import InlineWorker, result_of
from tests.unit.metadata.conftest import Peer


class Town:
    """Brokers that share a store, and so a session: one dies by the deletion of what its session would take along."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.clock = Clock()
        self.peers: dict[int, Peer] = {}
        self.controllers: dict[int, Controller] = {}

    def start(self, node: int, **settings: Any) -> Peer:
        """A broker comes, and the controller deals with it."""
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
        # One session holds all nodes here: only the one that made the controller's node may take it for its own.
        result_of(controller.start()) if not self.active else controller.stop()
        self.settle()
        return peer

    @property
    def active(self) -> Controller | None:
        """The controller at work."""
        return next((one for one in self.controllers.values() if one.active), None)

    def settle(self) -> None:
        """Let everything happen that is due."""
        self.clock.advance(0)

    def die(self, node: int) -> None:
        """A broker's session expires."""
        result_of(self.store.delete(f"{BROKERS}/{node}"))
        self.settle()

    def bounce(self, node: int) -> None:
        """A broker dies and comes back before anybody looks."""
        path = f"{BROKERS}/{node}"
        broker = Broker(node, (Endpoint("PLAINTEXT", f"host{node}", 9092),))
        result_of(self.store.multi([Delete(path), Create(path, encode_broker(broker), ephemeral=True)]))
        self.settle()

    def come(self, node: int) -> None:
        """A broker that died registers again."""
        broker = Broker(node, (Endpoint("PLAINTEXT", f"host{node}", 9092),))
        result_of(self.store.create(f"{BROKERS}/{node}", encode_broker(broker), ephemeral=True))
        self.settle()

    def topic(self, name: str = "t") -> Topic:
        """The topic as the first broker has it."""
        found = next(iter(self.peers.values())).topics.get(name)
        assert found is not None
        return found

    def state(self, name: str = "t", index: int = 0) -> PartitionState:
        """A partition's state."""
        return self.topic(name).partitions[index]

    def make(self, name: str = "t", replicas: tuple[int, ...] = (1, 2, 3), **configs: str) -> Topic:
        """Make a topic of one partition."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        peer = next(iter(self.peers.values()))
        return result_of(peer.topic_admin.create_topic(name, assignment={0: replicas}, configs=named))

    def lose_controller(self) -> None:
        """The controller's node goes, as with its session."""
        result_of(self.store.delete(CONTROLLER))
        self.settle()


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    store = SqliteStore(tmp_path / "metadata.sqlite", worker=InlineWorker())
    result_of(store.start())
    made = Town(store)
    yield made
    for controller in made.controllers.values():
        result_of(controller.stop())
    assert not made.clock.getDelayedCalls()
    result_of(store.close())


@pytest.fixture
def three(town: Town) -> Town:
    """Three brokers, the first of which is the controller."""
    for node in (1, 2, 3):
        town.start(node)
    return town
