"""Sample a cluster repeatedly in the background, and keep the last sample for the pages.

Strategy: samples are taken one after another, in limited pieces (`cluster_requests`), between which the reactor is
free. The next sample begins after `interval` seconds, or after twice the time that the last one took (at most a
minute): a large cluster is asked less often, so that the console uses no more than a third of a processor for it.
Brokers are asked in parallel. Begins of logs and sizes change slowly and are requested with every `_SLOW_EVERY`th
sample; the free space of data directories is requested with each sample.

Rules: a broker that fails is not asked again in the same sample; its data is unknown, and recorded as a gap. If a
sample fails as a whole, the last one stays, with the reason.

Connections and the reactor's lag are not in the Kafka protocol. They come from the brokers' metrics pages: each page is
read in a thread, with limits on size and time, and only needed lines are parsed. The lag is the mean between the last
two reads.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.deferreds import all_run
from pylogd.base.errors import PylogdError, error_for
from pylogd.base.steps import in_steps
from pylogd.base.threads import ThreadPool
from pylogd.client.core.admin.calls import Calls, refresh
from pylogd.client.core.admin.health import MOST_CONFIGS, Facts, Partitions, judge
from pylogd.client.core.admin.offsets import EARLIEST, LATEST
from pylogd.client.core.admin.operations import Operations
from pylogd.client.core.model import LogDir
from pylogd.services.console import cluster_requests
from pylogd.services.console.groups import GroupSampler, ZooKeeperGroups
from pylogd.services.console.sample import BrokerState, Directory, Gaps, Nodes, Sample, TopicState
from pylogd.services.console.series import POINTS, UNKNOWN, TopicSeries
from pylogd.web.client import open_url, read_body

log = Logger()

_SECONDS: Final = 5.0
_MOST_BYTES: Final = 32 << 20
_NODE: Final = re.compile(r'^pylogd_build_info\{[^}]*\bnode="(\d+)"', re.MULTILINE)
_CONNECTIONS: Final = re.compile(r"^pylogd_connections\{[^}]*\} (\S+)", re.MULTILINE)
_LAG: Final = re.compile(r"^pylogd_reactor_lag_seconds_(sum|count) (\S+)", re.MULTILINE)


class _Lag(NamedTuple):
    total: float
    fired: float


class Figures:
    """Reads the brokers' metrics pages.

    last: the figures of each broker by its id, as of the last `read`.
    """

    def __init__(self, reactor: Any, urls: Sequence[str]) -> None:
        self._urls = urls
        self._pool = ThreadPool(reactor, 2, "console-figures")
        self._lags: dict[int, _Lag] = {}
        self.last: dict[int, Mapping[str, float]] = {}

    def stop(self) -> None:
        """End the threads that read the pages, once the present reads have ended."""
        self._pool.stop()

    async def read(self) -> list[str]:
        """Read the metrics pages of all brokers. Return a line for each that could not be read, with the reason."""
        problems = []
        found: dict[int, Mapping[str, float]] = {}
        for url in self._urls:
            try:
                text = await self._pool.defer(_fetch, url)
                node, figures = self.parse(text)
                found[node] = figures
            except (OSError, ValueError) as error:
                problems.append(f"the metrics at {url} are not known: {error}")
        self.last = found
        return problems

    def parse(self, text: str) -> tuple[int, Mapping[str, float]]:
        """Return a broker's id and figures. Raises ValueError if it is not a broker's page."""
        named = _NODE.search(text)
        if named is None:
            raise ValueError("it is not a page of a pylogd broker")
        node = int(named[1])
        figures = {"connections": sum(float(value) for value in _CONNECTIONS.findall(text))}
        parts = dict(_LAG.findall(text))
        if len(parts) == 2:
            now, before = _Lag(float(parts["sum"]), float(parts["count"])), self._lags.get(node)
            self._lags[node] = now
            if before is not None and now.fired > before.fired:
                figures["reactor lag"] = (now.total - before.total) / (now.fired - before.fired)
        return node, figures


def _fetch(url: str) -> str:
    with open_url(url, _SECONDS) as answer:
        return read_body(answer, _MOST_BYTES).decode("utf-8", "replace")


_SLOW_EVERY: Final = 6
_BUSY_FACTOR: Final = 2.0
_LONGEST_PAUSE: Final = 60.0
_NEXT_BROKER_SECONDS: Final = 5.0  # the wait for an answer about the cluster before another broker is asked


class ClusterSampler:
    """Takes samples of a cluster, one after another.

    last: the last complete sample; before the first, an empty sample with the number 0.
    listeners: functions that are called after each sample, even if it failed.
    """

    def __init__(
        self,
        calls: Calls,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        interval: float = 10.0,
        figures: Figures | None = None,
        registered: ZooKeeperGroups | None = None,
    ) -> None:
        """interval: the least seconds between samples.
        figures: reads the brokers' metrics pages; None without any.
        registered: the groups in ZooKeeper; None without one.
        """
        self._figures = figures
        self._calls = calls
        self._clock = clock
        self._now_ms = now_ms
        self._interval = interval
        self._operations = Operations(calls, 10.0)
        self._groups = GroupSampler(calls, clock, registered)
        self._series: dict[str, TopicSeries] = {}
        self._timer: IDelayedCall | None = None
        self._running: Deferred[None] | None = None
        self.listeners: set[Callable[[], None]] = set()
        self.last = Sample()
        self._times: deque[int] = deque(maxlen=POINTS)

    def start(self) -> None:
        """Take a sample now, and the next ones at the interval, until `stop`."""
        self._timer = None
        begun = self._clock.seconds()
        running = self._running = Deferred.fromCoroutine(self.sample())
        running.addErrback(self._failed)
        running.addBoth(lambda _: self._schedule(self._clock.seconds() - begun))

    def _schedule(self, took: float) -> None:
        self._running = None
        pause = max(self._interval, min(_BUSY_FACTOR * took, _LONGEST_PAUSE))
        self._timer = self._clock.callLater(pause, self.start)
        for listener in list(self.listeners):
            listener()

    def stop(self) -> None:
        """Take no further samples, and close the connections that only samples use."""
        if self._running is not None:
            self._running.cancel()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._figures is not None:
            self._figures.stop()
        self._groups.stop()

    def sample_soon(self) -> None:
        """Take the next sample now, such as after a change."""
        if self._timer is not None and self._timer.active():
            self._timer.reset(0)

    def times(self, count: int) -> list[int]:
        """Return when the last `count` samples were complete, in seconds since 1970."""
        return [at_ms // 1000 for at_ms in self._times][-count:] if count else []

    def _failed(self, failure: Failure) -> None:
        if failure.check(CancelledError):
            return
        if not failure.check(PylogdError):
            log.failure("Unexpected error while a cluster was sampled", failure)
        self.last = replace(self.last, error=failure.getErrorMessage() or "the cluster does not answer")

    async def sample(self) -> None:
        """Take one sample, and return once it is in `last`. Raises PylogdError if no broker answers."""
        begun = self._clock.seconds()
        before, sample = self.last, Sample(number=self.last.number + 1)
        gaps = Gaps()
        await self._ask_brokers(sample)
        partitions = await self._ask_topics(sample)
        if before.number % _SLOW_EVERY == 0:
            await self._ask_sizes(sample, gaps)
        else:
            await in_steps(_keep_slow(before, sample), self._clock)
            await all_run(self._ask_sizes_of(node, state, sample, gaps, ()) for node, state in sample.brokers.items())
        await self._ask_begins(sample, gaps)
        await self._ask_ends(sample, gaps)
        await self._groups.sample(sample, gaps)
        await self._ask_figures(sample, gaps)
        facts = await self._facts(sample, partitions, gaps)
        sample.reasons = judge(facts)
        sample.gaps = gaps.texts
        sample.partitions = partitions.count
        sample.at_ms, sample.seconds = self._now_ms(), self._clock.seconds() - begun
        self._series = {name: topic.series for name, topic in sample.topics.items()}
        self._times.append(sample.at_ms)
        self.last = sample

    async def _ask_brokers(self, sample: Sample) -> None:
        await refresh(self._calls, timeout=_NEXT_BROKER_SECONDS)
        metadata = self._calls.metadata
        sample.cluster_id, sample.controller = metadata.cluster_id, metadata.controller_id
        try:
            cluster = await self._operations.describe_cluster(_NEXT_BROKER_SECONDS)
            described = {one.node_id: one for one in cluster.brokers}
        except PylogdError:
            described = {}  # an older broker
        sample.brokers = {
            node: BrokerState(described.get(node, broker)) for node, broker in sorted(metadata.brokers.items())
        }

    async def _ask_topics(self, sample: Sample) -> Partitions:
        found = Partitions()
        shared: dict[Nodes, Nodes] = {}  # most partitions have one of a few sets of replicas
        async for page in cluster_requests.topic_pages(self._calls):
            await in_steps(self._add(page, sample, found, shared), self._clock)
        return found

    def _add(
        self, page: list[cluster_requests.FoundTopic], sample: Sample, found: Partitions, shared: dict[Nodes, Nodes]
    ) -> Iterator[None]:
        for each in page:
            topic = sample.topics.get(each.name)
            if topic is None:
                known = self._series.get(each.name)
                series = TopicSeries() if known is None else known
                topic = sample.topics[each.name] = TopicState(each.name, each.topic_id, each.internal, series)
            for index, leader, replicas, isr in each.partitions:
                if index != len(topic):
                    continue  # the topic is being created, or is on two pages
                topic.add(leader, shared.setdefault(replicas, replicas), shared.setdefault(isr, isr))
                found.add(each.name, index, leader, replicas, isr)
                _count(sample.brokers, leader, replicas, isr)
                yield

    async def _ask_begins(self, sample: Sample, gaps: Gaps) -> None:
        """Ask for the begins of logs, for topics in which some are unknown, such as new topics."""
        for topic in sample.topics.values():
            if not topic.begins:
                topic.begins = array("q", [UNKNOWN]) * len(topic)
        await self._by_leader(
            sample, gaps, EARLIEST, lambda topic, index, offset: _set(topic.begins, index, offset),
            lambda topic: UNKNOWN in topic.begins,
        )  # fmt: skip

    async def _ask_ends(self, sample: Sample, gaps: Gaps) -> None:
        ends = {name: array("q", [UNKNOWN]) * len(topic) for name, topic in sample.topics.items()}
        await self._by_leader(sample, gaps, LATEST, lambda topic, index, offset: _set(ends[topic.name], index, offset))
        now = self._clock.seconds()

        def note() -> Iterator[None]:
            for name, topic in sample.topics.items():
                topic.series.add(now, ends[name])
                yield

        await in_steps(note(), self._clock)

    async def _by_leader(
        self, sample: Sample, gaps: Gaps, timestamp: int, take: Callable[[TopicState, int, int], None],
        wanted: Callable[[TopicState], bool] = lambda _topic: True,
    ) -> None:  # fmt: skip
        """Ask the leaders of partitions for their offsets at a time stamp, and pass each to `take`.

        take: called with the topic, the partition and its offset.
        wanted: returns whether a topic is included.

        Partitions whose leader does not answer are left unchanged, and recorded in `gaps`.
        """

        async def ask(node: int) -> None:
            led = (
                (name, index)
                for name, topic in sample.topics.items()
                if wanted(topic)
                for index, leader in enumerate(topic.leaders)
                if leader == node
            )
            for keys in _chunks(led, cluster_requests.PARTITIONS):
                if node in gaps.nodes:
                    return
                try:
                    found = await cluster_requests.find_offsets_at(self._calls, node, keys, timestamp)
                except PylogdError as error:
                    gaps.add(node, f"broker {node} does not tell offsets: {error}")
                    return
                for (name, index), offset in found.items():
                    take(sample.topics[name], index, offset)

        await all_run(ask(node) for node in sample.brokers)

    async def _ask_sizes(self, sample: Sample, gaps: Gaps) -> None:
        for topic in sample.topics.values():
            topic.sizes = array("q", [UNKNOWN]) * len(topic)
        await all_run(
            self._ask_sizes_of(node, state, sample, gaps, sample.topics.values())
            for node, state in sample.brokers.items()
        )

    async def _ask_sizes_of(
        self, node: int, state: BrokerState, sample: Sample, gaps: Gaps, topics: Iterable[TopicState]
    ) -> None:
        """Ask a broker for its directories with their free space, and for the sizes of some topics' partitions."""
        hosted = (
            (topic.name, [index for index, nodes in enumerate(topic.replicas) if node in nodes]) for topic in topics
        )
        found: dict[str, Directory] = {}
        try:
            async for answer in cluster_requests.log_dir_pages(self._calls, node, (one for one in hosted if one[1])):
                await in_steps(_add_sizes(answer.results, node, sample, found), self._clock)
        except PylogdError as error:
            gaps.add(None, f"broker {node} does not tell sizes: {error}")
            state.size = None
        state.directories = sorted(found.values())

    async def _ask_figures(self, sample: Sample, gaps: Gaps) -> None:
        if self._figures is None:
            return
        for problem in await self._figures.read():
            gaps.add(None, problem)
        for node, state in sample.brokers.items():
            state.figures = self._figures.last.get(node, {})

    async def _facts(self, sample: Sample, partitions: Partitions, gaps: Gaps) -> Facts:
        least: dict[str, int] = {}
        for name in list(partitions.lacking)[:MOST_CONFIGS]:
            try:
                for entry in await self._operations.describe_configs("topic", name, ["min.insync.replicas"]):
                    least[name] = int(entry.value or 1)
            except (PylogdError, ValueError) as error:
                gaps.add(None, f"the settings of {name} are not known: {error}")
                break
        directories = [
            LogDir(one.broker, one.path, one.error, _number(one.total), _number(one.usable), {})
            for state in sample.brokers.values()
            for one in state.directories
        ]
        return Facts(list(sample.brokers), sample.controller, partitions, least, directories, sorted(gaps.nodes))


