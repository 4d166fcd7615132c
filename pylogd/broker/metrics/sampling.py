"""Start and stop everything that samples a broker for its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from pylogd.broker.api.statistics import STATISTICS
from pylogd.broker.metadata.cluster import Cluster
from pylogd.broker.metadata.image import NO_LEADER
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.broker.metrics.disk_space import DiskSpace
from pylogd.broker.metrics.group_lag import GroupLagSampler
from pylogd.broker.metrics.reactor_lag import ReactorLag
from pylogd.broker.metrics.survey import Survey
from pylogd.broker.telemetry.otlp import Gauge
from pylogd.broker.telemetry.service import Telemetry
from pylogd.store.consumers import RegisteredGroups
from pylogd.store.interfaces import IMetadataStore, SessionState
from pylogd.wire.size_sampling import SizeSampler

if TYPE_CHECKING:
    from pylogd.broker.broker import Broker


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
