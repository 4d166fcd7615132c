"""Keep the encoded parts of Metadata answers, so that only what has changed is encoded again.

Strategy: `MetadataPieces` keeps the encoded topics and brokers of answers in one version for the clients of one
listener. An answer is joined from these pieces. Before each answer, the registries of topics and brokers return the
changes since the last one. A topic is encoded again if it has changed, or if a broker with one of its replicas has come
or gone. A topic with many partitions is kept in blocks of them, so a change of one partition encodes one block. The
list of all topics is kept too. Changed topics are replaced in it, new topics inserted, deleted topics removed.

Rules: a piece is never changed, since answers on their way to clients may share it.

Must not know: which topics a client may see, what it may do with them.
"""

from __future__ import annotations

import operator
import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.brokers import offline_replicas, reachable_broker, reachable_brokers
from pylogd.broker.api.context import RequestContext
from pylogd.broker.metadata.image import NO_LEADER, Broker, PartitionState, Topic
from pylogd.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pylogd.wire.splicing import Around, response_array

if TYPE_CHECKING:
    from pylogd.broker.metadata.topics import TopicRegistry

_FIRST_WITH_LISTENER_NOT_FOUND = 6
_MAX_KEPT = 8  # the most kept pairs of version and listener, and the most answers of each
_UNKNOWN: Final[tuple[object, bytes]] = (object(), b"")
#: The index of an encoded partition, and its position in the encoding, which is the same in all versions.
_INDEX: Final = struct.Struct(">i")
_INDEX_AT: Final = 2
#: The number of partitions in a block.
BLOCK: Final = 64
# Work, as the number of bytes that can be added to an answer in the same time, if the part is not encoded yet:
TOPIC_WORK: Final = 120
PARTITION_WORK: Final = 120


class _Piece(NamedTuple):
    """An encoded topic, and the encoded blocks of its partitions if it has more than one block."""

    topic: Topic
    encoded: bytes
    blocks: tuple[bytes, ...]


@dataclass(slots=True)
class _Listing:
    """The pieces of all topics in order of the names.

    changed: the names of topics whose present state may be missing in it.
    """

    names: list[str] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)


