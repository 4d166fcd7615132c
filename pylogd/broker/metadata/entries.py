"""One topic's nodes, read and decoded: the entry of a topic in the registry.

Strategy: a topic has three nodes: the topic's node, which has the name of the second, the node of the partitions'
states, and the node of the settings. An object that was decoded from an unchanged node, or an unchanged part of a node,
is reused, down to the single partition, so that changes can be found by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred

from pylogd.broker.metadata.change_notes import News
from pylogd.broker.metadata.errors import InvalidTopicName
from pylogd.broker.metadata.image import PartitionState, Topic, check_topic_name, value
from pylogd.broker.metadata.layout import (
    Assignment,
    decode_configs,
    decode_states,
    decode_topic,
    encode_states,
    patch_states,
    state_path,
    topic_config_path,
)
from pylogd.broker.metadata.state_steps import Steps
from pylogd.store.errors import CorruptMetadata
from pylogd.store.interfaces import IMetadataStore, Node
from pylogd.store.paths import topic_path

#: (created, version) of a node, which identifies its content.
Stamp = tuple[int, int]
NO_NODE: Final = (-1, -1)
#: The number of topics whose nodes are read by one call.
_TOGETHER: Final = 64
T = TypeVar("T")


@value
class Entry:
    """A decoded topic.

    nodes: the stamps of its nodes: topic, states, settings.
    """

    topic: Topic
    assignment: Assignment
    controller_epoch: int
    nodes: tuple[Stamp, Stamp, Stamp]

    @property
    def assignment_version(self) -> int:
        """The version of the topic's node."""
        return self.nodes[0][1]

    @property
    def configs_version(self) -> int:
        """The version of the settings' node; -1 if it does not exist."""
        return self.nodes[2][1]

    @property
    def state_version(self) -> int:
        """The version of the state node."""
        return self.nodes[1][1]

    def with_states(self, path: str, news: News) -> Entry | None:
        """Return the entry after the write in `news`; None if the write does not directly follow this entry."""
        topic = self.topic
        created, version = self.nodes[1]
        follows = (news.assignment_version, news.version) == (self.assignment_version, version + 1)
        if not follows or path != state_path(topic.name, topic.topic_id):
            return None
        epoch, states = news.known or _apply(path, news.data, topic.partitions)
        changed = Topic(topic.name, topic.topic_id, states, topic.configs)
        return Entry(changed, self.assignment, epoch, (self.nodes[0], (created, news.version), self.nodes[2]))


def _apply(
    path: str, told: bytes | Mapping[str, Any] | Steps, before: Sequence[PartitionState]
) -> tuple[int, tuple[PartitionState, ...]]:
    """Return (controller epoch, states) after the write in `news`. Raises `CorruptMetadata`."""
    if not isinstance(told, Steps):
        return patch_states(path, told, before)
    try:
        return told.controller_epoch, told.apply(before)
    except IndexError as error:
        raise CorruptMetadata(path, repr(error)) from error


async def read_nodes(store: IMetadataStore, names: Iterable[str]) -> dict[str, tuple[Node, Node | None]]:
    """Read the node and the settings' node of each topic that exists."""
    # Concurrently, so that the store can answer them together.
    reads = [
        (some, _Read(store.get_many([*map(topic_path, some), *map(topic_config_path, some)])))
        for some in _parts(list(names))
    ]
    found = {}
    for some, read in reads:
        nodes = await read
        for name, node, overrides in zip(some, nodes, nodes[len(some) :], strict=False):
            if node is not None:
                found[name] = node, overrides
    return found


async def read_entries(
    store: IMetadataStore, nodes: Mapping[str, tuple[Node, Node | None]], known: Mapping[str, Entry]
) -> tuple[dict[str, Entry], dict[str, CorruptMetadata]]:
    """Return topics, decoded from their nodes, and the errors of unreadable topics.

    nodes: the result of `read_nodes`; the state nodes are read here.
    known: earlier entries, which are kept if they have not changed.
    """
    asked: list[tuple[str, Assignment]] = []
    unreadable: dict[str, CorruptMetadata] = {}
    for name, (node, _) in nodes.items():
        try:
            assignment = _assignment(name, node, known.get(name))
        except CorruptMetadata as error:
            unreadable[name] = error
        else:
            asked.append((name, assignment))
    reads = [
        (some, _Read(store.get_many([state_path(name, assignment.topic_id) for name, assignment in some])))
        for some in _parts(asked)
    ]
    found = {}
    for some, read in reads:  # decoded as the answers arrive, since decoding all at once would take long
        for (name, assignment), state in zip(some, await read, strict=True):
            node, configs = nodes[name]
            try:
                found[name] = _decode(name, assignment, (node, state, configs), known.get(name))
            except CorruptMetadata as error:
                unreadable[name] = error
    return found, unreadable


def _assignment(name: str, node: Node, before: Entry | None) -> Assignment:
    if before is not None and before.nodes[0] == _stamp(node):
        return before.assignment
    try:
        check_topic_name(name)
    except InvalidTopicName as error:
        raise CorruptMetadata(topic_path(name), error) from error
    return decode_topic(topic_path(name), node.data)


def _decode(
    name: str, assignment: Assignment, nodes: tuple[Node, Node | None, Node | None], before: Entry | None
) -> Entry:
    node, state, configs = nodes
    stamps = _stamp(node), _stamp(state), _stamp(configs)
    if before is not None and before.nodes == stamps:
        return before
    known: tuple[PartitionState, ...] = ()
    if before is not None and before.assignment.topic_id == assignment.topic_id:
        known = before.topic.partitions
    data = encode_states(0, ()) if state is None else state.data
    epoch, states = decode_states(state_path(name, assignment.topic_id), data, assignment, known)
    if before is not None and before.nodes[2] == stamps[2]:
        overrides = before.topic.configs
    else:
        overrides = {} if configs is None else decode_configs(topic_config_path(name), configs.data)
    return Entry(Topic(name, assignment.topic_id, states, overrides), assignment, epoch, stamps)


def _stamp(node: Node | None) -> Stamp:
    return NO_NODE if node is None else (node.stat.created, node.stat.version)


def _parts(asked: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the topics in parts that are read and decoded together."""
    return (asked[start : start + _TOGETHER] for start in range(0, len(asked), _TOGETHER))


class _Read:
    """Nodes being read. `await` returns them or raises an error.

    A failure that nobody awaits is not logged as unhandled: nobody awaits a read if another read, started at the same
    time, has failed before.
    """

    def __init__(self, reading: Deferred[Sequence[Node | None]]) -> None:
        self._outcome: Deferred[Callable[[], Sequence[Node | None]]] = reading.addCallbacks(
            lambda nodes: lambda: nodes, lambda failure: failure.raiseException
        )

    def __await__(self) -> Generator[Any, Any, Sequence[Node | None]]:
        outcome = yield from self._outcome.__await__()
        return outcome()
