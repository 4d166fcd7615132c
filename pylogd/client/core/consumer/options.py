"""Options of a consumer, written and checked once for all faces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pylogd.client.core.consumer.interceptors import ConsumerInterceptor
from pylogd.client.core.group.assignors import Assignor, find_assignors
from pylogd.client.core.group.member_model import GroupProtocol, MemberSettings
from pylogd.client.core.interceptors import check_interceptors
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.core.options import ClientOptions, check_choice
from pylogd.client.core.serialization import Deserializer, check_converter

ResetTo = Literal["earliest", "latest", "none"]
Offset = int | OffsetAndMetadata
#: Offsets to commit, by partition.
Offsets = Mapping[TopicPartition, Offset] | Mapping[tuple[str, int], Offset]

_SESSION, _ZOOKEEPER_SESSION = 45.0, 6.0  # seconds
_HEARTBEAT_INTERVAL = 1.0  # seconds
_ASSIGNORS = ("range", "roundrobin")


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    """The options of a consumer, with Kafka's names for settings that Kafka has. Times are in seconds, or in
    milliseconds if the name ends in `_ms`.

    group_id, group_instance_id: the group, and the name of a static member.
    group_protocol: "classic", in which members assign the partitions, or "consumer" (KIP-848): the broker does.
    group_remote_assignor: with "consumer", the broker's assignor to ask for: "uniform" or "range"; None leaves it open.
    coordinator, zookeeper: "broker", or "zookeeper" for a group in the ZooKeeper at "host:port,.../chroot".
    zookeeper_settings: options of ZooKeeper's connection, with the names of brokers' settings: `zookeeper.auth.digest`,
    ...
    assignors: "range", "roundrobin", "sticky", "cooperative-sticky", or objects of your own, the preferred first.
    session_timeout: 45 s by default, 6 s in ZooKeeper.
    assignors, session_timeout, heartbeat_interval: with group_protocol="consumer" the broker decides them.
    max_poll_interval: a member that does not poll for so long leaves the group.
    auto_commit: "after" commits processed records periodically: each is processed at least once; "before" commits
        before records are returned: each is processed at most once; "off" leaves it to `commit`; "transaction" to
        transactions of a producer (`send_offsets`): each is processed exactly once.
    isolation: "committed" leaves out records of transactions that are aborted or still open; "uncommitted" returns all.
        By default "committed" with auto_commit="transaction", else "uncommitted".
    auto_offset_reset: where to start without a committed offset, or with one that the log does not have.
    fetch_*, partition_max_bytes: limits of one request.
    buffer_bytes: the limit of fetched data that is not decoded, of all partitions.
    max_poll_records: the most records that one call of `poll` returns, and that an iteration decodes ahead.
    prefetch: fetch while the application is busy with records.
    key_deserializer, value_deserializer: functions of one argument, bytes, or objects with `deserialize(topic, data)`.
    interceptors: objects whose methods are called for records and commits, see `ConsumerInterceptor`.
    retry_timeout: how long retriable errors are retried before they are raised; None retries for ever.
    """

    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: GroupProtocol = "classic"
    group_remote_assignor: str | None = None
    coordinator: Literal["broker", "zookeeper"] = "broker"
    zookeeper: str = ""
    zookeeper_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    assignors: Sequence[str | Assignor] = _ASSIGNORS
    session_timeout: float | None = None
    heartbeat_interval: float = _HEARTBEAT_INTERVAL
    max_poll_interval: float = 300.0
    auto_commit: Literal["after", "before", "off", "transaction"] = "after"
    auto_commit_interval: float = 5.0
    auto_offset_reset: ResetTo = "earliest"
    isolation: Literal["committed", "uncommitted"] | None = None
    client_rack: str | None = None
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 16 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    buffer_bytes: int = 64 * 1024 * 1024
    max_poll_records: int = 500
    prefetch: bool = True
    check_crcs: bool = True
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None
    interceptors: Sequence[ConsumerInterceptor] = ()
    retry_timeout: float | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown value, or options that contradict each other."""
        super().__post_init__()
        check_choice(self.auto_offset_reset, ("earliest", "latest", "none"), "auto_offset_reset")
        check_choice(self.auto_commit, ("after", "before", "off", "transaction"), "auto_commit")
        if self.isolation is not None:
            check_choice(self.isolation, ("committed", "uncommitted"), "isolation")
        check_choice(self.coordinator, ("broker", "zookeeper"), "coordinator")
        check_choice(self.group_protocol, ("classic", "consumer"), "group_protocol")
        self._check_protocol()
        find_assignors(self.assignors)
        check_converter(self.key_deserializer, "deserialize", "key_deserializer")
        check_converter(self.value_deserializer, "deserialize", "value_deserializer")
        check_interceptors(self.interceptors, ConsumerInterceptor)
        if self.coordinator == "zookeeper" and (self.group_id is None or not self.zookeeper):
            raise ValueError("the ZooKeeper coordinator needs a group_id, and zookeeper='HOST:PORT[/chroot]'")
        if self.coordinator == "zookeeper" and self.auto_commit == "transaction":
            raise ValueError("transactions can't commit the offsets of a group in ZooKeeper")

    def _check_protocol(self) -> None:
        if self.group_protocol == "classic":
            if self.group_remote_assignor is not None:
                raise ValueError('group_remote_assignor needs group_protocol="consumer"; the classic one has assignors')
            return
        if self.coordinator != "broker":
            raise ValueError('group_protocol="consumer" needs a broker as coordinator')
        of_classic = {
            "assignors": tuple(self.assignors) != _ASSIGNORS,
            "session_timeout": self.session_timeout is not None,
            "heartbeat_interval": self.heartbeat_interval != _HEARTBEAT_INTERVAL,
        }
        if given := [name for name, is_given in of_classic.items() if is_given]:
            raise ValueError(f'not with group_protocol="consumer", where the broker has it: {", ".join(given)}')

    @property
    def read_committed(self) -> bool:
        """Whether records of aborted and open transactions are left out."""
        if self.isolation is None:
            return self.auto_commit == "transaction"
        return self.isolation == "committed"

    @property
    def session_seconds(self) -> float:
        """The time after which a member without heartbeats is removed from the group."""
        if self.session_timeout is not None:
            return self.session_timeout
        return _ZOOKEEPER_SESSION if self.coordinator == "zookeeper" else _SESSION

    @property
    def member(self) -> MemberSettings:
        """The settings of a member of a group that a broker coordinates."""
        assert self.group_id is not None
        return MemberSettings(
            self.group_id, find_assignors(self.assignors), self.group_instance_id, self.session_seconds,
            self.heartbeat_interval, self.max_poll_interval, self.metadata_max_age, self.request_timeout,
            self.client_rack, protocol=self.group_protocol, remote_assignor=self.group_remote_assignor,
        )  # fmt: skip
