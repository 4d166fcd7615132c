"""Sample the states and the lag of the consumer groups that this broker coordinates.

Only the controller's broker shows the groups of consumers that coordinate through ZooKeeper (`store.consumers`).

Strategy: a timer takes samples, and metrics show the last one. The log ends of partitions that this broker leads are
read in memory; other leaders are asked, with one request each for thousands of partitions. A group's lag in records is
the sum over the partitions with committed offsets; its lag in seconds is the largest of these partitions' lags
(`EndHistory`). The `most_groups` groups with the largest lag are shown by name, all others together as `REST`.

Gaps: partitions whose leader does not answer are left out of the lag, and counted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import PylogdError
from pylogd.base.steps import in_steps
from pylogd.broker.groups import GroupCoordinator
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.broker.metrics.survey import REST
from pylogd.broker.replica.partition_registry import PartitionRegistry
from pylogd.store.consumers import RegisteredGroups
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

log = Logger()

Key = tuple[str, int]
_LATEST: Final = -1  # the time stamp that requests the log end
_CLIENT: Final = -1
_PARTITIONS_PER_REQUEST: Final = 5000
_MOST_SAMPLES: Final = 24  # of one partition's log end


class EndHistory:
    """Samples of one partition's log end offset, which tell when a record was appended, without reading the record.

    A sample is a time, in seconds of a monotonic clock, and the log end offset at that time. A record was appended
    between the last sample that ends before it and the first one that ends after it; its time is interpolated between
    the two. When there are `_MOST_SAMPLES`, every second one of the older half is dropped: the history has a constant
    size, and older times are less exact.
    """

    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._times = array("d")
        self._ends = array("q")

    def add(self, now: float, end: int) -> None:
        """Add a sample: the log ends at offset `end`. If it ended later before (truncated), drop older samples."""
        times, ends = self._times, self._ends
        if ends and end < ends[-1]:
            del times[:], ends[:]
        if len(ends) > 1 and end == ends[-1] == ends[-2]:
            times[-1] = now
            return
        times.append(now)
        ends.append(end)
        if len(ends) > _MOST_SAMPLES:
            older = len(ends) // 2
            del times[1:older:2], ends[1:older:2]

    def seconds_behind(self, offset: int, now: float) -> float:
        """Return how many seconds ago the record at `offset` was appended; 0 if the log has no such record yet.

        For a record older than the first sample, return the age of that sample: a lower bound.
        """
        times, ends = self._times, self._ends
        if not ends or offset >= ends[-1]:
            return 0.0
        after = bisect_right(ends, offset)  # the first sample with the record
        if after == 0:
            return now - times[0]
        share = (offset - ends[after - 1]) / (ends[after] - ends[after - 1])
        return now - (times[after - 1] + share * (times[after] - times[after - 1]))


class GroupLag(NamedTuple):
    """The lag of a group.

    seconds: the age of the oldest record that it has not committed.
    """

    records: int
    seconds: float


class GroupSample(NamedTuple):
    """The result of a sample.

    states: the number of groups, by type and state.
    members: the number of members of all groups.
    lags: the lags by group id or `REST`.
    unknown: the number of partitions whose log end is unknown.
    """

    states: Mapping[tuple[str, str], int]
    members: int
    lags: Mapping[str, GroupLag]
    unknown: int


_NOTHING: Final = GroupSample({}, 0, {}, 0)
_NO_LAG: Final = GroupLag(0, 0.0)


class GroupLagSampler:
    """Samples the groups periodically.

    last: the last complete sample.
    """

    def __init__(
        self,
        groups: GroupCoordinator,
        partitions: PartitionRegistry,
        topics: TopicRegistry,
        connect: Callable[[int], Deferred[Any]],
        clock: IReactorTime,
        seconds: float,
        most_groups: Callable[[], int],
        registered: RegisteredGroups,
    ) -> None:
        """Arguments:

        connect: takes a broker's id and returns a connection to it.
        seconds: the time between two samples.
        registered: the groups in ZooKeeper.
        """
        self._groups = groups
        self._partitions = partitions
        self._topics = topics
        self._connect = connect
        self._clock = clock
        self._seconds = seconds
        self._most_groups = most_groups
        self._registered = registered
        self._histories: dict[Key, EndHistory] = {}
        self._timer: IDelayedCall | None = None
        self._running: Deferred[None] | None = None
        self.last = _NOTHING

    def start(self) -> None:
        """Take a sample now, and then one every `seconds`."""
        self._timer = None
        self._running = Deferred.fromCoroutine(self.sample())
        self._running.addErrback(_log_unexpected)
        self._running.addBoth(self._again)

    def _again(self, _: None) -> None:
        self._running = None
        self._timer = self._clock.callLater(self._seconds, self.start)

    def stop(self) -> None:
        """Take no further samples. The last figures stay."""
        if self._running is not None:
            self._running.cancel()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    async def sample(self) -> None:
        """Take one sample: read committed and end offsets, and update the lag of each group."""
        _, groups = self._groups.groups()
        states: Counter[tuple[str, str]] = Counter()
        wanted: set[Key] = set()
        await in_steps(self._look_at(groups, states, wanted), self._clock)
        members = sum(len(group.members) for group in groups)
        await self._registered.read()
        await in_steps(self._registered.count(states, wanted), self._clock)
        members += self._registered.members
        ends = await self._find_ends(wanted)
        lags: dict[str, GroupLag] = {}
        now = self._clock.seconds()
        await in_steps(self._compute(groups, ends, lags, now), self._clock)
        self._histories = {key: self._histories[key] for key in ends}
        self.last = GroupSample(states, members, _largest(lags, self._most_groups()), len(wanted - ends.keys()))

    def _look_at(self, groups: Iterable[Any], states: Counter[tuple[str, str]], wanted: set[Key]) -> Iterator[None]:
        for group in groups:
            if isinstance(group, ConsumerGroup):
                states["consumer", group.state.value] += 1
            else:
                states["classic", group.state.kafka_name] += 1
            wanted.update(self._groups.committed(group.group_id))
            yield

    def _compute(
        self, groups: Iterable[Any], ends: Mapping[Key, int], lags: dict[str, GroupLag], now: float
    ) -> Iterator[None]:
        for key, end in ends.items():
            self._histories.setdefault(key, EndHistory()).add(now, end)
            yield
        for group in groups:
            committed = self._groups.committed(group.group_id)
            yield from self._add(group.group_id, {key: one.offset for key, one in committed.items()}, ends, lags, now)
        for name, registered in self._registered.found.items():
            yield from self._add(name, registered.offsets, ends, lags, now)

    def _add(
        self, name: str, offsets: Mapping[Key, int], ends: Mapping[Key, int], lags: dict[str, GroupLag], now: float
    ) -> Iterator[None]:
        """Add the lag of a group. A group in ZooKeeper may have the same name as a group of this broker."""
        records, seconds = lags.get(name, _NO_LAG)
        for key, offset in offsets.items():
            if key in ends and offset < ends[key]:
                records += ends[key] - offset
                seconds = max(seconds, self._histories[key].seconds_behind(offset, now))
            yield
        if offsets:
            lags[name] = GroupLag(records, seconds)

    async def _find_ends(self, wanted: Iterable[Key]) -> dict[Key, int]:
        """Return the log end offsets for consumers, without partitions whose leader does not answer."""
        ends: dict[Key, int] = {}
        elsewhere: dict[int, list[Key]] = {}
        for key in wanted:
            partition = self._partitions.by_name.get(key)
            if partition is not None and partition.leading:
                ends[key] = partition.high_watermark
                continue
            topic = self._topics.get(key[0])
            if topic is not None and key[1] < len(topic.partitions):
                elsewhere.setdefault(topic.partitions[key[1]].leader, []).append(key)
        for node, keys in elsewhere.items():
            try:
                ends.update(await self._ask(node, keys))
            except PylogdError as error:
                log.debug("Can't ask broker {node} for log ends: {error}", node=node, error=error)
        return ends

    async def _ask(self, node: int, keys: list[Key]) -> dict[Key, int]:
        connection = await self._connect(node)
        ends: dict[Key, int] = {}
        try:
            for at in range(0, len(keys), _PARTITIONS_PER_REQUEST):
                topics: dict[str, ListOffsetsTopic] = {}
                for name, index in keys[at : at + _PARTITIONS_PER_REQUEST]:
                    topic = topics.setdefault(name, ListOffsetsTopic(name))
                    topic.partitions.append(ListOffsetsPartition(index, timestamp=_LATEST))
                response = await connection.request(ListOffsetsRequest(_CLIENT, topics=list(topics.values())))
                for found in response.topics:
                    for one in found.partitions:
                        if not one.error_code:
                            ends[found.name, one.partition_index] = one.offset
        finally:
            connection.close()
        return ends


def _largest(lags: Mapping[str, GroupLag], most: int) -> dict[str, GroupLag]:
    """Return the largest lags by group, and the sum of the others as `REST`."""
    ordered = sorted(lags, key=lambda name: (-lags[name].seconds, -lags[name].records, name))
    shown = {name: lags[name] for name in ordered[:most] if name != REST}
    others = [lag for name, lag in lags.items() if name not in shown]
    if others:
        shown[REST] = GroupLag(sum(lag.records for lag in others), max(lag.seconds for lag in others))
    return shown


def _log_unexpected(failure: Failure) -> None:
    if not failure.check(CancelledError):
        log.failure("Unexpected error while the lag of consumer groups was measured", failure)
