"""The ACLs of a cluster: kept in the metadata store, read through the change feed, changed by any broker.

Strategy: there is one node for each resource pattern. Every broker reads the nodes that a write names, puts their
entries into the index for decisions, and forgets earlier decisions. So a broker applies a change as soon as it learns
of it, even for open connections. A write names the versions of the nodes on which it is based, and is repeated if
another write came first.

Rules: a node that can't be read may have a DENY, so it denies everything that its pattern covers to all but super
users. ACLs that other programs write to ZooKeeper directly are read with the next change of that node by a broker, and
at the start of a session.

Must not know: requests, who may change ACLs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.base.deferreds import Pause, all_of, without_pause
from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.broker.metadata.change_notes import Change
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.security.acl_filters import FilterTable
from pylogd.broker.security.acl_nodes import (
    decode_entries,
    encode_entries,
    parents,
    pattern_of_path,
    pattern_path,
)
from pylogd.broker.security.acls import (
    EVERYONE,
    WILDCARD,
    AclBinding,
    AclEntry,
    AclFilter,
    Permission,
    ResourcePattern,
)
from pylogd.broker.security.authorizer import AclOperation
from pylogd.broker.security.rules import AclAuthorizer
from pylogd.store.errors import BadVersion, CorruptMetadata, InvalidNode, NodeExists, NoNode
from pylogd.store.interfaces import Create, Delete, IMetadataStore, Node, Operation, SetData

log = Logger()

#: How often a change is tried if other writes keep coming first.
ATTEMPTS = 10
#: The most patterns that one write changes.
PATTERNS_AT_ONCE = 100

_NOTHING = FilterTable()
_DENY_ALL = (AclEntry(EVERYONE, WILDCARD, AclOperation.ALL, Permission.DENY),)

#: The change of each pattern's entries.
Changes = Mapping[ResourcePattern, "_Edit"]


class _Edit:
    """A change to the entries of one pattern: first remove those that filters select, then add.

    removed: the entries that the last `apply` removed, each with the position of the first filter that selects it.
    """

    def __init__(self, pattern: ResourcePattern, add: Iterable[AclEntry] = (), remove: FilterTable = _NOTHING) -> None:
        self.add = set(add)
        self.removed: list[tuple[AclEntry, int]] = []
        self._pattern = pattern
        self._remove = remove

    def apply(self, entries: Iterable[AclEntry]) -> list[AclEntry]:
        """Return the entries after the change, in order."""
        before = set(entries)
        places = ((entry, self._remove.first(self._pattern, entry)) for entry in before)
        self.removed = [(entry, place) for entry, place in places if place is not None]
        return sorted(before.difference(entry for entry, _ in self.removed) | self.add)


class AclStore:
    """Keeps an authorizer's index up to date, and changes ACLs."""

    def __init__(self, store: IMetadataStore, feed: ChangeFeed, authorizer: AclAuthorizer) -> None:
        """Make it before the feed is started."""
        self._store = store
        self._feed = feed
        self._authorizer = authorizer
        feed.add(self)

    def items(self) -> list[tuple[ResourcePattern, Sequence[AclEntry]]]:
        """Return every pattern with its entries, as this broker knows them now."""
        return self._authorizer.index.items()

    def create(
        self, bindings: Sequence[AclBinding], pause: Pause = without_pause
    ) -> Deferred[dict[AclBinding, KafkaError | None]]:
        """Store bindings; existing ones count as created. Return an error for each, None for success.

        pause: awaited in loops over all bindings, so that others get their turn.

        The Deferred fails with the errors of the store; then some bindings may have been stored.
        """
        return Deferred.fromCoroutine(self._create(bindings, pause))

    def delete(self, filters: Sequence[AclFilter], pause: Pause = without_pause) -> Deferred[list[list[AclBinding]]]:
        """Delete the bindings that any of the filters selects. Return the deleted bindings, for each filter.

        pause: awaited in loops over all ACLs, so that others get their turn.

        As in Kafka, a binding that several filters select is returned for the first of them. The Deferred fails with
        the errors of the store, and with KafkaError for ACLs that can't be read, or for too many filters of the pattern
        type MATCH.
        """
        return Deferred.fromCoroutine(self._delete(filters, pause))

    async def reload(self, store: IMetadataStore) -> None:
        """Read all ACLs again. See `IReader`."""
        index, authorizer = self._authorizer.index, self._authorizer
        found: dict[ResourcePattern, tuple[AclEntry, ...]] = {}
        for parent in parents():
            try:
                nodes = await store.children_data(parent)
            except NoNode:
                continue
            for name, node in nodes.items():
                path = f"{parent}/{name}"
                pattern = pattern_of_path(path)
                if pattern is not None:
                    found[pattern] = _entries(path, node.data)
        for pattern in [*index.patterns()]:
            if pattern not in found:
                index.put(pattern, ())
        for pattern, entries in found.items():
            index.put(pattern, entries)
        authorizer.changed()

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """Read the ACLs again that a write has changed. See `IReader`."""
        changed = {path: pattern for path in change.paths if (pattern := pattern_of_path(path)) is not None}
        if not changed:
            return
        nodes = await all_of(Deferred.fromCoroutine(_get_or_none(store, path)) for path in changed)
        for (path, pattern), node in zip(changed.items(), nodes, strict=True):
            self._authorizer.index.put(pattern, () if node is None else _entries(path, node.data))
        self._authorizer.changed()

    async def _create(self, bindings: Sequence[AclBinding], pause: Pause) -> dict[AclBinding, KafkaError | None]:
        edits: dict[ResourcePattern, _Edit] = {}
        for binding in bindings:
            await pause()
            edits.setdefault(binding.pattern, _Edit(binding.pattern)).add.add(binding.entry)
        failed = await self._write(edits, pause)
        return {binding: failed.get(binding.pattern) for binding in bindings}

    async def _delete(self, filters: Sequence[AclFilter], pause: Pause) -> list[list[AclBinding]]:
        table = FilterTable()
        for one in filters:
            await pause()
            table.add(one)
        await self._feed.catch_up()  # including the ACLs that other brokers have created
        edits = {}
        for pattern, entries in self.items():
            if entries is _DENY_ALL:
                selected = table.may_select(pattern)  # nobody knows the content of the node
            else:
                selected = await _selects(table, pattern, entries, pause)
            if selected:
                edits[pattern] = _Edit(pattern, remove=table)
        failed = await self._write(edits, pause)
        for error in failed.values():
            raise error
        deleted: list[list[AclBinding]] = [[] for _ in filters]
        for pattern, edit in edits.items():
            await pause()
            for entry, place in sorted(edit.removed):
                deleted[place].append(AclBinding(pattern, entry))
        return deleted

    async def _write(self, edits: Changes, pause: Pause) -> dict[ResourcePattern, KafkaError]:
        """Make the changes. Return why some of them could not be made."""
        failed: dict[ResourcePattern, KafkaError] = {}
        nodes: set[str] = set()
        patterns = [*edits]
        for pattern in patterns:
            await pause()
            nodes.add(pattern_path(pattern).rpartition("/")[0])
        for parent in nodes:
            await self._store.ensure(parent)
        for start in range(0, len(patterns), PATTERNS_AT_ONCE):
            some = patterns[start : start + PATTERNS_AT_ONCE]
            for _ in some:
                await pause()
            error = await self._write_some({pattern: edits[pattern] for pattern in some})
            if error is not None and len(some) > 1:  # find out which one fails, and make the others
                for pattern in some:
                    single = await self._write_some({pattern: edits[pattern]})
                    if single is not None:
                        failed[pattern] = single
            elif error is not None:
                failed[some[0]] = error
        return failed

    async def _write_some(self, edits: Changes) -> KafkaError | None:
        for _ in range(ATTEMPTS):
            try:
                # Read concurrently, so that the store can answer them together.
                found = await all_of(
                    Deferred.fromCoroutine(self._operation(pattern, edit)) for pattern, edit in edits.items()
                )
                operations = [operation for operation in found if operation is not None]
                if operations:
                    await self._feed.write(operations, [operation.path for operation in operations])
            except (BadVersion, NodeExists, NoNode):
                continue
            except InvalidNode:
                return KafkaError(ErrorCode.INVALID_REQUEST, "The resource pattern would have more ACLs than fit.")
            except CorruptMetadata as error:
                return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
            return None
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The ACLs are being changed by another request; try again.")

    async def _operation(self, pattern: ResourcePattern, edit: _Edit) -> Operation | None:
        """Return the operation that changes the node of a pattern; None if the node need not change."""
        path = pattern_path(pattern)
        node = await _get_or_none(self._store, path)
        if node is None:
            after = edit.apply(())
            return Create(path, encode_entries(after)) if after else None
        before = decode_entries(path, node.data)
        after = edit.apply(before)
        if after == list(before):
            return None
        version = node.stat.version
        return SetData(path, encode_entries(after), version) if after else Delete(path, version)


async def _selects(table: FilterTable, pattern: ResourcePattern, entries: Sequence[AclEntry], pause: Pause) -> bool:
    """Return whether a filter selects an ACL of a pattern."""
    for entry in entries:
        await pause()
        if table.first(pattern, entry) is not None:
            return True
    return False


async def _get_or_none(store: IMetadataStore, path: str) -> Node | None:
    try:
        return await store.get(path)
    except NoNode:
        return None


def _entries(path: str, data: bytes) -> tuple[AclEntry, ...]:
    try:
        return decode_entries(path, data)
    except CorruptMetadata as error:
        log.error("{error}. Until the node is repaired or deleted, its resources are denied to everybody but super "
                  "users", error=str(error))  # fmt: skip
        return _DENY_ALL
