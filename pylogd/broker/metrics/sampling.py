"""Start and stop everything that samples a broker for its metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from time import thread_time
from typing import TYPE_CHECKING, Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from pylogd.base.histogram import Histogram
from pylogd.broker.api.statistics import STATISTICS
from pylogd.broker.metadata.cluster import Cluster
from pylogd.broker.metadata.image import NO_LEADER
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.broker.metrics.disk_space import DiskSpace
from pylogd.broker.metrics.group_lag import GroupLagSampler
from pylogd.broker.metrics.survey import Survey
from pylogd.broker.telemetry.otlp import Gauge
from pylogd.broker.telemetry.service import Telemetry
from pylogd.store.consumers import RegisteredGroups
from pylogd.store.interfaces import IMetadataStore, SessionState
from pylogd.wire.size_sampling import SizeSampler

if TYPE_CHECKING:
    from pylogd.broker.broker import Broker

#: The seconds between two measurements of the reactor.
REACTOR_SECONDS: Final = 0.05
#: The seconds over which the reactor's idle share is averaged, as for Kafka's one-minute rates.
_MINUTE: Final = 60.0


class ReactorLag:
    """Measures how late the reactor's timers fire, which is how long any event waits for it, and how much it is idle.

    The reactor's thread is busy while it uses a processor, and while it is late because a disk or the machine has
    delayed it. One timer measures both, so requests cost nothing more.

    lag: a histogram of delays in seconds.
    idle: the share of about the last minute in which the reactor was idle.
    """

    def __init__(
        self, clock: IReactorTime, tick: Callable[[], object], processor: Callable[[], float] = thread_time
    ) -> None:
        """`tick` is called after each measurement. `processor` returns the seconds of processor time of this thread."""
        self._clock = clock
        self._tick = tick
        self._processor = processor
        self._call: IDelayedCall | None = None
        self._elapsed = self._last = self._used = 0.0
        self.lag = Histogram()
        self.idle = 1.0

    def start(self) -> None:
        """Measure from now on: each tick of the timer adds its delay to `lag`."""
        self._last, self._used = self._clock.seconds(), self._processor()
        self._next(self._last)

    def stop(self) -> None:
        """Stop measuring. `lag` and `idle` keep their values."""
        if self._call is not None and self._call.active():
            self._call.cancel()

    def _next(self, now: float) -> None:
        self._call = self._clock.callLater(REACTOR_SECONDS, self._fired, now + REACTOR_SECONDS)

    def _fired(self, due: float) -> None:
        now, used = self._clock.seconds(), self._processor()
        late = max(now - due, 0.0)
        self.lag.observe(late)
        passed, busy = now - self._last, max(used - self._used, late)
        self._last, self._used = now, used
        if passed > 0:
            self._elapsed += passed
            weight = max(1 - math.exp(-passed / _MINUTE), passed / self._elapsed)
            self.idle += weight * (1 - min(busy / passed, 1.0) - self.idle)
        self._tick()
        self._next(self._clock.seconds())


@dataclass(slots=True)
class ClusterCounts:
    """The numbers of topics, partitions and live brokers that the controller knows; zeros on other brokers.

    offline: partitions without a leader, or with a leader that is not live.
    not_preferred: partitions that are led by another replica than the preferred one.
    """

    topics: int = 0
    partitions: int = 0
    offline: int = 0
    not_preferred: int = 0
    brokers: int = 0


class ClusterView:
    """Counts the partitions of the cluster.

    counts: the result of the last complete walk.
    """

    def __init__(self, cluster: Cluster, topics: TopicRegistry) -> None:
        self._cluster = cluster
        self._topics = topics
        self.counts = ClusterCounts()

    def walk(self) -> Iterator[None]:
        """Count all partitions, and yield after each, so that the caller can pause. Only the controller counts."""
        counts = ClusterCounts()
        if self._cluster.controller_id == self._cluster.node_id:
            brokers = self._cluster.brokers
            counts.brokers = len(brokers)
            for topic in self._topics.all():
                counts.topics += 1
                for state in topic.partitions:
                    counts.partitions += 1
                    counts.offline += state.leader == NO_LEADER or state.leader not in brokers
                    counts.not_preferred += state.leader != state.replicas[0]
                    yield
        self.counts = counts


class SessionWatch:
    """Watches the session with the metadata store.

    connected: the present state.
    connects, disconnects, expiries: the numbers of events since the start, without the first session.
    """

    def __init__(self, store: IMetadataStore) -> None:
        self.connected = True  # true at first: the broker does not start without the store
        self.connects = self.disconnects = self.expiries = 0
        self._forget = store.on_session(self._changed)

    def _changed(self, state: SessionState) -> None:
        self.disconnects += state is SessionState.SUSPENDED
        self.expiries += state is SessionState.EXPIRED
        self.connects += state is SessionState.CONNECTED
        self.connected = state is SessionState.CONNECTED

    def stop(self) -> None:
        """Stop watching the session."""
        self._forget()


class ClientValues:
    """The gauges and sums that clients have pushed, by client id and name, from the last walk."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self.gauges: dict[tuple[str, str], Gauge] = {}
        self.sums: dict[tuple[str, str], float] = {}

    def walk(self) -> Iterator[None]:
        """Walk over all clients. The caller may pause after each."""
        self._telemetry.sweep()
        gauges: dict[tuple[str, str], Gauge] = {}
        sums: dict[tuple[str, str], float] = {}
        yield from self._telemetry.values.walk(gauges)
        for client_id, found in list(self._telemetry.values.sums.items()):
            sums.update(((client_id, name), value) for name, value in found.items())
            yield
        self.gauges, self.sums = gauges, sums


