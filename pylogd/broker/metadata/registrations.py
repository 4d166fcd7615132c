"""The registrations of all brokers, read from the store as seldom as possible.

Strategy: a broker that registers also writes its id to `/brokers/registrations`, in the same multi. The version of that
node counts registrations. Two watches report changes: one on the children of `/brokers/ids`, one on that node. A broker
that has gone is missing among the children. A broker that has come, even after a moment's absence, is named by the
node. So the end of a broker costs every other broker a read of the children. A registration also costs a read of the
node, and one of the registration that it names, however many brokers there are. Only after two or more registrations at
once everything is read again.

Rules: a registration by a release that does not announce it (`Broker.announced`) is read again whenever the children
change, since another one with the same name may have replaced it. Reads never run concurrently. After a lost connection
within a session, the same children count as unchanged; only the controller, which must miss nothing, reads all again
(`Cluster.look_again`).

Must not know: what a registration means.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from pylogd.broker.metadata.image import Broker
from pylogd.broker.metadata.layout import decode_broker, decode_registered, encode_registered
from pylogd.store.errors import CorruptMetadata
from pylogd.store.interfaces import IMetadataStore, Node, SetData, Watch, WatchEvent
from pylogd.store.paths import BROKERS, REGISTRATIONS

log = Logger()

_UNKNOWN: Final = -1


class Registration(NamedTuple):
    """A broker's registration, the session that owns its node, and the transaction that last wrote the node."""

    broker: Broker
    owner: int
    modified: int

    def is_from(self, node: Node) -> bool:
        """Return whether this was decoded from the present content of the node."""
        stat = node.stat
        return (self.owner, self.broker.incarnation, self.modified) == (stat.owner, stat.created, stat.modified)


def announcement(node_id: int) -> SetData:
    """Return the operation that tells all brokers of a registration; it is part of the registration's multi."""
    return SetData(REGISTRATIONS, encode_registered(node_id))


class Registrations:
    """All registrations that can be read.

    found: the registrations by broker id.
    """

    def __init__(self, store: IMetadataStore, changed: Callable[[], object]) -> None:
        """changed: called when a watch reports a change to `follow`."""
        self._store = store
        self._changed = changed
        self._lock = DeferredLock()
        self._watched: set[str] = set()
        self._fired: set[str] = set()  # paths whose watch was triggered since the last read
        self._names: set[str] = set()  # the names of the nodes in `found`
        self._announced: set[str] = set()  # the names of registrations that their release announces
        self._seen = _UNKNOWN
        self.found: dict[int, Registration] = {}

    def lose_watches(self) -> None:
        """Note that the session has ended, and its watches with it, or that events may have been missed."""
        self._watched.clear()

    def read_all(self) -> Deferred[None]:
        """Read every registration. Fails with the store's errors."""
        return self._alone(self._read_all)

    def follow(self) -> Deferred[None]:
        """Read the changes since the last read. Fails with the store's errors."""
        return self._alone(self._follow)

    def read(self, names: Iterable[str]) -> Deferred[None]:
        """Read some brokers' registrations again, by the names of their nodes. Fails with the store's errors."""
        return self._alone(lambda: self._read(names))

    def _alone(self, work: Callable[[], Awaitable[None]]) -> Deferred[None]:
        async def run() -> None:
            await work()

        done: Deferred[None] = self._lock.run(lambda: Deferred.fromCoroutine(run()))
        return done

    async def _read_all(self) -> None:
        version = (await self._store.get(REGISTRATIONS, self._watch(REGISTRATIONS))).stat.version
        if BROKERS not in self._watched:
            self._fired.discard(BROKERS)  # the changes of that event are read below
            await self._store.children(BROKERS, self._watch(BROKERS))
        nodes = await self._store.children_data(BROKERS)
        for name in self._names - nodes.keys():
            self._note(name, None)
        for name, node in nodes.items():
            known = self.found.get(int(name)) if name in self._names else None
            if known is None or not known.is_from(node):  # otherwise it need not be decoded again
                self._note(name, node)
        self._seen = version

    async def _follow(self) -> None:
        version, named = self._seen, None
        if self._seen == _UNKNOWN or REGISTRATIONS not in self._watched:  # otherwise no broker has registered since
            node = await self._store.get(REGISTRATIONS, self._watch(REGISTRATIONS))
            version, named = node.stat.version, _registered(node)
        if self._seen == _UNKNOWN or version > self._seen + 1 or (version > self._seen and named is None):
            await self._read_all()
            return
        asked = {named} if version > self._seen and named is not None else set()
        if BROKERS not in self._watched:
            names = frozenset(await self._store.children(BROKERS, self._watch(BROKERS)))
            gone = self._names - names
            for name in gone:
                self._note(name, None)
            asked |= names - self._announced
            changed = BROKERS in self._fired
            self._fired.discard(BROKERS)
            told = bool(asked or gone) or REGISTRATIONS not in self._watched  # then the event of that node follows
            if changed and not told:  # another release has reused a name at once
                await self._read_all()
                return
        await self._read(asked)
        self._seen = version

    async def _read(self, names: Iterable[str]) -> None:
        ordered = sorted(names)
        if not ordered:
            return
        nodes = await self._store.get_many([f"{BROKERS}/{name}" for name in ordered])
        for name, node in zip(ordered, nodes, strict=True):
            self._note(name, node)

    def _note(self, name: str, node: Node | None) -> None:
        """Keep the registration in the node of a name; forget it if the node is gone or can't be read."""
        if name.isdecimal():
            self.found.pop(int(name), None)
        self._names.discard(name)
        self._announced.discard(name)
        if node is None:
            return
        try:
            broker = decode_broker(f"{BROKERS}/{name}", node.data, node.stat.created)
        except CorruptMetadata as error:
            log.error("Ignoring a broker whose registration can't be read: {error}", error=str(error))
            return
        self.found[broker.node_id] = Registration(broker, node.stat.owner, node.stat.modified)
        self._names.add(name)
        if broker.announced:
            self._announced.add(name)

    def _watch(self, path: str) -> Watch | None:
        """Return the watch to set on a path; None if one is already set."""
        if path in self._watched:
            return None
        self._watched.add(path)
        return self._event

    def _event(self, event: WatchEvent) -> None:
        self._watched.discard(event.path)
        self._fired.add(event.path)
        self._changed()


def _registered(node: Node) -> str | None:
    """Return the name of the broker that registered last; None if the node does not name one."""
    try:
        return str(decode_registered(node.data))
    except CorruptMetadata:
        return None
