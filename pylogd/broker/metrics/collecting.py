"""Compute the metrics of `table` from the counters and states of a broker's parts."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import Metric

import twisted
from pylogd import __version__
from pylogd.base.errors import ErrorCode
from pylogd.base.limits.log_lines import COUNTS
from pylogd.broker.api.registry import REGISTRATIONS
from pylogd.broker.api.statistics import FETCH, PRODUCE, STATISTICS
from pylogd.broker.metrics.text import Values, metrics
from pylogd.broker.net.page_cache import READ_AHEAD
from pylogd.broker.telemetry.values import REST
from pylogd.store.consumers import ZOOKEEPER

if TYPE_CHECKING:
    from pylogd.broker.broker import Broker
    from pylogd.broker.metrics.sampling import Samplers

Found = Iterator[tuple[str, Values]]
_TOPIC: Final = "kafka_server_brokertopicmetrics_"
_REPLICAS: Final = "kafka_server_replicamanager_"
_CONTROLLER: Final = "kafka_controller_kafkacontroller_"
_PARTITION: Final = "kafka_cluster_partition_"
_SOCKETS: Final = "kafka_server_socket_server_metrics_"
_GROUPS: Final = "kafka_coordinator_group_groupmetadatamanager_"
_GROUP_STATES: Final = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
#: The most names of clients' software with their own label.
_MOST_SOFTWARE: Final = 20


class BrokerMetrics:
    """The metrics of a broker, except those of its operating system process."""

    def __init__(self, broker: Broker, samplers: Samplers, ready: Callable[[], bool]) -> None:
        """`ready` returns whether the broker serves requests."""
        self._broker = broker
        self._samplers = samplers
        self._ready = ready

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its present values. The caller may pause after each."""
        for source in (
            self._process, self._requests, self._quotas, self._connections, self._topics, self._partitions,
            self._each_partition, self._cluster, self._disks, self._logs, self._groups, self._clients,
        ):  # fmt: skip
            for name, values in source():
                yield from metrics(name, values)

    def _process(self) -> Found:
        session = self._samplers.session
        versions = (__version__, platform.python_version(), twisted.__version__, str(self._broker.node_id))
        host = self._broker.settings.text("host.id") or ""
        yield "pylogd_build_info", [((*versions, host), 1)]
        yield "pylogd_ready", float(self._ready())
        idle = self._samplers.reactor.idle
        yield "pylogd_reactor_lag_seconds", self._samplers.reactor.lag
        yield "kafka_network_socketserver_networkprocessoravgidle_percent", idle
        yield "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", idle
        yield "pylogd_metadata_session_connected", float(session.connected)
        yield "kafka_server_sessionexpirelistener_zookeeperdisconnects", session.disconnects
        yield "kafka_server_sessionexpirelistener_zookeeperexpires", session.expiries
        yield "kafka_server_sessionexpirelistener_zookeepersyncconnects", session.connects
        yield "pylogd_events", [((event,), count) for event, count in COUNTS.items()]

    def _requests(self) -> Found:
        counts = [(key, STATISTICS.requests[key]) for key in REGISTRATIONS]
        fast = self._samplers.survey.produce_requests
        yield (
            "kafka_network_requestmetrics_requests",
            [*(((_api(key),), count + (fast if key == PRODUCE else 0)) for key, count in counts), *_whose_fetches()],
        )
        yield (
            "kafka_network_requestmetrics_errors",
            [((_api(key), _error(code)), count) for (key, code), count in sorted(STATISTICS.errors.items())],
        )
        durations = [(key, found) for key, found in sorted(STATISTICS.durations.items()) if any(found.counts)]
        yield (
            "pylogd_request_duration_seconds",
            [((_api(key),), found) for key, found in durations],
        )
        for name, sizes in (("request", STATISTICS.request_sizes), ("response", STATISTICS.response_sizes)):
            yield f"pylogd_{name}_size_bytes", [((_api(key),), found) for key, found in sorted(sizes.items())]
        yield "pylogd_cold_reads", STATISTICS.cold_reads
        yield "pylogd_read_ahead_bytes", READ_AHEAD.total

    def _quotas(self) -> Found:
        quotas, most = self._broker.parts.client_quotas, self._broker.settings.integer("metrics.clients.max")
        yield "pylogd_throttled_requests", [((name,), count) for name, count in STATISTICS.throttled.items()]
        yield "pylogd_throttle_seconds", [((name,), sum_) for name, sum_ in STATISTICS.throttled_seconds.items()]
        usage = [((one.kind.value, *map(_label, one.entity)), one) for one in quotas.usage(most)]
        yield "pylogd_quota_used", [(labels, one.used) for labels, one in usage]
        yield "pylogd_quota_limit", [(labels, one.limit) for labels, one in usage]
        yield "pylogd_quota_entities", [((kind.value,), count) for kind, count in quotas.counted().items()]

    def _connections(self) -> Found:
        broker = self._broker
        counts = dict(broker.listening.counts())
        taken = dict(broker.listening.served())
        for name in ("pylogd_connections", _SOCKETS + "connection_count"):
            yield name, [((listener,), count) for listener, count in counts.items()]
        yield _SOCKETS + "connection_creation", [((listener,), count) for listener, count in taken.items()]
        yield _SOCKETS + "connection_close", [((one,), count - counts[one]) for one, count in taken.items()]
        yield "kafka_server_fetchsessioncache_numincrementalfetchsessions", len(broker.parts.fetch_sessions)
        yield "kafka_server_fetchsessioncache_incrementalfetchsessionevictions", broker.parts.fetch_sessions.evictions
        waits = (("Fetch", len(broker.parts.fetch_waits)), ("Produce", len(broker.parts.replicas.append_waits)))
        yield (
            "kafka_server_delayedoperationpurgatory_numdelayedoperations",
            [((kind,), count) for kind, count in waits],
        )

    def _topics(self) -> Found:
        topics = sorted(self._samplers.survey.topics.items())
        yield _TOPIC + "messagesin", [((name,), sums.messages_in) for name, sums in topics]
        yield _TOPIC + "bytesin", [((name,), sums.bytes_in) for name, sums in topics]
        yield _TOPIC + "bytesout", [((name,), sums.bytes_out) for name, sums in topics]
        yield _TOPIC + "replicationbytesin", [((name,), sums.replicated_in) for name, sums in topics]
        yield _TOPIC + "replicationbytesout", [((name,), sums.replicated_out) for name, sums in topics]
        yield "pylogd_topic_fetches", [((name,), sums.fetches) for name, sums in topics]
        yield _TOPIC + "totalproducerequests", [((name,), sums.produces) for name, sums in topics]
        yield _TOPIC + "failedproducerequests", [((name,), sums.failed_produces) for name, sums in topics]
        yield _TOPIC + "totalfetchrequests", [((name,), sums.all_fetches) for name, sums in topics]
        yield _TOPIC + "failedfetchrequests", [((name,), sums.failed_fetches) for name, sums in topics]
        yield _TOPIC + "producemessageconversions", 0
        yield _TOPIC + "fetchmessageconversions", 0

    def _each_partition(self) -> Found:
        # Generators, since there may be many values, which are written in pieces.
        found = self._samplers.survey.partitions
        yield "kafka_log_log_size", ((labels, one.size) for labels, one in found.items())
        yield "kafka_log_log_numlogsegments", ((labels, one.segments) for labels, one in found.items())
        yield (
            "kafka_log_log_logstartoffset",
            ((labels, one.start) for labels, one in found.items() if one.start is not None),
        )
        yield "kafka_log_log_logendoffset", ((labels, one.end) for labels, one in found.items() if one.end is not None)
        yield _PARTITION + "replicascount", ((labels, one.replicas) for labels, one in found.items())
        yield _PARTITION + "insyncreplicascount", ((labels, one.in_sync) for labels, one in found.items())
        yield _PARTITION + "underreplicated", ((labels, one.under_replicated) for labels, one in found.items())
        yield _PARTITION + "underminisr", ((labels, one.under_min_isr) for labels, one in found.items())
        yield _PARTITION + "atminisr", ((labels, one.at_min_isr) for labels, one in found.items())

    def _partitions(self) -> Found:
        counts, updater = self._samplers.survey.counts, self._broker.parts.isr_updater
        yield _REPLICAS + "partitioncount", counts.partitions
        yield _REPLICAS + "leadercount", counts.leaders
        yield _REPLICAS + "underreplicatedpartitions", counts.under_replicated
        yield _REPLICAS + "underminisrpartitioncount", counts.under_min_isr
        yield _REPLICAS + "atminisrpartitioncount", counts.at_min_isr
        yield _REPLICAS + "reassigningpartitions", counts.moving
        yield _REPLICAS + "offlinereplicacount", counts.offline
        yield _REPLICAS + "isrshrinks", updater.shrinks
        yield _REPLICAS + "isrexpands", updater.expands

    def _cluster(self) -> Found:
        counts = self._samplers.cluster.counts
        yield _CONTROLLER + "activecontrollercount", float(self._broker.controller.active)
        yield _CONTROLLER + "offlinepartitionscount", counts.offline
        yield _CONTROLLER + "preferredreplicaimbalancecount", counts.not_preferred
        yield _CONTROLLER + "globaltopiccount", counts.topics
        yield _CONTROLLER + "globalpartitioncount", counts.partitions
        yield _CONTROLLER + "activebrokercount", counts.brokers
        elections = self._broker.controller.unclean_elections + self._broker.parts.partition_admin.unclean_elections
        yield "kafka_controller_controllerstats_uncleanleaderelections", elections

    def _disks(self) -> Found:
        logs, spaces = self._broker.storage.logs, self._samplers.space.spaces
        found = sorted(self._samplers.survey.directories.items())
        online = [((entry.path,), float(entry.failure is None)) for entry in logs.directories]
        yield "pylogd_log_dir_online", online
        yield "kafka_log_logmanager_offlinelogdirectorycount", sum(1 for _, there in online if not there)
        yield "pylogd_log_dir_full", [((entry.path,), float(entry.full)) for entry in logs.directories]
        yield "pylogd_log_dir_partitions", [((path,), sums.partitions) for path, sums in found]
        yield "pylogd_log_dir_segments", [((path,), sums.segments) for path, sums in found]
        yield "pylogd_log_dir_size_bytes", [((path,), sums.size) for path, sums in found]
        yield "pylogd_log_dir_free_bytes", [((path,), space.free) for path, space in sorted(spaces.items())]
        yield "pylogd_log_dir_capacity_bytes", [((path,), space.total) for path, space in sorted(spaces.items())]

    def _logs(self) -> Found:
        broker = self._broker
        yield "pylogd_log_write_duration_seconds", broker.storage.logs.storage.writes.seconds
        yield "pylogd_log_flush_duration_seconds", broker.storage.logs.storage.flushes
        yield "pylogd_log_cleaner_compactions", broker.storage.cleaners.completed
        yield "pylogd_log_cleaner_threads_working", broker.storage.cleaners.working
        read, written = broker.storage.cleaners.rewritten
        yield "pylogd_log_cleaner_read_bytes", read
        yield "pylogd_log_cleaner_written_bytes", written
        yield "pylogd_log_cleaner_given_up_logs", broker.storage.cleaners.given_up
        yield "kafka_log_logcleanermanager_max_dirty_percent", broker.storage.cleaners.most_dirty * 100
        if broker.storage.block_cache is not None:
            yield "pylogd_block_cache_hit_bytes", broker.storage.block_cache.counters.hit_bytes
            yield "pylogd_block_cache_miss_bytes", broker.storage.block_cache.counters.miss_bytes

    def _groups(self) -> Found:
        sample = self._samplers.groups.last
        lags = sorted(sample.lags.items())
        yield "pylogd_groups", sorted(sample.states.items())
        own = [(state, count) for (kind, state), count in sample.states.items() if kind != ZOOKEEPER]
        yield _GROUPS + "numgroups", sum(count for _, count in own)
        for state in _GROUP_STATES:
            count = sum(count for one, count in own if one == state)
            yield _GROUPS + "numgroups" + state.lower(), count
        yield "pylogd_group_members", sample.members
        yield "pylogd_group_lag_records", [((name,), lag.records) for name, lag in lags]
        yield "pylogd_group_lag_seconds", [((name,), lag.seconds) for name, lag in lags]
        yield "pylogd_group_lag_unknown_partitions", sample.unknown

    def _clients(self) -> Found:
        telemetry, clients = self._broker.parts.telemetry, self._samplers.clients
        software = Counter(instance.client.software[0] for instance in telemetry.instances)
        yield "pylogd_client_instances", [((name,), count) for name, count in _largest(software).items()]
        yield "pylogd_client_pushes", [((code.name,), count) for code, count in sorted(telemetry.pushes.items())]
        yield "pylogd_client_ignored_metrics", telemetry.values.ignored
        # Generators, since there may be many values, which are written in pieces.
        yield "pylogd_client_gauge_max", ((key, gauge.largest) for key, gauge in clients.gauges.items())
        yield "pylogd_client_gauge_summed", ((key, gauge.sum) for key, gauge in clients.gauges.items())
        yield "pylogd_client_counter", ((key, value) for key, value in clients.sums.items())


def _largest(counts: Counter[str]) -> dict[str, int]:
    """Return the most frequent names with their counts, and the sum of all others."""
    found = dict(counts.most_common(_MOST_SOFTWARE))
    rest = counts.total() - sum(found.values())
    return {**found, REST: rest} if rest else found


def _whose_fetches() -> list[tuple[tuple[str, ...], int]]:
    """Return the counts of fetches by sender: clients and followers. Kafka also has them beside their sum."""
    of_followers = STATISTICS.follower_fetches
    return [(("FetchConsumer",), STATISTICS.requests[FETCH] - of_followers), (("FetchFollower",), of_followers)]


def _label(name: str | None) -> str:
    return name or ""


def _api(api_key: int) -> str:
    return REGISTRATIONS[api_key].name


def _error(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