class Samplers:
    """All samplers of a broker.

    survey, cluster, clients: the samplers that `walk` updates before each page of metrics; the others have timers.
    """

    def __init__(self, broker: Broker, clock: IReactorTime) -> None:
        settings = broker.settings
        self._broker = broker
        self.survey = Survey(
            broker.parts.partitions, lambda: settings.integer("metrics.topics.max"),
            lambda: settings.integer("metrics.partitions.max"),
        )  # fmt: skip
        self.cluster = ClusterView(broker.parts.cluster, broker.parts.topics)
        self.clients = ClientValues(broker.parts.telemetry)
        self._sizes = SizeSampler(STATISTICS.request_size, STATISTICS.response_size)
        self.session = SessionWatch(broker.metadata.store)
        self.space = DiskSpace(broker.storage.logs, broker.replica_parts.disk_calls, clock)
        self.reactor = ReactorLag(clock, self._sample_requests)
        self.groups = GroupLagSampler(
            broker.parts.groups, broker.parts.partitions, broker.parts.topics, broker.connect, clock,
            settings.integer("metrics.group.lag.interval.ms") / 1000, lambda: settings.integer("metrics.groups.max"),
            RegisteredGroups(
                broker.metadata.store, broker.parts.topics.names,
                lambda: broker.parts.cluster.controller_id == broker.parts.cluster.node_id,
            ),
        )  # fmt: skip

    def start(self) -> None:
        """Start the timers. Call it after the broker has started."""
        for dispatcher in self._broker.dispatchers:
            dispatcher.watch()
        self._sample_requests()
        self.space.start()
        self.reactor.start()
        self.groups.start()

    def walk(self) -> Iterator[None]:
        """Update `survey`, `cluster` and `clients`. The caller may pause at each step."""
        return chain(self.survey.walk(), self.cluster.walk(), self.clients.walk())

    def stop(self) -> None:
        """Stop the timers of all samplers. Sampled figures keep their last values."""
        self.groups.stop()
        self.reactor.stop()
        self.space.stop()
        self.session.stop()

    def _sample_requests(self) -> None:
        for dispatcher in self._broker.dispatchers:
            dispatcher.sample()
        self._sizes.sample()
        self._broker.storage.logs.storage.writes.sample()
