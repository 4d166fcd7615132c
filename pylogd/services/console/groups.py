"""Sample the groups of a cluster: states, members, committed offsets, and lags.

With a ZooKeeper, the groups in it are added. If a broker has a group of the same name, the group is
shown as "NAME (zookeeper)".

Strategy: each broker lists the groups that it coordinates and is asked about them, a hundred at a time. A group's lag
in records is the sum over the partitions with committed offsets. Its lag in seconds is that of the partition that is
furthest behind, computed from the log ends of earlier samples (`series`).

The first sample begins to open a connection to ZooKeeper, which stays open, and for which no sample waits. If it can't
be opened, each sample begins another attempt. A ZooKeeper that does not answer is a gap of the sample; the earlier data
stays.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from pylogd.base.deferreds import all_run
from pylogd.base.errors import PylogdError
from pylogd.base.steps import in_steps
from pylogd.client.core.admin.calls import Calls
from pylogd.services.console import cluster_requests
from pylogd.services.console.sample import Committed, Gaps, GroupState, Sample
from pylogd.services.console.series import UNKNOWN, LagSeries
from pylogd.store.consumers import ZOOKEEPER, RegisteredGroup, RegisteredGroups
from pylogd.store.interfaces import IMetadataStore

#: The value in place of a coordinator's id, for a group without one.
NO_COORDINATOR: Final = -1


class ZooKeeperGroups:
    """The groups in a ZooKeeper."""

    def __init__(self, make_store: Callable[[], IMetadataStore]) -> None:
        """`make_store` returns a store that is not started."""
        self._make_store = make_store
        self._store: IMetadataStore | None = None
        self._topics: frozenset[str] = frozenset()
        self._groups: RegisteredGroups | None = None
        self._problem = "not connected yet"

    async def read(self, sample: Sample, gaps: Gaps) -> Mapping[str, RegisteredGroup]:
        """Return the groups by name, with their offsets of the sample's topics."""
        self._topics = frozenset(sample.topics)
        if self._store is None:
            self._connect()
        if self._groups is not None:
            await self._groups.read()
            self._problem = self._groups.problem
        if self._problem:
            gaps.add(None, f"ZooKeeper does not tell its groups: {self._problem}")
        return {} if self._groups is None else self._groups.found

    def _connect(self) -> None:
        self._store = store = self._make_store()
        store.start().addCallbacks(lambda _: self._connected(store), self._failed)

    def _connected(self, store: IMetadataStore) -> None:
        self._groups = RegisteredGroups(store, lambda: self._topics, lambda: True)

    def _failed(self, failure: Failure) -> None:
        self._store, self._problem = None, failure.getErrorMessage()

    def stop(self) -> None:
        """Close the connection."""
        if self._store is not None:
            self._store.close().addErrback(_ignored)


def _ignored(_: Any) -> None:
    """Do nothing: the console ends, so the outcome of its last request does not matter."""


_CONSUMER: Final = "consumer"
_CLASSIC: Final = "classic"


class GroupSampler:
    """Adds groups to samples of a cluster."""

    def __init__(self, calls: Calls, clock: IReactorTime, registered: ZooKeeperGroups | None = None) -> None:
        self._calls = calls
        self._clock = clock
        self._registered = registered
        self._series: dict[str, LagSeries] = {}

    def stop(self) -> None:
        """Close the connection to ZooKeeper, if there is one."""
        if self._registered is not None:
            self._registered.stop()

    async def sample(self, sample: Sample, gaps: Gaps) -> None:
        """Ask all brokers for their groups, and add these to a sample with states, members, offsets and lag.

        The log ends of the sample's topics must be known before, for the lag. Brokers that do not answer are recorded
        in `gaps`; their groups are missing.
        """

        async def ask(node: int) -> None:
            try:
                await self._ask(node, sample)
            except PylogdError as error:
                gaps.add(node, f"broker {node} does not tell its groups: {error}")

        await all_run(ask(node) for node in sample.brokers if node not in gaps.nodes)
        if self._registered is not None:
            found = await self._registered.read(sample, gaps)
            await in_steps(self._add_registered(sample, found), self._clock)
        await in_steps(self._measure(sample), self._clock)
        self._series = {group_id: group.series for group_id, group in sample.groups.items()}

    async def _ask(self, node: int, sample: Sample) -> None:
        mine: dict[str, GroupState] = {}
        for one in await cluster_requests.groups_of(self._calls, node):
            kind = one.group_type.lower() or _CLASSIC
            mine[one.group_id] = GroupState(one.group_id, one.group_state, kind, one.protocol_type, node)
            mine[one.group_id].series = self._series.get(one.group_id) or LagSeries()
        sample.groups.update(mine)
        await self._ask_members(node, mine)
        async for group_id, offsets in cluster_requests.committed_offsets(self._calls, node, list(mine)):
            await in_steps(_collect(mine[group_id], offsets), self._clock)

    def _add_registered(self, sample: Sample, found: Mapping[str, RegisteredGroup]) -> Iterator[None]:
        for name, registered in found.items():
            group_id = name if name not in sample.groups else f"{name} ({ZOOKEEPER})"
            state = "Stable" if registered.members else "Empty"
            group = sample.groups[group_id] = GroupState(group_id, state, ZOOKEEPER, "", NO_COORDINATOR)
            group.series = self._series.get(group_id) or LagSeries()
            group.members = registered.members
            yield from _collect(
                group, ((topic, index, offset) for (topic, index), offset in registered.offsets.items())
            )
            yield

    async def _ask_members(self, node: int, groups: dict[str, GroupState]) -> None:
        for kind, newer in ((_CLASSIC, False), (_CONSUMER, True)):
            ids = [group_id for group_id, group in groups.items() if group.kind == kind]
            if not ids:
                continue
            try:
                found = await cluster_requests.group_summaries(self._calls, node, ids, newer=newer)
            except PylogdError:
                continue  # members stay unknown
            for group_id, (members, protocol, state) in found.items():
                group = groups[group_id]
                group.members, group.protocol, group.state = members, protocol, state or group.state

    def _measure(self, sample: Sample) -> Iterator[None]:
        now = self._clock.seconds()
        by_topic: dict[str, list[str]] = {}
        for group in sample.groups.values():
            lag, seconds, known = 0, 0.0, False
            for name, committed in group.committed.items():
                by_topic.setdefault(name, []).append(group.group_id)
                for index, end, offset in ends_of(sample, name, committed):
                    if end == UNKNOWN:
                        group.unknown += 1
                        continue
                    known = True
                    if offset < end:
                        lag += end - offset
                        seconds = max(seconds, sample.topics[name].series.seconds_behind(index, offset, now))
                    yield
            if known:
                group.lag, group.seconds = lag, seconds
                group.series.add(lag, seconds)
            yield
        sample.by_topic = by_topic


def ends_of(sample: Sample, name: str, committed: Committed) -> Iterator[tuple[int, int, int]]:
    """Yield partition, log end and committed offset; the end is -1 if it is unknown."""
    topic = sample.topics.get(name)
    ends = array("q") if topic is None else topic.series.ends
    for index, offset in zip(*committed, strict=True):
        yield index, ends[index] if index < len(ends) else UNKNOWN, offset


def _collect(group: GroupState, offsets: Iterable[tuple[str, int, int]]) -> Iterator[None]:
    for name, index, offset in offsets:
        committed = group.committed.get(name)
        if committed is None:
            committed = group.committed[name] = Committed(array("i"), array("q"))
        committed.partitions.append(index)
        committed.offsets.append(offset)
        yield