def _chunks(keys: Iterator[tuple[str, int]], size: int) -> Iterator[list[tuple[str, int]]]:
    chunk: list[tuple[str, int]] = []
    for key in keys:
        chunk.append(key)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _set(numbers: array[int], index: int, value: int) -> None:
    if index < len(numbers):
        numbers[index] = value


def _number(value: int | None) -> int:
    return UNKNOWN if value is None else value


def _count(brokers: dict[int, BrokerState], leader: int, replicas: Nodes, isr: Nodes) -> None:
    for node in replicas:
        if node in brokers:
            brokers[node].replicas += 1
    if leader in brokers:
        brokers[leader].leaders += 1
        brokers[leader].lacking += len(isr) < len(replicas)


def _add_sizes(results: list[Any], node: int, sample: Sample, found: dict[str, Directory]) -> Iterator[None]:
    """Add the sizes that a broker reported. The size of a leader counts as the size of its partition."""
    state = sample.brokers[node]
    for one in results:
        error = error_for(one.error_code).name if one.error_code else None
        total, usable = (value if value >= 0 else None for value in (one.total_bytes, one.usable_bytes))
        found[one.log_dir] = Directory(node, one.log_dir, error, total, usable, one.is_cordoned)
        for each in one.topics:
            topic = sample.topics.get(each.name)
            for partition in each.partitions:
                state.size = (state.size or 0) + partition.partition_size
                index = partition.partition_index
                if topic is not None and index < len(topic) and topic.leaders[index] == node:
                    topic.sizes[index] = partition.partition_size
                yield


def _keep_slow(before: Sample, sample: Sample) -> Iterator[None]:
    """Copy slowly changing data from the previous sample."""
    for name, topic in sample.topics.items():
        known = before.topics.get(name)
        if known is not None:
            missing = max(len(topic) - len(known), 0)
            topic.begins = (known.begins + array("q", [UNKNOWN]) * missing)[: len(topic)]
            topic.sizes = (known.sizes + array("q", [UNKNOWN]) * missing)[: len(topic)]
        yield
    for node, state in sample.brokers.items():
        if node in before.brokers:
            state.size = before.brokers[node].size
