"""The writes of a consumer: its registration, its claims of partitions, its committed offsets.

Strategy: every write is one `multi` that begins with a check of the consumer's own registration, which has a new name
each time. Claims and registration end with the session, so ZooKeeper refuses a late write of a consumer whose session
has ended. A claim succeeds as a whole, or a collision undoes all of it. The last commit and the release are one write.

Rules: one write at a time, so that a retried commit never overtakes a release. Before the next claim, `settle` finds
out whether an unanswered write took effect: a read after an acknowledged write of the same session sees all earlier
writes. Offsets are committed only for held partitions.

Must not know: which partitions a consumer should have; the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime

from pylogd.base.deferreds import all_of
from pylogd.client.core.model import TopicPartition
from pylogd.client.zookeeper.assignment import stream_name
from pylogd.client.zookeeper.errors import NotOwner
from pylogd.client.zookeeper.lease import Lease
from pylogd.client.zookeeper.registries import (
    GroupPaths,
    Subscription,
    decode_offset,
    encode_member,
    encode_offset,
)
from pylogd.store.consumers import created_at, is_current
from pylogd.store.errors import ConnectionLost, NodeError, NodeExists, NoNode, SessionExpired, StoreError
from pylogd.store.interfaces import Check, Create, Delete, IMetadataStore, Operation, SetData, Watch, parent_of

T = TypeVar("T")

#: The most partitions in one write, so that it fits into a request (ZooKeeper's `jute.maxbuffer`, 1 MB).
WRITE_PARTITIONS: Final = 500


class NotRegistered(StoreError):
    """The consumer's node does not exist: its session ended, or the node was deleted."""