class MetadataPieces:
    """The encoded parts of answers in one version to the clients of one listener.

    topics: the codec of topics in an answer.
    answers: whole answers, by `seen` and what else they depend on.
    building: the Deferreds of clients that wait for such an answer.
    """

    def __init__(self, version: int, listener: str) -> None:
        self.topics = response_array(MetadataRequest.API_KEY, version, "topics")
        self.answers: dict[Hashable, bytes] = {}
        self.building: dict[Hashable, list[Deferred[bytes]]] = {}
        self._broker_codec = response_array(MetadataRequest.API_KEY, version, "brokers")
        self._partitions = response_array(MetadataRequest.API_KEY, version, "topics", "partitions")
        self._version = version
        self._listener = listener
        self._pieces: dict[str, _Piece] = {}
        self._generation = -1  # the generation of the topics
        self._brokers: Mapping[int, Broker] = {}
        self._brokers_generation = -1
        self._has_outages = False  # whether a log directory of a broker is offline
        # Each with its `Broker`; the bytes are empty if clients can't reach the broker.
        self._encoded_brokers: dict[int, tuple[object, bytes]] = {}
        self._reachable: frozenset[int] = frozenset()
        self._head: tuple[int, Around] | None = None  # (controller, answer without topics)
        self._listing: _Listing | None = None
        self._filling: list[_Listing] = []  # the listings that are being made

    @property
    def seen(self) -> tuple[int, int]:
        """The generations of topics and brokers with which `catch_up` has caught up."""
        return self._generation, self._brokers_generation

    def keep(self, key: Hashable, answer: bytes) -> None:
        """Keep an answer. If there are many, forget all others."""
        if len(self.answers) == _MAX_KEPT:
            self.answers.clear()
        self.answers[key] = answer

    def catch_up(self, context: RequestContext) -> None:
        """Forget what has changed. Call this before each answer."""
        registry, cluster = context.broker.topics, context.broker.cluster
        if self._generation == registry.generation and self._brokers_generation == cluster.generation:
            return
        self.answers.clear()
        changed: AbstractSet[str] | None = registry.changed_since(self._generation)
        if changed is None:  # there are too many changes to list them
            self._listing = None
            changed = registry.names() | self._pieces.keys()
        self._note(changed)
        for name in changed:
            if registry.get(name) is None:
                self._pieces.pop(name, None)
        self._generation = registry.generation
        if self._brokers_generation != cluster.generation:
            self._brokers_changed(context)

    def _brokers_changed(self, context: RequestContext) -> None:
        before, now = self._brokers, context.broker.cluster.brokers
        for node_id in before.keys() | now.keys():
            was, is_now = before.get(node_id), now.get(node_id)
            if was is not is_now and self._tells(was) != self._tells(is_now):
                affected = context.broker.topics.on_broker(node_id)
                self._note(affected)
                for name in affected:
                    self._pieces.pop(name, None)
        self._brokers, self._brokers_generation = now, context.broker.cluster.generation
        self._has_outages = any(broker.outages.offline for broker in now.values())
        self._encode_brokers(context)
        self._head = None

    def _note(self, changed: AbstractSet[str]) -> None:
        for listing in self._filling if self._listing is None else (*self._filling, self._listing):
            listing.changed |= changed

    def _tells(self, broker: Broker | None) -> object:
        """Return what the pieces of topics depend on at a broker."""
        return broker and (broker.outages.offline, broker.endpoint(self._listener) is None)

    # -- brokers

    def around(self, context: RequestContext) -> Around:
        """Return an answer without topics, for a client that does not ask for its operations on the cluster."""
        key = context.broker.cluster.controller_id
        if self._head is None or self._head[0] != key:
            empty = self._broker_codec.around(head(context, ()))
            encoded = [one for _, one in self._encoded_brokers.values() if one]
            self._head = key, self.topics.split(self._broker_codec.join(empty, encoded))
        return self._head[1]

    def _encode_brokers(self, context: RequestContext) -> None:
        """Encode the brokers that have changed, in order of the ids."""
        known, own, live = self._encoded_brokers, context.broker.cluster.node_id, self._brokers
        self._encoded_brokers = {}
        for node_id in sorted({*live, own}):
            broker, (was, encoded) = live.get(node_id), known.get(node_id, _UNKNOWN)
            if was is not broker and was != broker:
                found = reachable_broker(context, node_id)
                encoded = b"" if found is None else self._broker_codec.encode(MetadataResponseBroker(*found))
            self._encoded_brokers[node_id] = broker, encoded
        self._reachable = frozenset(node_id for node_id, (_, encoded) in self._encoded_brokers.items() if encoded)

    # -- topics

    def of(self, topic: Topic) -> bytes:
        """Return an encoded topic."""
        found = self._pieces.get(topic.name)
        if found is None or found.topic is not topic:
            found = self._pieces[topic.name] = self._encode(topic, found)
        return found.encoded

    def with_operations(self, topic: Topic, operations: int) -> bytes:
        """Return an encoded topic with the client's authorized operations."""
        after = self._partitions.around(_without_partitions(topic).replaced(topic_authorized_operations=operations))[1]
        return self.of(topic)[: -len(after)] + after

    def _encode(self, topic: Topic, before: _Piece | None) -> _Piece:
        states, codec = topic.partitions, self._partitions
        known = () if before is None else before.blocks
        around = codec.around(_without_partitions(topic))
        if len(states) <= BLOCK:
            return _Piece(topic, codec.join(around, self._encode_states(topic, states)), ())
        blocks = []
        for number, start in enumerate(range(0, len(states), BLOCK)):
            some = states[start : start + BLOCK]
            if before is not None and number < len(known) and _same(some, before.topic.partitions, start):
                blocks.append(known[number])
            else:
                blocks.append(b"".join(self._encode_states(topic, some)))
        return _Piece(topic, codec.join(around, blocks, len(states)), tuple(blocks))

    def _encode_states(self, topic: Topic, states: Sequence[PartitionState]) -> list[bytes]:
        """Return encoded partitions. Most differ only in their index; of such partitions only one is encoded.

        While a log directory of a broker is offline, a partition's index determines which replicas are offline.
        """
        outages = self._has_outages
        alike: dict[Hashable, tuple[bytes, bytes]] = {}  # the bytes before and after the index
        encoded, pack = [], _INDEX.pack
        for state in states:
            key = state.leader, state.leader_epoch, state.replicas, state.isr, state.index if outages else None
            around = alike.get(key)
            if around is None:
                one = self._partitions.encode(self._describe(topic, state))
                around = alike[key] = one[:_INDEX_AT], one[_INDEX_AT + _INDEX.size :]
            encoded.append(around[0] + pack(state.index) + around[1])
        return encoded

    def _describe(self, topic: Topic, state: PartitionState) -> MetadataResponsePartition:
        leader, code = state.leader, ErrorCode.NONE
        if leader not in self._reachable:
            hidden = leader in self._brokers and self._version >= _FIRST_WITH_LISTENER_NOT_FOUND
            code = ErrorCode.LISTENER_NOT_FOUND if hidden else ErrorCode.LEADER_NOT_AVAILABLE
            leader = NO_LEADER
        return MetadataResponsePartition(
            code, state.index, leader, state.leader_epoch, list(state.replicas), list(state.isr),
            offline_replicas(self._brokers, topic.topic_id, state),
        )  # fmt: skip

    # -- all topics

    def list_all(self, context: RequestContext) -> Iterator[int]:
        """Yield steps that encode the missing topics. Call `all` after the last one."""
        registry, listing = context.broker.topics, self._listing
        if listing is not None:
            for topic in filter(None, map(registry.get, tuple(listing.changed))):
                self.of(topic)
                yield _work(topic)
            return
        listing = _Listing()
        self._filling.append(listing)
        try:
            for name in tuple(registry.ordered()):
                found = registry.get(name)
                if found is not None:  # otherwise the topic was deleted meanwhile
                    listing.names.append(name)
                    listing.pieces.append(self.of(found))
                    yield _work(found)
            self._listing = listing
        finally:
            self._filling.remove(listing)

    def all(self, context: RequestContext) -> Sequence[bytes]:
        """Return the pieces of all topics, in order of the names, once `list_all` has made them."""
        self.catch_up(context)
        while self._listing is None:  # there were very many changes meanwhile
            deque(self.list_all(context), 0)
        registry, listing = context.broker.topics, self._listing
        names, pieces = listing.names, listing.pieces
        for name in listing.changed:
            at, topic = bisect_left(names, name), registry.get(name)
            there = at < len(names) and names[at] == name
            if topic is not None and there:
                pieces[at] = self.of(topic)
            elif topic is not None:
                names.insert(at, name)
                pieces.insert(at, self.of(topic))
            elif there:
                del names[at], pieces[at]
        listing.changed.clear()
        return pieces


