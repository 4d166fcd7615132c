"""The values of the client's interface: partitions, brokers, topics, settings. Plain values without behaviour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pylogd.base.errors import KafkaError
from pylogd.base.placement.brokers import Brokers, Candidate

DEFAULT_PORT = 9092


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Broker(NamedTuple):
    """A broker of the cluster, and its address.

    Only `describe_cluster` fills in the fields from `host_id` on; metadata does not.
    host_id: the broker's `host.id`, which brokers on the same machine share; None if it has none.
    labels: the labels that the broker carries (`broker.labels`).
    cordoned: whether the broker gets no new replicas.
    full: whether one of its volumes is full.
    room: the number of partitions that it may still get; None for no limit.
    """

    node_id: int
    host: str
    port: int
    rack: str | None = None
    host_id: str | None = None
    labels: tuple[str, ...] = ()
    cordoned: bool = False
    full: bool = False
    room: int | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition in the metadata. `leader` is -1 if the partition has no leader."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


class EligibleReplicas(NamedTuple):
    """The brokers that may lead a partition without being in sync (KIP-966).

    eligible: brokers that have all committed records.
    last_known: brokers that had all of them until their machines stopped without warning.
    """

    eligible: tuple[int, ...]
    last_known: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic in the metadata. `topic_id` is all zero if the broker is too old for topic ids."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: tuple[Partition, ...]


class OffsetAndTime(NamedTuple):
    """The answer to an offset query. `offset` is -1 if no record is that late; `timestamp` is -1 if it is unknown."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the offset of the next record to read, and text stored with it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 means the broker's default.

    `assignments` gives the brokers of each partition's replicas.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


class ConfigEntry(NamedTuple):
    """A setting, its value, and the source of the value."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    documentation: str | None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster: its id, who controls it, its brokers."""

    cluster_id: str | None
    controller: int
    brokers: tuple[Broker, ...]

    @property
    def placement(self) -> Brokers:
        """The live brokers as placement sees them."""
        return Brokers(
            Candidate(one.node_id, one.rack, one.host_id, one.labels, one.cordoned, one.full, one.room)
            for one in self.brokers
        )


class TransactionListing(NamedTuple):
    """A transactional id, and the state of its present or last transaction. `coordinator` is a broker's id."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


#: The states of a transaction that is open, or whose markers are being written.
_UNFINISHED = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})


class TransactionDescription(NamedTuple):
    """A transactional id with its present or last transaction.

    timeout: milliseconds after which the coordinator aborts an open transaction.
    started: the start of the transaction in milliseconds since 1970; -1 before the first transaction.
    partitions: the partitions in the transaction.
    """

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    epoch: int
    timeout: int
    started: int
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        """Whether the transaction has begun, and a partition may not have its marker yet."""
        return self.state in _UNFINISHED


class ActiveProducer(NamedTuple):
    """An idempotent producer that a partition remembers (KIP-664).

    Each field is -1 if it does not apply. Times are in milliseconds since 1970.
    last_sequence: the sequence number of the producer's last record.
    last_timestamp: the time stamp of that record.
    transaction_start: the first offset of the open transaction.
    coordinator_epoch: the epoch of the coordinator that ended the producer's last transaction.
    awaited_until: the time until which new replicas that began with the latest offset wait for this producer.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int
    awaited_until: int = -1


class Reassignment(NamedTuple):
    """A reassignment: the current replicas, and which of them are being added and removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class GroupListing(NamedTuple):
    """A group that a broker coordinates. `state` is empty if the broker is too old to list states."""

    group_id: str
    state: str
    protocol_type: str
    coordinator: int


class GroupMember(NamedTuple):
    """A member of a group: its ids, its subscription and its assignment. The last two are known for consumers only."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group. `protocol` is the protocol that the members agreed on; for consumers it is the assignor."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: int
    members: tuple[GroupMember, ...]


class GroupTotal(NamedTuple):
    """The number of members of a group, and its lag in records. Each is None if it is not known."""

    members: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """The members and the lag of groups, by group id.

    silent: the brokers that did not answer.
    errors: the errors of groups that were not described.
    """

    groups: dict[str, GroupTotal]
    silent: tuple[int, ...]
    errors: dict[str, KafkaError]


@dataclass(frozen=True, slots=True)
class GroupsDescribed:
    """Groups, their committed offsets, and the log end offsets of these partitions.

    groups, offsets: the groups and their committed offsets, by group id.
    ends: the log end offsets, except those of deleted logs and of leaders that do not answer.
    silent: needed brokers that did not answer; their groups are missing.
    errors: the errors of groups without a description or without known offsets.
    """

    groups: dict[str, GroupDescription]
    offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]]
    ends: dict[TopicPartition, int]
    silent: tuple[int, ...]
    errors: dict[str, KafkaError]


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The ends of logs by partition, without those of partitions that have no leader or that were deleted.

    silent: the brokers that did not answer. The ends of the logs that they lead are missing.
    """

    ends: dict[TopicPartition, int]
    silent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """The target of a reset of offsets: at most one field is set. Without any, the target is the end of each log."""

    earliest: bool = False
    offset: int | None = None
    shift: int | None = None
    timestamp: int | None = None  # the first record at or after this time in milliseconds since 1970
    offsets: Mapping[TopicPartition, int] | None = None  # an offset for each partition


class LogDir(NamedTuple):
    """A data directory of a broker. Sizes are in bytes, -1 if unknown; `error` is the name of an error code or None.

    cordoned: whether the directory takes no new partitions; False if the broker can't tell.
    """

    broker: int
    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    sizes: dict[TopicPartition, int]
    cordoned: bool = False


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`, `[v6]:port` or a host alone (port 9092). Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or host.endswith(":") or (host.startswith("[") and not host.endswith("]")):
        host, port = text.strip(), str(DEFAULT_PORT)  # the text has no port, or is a bare IPv6 address
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)
