"""Topics and brokers as values: what the rest of the broker sees of the metadata tree.

Rules: everything here is immutable; a change is a new object in the place of the old one. Must not know: the tree, how
any of it is stored.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pylogd.metadata.errors import InvalidTopicName

#: "No broker", as a leader.
NO_LEADER: Final = -1
MAX_NAME_LENGTH: Final = 249
#: Topics of the broker's own, which clients may read but are told apart.
OFFSETS_TOPIC: Final = "__consumer_offsets"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, "__transaction_state"})

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
#: Ids that mean "none" and "the metadata topic" in the protocol.
_RESERVED_IDS: Final = frozenset({bytes(16), bytes(15) + b"\x01"})


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition: where it should be, and who leads it.

    `replicas`, `isr`: broker ids; the first replica is the preferred leader. `leader` is `NO_LEADER` while there is
    none. `leader_epoch` counts leaders; `partition_epoch` counts all changes of the partition, whatever changed: a
    state with the same `partition_epoch` is the same state. While replicas are moved, `adding` and `removing` are those
    of `replicas` that were not there before and that will not be there afterwards (KIP-455).

    `latest_until_ms`: None, or those that are being added begin with the leader's latest offset instead of its first,
    and may not be in sync before that time (ms since 1970; 0: at once).

    `elr` (KIP-966): who is not in sync and has all that is committed; empty while enough replicas are in sync.
    `last_known_elr`: who was in sync or eligible until its machine stopped without warning; its copy may lack the end.
    `last_known_leader`: who led last, while nobody leads. `lost`: the ids of the data directories with one of which the
    last known leader's copy went, while nobody else has the committed records.
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
        """The state of a new partition: everybody is in sync, since there is nothing yet; the first leads."""
        return cls(index, replicas, replicas, replicas[0])

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas as they will be when none is moved any more."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    def effective_min_insync(self, min_insync: int) -> int:
        """How many in-sync replicas `min.insync.replicas` asks for: not more than there are, those that are only being
        added left out.
        """
        return min(min_insync, max(len(self.replicas) - len(self.adding), 1))

    @property
    def moving(self) -> bool:
        """Whether replicas are being moved."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True)
class IsrChange:
    """What a leader wants the in-sync set to be, and the state of the partition that it wants it from.

    `epochs`: of the brokers that are to join, the broker epoch in which each was seen to have all (KIP-903).
    """

    topic: str
    topic_id: bytes
    index: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    epochs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `topic_id` is 16 bytes; `partitions` are in order of their index, from 0 without gaps; `configs` are
    the topic's own settings, as text by Kafka's names.
    """

    name: str
    topic_id: bytes
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str]

    @property
    def internal(self) -> bool:
        """Whether the topic is one of the broker's own."""
        return self.name in INTERNAL_TOPICS


class TopicChange(NamedTuple):
    """What became of one topic: made (`before` is None), deleted (`after` is None) or altered.

    found_out: nobody told of the change. It was found when all topics were read anew in a new session, so what is
    missing was deleted meanwhile, or the store was put back to an older copy.
    """

    before: Topic | None
    after: Topic | None
    found_out: bool = False


class TopicUpdate(NamedTuple):
    """New states for all partitions of a topic, and the topic from which they were worked out."""

    before: Topic
    after: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where clients reach a broker's listener."""

    listener: str
    host: str
    port: int


#: (topic id, partition)
ReplicaKey = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Outages:
    """The replicas of a live broker that its data directories keep from serving.

    `offline`: their directory has failed, or their log could not be opened; they count as replicas of a dead broker.
    `full`: their volume has no room; they can be read and not appended to.
    """

    offline: frozenset[ReplicaKey] = frozenset()
    full: frozenset[ReplicaKey] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.offline or self.full)


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker.

    `incarnation` differs each time that a broker of this id registers; 0 before it has. `stopping`: it is shutting
    down, and leads nothing that another can lead. `directory_id` is that of its first data directory: who holds that
    directory's lock may speak for a broker of that id.

    `epoch` grows with each registration (KIP-903): it is the version of the broker's node below `BROKER_EPOCHS`, -1
    before the first. `directories` are the ids of the data directories that are in use. `fenced`: it is registered, and
    still finds out which of its copies are lost; until then it is not a live broker. `outages`: which of its replicas
    its disks keep from serving. `partition_limit`: how many partitions it may hold, None if it does not say.
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

    @property
    def host(self) -> str:
        """The host of the first endpoint."""
        return self.endpoints[0].host

    @property
    def port(self) -> int:
        """The port of the first endpoint."""
        return self.endpoints[0].port

    def endpoint(self, listener: str) -> Endpoint | None:
        """Where clients of that listener reach the broker, None if it has no such listener."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


def new_id() -> bytes:
    """A random id, 16 bytes: none of the reserved ones, none whose text could be taken for an option (`-...`)."""
    while True:
        candidate = uuid.uuid4().bytes
        if candidate not in _RESERVED_IDS and not id_to_text(candidate).startswith("-"):
            return candidate


def id_to_text(raw: bytes) -> str:
    """16 bytes in the spelling of the field: base64 for URLs without padding, 22 characters."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def id_from_text(text: str) -> bytes:
    """The 16 bytes of `id_to_text`; raises `ValueError` for anything else."""
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
    """Equal for names that differ only in `.` and `_`, which metric names can't tell apart."""
    return name.replace(".", "_")
