"""The last writes to the metadata, for brokers that have missed some of them.

Strategy: `/changes` describes the last write only, and a broker that is busy, or cut off for a moment, may miss some of
several writes. So each write also creates a sequence node below `/changes/log` with the same content. A broker that is
behind reads as many of these entries as it has missed, whatever the number of topics. Once it knows the number of the
entry that it has read last, it reads the next ones by their names, without a list. An entry and the version of
`/changes` of its write have the same transaction number. This number tells which entries belong to the missed versions,
and whether there is an entry for each. If one is missing, since it was trimmed, or a release without the log made the
write, everything has to be read.

Rules: a broker that makes an entry whose number is a multiple of `TRIM_EVERY` deletes the entries before the last
`KEPT`. If it dies before that, the next such broker deletes them.

Must not know: what is written.
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from pylogd.broker.metadata.change_notes import Change, decode_change, encode_change
from pylogd.store.errors import NodeError, StoreError
from pylogd.store.interfaces import Create, Delete, IMetadataStore, Node
from pylogd.store.paths import CHANGE_LOG

log = Logger()

#: How many entries are kept. When a broker with some hundred partitions is back, as many leaders write at once.
KEPT: Final = 512
TRIM_EVERY: Final = 128
#: The most bytes of an entry: enough for the new states of thousands of partitions, as when hundreds of brokers fail at
#: once. A larger change is noted without states, and readers read the nodes.
_MAX_BYTES: Final = 196_608
_PREFIX: Final = f"{CHANGE_LOG}/c"
#: ZooKeeper's sequence numbers run through the lower half, then as negative numbers through the upper half.
_NUMBERS: Final = 1 << 32


def new_entry(change: Change | None, note: bytes) -> Create:
    """Return the operation that makes the entry of a write.

    change: the change; None if it has no content for readers.
    note: the encoded change.
    """
    if change is not None and len(note) > _MAX_BYTES:
        note = encode_change(Change(change.paths))
    return Create(_PREFIX, note, sequence=True)


class LogReader:
    """Reads the entries of the change log that its broker has missed."""

    def __init__(self, store: IMetadataStore) -> None:
        self._store = store
        self._last: int | None = None  # the number that the entry of the last change probably has, if known

    def passed(self, count: int) -> None:
        """Note that the broker has learned of the next `count` writes without reading their entries."""
        if self._last is not None:
            self._last += count

    def forget(self) -> None:
        """Forget the number of the last entry, since the broker has read all topics instead of the entries."""
        self._last = None

    async def missed(self, count: int, after: int, newest: Node) -> list[Change] | None:
        """Return the missed changes, the older first; None if not all of them are known.

        after: the transaction of the last change before them.
        newest: the content of `/changes`, which is the last of them.

        Consecutive changes without content become one. Raises the store's errors.
        """
        if not 0 < count <= KEPT:
            return None
        nodes = await self._expected(count, after, newest) or await self._listed(count, after, newest.stat.modified)
        changes: list[Change] = []
        for node in nodes:
            change = decode_change(node.data)
            if change is None:
                return None
            if changes and not change.states and not changes[-1].states:
                changes[-1] = Change([*changes[-1].paths, *change.paths])
            else:
                changes.append(change)
        return changes if len(nodes) == count else None

    async def _expected(self, count: int, after: int, newest: Node) -> list[Node]:
        """Return the entries if they have the next numbers, as is usual; otherwise an empty list.

        `/changes` replaces the last entry, since it has been read already and has the same content.
        """
        if self._last is None:
            return []
        names = [f"{_PREFIX}{number:010}" for number in range(self._last + 1, self._last + count)]
        nodes = [
            node for node in await self._store.get_many(names)
            if node is not None and after < node.stat.created < newest.stat.modified
        ]  # fmt: skip
        if len(nodes) < count - 1:
            return []
        self._last += count
        return [*nodes, newest]

    async def _listed(self, count: int, after: int, until: int) -> list[Node]:
        """Return at most so many entries, the oldest first, that were made after one transaction and until another."""
        store = self._store
        names = await store.children(CHANGE_LOG)
        found: list[tuple[str, Node]] = []
        end, missing = len(names), count
        while missing and end:  # repeat this if there were newer ones
            begin = max(end - missing, 0)
            read = await store.get_many([f"{CHANGE_LOG}/{name}" for name in names[begin:end]])
            nodes = [(name, node) for name, node in zip(names[begin:end], read, strict=True) if node is not None]
            if len(nodes) < len(read):
                return []  # they were trimmed meanwhile
            found = [(name, node) for name, node in nodes if after < node.stat.created <= until] + found
            end, missing = begin, sum(node.stat.created > until for _, node in nodes)
        self._last = _number(found[-1][0]) if found else None
        return [node for _, node in found]


async def trim(store: IMetadataStore, made: str) -> None:
    """Delete old entries if this entry's number requires it.

    made: the path of the entry.
    """
    number = int(made.removeprefix(_PREFIX))
    if number % TRIM_EVERY:
        return
    try:
        names = await store.children(CHANGE_LOG)
        old = [name for name in names if KEPT <= (number - _number(name)) % _NUMBERS < _NUMBERS // 2]
        for start in range(0, len(old), KEPT):
            await store.multi([Delete(f"{CHANGE_LOG}/{name}") for name in old[start : start + KEPT]])
    except NodeError:
        return  # another broker deletes them
    except StoreError as error:
        log.debug("could not trim the log of metadata changes: {error}", error=error)


def _number(name: str) -> int:
    return int(name[1:])