_kept: WeakKeyDictionary[TopicRegistry, dict[tuple[int, str], MetadataPieces]] = WeakKeyDictionary()


def pieces_for(context: RequestContext) -> MetadataPieces:
    """Return the parts of answers to this client, up to date."""
    kept = _kept.setdefault(context.broker.topics, {})
    key = context.version, context.connection.listener
    found = kept.get(key)
    if found is None:
        if len(kept) == _MAX_KEPT:
            kept.clear()
        found = kept[key] = MetadataPieces(*key)
    found.catch_up(context)
    return found


def head(
    context: RequestContext, brokers: Iterable[tuple[int, str, int, str | None]] | None = None
) -> MetadataResponse:
    """Return an answer without topics.

    brokers: None for all that the client can reach.
    """
    broker = context.broker
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(*found) for found in (reachable_brokers(context) if brokers is None else brokers)
        ],
        cluster_id=broker.cluster.cluster_id,
        controller_id=broker.cluster.controller_id,
    )


def _work(topic: Topic) -> int:
    """Return the work of encoding a topic, in the unit of `in_steps`."""
    return TOPIC_WORK + PARTITION_WORK * len(topic.partitions)


def _without_partitions(topic: Topic) -> MetadataResponseTopic:
    return MetadataResponseTopic(ErrorCode.NONE, topic.name, topic.topic_id, topic.internal)


def _same(block: Sequence[PartitionState], before: Sequence[PartitionState], start: int) -> bool:
    """Return whether the block that begins at `start` has the same states as before."""
    known = before[start : start + BLOCK]
    return len(block) == len(known) and all(map(operator.is_, block, known))
