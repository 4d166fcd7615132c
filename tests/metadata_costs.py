"""What changes of the metadata cost one broker: what it reads at the store, and bytecode instructions.

Broker 1 is real, but for its network, and hosts nothing. Beside it are other brokers as registrations only, which have
all topics. A writer, broker 2's metadata, makes changes as brokers do. tests/unit/broker/api/test_metadata_costs.py
compares the costs beside few and many topics and brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from twisted.internet.defer import Deferred

from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.cluster import Cluster
from pylogd.broker.metadata.image import Broker, Endpoint, PartitionState, Topic, TopicUpdate, new_id
from pylogd.broker.metadata.layout import Assignment, encode_broker, encode_states, encode_topic, state_path
from pylogd.broker.metadata.registrations import announcement
from pylogd.broker.metadata.topic_admin import TopicAdmin
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.config import Settings
from pylogd.store.interfaces import Create, Delete, Node, Operation, Watch
from pylogd.store.paths import BROKERS, CHANGES, topic_path
from pylogd.wire import schema
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.fakes import parts as fakes
from tests.fakes.metadata import InlineStore, result_of
from tests.hotpath import instructions

FIRST = 2  # of the brokers that have replicas
WRITER = 2
VERSION = 12
_AT_ONCE = 200


class CountedStore(InlineStore):
    """An embedded store that counts what is read, and can keep a reader from reading `/changes` for a while.

    reads: of nodes. requests: to read one node, several, or the names of children.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reads = self.requests = 0
        self.held: list[Callable[[], object]] | None = None

    def get(self, path: str, watch: Watch | None = None) -> Deferred[Node]:
        self.reads += 1
        self.requests += 1
        if path != CHANGES or self.held is None:
            return super().get(path, watch)
        done: Deferred[Node] = Deferred()
        self.held.append(lambda: InlineStore.get(self, path, watch).chainDeferred(done))
        return done

    def get_many(self, paths: Sequence[str]) -> Deferred[Sequence[Node | None]]:
        self.reads += len(paths)
        self.requests += 1
        return super().get_many(paths)

    def children(self, path: str, watch: Watch | None = None) -> Deferred[Sequence[str]]:
        self.reads += 1
        self.requests += 1
        return super().children(path, watch)

    def children_data(self, path: str) -> Deferred[Mapping[str, Node]]:
        def count(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
            self.reads += len(nodes) + 1
            return nodes

        return super().children_data(path).addCallback(count)

    def release(self) -> None:
        """Let the reader go on."""
        held, self.held = self.held or [], None
        for read in held:
            read()


class Uncounted:
    """The same store for the writer."""

    def __init__(self, store: CountedStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name in ("get", "get_many", "children", "children_data"):
            return partial(getattr(InlineStore, name), self._store)
        return getattr(self._store, name)


@dataclass(frozen=True, slots=True)
class Spent:
    """Nodes read at the store, bytecode instructions."""

    reads: int
    instructions: int

    def __str__(self) -> str:
        return f"{self.instructions:>10,} instructions {self.reads:>10,} nodes read"


class Fleet:
    """Broker 1, and a fleet of which it knows."""

    def __init__(self, folder: Path, topics: int, brokers: int, partitions: int = 3, **settings: object) -> None:
        with patch.object(fakes, "InlineStore", CountedStore):
            self.parts = fakes.Parts(folder, **settings)
        self.store: Any = self.parts.metadata.store
        self.brokers = brokers
        for number in range(brokers):
            self.join(FIRST + number)
        self._write_topics(topics, partitions)
        other: Any = Uncounted(cast(CountedStore, self.store))
        written = Settings({"node.id": WRITER})
        self.feed = ChangeFeed(other)
        cluster = Cluster(other, WRITER, self.feed)
        self.topics = TopicRegistry(written, self.feed)
        self.topic_admin = TopicAdmin(other, written, cluster, self.feed, self.topics)
        result_of(cluster.start())
        result_of(self.feed.start())
        self.names = sorted(self.topics.names())

    def close(self) -> None:
        """Stop broker 1 and the writer."""
        self.feed.stop()
        self.parts.close()

    def _write_topics(self, count: int, partitions: int) -> None:
        operations: list[Operation] = []
        for number in range(count):
            name, topic_id = f"topic-{number:06}", new_id()
            replicas = [self.replicas(number + index) for index in range(partitions)]
            states = [PartitionState.initial(index, of) for index, of in enumerate(replicas)]
            operations.append(Create(topic_path(name), encode_topic(Assignment(topic_id, replicas))))
            operations.append(Create(state_path(name, topic_id), encode_states(0, states)))
        for start in range(0, len(operations), _AT_ONCE):
            result_of(self.store.multi(operations[start : start + _AT_ONCE]))
        result_of(Deferred.fromCoroutine(self.parts.metadata.feed.write([], ["/brokers/topics"] * 1001)))
        assert len(self.parts.topics) >= count

    def replicas(self, number: int) -> tuple[int, ...]:
        """Three brokers, differing by number."""
        return tuple(FIRST + (number + offset) % self.brokers for offset in range(3))

    # -- changes

    def join(self, node_id: int) -> None:
        """Let a broker register."""
        broker = Broker(node_id, (Endpoint("PLAINTEXT", f"host{node_id}", 9092),), f"rack{node_id % 3}")
        create = Create(f"{BROKERS}/{node_id}", encode_broker(broker), ephemeral=True)
        result_of(self.store.multi([create, announcement(node_id)]))

    def leave(self, node_id: int) -> None:
        """Let a broker's registration end."""
        result_of(self.store.multi([Delete(f"{BROKERS}/{node_id}")]))

    def change_isr(self, name: str | None = None, index: int = 0) -> None:
        """Write an in-sync set, as its leader does: without its last replica, or with it again."""
        topic = self.topics.get(name or self.names[len(self.names) // 2])
        assert topic is not None
        states = list(topic.partitions)
        state = states[index]
        isr = state.replicas[:-1] if state.isr == state.replicas else state.replicas
        states[index] = replace(state, isr=isr, partition_epoch=state.partition_epoch + 1)
        self._write(self.topics.write_states([TopicUpdate(topic, tuple(states))]))

    def create_topic(self, name: str) -> None:
        """Create a topic on other brokers."""
        self._write(self.topic_admin.create_topic(name, assignment={0: self.replicas(0)}))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, if it is there."""
        if name in self.topics.names():
            self._write(self.topic_admin.delete_topic(name))

    def _write(self, done: Deferred[Any]) -> None:
        """Wait for a write, unless readers are held."""
        if self.store.held is None:
            result_of(done)

    # -- what broker 1 does

    def spend(self, work: Callable[[], object]) -> Spent:
        """Return what some work costs."""
        before = self.store.reads
        counted = instructions(work)
        return Spent(self.store.reads - before, counted)

    def read_after(self, *changes: Callable[[], object]) -> Spent:
        """Make changes while broker 1 does not read; return what it costs to read them then."""
        self.store.held = []
        for change in changes:
            change()
        spent = self.spend(self.store.release)
        for topic in (self.parts.topics.get(name) for name in self.names):
            assert isinstance(topic, Topic)
        return spent

    def ask(self, *names: str, version: int = VERSION) -> bytes:
        """Return broker 1's encoded answer to a Metadata request, for all topics if none is named."""
        asked = [MetadataRequestTopic(name=name) for name in names] if names else None
        answer = self.parts.ask(MetadataRequest(asked, allow_auto_topic_creation=False), version)
        if isinstance(answer, Deferred):
            while not answer.called:
                self.parts.time.advance(0)
            answer = result_of(answer)
        return encoded(answer, version)


def encoded(answer: Any, version: int) -> bytes:
    """Return the bytes of a Metadata response."""
    if isinstance(answer, bytes):
        return answer
    parts: list[Any] = schema.response_codec(MetadataRequest.API_KEY, version).encode(answer)
    return b"".join(parts)