class Collision(StoreError):
    """A partition to claim still has another owner."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"{partition} is owned by another consumer of the group")
        self.partition = partition


class Claims:
    """The registration, claims and offsets of one consumer.

    consumer: the consumer's name in the registries; "" while it has none.
    registered: whether the name is known to be in the registries.
    held: the claimed partitions, with the name of the stream that reads each.
    """

    def __init__(
        self,
        store: IMetadataStore,
        clock: IReactorTime,
        paths: GroupPaths,
        lease: Lease,
        new_name: Callable[[], str],
        on_commit: Callable[[dict[TopicPartition, int]], object] = lambda _: None,
    ) -> None:
        """`on_commit` is called with committed offsets."""
        self._on_commit = on_commit
        self._store = store
        self._clock = clock
        self._paths = paths
        self._lease = lease
        self._new_name = new_name
        self.group = paths.group
        self._lock = DeferredLock()
        self._names: set[str] = set()  # names that may be registered
        self._ensured: set[str] = set()
        self._with_offset: set[TopicPartition] = set()  # partitions whose offset is known to have a node
        self._uncertain: dict[TopicPartition, int | None] = {}  # partitions that may be claimed, and offsets to commit
        self.consumer = ""
        self.registered = False
        self.held: dict[TopicPartition, str] = {}

    def forget(self) -> None:
        """Forget the registration and all claims: the session has expired."""
        self._lease.end()
        self.consumer, self.registered = "", False
        self.held.clear()
        self._uncertain.clear()

    def unregistered(self) -> None:
        """Forget the registration, which is gone although the session may live: the next one gets another name. The
        name of a registration with an unknown outcome is remembered, so that no dead member is left behind.
        """
        if self.registered:
            self.consumer, self.registered = "", False

    def register(self, subscription: Subscription, now_ms: int) -> Deferred[None]:
        """Register the consumer in its group. May be called again after `ConnectionLost`."""

        async def register() -> None:
            await self._ensure([self._paths.ids, self._paths.owners, self._paths.offsets])
            if not self.consumer:
                self.consumer = self._new_name()
            consumer = self.consumer
            await self._lay(self._names - {consumer})
            self._names.add(consumer)
            sent = self._clock.seconds()
            path, document = self._paths.member(consumer), encode_member(subscription, now_ms)
            try:
                with suppress(NodeExists):  # the node was made by an unanswered write of this session
                    await self._store.create(path, document, ephemeral=True)
            except NoNode:
                self._ensured.clear()
                raise
            self._proven(consumer, sent)
            self.registered = True

        return self._alone(register)

    def unregister(self) -> Deferred[None]:
        """Leave the group, once no partition is held."""

        async def unregister() -> None:
            if self.consumer:
                await self._store.delete(self._paths.member(self.consumer))
                self.consumer, self.registered = "", False

        return self._alone(unregister)

    def prove(self) -> Deferred[None]:
        """Prove that the session lives, by a write. Raises `NotRegistered`."""
        return self._alone(self._prove)

    def claim(self, wanted: Mapping[TopicPartition, int]) -> Deferred[None]:
        """Claim all of these partitions or none, each for a stream by its number. Raises `Collision`."""

        async def claim() -> None:
            await self._ensure({path for p in wanted for path in self._parents(p)})
            done: list[TopicPartition] = []
            try:
                for part in _parts(sorted(wanted)):
                    names = {p: stream_name(self.consumer, wanted[p]) for p in part}
                    await self._write(part, {}, {p: self._claim_of(p, name) for p, name in names.items()})
                    self.held.update(names)
                    done += part
            except Collision:
                await self._give_back(done, {})
                raise

        return self._alone(claim)

    def release(self, partitions: Collection[TopicPartition], offsets: Mapping[TopicPartition, int]) -> Deferred[None]:
        """Commit offsets of the partitions and release them, in one write."""
        return self._alone(lambda: self._give_back(partitions, offsets))

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Deferred[None]:
        """Commit offsets. Raises `NotOwner`, and commits none, unless all of their partitions are held."""

        async def commit() -> None:
            strangers = [p for p in offsets if p not in self.held]
            if strangers:
                raise NotOwner(strangers)
            for part in _parts(sorted(offsets)):
                await self._write(part, offsets, {})

        return self._alone(commit)

    async def offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the committed offsets; None for partitions without one, or with the offset of a deleted topic.

        Raises `CorruptMetadata` for an invalid offset.
        """
        asked = list(partitions)
        topics = sorted({p.topic for p in asked})
        times = await all_of(Deferred.fromCoroutine(created_at(self._store, topic)) for topic in topics)
        created = dict(zip(topics, times, strict=True))
        found = await all_of(Deferred.fromCoroutine(self._offset(p, created[p.topic])) for p in asked)
        return dict(zip(asked, found, strict=True))

    def forget_offsets(self, partitions: Collection[TopicPartition]) -> Deferred[None]:
        """Delete the offsets of held partitions whose topic was deleted.

        An offset that was committed before the consumer learned of it may be newer than a new topic of the same name.
        """

        async def forget_offsets() -> None:
            for part in _parts(sorted(partitions)):
                await self._write(part, {}, {p: Delete(self._paths.offset(p)) for p in part})
            self._with_offset.difference_update(partitions)

        return self._alone(forget_offsets)

    async def blocked(self, wanted: Collection[TopicPartition], watch: Watch) -> set[str]:
        """Return the nodes of the present owners of partitions, with a watch on each."""
        topics = sorted({p.topic for p in wanted})
        listings = await all_of(Deferred.fromCoroutine(self._owned(topic)) for topic in topics)
        owned = set().union(*listings)
        suspects = [p for p in wanted if p in owned]
        stats = await all_of(self._store.exists(self._paths.owner(p), watch) for p in suspects)
        session = self._store.session_id
        for partition, stat in zip(suspects, stats, strict=True):
            if stat is not None and stat.owner == session and partition not in self.held:
                self._uncertain.setdefault(partition, None)
        return {self._paths.owner(p) for p, stat in zip(suspects, stats, strict=True) if stat is not None}

    def settle(self) -> Deferred[None]:
        """Find out the outcome of unanswered writes: complete the releases among them, and undo the claims."""

        async def settle() -> None:
            if not self._uncertain:
                return
            await self._prove()
            suspects = list(self._uncertain)
            stats = await all_of(self._store.exists(self._paths.owner(p)) for p in suspects)
            session = self._store.session_id
            mine = [p for p, stat in zip(suspects, stats, strict=True) if stat is not None and stat.owner == session]
            self._uncertain = {p: self._uncertain[p] for p in mine}
            late = {p: offset for p, offset in self._uncertain.items() if offset is not None}
            await self._give_back(mine, late)

        return self._alone(settle)

    # -- internal; one of these runs at a time

    def _alone(self, work: Callable[[], Coroutine[Deferred[Any], Any, T]]) -> Deferred[T]:
        result: Deferred[T] = self._lock.run(lambda: Deferred.fromCoroutine(work()))
        return result

    async def _lay(self, ghosts: Iterable[str]) -> None:
        """Delete registrations under earlier names. A registration that was requested in one session may be made in the
        next session, and would be a member that claims nothing.
        """
        for name in sorted(ghosts):
            with suppress(NoNode):
                await self._store.delete(self._paths.member(name))
            self._names.discard(name)

    async def _prove(self) -> None:
        await self._write([], {}, {})

    async def _give_back(self, partitions: Collection[TopicPartition], offsets: Mapping[TopicPartition, int]) -> None:
        """Release partitions. They count as released from the first write on, even if the write fails."""
        ordered = sorted(partitions)
        if ordered and not self.consumer:
            raise NotRegistered("the consumer is not registered")
        for partition in ordered:
            self.held.pop(partition, None)
            self._uncertain[partition] = offsets.get(partition)
        for part in _parts(ordered):
            await self._write(part, offsets, {p: Delete(self._paths.owner(p)) for p in part})
            for partition in part:
                self._uncertain.pop(partition, None)

    async def _write(
        self,
        partitions: Sequence[TopicPartition],
        offsets: Mapping[TopicPartition, int],
        owners: dict[TopicPartition, Operation],
    ) -> None:
        """Write the check, the offsets and the changes of owners in one transaction; retry while a failure can be
        corrected.
        """
        if not self.consumer:
            raise NotRegistered("the consumer is not registered")
        consumer = self.consumer
        member = self._paths.member(consumer)
        committed = {p: offsets[p] for p in partitions if p in offsets}  # a copy, since `offsets` may change
        for left in reversed(range(3 * len(partitions) + 2)):
            operations = [
                Check(member),
                *(self._commit_of(p, offset) for p, offset in committed.items()),
                *owners.values(),
            ]
            sent = self._clock.seconds()
            try:
                await self._store.multi(operations)
            except ConnectionLost:
                for partition, operation in owners.items():
                    if isinstance(operation, Create):
                        self._uncertain[partition] = None
                raise
            except NodeError as error:
                if error.operation == 0:
                    raise NotRegistered(f"{member} is gone") from error
                targets = [*committed, *owners]
                failed = operations[error.operation]
                if not left or not await self._mended(failed, targets[error.operation - 1], error, owners):
                    raise
            else:
                self._proven(consumer, sent)
                self._with_offset.update(committed)
                if committed:
                    self._on_commit(committed)
                return

    def _proven(self, consumer: str, sent: float) -> None:
        """Extend the lease after an acknowledged write. Raises SessionExpired if the session has ended meanwhile."""
        if consumer != self.consumer:
            raise SessionExpired("the session ended after the write")
        self._lease.proven(sent)

    async def _mended(
        self, failed: Operation, partition: TopicPartition, error: NodeError, owners: dict[TopicPartition, Operation]
    ) -> bool:
        """Return whether the write may succeed now that the cause of its failure is known. Raises `Collision`."""
        is_owner = failed.path == self._paths.owner(partition)
        if isinstance(failed, Create) and isinstance(error, NodeExists):
            if is_owner:
                raise Collision(partition) from error
            self._with_offset.add(partition)
        elif isinstance(failed, Create) and isinstance(error, NoNode):
            self._ensured.discard(parent_of(failed.path))
            await self._ensure([parent_of(failed.path)])
        elif isinstance(failed, SetData) and isinstance(error, NoNode):
            self._with_offset.discard(partition)
        elif isinstance(failed, Delete) and isinstance(error, NoNode):
            del owners[partition]  # another client deleted it
        else:
            return False
        return True

    def _claim_of(self, partition: TopicPartition, stream: str) -> Operation:
        return Create(self._paths.owner(partition), stream.encode(), ephemeral=True)

    def _commit_of(self, partition: TopicPartition, offset: int) -> Operation:
        path, data = self._paths.offset(partition), encode_offset(offset)
        return SetData(path, data) if partition in self._with_offset else Create(path, data)

    def _parents(self, partition: TopicPartition) -> tuple[str, str]:
        return parent_of(self._paths.owner(partition)), parent_of(self._paths.offset(partition))

    async def _ensure(self, paths: Iterable[str]) -> None:
        missing = [path for path in paths if path not in self._ensured]
        await all_of(self._store.ensure(path) for path in sorted(missing))
        self._ensured.update(missing)

    async def _offset(self, partition: TopicPartition, topic_created: int | None) -> int | None:
        path = self._paths.offset(partition)
        try:
            node = await self._store.get(path)
        except NoNode:
            return None
        self._with_offset.add(partition)
        return decode_offset(path, node.data) if is_current(node.stat, topic_created) else None

    async def _owned(self, topic: str) -> set[TopicPartition]:
        try:
            names = await self._store.children(f"{self._paths.owners}/{topic}")
        except NoNode:
            return set()
        return {TopicPartition(topic, int(name)) for name in names if name.isdecimal()}


def _parts(partitions: Sequence[TopicPartition]) -> Iterable[Sequence[TopicPartition]]:
    return (partitions[i : i + WRITE_PARTITIONS] for i in range(0, len(partitions), WRITE_PARTITIONS))
