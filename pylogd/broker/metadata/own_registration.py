"""The registration of this broker: its node in the metadata store, which exists as long as the store's session.

A broker that was killed may restart before its session has expired: then its old registration still exists. If it names
the data directory whose lock this process holds, the old process is dead, and the registration is removed. Any other
registration with this broker's node id belongs to another broker, and this one is refused.

Must not know: other brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.feature_levels import RANGES
from pylogd.broker.metadata.image import Broker, Endpoint, Outages
from pylogd.broker.metadata.layout import (
    broker_epoch_path,
    decode_broker,
    decode_directories,
    encode_broker,
    encode_directories,
)
from pylogd.broker.metadata.registrations import announcement
from pylogd.broker.metadata.staggering import sleep
from pylogd.store.errors import BadVersion, NodeExists, NodeIdInUse, NoNode
from pylogd.store.interfaces import Create, IMetadataStore, NodeStat, Operation, SetData
from pylogd.store.paths import BROKERS

log = Logger()

#: Seconds between two checks whether an earlier session of this broker has ended.
_LOOK_SECONDS: Final = 0.5

T = TypeVar("T")


class OwnRegistration:
    """Registers this broker.

    broker: what is registered; None before the first registration, and once another broker has this node id.
    """

    def __init__(
        self, store: IMetadataStore, node_id: int, feed: ChangeFeed, clock: IReactorTime | None, patience: float
    ) -> None:
        """A registration waits up to `patience` seconds of `clock` until an earlier one with this node id has ended."""
        self.broker: Broker | None = None
        self._store = store
        self._feed = feed
        self._node_id = node_id
        self._path = f"{BROKERS}/{node_id}"
        self._epoch_path = broker_epoch_path(node_id)
        self._clock = clock
        self._patience = patience
        self._session = 0  # the id of the session in which the broker was registered last
        self._registering = False
        self._label_writes = 0  # how many `set_labels` are under way
        self._label_waiters: list[Deferred[None]] = []

    @property
    def epoch(self) -> int:
        """The epoch of the registration (KIP-903), -1 before the first."""
        return -1 if self.broker is None else self.broker.epoch

    @property
    def is_current(self) -> bool:
        """Whether the broker was registered in the store's present session."""
        return self._session == self._store.session_id

    @property
    def is_lost(self) -> bool:
        """Whether the broker has to be registered again, since the session of its registration has ended."""
        return self.broker is not None and not (self._registering or self.is_current)

    def is_ousted_by(self, owner: int) -> bool:
        """Return whether the registration that was found, with this owner, is another broker's."""
        return self.is_current and owner != self._session

    def forget(self) -> None:
        """Register no more, since another broker has this node id."""
        self.broker, self._session = None, 0

    async def register(self, broker: Broker) -> None:
        """Register this broker. Raises `NodeIdInUse`.

        A `fenced` broker is not live before `unfence`. Until then its former data directories also stay registered.
        """
        self.broker = broker = replace(broker, features=RANGES)
        await self._register(broker, self._clock)

    async def register_again(self) -> None:
        """Register in a new session. Do not wait for another broker that registered this node id meanwhile."""
        assert self.broker is not None
        await self._register(self.broker, None)

    async def _register(self, broker: Broker, clock: IReactorTime | None) -> None:
        self._registering = True
        try:
            epoch = await self._create(broker, clock)
        finally:
            self._registering = False
        if self.broker is not None:
            self.broker = replace(self.broker, epoch=epoch)
        self._session = self._store.session_id

    async def _create(self, broker: Broker, clock: IReactorTime | None) -> int:
        """Create the broker's node; return the broker epoch. With a clock, wait for an earlier registration to end."""
        path, epoch_path = self._path, self._epoch_path
        while True:
            epoch, former = await self._read_epoch()
            broker = replace(broker, epoch=epoch + 1)
            directories = encode_directories(former.union(broker.directories) if broker.fenced else broker.directories)
            increment: Operation = (
                Create(epoch_path, directories) if epoch < 0 else SetData(epoch_path, directories, epoch)
            )
            try:
                create = Create(path, encode_broker(broker), ephemeral=True)
                await self._store.multi([increment, create, announcement(broker.node_id)])
                return broker.epoch
            except BadVersion:
                continue
            except NodeExists as error:
                if error.path == path and await self._take_over(replace(broker, epoch=epoch), clock):
                    return epoch

    async def former_directories(self) -> frozenset[str]:
        """Return the ids of data directories in which this broker may have replicas, as of its last registration."""
        return (await self._read_epoch())[1]

    async def _read_epoch(self) -> tuple[int, frozenset[str]]:
        """Return the epoch of this broker's last registration, and the ids of its data directories then."""
        try:
            node = await self._store.get(self._epoch_path)
        except NoNode:
            return -1, frozenset()
        return node.stat.version, decode_directories(self._epoch_path, node.data)

    async def _take_over(self, broker: Broker, clock: IReactorTime | None) -> bool:
        """Return True if an existing registration is this session's, False if it has ended. Raises `NodeIdInUse`."""
        path = self._path
        try:
            node = await self._store.get(path)
        except NoNode:
            return False
        if node.stat.owner == self._store.session_id:
            await self._store.multi([SetData(path, encode_broker(broker)), announcement(broker.node_id)])
            return True
        other = decode_broker(path, node.data)
        if broker.directory_id is not None and other.directory_id == broker.directory_id:
            log.info("Removing the registration of this broker's former process")
            with suppress(NoNode, BadVersion):
                await self._store.delete(path, node.stat.version)
        else:
            await self._wait_for_end(node.stat, other, clock)
        return False

    async def _wait_for_end(self, held: NodeStat, other: Broker, clock: IReactorTime | None) -> None:
        """Wait until the node of another session is gone. After a crash ZooKeeper keeps it for the session's timeout.

        Raises `NodeIdInUse` if the node stays, or if a third session has created another one.
        """
        stat: NodeStat | None = held
        deadline = 0.0 if clock is None else clock.seconds() + self._patience
        if clock is not None:
            log.info(
                "{path} is held by another session; waiting up to {seconds:.0f} s for it to end, as after a crash",
                path=self._path,
                seconds=self._patience,
            )
        while stat is not None:
            if clock is None or stat.created != held.created or clock.seconds() >= deadline:
                raise self.in_use(other)
            await sleep(clock, _LOOK_SECONDS)
            stat = await self._store.exists(self._path)

    def in_use(self, other: Broker) -> NodeIdInUse:
        """Return the error that another broker has this node id."""
        return NodeIdInUse(
            f"another broker with node.id {self._node_id} is alive in this cluster, at {other.host}:{other.port}: "
            "give one of the two another node.id and an empty data directory, or stop it"
        )

    # -- changes

    async def unfence(self) -> None:
        """Make the registered broker live. Raises `BadVersion` or `NoNode` if the registration has ended."""
        assert self.broker is not None
        epoch = self.broker.epoch
        self.broker = replace(self.broker, fenced=False, epoch=epoch + 1)
        await self._feed.write(
            [
                SetData(self._path, encode_broker(self.broker)),
                SetData(self._epoch_path, encode_directories(self.broker.directories), epoch),
            ],
            [self._path],
        )

    async def mark_stopping(self) -> None:
        """Tell the cluster that this broker is stopping. Returns when this was read back. Raises `NoNode`."""
        assert self.broker is not None
        self.broker = replace(self.broker, stopping=True)
        await self.publish()

    def set_labels(self, labels: tuple[str, ...] | None = None, endpoints: Sequence[Endpoint] = ()) -> Deferred[None]:
        """Tell the cluster the labels (`broker.labels`) or addresses that this broker has from now on.

        Fires when this was read back. Fails with the store's errors. If the connection to the store is lost meanwhile,
        the registration is written again when the connection is restored.
        """
        ours = self.broker
        if ours is None or (labels in (None, ours.labels) and tuple(endpoints) in ((), ours.endpoints)):
            return succeed(None)
        labels, endpoints = ours.labels if labels is None else labels, tuple(endpoints) or ours.endpoints
        self.broker = replace(ours, labels=labels, endpoints=endpoints)
        self._label_writes += 1
        return Deferred.fromCoroutine(self.publish()).addBoth(self._labels_written)

    def _labels_written(self, result: T) -> T:
        self._label_writes -= 1
        if not self._label_writes:
            waiting, self._label_waiters = self._label_waiters, []
            for one in waiting:
                one.callback(None)
        return result

    def labels_settled(self) -> Deferred[None]:
        """Return a Deferred that fires when no change by `set_labels` is being written; it never fails."""
        if not self._label_writes:
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._label_waiters.append(done)
        return done

    def report_outages(self, outages: Outages) -> Deferred[None]:
        """Tell the cluster which replicas of this broker are offline or full, now and after every loss of the session.

        Fires when this was read back. Fails with the store's errors.
        """
        if self.broker is None:
            return succeed(None)  # another broker has this node id
        self.broker = replace(self.broker, outages=outages)
        return Deferred.fromCoroutine(self.publish())

    async def publish(self) -> None:
        """Replace the content of this broker's registration by `broker`."""
        assert self.broker is not None
        await self._feed.write([SetData(self._path, encode_broker(self.broker))], [self._path])
