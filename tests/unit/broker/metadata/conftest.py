"""Brokers' metadata on one embedded store that answers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.broker.metadata.change_notes import Change
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.cluster import Cluster
from pylogd.broker.metadata.configs import BrokerConfigs
from pylogd.broker.metadata.eligibility import min_insync_of
from pylogd.broker.metadata.image import Broker, Endpoint, TopicChange
from pylogd.broker.metadata.isr_writer import IsrWriter
from pylogd.broker.metadata.producer_ids import ProducerIds
from pylogd.broker.metadata.topic_admin import TopicAdmin
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.config import Settings
from pylogd.store.errors import StoreError
from pylogd.store.interfaces import Create, IMetadataStore
from pylogd.store.sqlite import SqliteStore
from tests.fakes.metadata import InlineStore, result_of


class Peer:
    """A broker: the parts of `service.Metadata`, and the changes that it was notified of."""

    def __init__(
        self,
        store: IMetadataStore,
        node_id: int,
        run: Callable[[], None] | None = None,
        now_ms: Callable[[], int] = lambda: 0,
        registers: bool = True,
        **settings: object,
    ) -> None:
        self.settings = Settings({"node.id": node_id, **{k.replace("_", "."): v for k, v in settings.items()}})
        self.feed = ChangeFeed(store)
        self.cluster = Cluster(store, node_id, self.feed)
        self.configs = BrokerConfigs(store, self.settings, node_id, self.feed)
        self.producer_ids = ProducerIds(store, node_id)
        self.topics = TopicRegistry(self.settings, self.feed)
        self.topic_admin = TopicAdmin(store, self.settings, self.cluster, self.feed, self.topics)
        min_insync = partial(min_insync_of, self.settings)
        self.isr_writer = IsrWriter(self.topics, self.cluster, self.feed, now_ms, min_insync)
        self.changes: list[TopicChange] = []
        self.topics.subscribe(self.changes.append)
        result_of(self.cluster.start(), run)
        result_of(self.feed.start(), run)
        if registers:
            broker = Broker(node_id, (Endpoint("PLAINTEXT", f"host{node_id}", 9092),))
            result_of(self.cluster.register(broker), run)


class InSession:
    """A store as another client of it has it: in a session of its own."""

    def __init__(self, store: SqliteStore, session_id: int) -> None:
        self._store = store
        self.session_id = session_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = InlineStore(tmp_path / "metadata.sqlite")
    result_of(made.start())
    yield made
    result_of(made.close())


@pytest.fixture
def peer(store: SqliteStore) -> Peer:
    return Peer(store, 1)


class Reader:
    """A feed's user that records what it is asked to read, and fails when the test says so."""

    def __init__(self) -> None:
        self.read: list[Sequence[str] | None] = []
        self.told = 0  # new states
        self.broken: StoreError | None = None

    async def reload(self, store: IMetadataStore) -> None:
        if self.broken:
            raise self.broken
        self.read.append(None)

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        if self.broken:
            raise self.broken
        self.read.append(change.paths)
        self.told += len(change.states)


@pytest.fixture
def reader() -> Reader:
    return Reader()


def write(feed: ChangeFeed, name: str, paths: Sequence[str] | None = None) -> None:
    result_of(Deferred.fromCoroutine(feed.write([Create(f"/{name}")], paths or [f"/{name}"])))
