"""The table of all metrics: their names, types, labels and meanings. docs/monitoring.md is generated from it.

Names: a metric that is an MBean in Kafka has the name that Prometheus' JMX exporter gives it with
`lowercaseOutputName`: domain, type and name, joined by underscores, without `PerSec`; counters end with `_total`. There
are no metrics for rates and percentiles of MBeans: counters and histograms replace them. All other names begin with
`pylogd_`. Times are in seconds and sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple


class Kind(Enum):
    """The type of a metric in Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Definition(NamedTuple):
    """A metric.

    name: the name, without the suffix `_total` of counters.
    text: its help text.
    labels: the names of its labels.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()

    @property
    def sample_name(self) -> str:
        """The name that queries use."""
        suffix = {Kind.GAUGE: "", Kind.COUNTER: "_total", Kind.HISTOGRAM: "_bucket"}[self.kind]
        return self.name + suffix


_GAUGE, _COUNTER, _HISTOGRAM = Kind
#: The labels of the entity of a quota. Labels that do not apply are empty.
_CLIENT: Final = ("quota", "user", "client_id", "ip")
_TOPIC: Final = "kafka_server_brokertopicmetrics_"
_REPLICAS: Final = "kafka_server_replicamanager_"
_CONTROLLER: Final = "kafka_controller_kafkacontroller_"
_PARTITION: Final = "kafka_cluster_partition_"
_SOCKETS: Final = "kafka_server_socket_server_metrics_"
_GROUPS: Final = "kafka_coordinator_group_groupmetadatamanager_"
_OF_PARTITION: Final = ("topic", "partition")

#: Metrics by the heading of their section.
SECTIONS: Final[Mapping[str, tuple[Definition, ...]]] = MappingProxyType(
    {
        "Broker": (
            Definition("pylogd_build_info", _GAUGE, "Versions and machine; always 1", (
                "version", "python", "twisted", "node", "host_id",
            )),
            Definition("pylogd_ready", _GAUGE, "Whether the broker serves: 1 if /readyz answers 200"),
            Definition("kafka_server_kafkaserver_brokerstate", _GAUGE,
                       "3 while the broker serves, 1 while it starts, 7 while it stops"),
            Definition("kafka_network_socketserver_networkprocessoravgidle_percent", _GAUGE,
                       "Share of about the last minute in which the reactor's thread had nothing to do, from 0 to 1: "
                       "it used no processor, and no timer was late"),
            Definition("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", _GAUGE,
                       "The same: one thread reads from the network and handles requests"),
            Definition("kafka_server_kafkaserver_linux_disk_read_bytes", _GAUGE,
                       "Bytes that the process has had read from disks (Linux)"),
            Definition("kafka_server_kafkaserver_linux_disk_write_bytes", _GAUGE,
                       "Bytes that the process has had written to disks (Linux)"),
            Definition("pylogd_reactor_lag_seconds", _HISTOGRAM,
                       "How late the reactor's timers fire: how long requests wait for their turn"),
            Definition("pylogd_metadata_session_connected", _GAUGE,
                       "Whether the session with the metadata store is connected (ZooKeeper); always 1 without"),
            Definition("kafka_server_sessionexpirelistener_zookeeperdisconnects", _COUNTER,
                       "Connections to the metadata store that were lost"),
            Definition("kafka_server_sessionexpirelistener_zookeeperexpires", _COUNTER,
                       "Sessions with the metadata store that expired"),
            Definition("kafka_server_sessionexpirelistener_zookeepersyncconnects", _COUNTER,
                       "Connections to the metadata store that were made again, after the first"),
            Definition("pylogd_events", _COUNTER,
                       "Connections and clients that were refused, cut off or closed, as in the log", ("event",)),
        ),
        "Requests": (
            Definition("kafka_network_requestmetrics_requests", _COUNTER,
                       "Requests, by API; those of Fetch once more as FetchConsumer or FetchFollower, as Kafka does",
                       ("request",)),
            Definition("kafka_network_requestmetrics_errors", _COUNTER,
                       "Errors that clients were told, by API; of Fetch and Produce one for each partition",
                       ("request", "error")),
            Definition("pylogd_request_duration_seconds", _HISTOGRAM,
                       "Time from the start of a request's handling to its answer, with waits. Sampled: one request of "
                       "each API and listener in 50 ms, at most", ("request",)),
            Definition("pylogd_request_size_bytes", _HISTOGRAM,
                       "Sizes of requests without their header. Sampled likewise, one of each API and version",
                       ("request",)),
            Definition("pylogd_response_size_bytes", _HISTOGRAM,
                       "Sizes of responses without their header. Sampled likewise", ("request",)),
            Definition("pylogd_connections", _GAUGE,
                       "Connections, by listener", ("listener",)),
            Definition(_SOCKETS + "connection_count", _GAUGE, "The same, under Kafka's name", ("listener",)),
            Definition(_SOCKETS + "connection_creation", _COUNTER, "Connections that were taken", ("listener",)),
            Definition(_SOCKETS + "connection_close", _COUNTER, "Connections that have ended", ("listener",)),
            Definition("kafka_server_fetchsessioncache_numincrementalfetchsessions", _GAUGE,
                       "Fetch sessions (KIP-227), of clients and followers"),
            Definition("kafka_server_fetchsessioncache_incrementalfetchsessionevictions", _COUNTER,
                       "Fetch sessions that were closed to make room for others"),
            Definition("kafka_server_delayedoperationpurgatory_numdelayedoperations", _GAUGE,
                       "Requests that wait: for records (Fetch), or for replicas (Produce)", ("delayedoperation",)),
            Definition("pylogd_cold_reads", _COUNTER,
                       "Partitions of fetches whose records had to be looked up on the disk"),
            Definition("pylogd_read_ahead_bytes", _COUNTER, "Bytes read from the disk in order to be sent"),
        ),
        "Quotas": (
            Definition("pylogd_throttled_requests", _COUNTER,
                       "Requests after which a quota muted their connection", ("quota",)),
            Definition("pylogd_throttle_seconds", _COUNTER, "For how long quotas muted connections", ("quota",)),
            Definition("pylogd_quota_used", _COUNTER,
                       "What clients have used of a quota, since they were last idle: bytes, percent of a thread's "
                       "seconds, partitions, connections. Compare its rate with `pylogd_quota_limit`", _CLIENT),
            Definition("pylogd_quota_limit", _GAUGE, "What the quota allows them in a second on this broker", _CLIENT),
            Definition("pylogd_quota_entities", _GAUGE,
                       "Users, client ids and addresses that used any of a quota lately", ("quota",)),
        ),
        "Topics": (
            Definition(_TOPIC + "messagesin", _COUNTER, "Records appended by clients", ("topic",)),
            Definition(_TOPIC + "bytesin", _COUNTER, "Bytes appended by clients", ("topic",)),
            Definition(_TOPIC + "bytesout", _COUNTER, "Bytes of records sent to clients", ("topic",)),
            Definition(_TOPIC + "replicationbytesin", _COUNTER, "Bytes copied from leaders", ("topic",)),
            Definition(_TOPIC + "replicationbytesout", _COUNTER, "Bytes of records sent to followers", ("topic",)),
            Definition(_TOPIC + "totalproducerequests", _COUNTER, "Produce requests, one for each partition",
                       ("topic",)),
            Definition(_TOPIC + "failedproducerequests", _COUNTER,
                       "Those that failed, apart from errors that Kafka's brokers do not count either: another leader, "
                       "a record that is too large or damaged, a disk", ("topic",)),
            Definition(_TOPIC + "totalfetchrequests", _COUNTER,
                       "Fetches of clients and followers that found records, or an error; one for each partition",
                       ("topic",)),
            Definition(_TOPIC + "failedfetchrequests", _COUNTER,
                       "Those that failed, apart from errors that Kafka's brokers do not count either: another leader "
                       "or epoch, an offset out of range, a disk", ("topic",)),
            Definition(_TOPIC + "producemessageconversions", _COUNTER,
                       "Records that were converted for storage; always 0: batches are stored as they were sent"),
            Definition(_TOPIC + "fetchmessageconversions", _COUNTER,
                       "Records that were converted for a client; always 0: batches are sent as they are stored"),
            Definition("pylogd_topic_fetches", _COUNTER,
                       "Fetches of clients that found records, one for each partition", ("topic",)),
            Definition("kafka_log_log_size", _GAUGE, "Size of the log on this broker", _OF_PARTITION),
            Definition("kafka_log_log_numlogsegments", _GAUGE, "Segments of the log on this broker", _OF_PARTITION),
            Definition("kafka_log_log_logstartoffset", _GAUGE,
                       "Offset of the first record of the log; not for the partition `(other)`", _OF_PARTITION),
            Definition("kafka_log_log_logendoffset", _GAUGE,
                       "Offset after the last record of the log; not for the partition `(other)`", _OF_PARTITION),
        ),
        "Partitions": (
            Definition(_REPLICAS + "partitioncount", _GAUGE, "Partitions that this broker has replicas of"),
            Definition(_REPLICAS + "leadercount", _GAUGE, "Partitions that it leads"),
            Definition(_REPLICAS + "underreplicatedpartitions", _GAUGE,
                       "Partitions that it leads with replicas that are not in sync"),
            Definition(_REPLICAS + "underminisrpartitioncount", _GAUGE,
                       "Partitions that it leads with too few replicas in sync for acks=all (min.insync.replicas)"),
            Definition(_REPLICAS + "atminisrpartitioncount", _GAUGE,
                       "Partitions that it leads that would refuse acks=all if one more replica failed"),
            Definition(_REPLICAS + "reassigningpartitions", _GAUGE,
                       "Partitions that it leads whose replicas are being moved"),
            Definition(_REPLICAS + "offlinereplicacount", _GAUGE, "Replicas whose data directory is offline"),
            Definition(_REPLICAS + "isrshrinks", _COUNTER, "In-sync sets that it made smaller"),
            Definition(_REPLICAS + "isrexpands", _COUNTER, "In-sync sets that it made larger"),
            Definition(_PARTITION + "replicascount", _GAUGE,
                       "Replicas of a partition that this broker leads; 0 where it follows", _OF_PARTITION),
            Definition(_PARTITION + "insyncreplicascount", _GAUGE,
                       "Replicas in sync of a partition that this broker leads; 0 where it follows", _OF_PARTITION),
            Definition(_PARTITION + "underreplicated", _GAUGE,
                       "Whether this broker leads the partition and replicas are not in sync", _OF_PARTITION),
            Definition(_PARTITION + "underminisr", _GAUGE,
                       "Whether it leads the partition, with too few replicas in sync for acks=all", _OF_PARTITION),
            Definition(_PARTITION + "atminisr", _GAUGE,
                       "Whether it leads the partition, which would refuse acks=all if one more replica failed",
                       _OF_PARTITION),
        ),
        "Cluster": (
            Definition(_CONTROLLER + "activecontrollercount", _GAUGE,
                       "Whether this broker is the controller: the sum over all brokers should be 1"),
            Definition(_CONTROLLER + "offlinepartitionscount", _GAUGE,
                       "Partitions without a live leader; 0 where this broker is not the controller"),
            Definition(_CONTROLLER + "preferredreplicaimbalancecount", _GAUGE,
                       "Partitions not led by their preferred replica; 0 where this broker is not the controller"),
            Definition(_CONTROLLER + "globaltopiccount", _GAUGE, "Topics; 0 where this broker is not the controller"),
            Definition(_CONTROLLER + "globalpartitioncount", _GAUGE,
                       "Partitions; 0 where this broker is not the controller"),
            Definition("kafka_controller_controllerstats_uncleanleaderelections", _COUNTER,
                       "Leaders that this broker, as the controller, elected though they were not in sync: records may "
                       "be lost"),
            Definition(_CONTROLLER + "activebrokercount", _GAUGE,
                       "Live brokers; 0 where this broker is not the controller"),
        ),
        "Disks": (
            Definition("pylogd_log_dir_online", _GAUGE, "Whether a data directory is in use", ("directory",)),
            Definition("kafka_log_logmanager_offlinelogdirectorycount", _GAUGE, "Data directories that are offline"),
            Definition("pylogd_log_dir_full", _GAUGE,
                       "Whether its volume is full, so that nothing can be appended", ("directory",)),
            Definition("pylogd_log_dir_partitions", _GAUGE, "Partitions in a data directory", ("directory",)),
            Definition("pylogd_log_dir_segments", _GAUGE, "Segments in a data directory", ("directory",)),
            Definition("pylogd_log_dir_size_bytes", _GAUGE, "Size of the logs in a data directory", ("directory",)),
            Definition("pylogd_log_dir_free_bytes", _GAUGE,
                       "Free space of its volume, sampled every 15 s", ("directory",)),
            Definition("pylogd_log_dir_capacity_bytes", _GAUGE, "Size of its volume", ("directory",)),
            Definition("pylogd_log_write_duration_seconds", _HISTOGRAM,
                       "How long writes to files of logs take. Sampled: one in 50 ms, at most"),
            Definition("pylogd_log_flush_duration_seconds", _HISTOGRAM, "How long syncs of segments take"),
            Definition("pylogd_log_cleaner_compactions", _COUNTER, "Logs that the cleaner has compacted"),
            Definition("pylogd_log_cleaner_threads_working", _GAUGE,
                       "Threads of the cleaner that compact, or look at, a log"),
            Definition("pylogd_log_cleaner_read_bytes", _COUNTER, "Bytes that compactions have read"),
            Definition("pylogd_log_cleaner_written_bytes", _COUNTER, "Bytes that compactions have written"),
            Definition("pylogd_log_cleaner_given_up_logs", _GAUGE,
                       "Logs that are not compacted until the next start, since they are damaged"),
            Definition("kafka_log_logcleanermanager_max_dirty_percent", _GAUGE,
                       "The largest share of a compacted log's bytes that wait for compaction, at the last look"),
            Definition("pylogd_block_cache_hit_bytes", _COUNTER, "Bytes sent from the block cache"),
            Definition("pylogd_block_cache_miss_bytes", _COUNTER, "Bytes sent from files beside the block cache"),
        ),
        "Consumer groups": (
            Definition("pylogd_groups", _GAUGE,
                       "Groups that this broker coordinates; those in ZooKeeper (type zookeeper) on the controller",
                       ("type", "state")),
            Definition(_GROUPS + "numgroups", _GAUGE, "All that it coordinates"),
            Definition(_GROUPS + "numgroupsempty", _GAUGE, "Those without members"),
            Definition(_GROUPS + "numgroupspreparingrebalance", _GAUGE, "Classic groups whose members join"),
            Definition(_GROUPS + "numgroupscompletingrebalance", _GAUGE, "Classic groups whose members are assigned"),
            Definition(_GROUPS + "numgroupsstable", _GAUGE, "Groups in which every member has its assignment"),
            Definition(_GROUPS + "numgroupsdead", _GAUGE, "Groups that are being removed"),
            Definition("pylogd_group_members", _GAUGE, "Members of all these groups"),
            Definition("pylogd_group_lag_records", _GAUGE,
                       "Records that a group has not committed yet, of all its partitions", ("group",)),
            Definition("pylogd_group_lag_seconds", _GAUGE,
                       "For how long the oldest record is there that a group has not committed", ("group",)),
            Definition("pylogd_group_lag_unknown_partitions", _GAUGE,
                       "Partitions with committed offsets whose log end is not known: they are left out"),
        ),
        "Clients": (
            Definition("pylogd_client_instances", _GAUGE,
                       "Clients that have asked this broker which metrics to push (KIP-714), by their software",
                       ("software",)),
            Definition("pylogd_client_pushes", _COUNTER, "Pushes of metrics, by error; NONE: taken", ("error",)),
            Definition("pylogd_client_ignored_metrics", _COUNTER,
                       "Metrics in pushes that were left out: histograms, and names beyond the bound"),
            Definition("pylogd_client_gauge_max", _GAUGE,
                       "A gauge that clients push: the largest of its values, of all clients of the id",
                       ("client_id", "metric")),
            Definition("pylogd_client_gauge_summed", _GAUGE,
                       "A gauge that clients push: the sum of its values, of all clients of the id",
                       ("client_id", "metric")),
            Definition("pylogd_client_counter", _COUNTER,
                       "A counter that clients push: the sum of what was added", ("client_id", "metric")),
        ),
    }
)  # fmt: skip

DEFINITIONS: Final[Mapping[str, Definition]] = MappingProxyType(
    {one.name: one for section in SECTIONS.values() for one in section}
)
