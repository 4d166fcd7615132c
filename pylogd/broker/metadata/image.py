"""Topics and brokers as values. This is the rest of the broker's view of the metadata.

Rules: everything here is immutable; a change makes a new object.
Must not know: how any of it is stored.
"""

from __future__ import annotations

import base64
import operator
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Final, NamedTuple, TypeVar, dataclass_transform

from pylogd.broker.metadata.errors import InvalidTopicName
from pylogd.store.paths import INTERNAL_TOPICS

#: The leader's id if a partition has no leader.
NO_LEADER: Final = -1
MAX_NAME_LENGTH: Final = 249
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
#: Ids that mean "no topic" and "the metadata topic" in the protocol.
_RESERVED_IDS: Final = frozenset({bytes(16), bytes(15) + b"\x01"})


T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(kind: type[T]) -> type[T]:
    """Make a class of immutable values. When brokers fail, a controller makes 100,000 of them at once.

    Only the type checker refuses assignments to a field, since a frozen dataclass takes six times as long to make.
    """
    return dataclass(slots=True, unsafe_hash=True)(kind)


@value
class PartitionState:
    """One partition: its replicas, its leader, and which replicas have the committed records.

    replicas: broker ids; the first replica is the preferred leader.
    isr: broker ids of the in-sync replicas.
    leader: the leader's broker id; `NO_LEADER` if there is none.
    leader_epoch: counts leaders.
    partition_epoch: counts all changes; states with the same number are the same.
    adding: during a reassignment, the members of `replicas` that were not there before (KIP-455).
    removing: during a reassignment, the members of `replicas` that will not be there afterwards.
    latest_until_ms: for a smooth expansion, the time before which added replicas, which begin with the leader's latest
        offset, may not be in sync (ms since 1970; 0: at once). None otherwise.
    elr: eligible leader replicas (KIP-966): not in sync, with all committed records; empty while enough are in sync.
    last_known_elr: replicas that were in sync or eligible until their machine stopped without warning, so that their
        last records may be missing.
    last_known_leader: the last leader, while there is none.
    lost: ids of data directories of the last known leader, one of which had its copy; set while no other replica has
        the committed records.
    """

    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    latest_until_ms: int | None = None
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER
    lost: tuple[str, ...] = ()

    @classmethod
    def initial(cls, index: int, replicas: tuple[int, ...]) -> PartitionState:
        """Return the state of a new partition: all replicas are in sync, and the first leads."""
        return cls(index, replicas, replicas, replicas[0])

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment in progress."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    def effective_min_insync(self, min_insync: int) -> int:
        """Return how many replicas must be in sync: `min_insync`, or all replicas if there are fewer.

        Replicas that are being added are not counted.
        """
        counted = len(self.replicas) - len(self.adding)
        return min_insync if min_insync <= counted else max(counted, 1)

    @property
    def moving(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A leader's request to change an in-sync set, and the epochs of the state on which it is based.

    epochs: for each joining broker, the broker epoch in which it was seen to be caught up (KIP-903).
    """

    topic: str
    topic_id: bytes
    index: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    epochs: Mapping[int, int] = field(default_factory=dict)


class SmoothWait(NamedTuple):
    """The progress of a smooth expansion, as the partition's leader saw it when it last checked the groups.

    until_ms: `PartitionState.latest_until_ms`.
    epochs: for each new replica that is not in sync, the broker epoch in which it reported where its log begins.
    """

    until_ms: int
    epochs: Mapping[int, int]


@value
class Topic:
    """A topic.

    topic_id: 16 bytes.
    partitions: the partitions in order of their index, from 0 without gaps.
    configs: the topic's own settings, as text by Kafka's names.
    """

    name: str
    topic_id: bytes
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str]

    @property
    def internal(self) -> bool:
        """Whether the topic is internal: brokers keep their own state in it."""
        return self.name in INTERNAL_TOPICS


class TopicChange(NamedTuple):
    """A change of one topic: created (`before` is None), deleted (`after` is None) or altered.

    found_out: the change was found when all topics were read in a new session. A missing topic was deleted meanwhile,
    or the metadata store was restored from an older copy.
    """

    before: Topic | None
    after: Topic | None
    found_out: bool = False

    @property
    def of_names(self) -> bool:
        """Whether the topic was created or deleted."""
        return self.before is None or self.after is None

    @property
    def states(self) -> Sequence[PartitionState]:
        """The states after the change that were not there before it."""
        if self.after is None:
            return ()
        if self.before is None or self.before.topic_id != self.after.topic_id:
            return self.after.partitions
        return changed_states(self.before.partitions, self.after.partitions)


def changed_states(before: Sequence[PartitionState], after: Sequence[PartitionState]) -> list[PartitionState]:
    """Return the states of a topic that were changed or added."""
    return [*compress(after, map(operator.is_not, after, before)), *after[len(before) :]]


class TopicUpdate(NamedTuple):
    """New states for all partitions of a topic, and the topic from which they were worked out."""

    before: Topic
    after: tuple[PartitionState, ...]


class Endpoint(NamedTuple):
    """The address at which clients reach a listener of a broker.

    protocol: the listener's security protocol, by Kafka's name.
    """

    listener: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"


#: (topic id, partition)
ReplicaKey = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Outages:
    """What a live broker can't be used for because of its data directories.

    offline: replicas whose directory has failed, or whose log could not be opened. They count as replicas of a failed
        broker.
    full: replicas whose volume has no space. They can be read but not appended to.
    cordoned: whether the broker gets no new replicas, since all online directories are cordoned (KIP-1066).
    """

    offline: frozenset[ReplicaKey] = frozenset()
    full: frozenset[ReplicaKey] = frozenset()
    cordoned: bool = False

    def __bool__(self) -> bool:
        return bool(self.offline or self.full)


class FeatureRange(NamedTuple):
    """The levels of a feature that a broker can use."""

    name: str
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker.

    incarnation: differs for each registration of a node id; 0 before the first.
    stopping: whether the broker is shutting down, and leads nothing that another broker can lead.
    directory_id: the id of its first data directory. A process that holds the lock of that directory may replace the
        registration.
    labels: the labels in `broker.labels`; see `metadata.labels`.
    epoch: grows with each registration (KIP-903): the version of the broker's node below `BROKER_EPOCHS`, -1 before the
        first.
    directories: ids of the data directories in use.
    fenced: whether the broker is still finding out which of its copies are lost, and is not live.
    outages: what the broker can't be used for.
    partition_limit: the most partitions that it may hold, None if unknown.
    proof: the digest of the secret with which its connections to other brokers begin; None for a release without
        secrets (`security.peers`).
    features: the features that it knows; none for a release without features.
    host_id: identifies the machine that it shares with the other brokers of this id; None if it has its own machine.
    announced: whether its release announces each registration; see `metadata.registrations`.
    """

    node_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    incarnation: int = 0
    stopping: bool = False
    directory_id: str | None = None
    epoch: int = -1
    directories: tuple[str, ...] = ()
    fenced: bool = False
    outages: Outages = field(default_factory=Outages)
    partition_limit: int | None = None
    proof: str | None = None
    labels: tuple[str, ...] = ()
    features: tuple[FeatureRange, ...] = ()
    host_id: str | None = None
    announced: bool = True

    def highest_level(self, feature: str) -> int:
        """Return the highest level of a feature that the broker can use; 0 for a feature that it does not know."""
        return next((one.highest for one in self.features if one.name == feature), 0)

    @property
    def host(self) -> str:
        """The host of the first endpoint."""
        return self.endpoints[0].host

    @property
    def port(self) -> int:
        """The port of the first endpoint."""
        return self.endpoints[0].port

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the endpoint of a listener; None if the broker does not have it."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


def new_id() -> bytes:
    """Return a random id of 16 bytes. It is not a reserved id, and its text does not begin with `-`, like an option."""
    while True:
        candidate = uuid.uuid4().bytes
        if candidate not in _RESERVED_IDS and not id_to_text(candidate).startswith("-"):
            return candidate


def id_to_text(raw: bytes) -> str:
    """Return an id in Kafka's form: base64 for URLs without padding, 22 characters."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def id_from_text(text: str) -> bytes:
    """Return the 16 bytes of an id as text. Raises ValueError for anything else."""
    raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    if len(raw) != 16:
        raise ValueError(f"an id is 16 bytes, not {len(raw)}")
    return raw


def check_topic_name(name: str) -> None:
    """Raise `InvalidTopicName` unless the name is one that Kafka allows."""
    if not name:
        raise InvalidTopicName("a topic name can't be empty")
    if name in (".", ".."):
        raise InvalidTopicName(f'a topic can\'t be called "{name}"')
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidTopicName(f"a topic name has at most {MAX_NAME_LENGTH} characters, this one has {len(name)}")
    if not _LEGAL_NAME.fullmatch(name):
        raise InvalidTopicName(f"topic name {name!r} has characters other than ASCII letters, digits, '.', '_' and '-'")


def collision_key(name: str) -> str:
    """Return a key that is equal for names that differ only in `.` and `_`, as metric names can't tell them apart."""
    return name.replace(".", "_")
