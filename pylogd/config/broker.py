"""The table of broker settings, with Kafka's names and defaults (release 4.0).

Strategy: literal lists, in the order of the reference manual (`storage` has the settings of logs). Validation,
DescribeConfigs, `docs/settings.md` and `etc/pylogd.toml` are derived from them. The table has only settings that the
broker uses.

If a default differs from Kafka's, or Kafka has no such setting, the description says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pylogd.config.authorization import AUTHORIZATION_SETTINGS
from pylogd.config.connections import CONNECTION_SETTINGS
from pylogd.config.consumer_groups import CONSUMER_GROUP_SETTINGS
from pylogd.config.coordinators import LABELS_OF_NEW_TOPICS
from pylogd.config.group_limits import GROUP_LIMITS
from pylogd.config.isolation import ISOLATION_SETTINGS
from pylogd.config.labels import BROKER_LABELS
from pylogd.config.lagging import LAGGING_SETTINGS
from pylogd.config.leaders import LEADER_SETTINGS
from pylogd.config.limits import PRODUCER_LIMITS, REQUEST_LIMITS
from pylogd.config.listeners import OWN_NAMES, SecurityProtocol
from pylogd.config.metrics import METRICS_SETTINGS
from pylogd.config.profiles import PROFILE
from pylogd.config.quotas import QUOTA_SETTINGS
from pylogd.config.replication import REPLICATION_SETTINGS
from pylogd.config.sasl import SASL_SETTINGS
from pylogd.config.storage import HOUR_MS, MIB, MINUTE_MS, STORAGE_SETTINGS
from pylogd.config.tls import TLS_SETTINGS
from pylogd.config.transactions import TRANSACTION_SETTINGS
from pylogd.config.values import INT_MAX, ConfigType, Mode, Setting
from pylogd.config.zookeeper import ZOOKEEPER_SETTINGS

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _LIST = ConfigType.LONG, ConfigType.LIST
_DYNAMIC: Final = Mode.DYNAMIC

_IDENTITY: Final = "Identity and addresses"
_METADATA: Final = "Metadata"
_TOPICS: Final = "Topics"
_NETWORK: Final = "Network"
_REQUESTS: Final = "Requests"
_REPLICATION: Final = "Replication and producers"
_GROUPS: Final = "Consumer groups"
_THREADS: Final = "Threads and shutdown"

_IDENTITY_SETTINGS: Final = [
    Setting(
        "node.id",
        _INT,
        1,
        "The broker's number, unique in its cluster. It is written into every data directory, "
        "and a directory of another node is refused. (Kafka has no default.)",
        _IDENTITY,
        minimum=0,
    ),
    Setting(
        "listeners",
        _LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Where the broker listens: `NAME://host:port`, `host:port`, or a Twisted endpoint string such as "
        "`tcp:9092:interface=127.0.0.1`. An empty host means every IPv4 interface; port 0 picks a free one. Names "
        "must differ; `listener.security.protocol.map` says how each is protected. For clients on other machines, "
        "set an address that they can reach, and use TLS. Listeners can be added, removed and moved to other ports at "
        "run time, but that between brokers can't be removed. (Kafka's default is every interface.)",
        _IDENTITY,
        mode=_DYNAMIC,
        per_broker=True,
    ),
    Setting(
        "listener.security.protocol.map",
        _LIST,
        OWN_NAMES,
        "How the connections of a listener are protected, by its name: `NAME:PROTOCOL` with PLAINTEXT, SSL, "
        "SASL_PLAINTEXT or SASL_SSL. A value replaces the default map, so list all names in use.",
        _IDENTITY,
        mode=_DYNAMIC,
        per_broker=True,
    ),
    Setting(
        "inter.broker.listener.name",
        _STRING,
        None,
        "The name of the listener that brokers use for connections to each other. Unset: the listener named by "
        "`security.inter.broker.protocol`, or else the first listener.",
        _IDENTITY,
        nullable=True,
    ),
    Setting(
        "security.inter.broker.protocol",
        _STRING,
        None,
        "The name of the listener between brokers, if the listener is named like its protocol. Can't be used with "
        "`inter.broker.listener.name`. (Kafka's default is PLAINTEXT.)",
        _IDENTITY,
        choices=tuple(SecurityProtocol.__members__),
        nullable=True,
    ),
    Setting(
        "advertised.listeners",
        _LIST,
        None,
        "The addresses that clients connect to, by listener name, if they differ from the addresses in `listeners` "
        "(behind NAT, in a container). Unset: the addresses in `listeners`; a listener on all interfaces is then "
        "advertised with the machine's host name.",
        _IDENTITY,
        nullable=True,
    ),
    Setting(
        "broker.rack",
        _STRING,
        None,
        "The rack, or availability zone, of the broker. Replicas of a partition are spread over racks.",
        _IDENTITY,
        nullable=True,
    ),
    Setting(
        "host.id",
        _STRING,
        None,
        "The machine that the broker runs on, if other brokers run there too. Two replicas of a partition are on the "
        "same machine only if there are more replicas than machines; machines take precedence over racks. Unset: the "
        "broker counts as the only one on its machine; with `pylogd broker --workers`, the machine's host name. "
        "(Only in pylogd.)",
        _IDENTITY,
        nullable=True,
    ),
    BROKER_LABELS,
    PROFILE,
]

_METADATA_SETTINGS: Final = [
    Setting(
        "metadata.store",
        _STRING,
        None,
        "Where topics, their settings and broker registrations are stored: `sqlite:/path/to/file` for the embedded "
        "store, or `unix:/path/to/socket` if another process on this machine serves it (`pylogd broker --workers`). "
        "Unset: the file `store.sqlite` in the first of `log.dirs`. Can't be used with `zookeeper.connect`, which "
        "stores them in ZooKeeper. (Only in pylogd.)",
        _METADATA,
        nullable=True,
    ),
]

_TOPIC_SETTINGS: Final = [
    Setting(
        "auto.create.topics.enable",
        _BOOLEAN,
        True,
        "Whether to create a missing topic when a client requests its metadata and allows its creation.",
        _TOPICS,
    ),
    Setting("delete.topic.enable", _BOOLEAN, True, "Whether topics may be deleted by request.", _TOPICS),
    Setting(
        "num.partitions",
        _INT,
        1,
        "Number of partitions of a topic that is created without this number.",
        _TOPICS,
        minimum=1,
    ),
    Setting(
        "default.replication.factor",
        _INT,
        1,
        "Number of replicas of each partition of a topic that is created without a replication factor. A single "
        "broker can hold one replica.",
        _TOPICS,
        minimum=1,
        maximum=32767,
    ),
    Setting(
        "max.partitions.per.request",
        _INT,
        10_000,
        "Most partitions that one CreateTopics or CreatePartitions request may add. (Only in pylogd; Kafka has the "
        "same limit as a constant.)",
        _TOPICS,
        minimum=1,
    ),
    *LABELS_OF_NEW_TOPICS,
]

_NETWORK_SETTINGS: Final = [
    Setting(
        "socket.request.max.bytes",
        _INT,
        100 * MIB,
        "Largest request in bytes. A frame that announces more, or a negative length, closes the connection before "
        "memory is allocated for it.",
        _NETWORK,
        minimum=1,
    ),
    Setting(
        "socket.send.buffer.bytes",
        _INT,
        -1,
        "SO_SNDBUF of client connections. -1: the system adapts the buffer to the connection, so that a fetch needs "
        "few calls. (Kafka's default is 102400.)",
        _NETWORK,
        minimum=-1,
    ),
    Setting(
        "socket.receive.buffer.bytes",
        _INT,
        -1,
        "SO_RCVBUF of client connections. -1: the system decides. (Kafka's default is 102400.)",
        _NETWORK,
        minimum=-1,
    ),
    Setting(
        "socket.listen.backlog.size",
        _INT,
        1024,
        "Connections of a listener that the kernel queues before they are accepted; the kernel takes the lesser of "
        "this and `net.core.somaxconn`, 4096 since Linux 5.4. When the queue is full, the kernel drops the packets "
        "of new clients, which retry after 1, 3, 7 and 15 s. (Kafka's default is 50. This is too few here: one "
        "thread accepts and serves connections, and after a restart all clients return at once. A queue that is not "
        "full uses memory only for the connections in it.)",
        _NETWORK,
        minimum=1,
    ),
    Setting(
        "connection.max.inflight.requests",
        _INT,
        100,
        "Number of unanswered requests of a connection at which the broker stops reading from the connection. (Only "
        "in pylogd.)",
        _NETWORK,
        minimum=1,
    ),
    Setting(
        "connection.max.queued.response.bytes",
        _INT,
        MIB,
        "Bytes of unsent replies, without file slices, at which the broker stops reading from a connection. (Only in "
        "pylogd.)",
        _NETWORK,
        minimum=1024,
    ),
    Setting(
        "sendfile.max.bytes",
        _INT,
        2 * MIB,
        "Most bytes handed to the kernel in one sendfile call, so that one fast reader can't delay the others. (Only "
        "in pylogd.)",
        _NETWORK,
        minimum=4096,
    ),
]

_REQUEST_SETTINGS: Final = [
    Setting(
        "fetch.max.bytes",
        _INT,
        55 * MIB,
        "Most bytes in the answer to one Fetch, whatever the client asks for. A "
        "first batch larger than this is still returned whole.",
        _REQUESTS,
        minimum=1024,
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        1000,
        "Most incremental fetch sessions (KIP-227) that the broker keeps. 0 disables sessions.",
        _REQUESTS,
        minimum=0,
    ),
]

_IN_SYNC_SETTINGS: Final = [
    Setting(
        "min.insync.replicas",
        _INT,
        1,
        "In-sync replicas that must have a message before acks=all is answered (all of them if a partition has fewer "
        "replicas). With fewer in sync, produce requests with acks=all are refused.",
        _REPLICATION,
        minimum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "unclean.leader.election.enable",
        _BOOLEAN,
        False,
        "Whether a replica that is not in sync may become leader when no other is left. The partition stays "
        "available, but loses messages.",
        _REPLICATION,
        mode=_DYNAMIC,
    ),
    Setting(
        "producer.id.expiration.ms",
        _INT,
        24 * HOUR_MS,
        "Time without writes to a partition after which an idempotent producer is forgotten there.",
        _REPLICATION,
        minimum=1,
        mode=_DYNAMIC,
    ),
]

_GROUP_SETTINGS: Final = [
    Setting(
        "group.min.session.timeout.ms",
        _INT,
        6_000,
        "Shortest session timeout that a member may request.",
        _GROUPS,
        minimum=1,
    ),
    Setting(
        "group.max.session.timeout.ms",
        _INT,
        30 * MINUTE_MS,
        "Longest session timeout that a member may request. A longer timeout delays the detection of dead members.",
        _GROUPS,
        minimum=1,
    ),
    Setting(
        "group.initial.rebalance.delay.ms",
        _INT,
        3_000,
        "How long an empty group waits for more members after the first has joined, and again after each further "
        "one, so that it does not rebalance for each member.",
        _GROUPS,
        minimum=0,
    ),
    Setting("group.max.size", _INT, INT_MAX, "Most members of a group.", _GROUPS, minimum=1),
    *GROUP_LIMITS,
    Setting(
        "offsets.topic.num.partitions",
        _INT,
        50,
        "Partitions of `__consumer_offsets`, which is created at the first use of a group. Each group is kept in one "
        "partition.",
        _GROUPS,
        minimum=1,
    ),
    Setting(
        "offsets.topic.replication.factor",
        _INT,
        3,
        "Replicas of each partition of `__consumer_offsets`. If there are fewer live brokers, the topic is created "
        "with one replica on each, and gets more as brokers join. (Kafka waits for that many brokers before it "
        "creates the topic.)",
        _GROUPS,
        minimum=1,
        maximum=32767,
    ),
    Setting(
        "offsets.topic.segment.bytes",
        _INT,
        100 * MIB,
        "Segment size of `__consumer_offsets`. It is small, so that compaction is quick, and so that a new leader "
        "loads a partition quickly.",
        _GROUPS,
        minimum=1024,
    ),
    Setting(
        "offsets.load.buffer.size",
        _INT,
        5 * MIB,
        "Bytes read at a time from a partition of `__consumer_offsets` when this broker becomes its leader.",
        _GROUPS,
        minimum=1024,
    ),
    Setting(
        "offsets.commit.timeout.ms",
        _INT,
        5_000,
        "Longest time that a commit waits for the replicas of `__consumer_offsets`.",
        _GROUPS,
        minimum=1,
    ),
    Setting(
        "offset.metadata.max.bytes",
        _INT,
        4096,
        "Most bytes of text that a client may store beside an offset.",
        _GROUPS,
        minimum=0,
        maximum=32767,
    ),
    Setting(
        "offsets.retention.minutes",
        _INT,
        7 * 24 * 60,
        "How long the offsets of a group without members are kept, and the offsets of topics to which a group no "
        "longer subscribes. Each commit restarts this time.",
        _GROUPS,
        minimum=1,
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        _LONG,
        10 * MINUTE_MS,
        "How often the broker checks for expired offsets.",
        _GROUPS,
        minimum=1,
    ),
]

_THREAD_SETTINGS: Final = [
    Setting(
        "background.threads",
        _INT,
        10,
        "Most threads for work that waits for a disk: cold reads, flushes, deletions. They are started as needed.",
        _THREADS,
        minimum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        _INT,
        2,
        "Threads that read logs at start, and flush and close them at shutdown. A value that was set at run time holds "
        "from the shutdown on; at a start the logs are read before such values are, with the value of the file. (In "
        "Kafka for each data directory.)",
        _THREADS,
        minimum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "controlled.shutdown.drain.ms",
        _LONG,
        10_000,
        "Longest time that a stopping broker waits for requests in progress before it closes their connections. "
        "(Only in pylogd.)",
        _THREADS,
        minimum=0,
    ),
]

#: Every broker setting by name, in the order of the manual.
SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        setting.name: setting
        for setting in [
            *_IDENTITY_SETTINGS,
            *_METADATA_SETTINGS,
            *ZOOKEEPER_SETTINGS,
            *_TOPIC_SETTINGS,
            *CONNECTION_SETTINGS,
            *TLS_SETTINGS,
            *_NETWORK_SETTINGS,
            *_REQUEST_SETTINGS,
            *REQUEST_LIMITS,
            *AUTHORIZATION_SETTINGS,
            *STORAGE_SETTINGS,
            *ISOLATION_SETTINGS,
            *SASL_SETTINGS,
            *_IN_SYNC_SETTINGS,
            *PRODUCER_LIMITS,
            *REPLICATION_SETTINGS,
            *QUOTA_SETTINGS,
            *LAGGING_SETTINGS,
            *LEADER_SETTINGS,
            *_GROUP_SETTINGS,
            *CONSUMER_GROUP_SETTINGS,
            *TRANSACTION_SETTINGS,
            *_THREAD_SETTINGS,
            *METRICS_SETTINGS,
        ]
    }
)
