"""A consumer's view of its group: the members, and the partitions of its topics.

Strategy: every node is read once with a watch, and again only after its watch was called: when a member joins, the
others read the list of members and the new member's node. A member's node never changes, so it is read once. After a
change of the live brokers the topics are read again.

Rules: the view may be older than the tree; claims decide. `changed` is called whenever a watch is called; nothing is
read until `refresh` is called.

Must not know: claims, offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from twisted.internet.defer import Deferred

from pylogd.base.deferreds import all_of
from pylogd.client.zookeeper.registries import STATIC, GroupPaths, Subscription, decode_member, decode_partitions
from pylogd.store.errors import CorruptMetadata, NoNode
from pylogd.store.interfaces import IMetadataStore, Watch, WatchEvent
from pylogd.store.paths import BROKERS, TOPICS, topic_path

log = logging.getLogger(__name__)
T = TypeVar("T")

#: The subscription of a member whose node can't be decoded: nothing.
_NOTHING = Subscription({})


class GroupView:
    """The members of a group, and the partitions of the topics that a member subscribes to."""

    def __init__(
        self, store: IMetadataStore, paths: GroupPaths, subscription: Subscription, changed: Callable[[], None]
    ) -> None:
        self._store = store
        self._paths = paths
        self._subscription = subscription
        self._changed = changed
        self._members: dict[str, Subscription] = {}
        self._partitions: dict[str, list[int]] = {}
        #: The number of the transaction that created a topic's node. It distinguishes topics of the same name.
        self.created: dict[str, int] = {}
        self._round = 0
        self._stale: set[str] = set()  # paths to read again
        self._watched: set[str] = set()
        self.forget()

    @property
    def members(self) -> dict[str, dict[str, int]]:
        """The number of streams of each consumer, by topic."""
        return {name: wants.streams(self._partitions) for name, wants in self._members.items()}

    @property
    def partitions(self) -> dict[str, list[int]]:
        """The partitions of each subscribed topic; none if the topic does not exist."""
        return self._partitions

    @property
    def is_stale(self) -> bool:
        """Whether anything has changed since the last `refresh`."""
        return bool(self._stale)

    def forget(self) -> None:
        """Read everything at the next `refresh`: the view may be outdated, and watches may be lost."""
        self._round += 1
        self._watched.clear()
        self._stale = {self._paths.ids, BROKERS}
        if self._subscription.kind == STATIC:
            self._stale.update(topic_path(topic) for topic in self._subscription.topics)
        else:
            self._stale.add(TOPICS)

    async def refresh(self) -> None:
        """Read the changes. After an error of the store, the next call continues."""
        stale, self._stale = self._stale, set()
        try:
            if BROKERS in stale:
                await self._read_brokers()
                stale.update(topic_path(topic) for topic in self._partitions)
            if TOPICS in stale:
                stale.update(topic_path(topic) for topic in await self._read_topics())
            prefix = f"{TOPICS}/"
            topics = [path for path in stale if path.startswith(prefix)]
            await all_of(Deferred.fromCoroutine(self._read_topic(path)) for path in sorted(topics))
            if self._paths.ids in stale:
                await self._read_members()
        except BaseException:
            self._stale |= stale
            raise

    async def _read_brokers(self) -> None:
        try:
            await self._watching(BROKERS, self._store.children)
        except NoNode:
            await self._missing(BROKERS)

    async def _read_topics(self) -> Sequence[str]:
        """Find the topics that match the pattern, return the new ones, and drop deleted ones."""
        names: Sequence[str] = ()
        try:
            names = await self._watching(TOPICS, self._store.children)
        except NoNode:
            await self._missing(TOPICS)
        wanted = self._subscription.streams(names)
        self._partitions = {topic: self._partitions[topic] for topic in wanted if topic in self._partitions}
        self.created = {topic: self.created[topic] for topic in wanted if topic in self.created}
        return [topic for topic in wanted if topic not in self._partitions]

    async def _read_topic(self, path: str) -> None:
        topic = path.rpartition("/")[2]
        try:
            node = await self._watching(path, self._store.get)
            self.created[topic] = node.stat.created
            self._partitions[topic] = decode_partitions(path, node.data)
        except NoNode:
            self.created.pop(topic, None)
            if self._subscription.kind == STATIC:
                self._partitions[topic] = []
                await self._missing(path)
            else:
                self._partitions.pop(topic, None)
        except CorruptMetadata as error:
            log.error("ignoring a topic: %s", error)
            self._partitions[topic] = []

    async def _read_members(self) -> None:
        names = await self._watching(self._paths.ids, self._store.children)
        new = [name for name in names if name not in self._members]
        found = await all_of(Deferred.fromCoroutine(self._read_member(name)) for name in new)
        known = {**self._members, **{name: wants for name, wants in zip(new, found, strict=True) if wants is not None}}
        self._members = {name: known[name] for name in names if name in known}

    async def _read_member(self, name: str) -> Subscription | None:
        path = self._paths.member(name)
        try:
            return decode_member(path, (await self._store.get(path)).data)
        except NoNode:
            return None  # the node is gone again, and the watch on the list will be called
        except CorruptMetadata as error:
            log.error("ignoring a consumer: %s", error)
            return _NOTHING

    async def _missing(self, path: str) -> None:
        """Watch a node that did not exist. If it exists by now, read it at the next `refresh`."""
        if await self._watching(path, self._store.exists) is not None:
            self._watched.discard(path)
            self._stale.add(path)

    async def _watching(self, path: str, read: Callable[[str, Watch | None], Awaitable[T]]) -> T:
        """Read a node, with a watch unless one is set already."""
        if path in self._watched:
            return await read(path, None)
        now, called = self._round, False

        def watch(_: WatchEvent) -> None:
            nonlocal called
            called = True
            if now == self._round:
                self._watched.discard(path)
                self._stale.add(path)
                self._changed()

        result = await read(path, watch)
        if now == self._round and not called:
            self._watched.add(path)
        return result
