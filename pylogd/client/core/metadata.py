"""A client's metadata of a cluster: its brokers, topics and leaders. Without I/O, shared by all faces.

Strategy: the caller sends `request(...)` when metadata is unknown or outdated, and passes the response to `learn`. It
passes errors of brokers to `note`, which forgets the metadata that they show to be outdated. `Retry` limits the retries
of a call.

Rules: no I/O, no clock; nothing here waits. A leader epoch that is older than one known before is ignored: the broker
that sent it was paused or is cut off, and the leader may have been replaced (KIP-320).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from pylogd.base.errors import ErrorCode, KafkaError, error_for
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.call import BrokerKey
from pylogd.client.core.errors import BrokerUnavailable, RebootstrapRequired, UnknownTopic, is_retriable
from pylogd.client.core.model import Broker, Partition, Topic, TopicPartition, parse_address
from pylogd.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from pylogd.wire.values import ZERO_UUID

_CAN_ASK_NOT_TO_CREATE = 4  # since this version of Metadata
_ALL_IS_NULL = 1
_NO_LEADER: Final = -1
_NO_EPOCH: Final = -1

#: A broker's address: its key, host and port.
BrokerAddress = tuple[BrokerKey, str, int]

#: Errors that show that the metadata is outdated.
_STALE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


def parse_bootstrap(servers: str | Sequence[str]) -> list[tuple[str, int]]:
    """Return host and port of each bootstrap server, from a list or a comma-separated text. Raises ValueError."""
    found = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = [parse_address(server) for server in found if server.strip()]
    if not addresses:
        raise ValueError("no bootstrap servers are given")
    return addresses


class Metadata:
    """The brokers that are up, by id, and the topics that were asked for, by name."""

    def __init__(
        self, bootstrap: Sequence[tuple[str, int]], *, auto_create_topics: bool = False, rebootstraps: bool = True
    ) -> None:
        """auto_create_topics: whether a request for a topic may create it.

        rebootstraps: whether the bootstrap servers are asked again if no known broker helps (KIP-899).
        """
        self.bootstrap = list(bootstrap)
        self.auto_create_topics = auto_create_topics
        self.rebootstraps = rebootstraps
        #: whether a broker has answered that the client must forget all metadata (KIP-1102)
        self.rebootstrap_required = False
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        self._epochs: dict[str, tuple[bytes, dict[int, int]]] = {}  # by topic: id and highest leader epochs

    # Requests

    def request(self, topics: Iterable[str] | None, version: int, *, create: bool | None = None) -> MetadataRequest:
        """Return the request for brokers, and for topics by name, or for all of them if `topics` is None.

        `create`: whether the broker may create topics that do not exist, by default as `auto_create_topics` says.
        """
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        if asked is None and version < _ALL_IS_NULL:
            asked = []
        allowed = self.auto_create_topics if create is None else create
        return MetadataRequest(topics=asked, allow_auto_topic_creation=allowed or version < _CAN_ASK_NOT_TO_CREATE)

    def learn(self, response: MetadataResponse) -> list[Topic]:
        """Apply an answer, and return its topics.

        Raises KafkaError for the first topic that has an error: UNKNOWN_TOPIC_OR_PARTITION (as `UnknownTopic` if the
        topic would not be created), INVALID_TOPIC_EXCEPTION, LEADER_NOT_AVAILABLE.
        """
        errors = self.learn_each(response)
        for error in errors.values():
            raise error
        return [self.topics[topic.name] for topic in response.topics if topic.name is not None]

    def learn_each(self, response: MetadataResponse) -> dict[str, KafkaError]:
        """Apply an answer, and return the errors of its topics by name. Raises KafkaError if the request failed as a
        whole.
        """
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED and self.rebootstraps:
            self.rebootstrap_required = True
            raise RebootstrapRequired(ErrorCode.REBOOTSTRAP_REQUIRED)
        if response.error_code:
            raise KafkaError(error_for(response.error_code))
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        errors: dict[str, KafkaError] = {}
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code:
                self.topics.pop(name, None)
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    self._epochs.pop(name, None)  # the topic was deleted: a new topic of this name has another id
                errors[name] = self._error(topic)
            else:
                self.topics[name] = self._believed(_read_topic(topic))
        return errors

    def _believed(self, topic: Topic) -> Topic:
        """Return a topic without leaders of outdated epochs. A topic without an id may be another topic of the same
        name.
        """
        if topic.topic_id == ZERO_UUID:
            return topic
        topic_id, epochs = self._epochs.get(topic.name, (topic.topic_id, {}))
        if topic_id != topic.topic_id:
            epochs = {}
        self._epochs[topic.name] = topic.topic_id, epochs
        partitions = []
        for partition in topic.partitions:
            if partition.leader_epoch < epochs.get(partition.index, _NO_EPOCH):
                partition = replace(partition, leader=_NO_LEADER)  # noqa: PLW2901
            else:
                epochs[partition.index] = partition.leader_epoch
            partitions.append(partition)
        return replace(topic, partitions=tuple(partitions))

    def _error(self, topic: MetadataResponseTopic) -> KafkaError:
        code = error_for(topic.error_code)
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not self.auto_create_topics:
            # The error table calls this error retriable, since a topic that is being created may be unknown. If nobody
            # creates the topic, the error is reported at once.
            error = UnknownTopic(code, f"there is no topic {topic.name!r}")
            error.topic = topic.name or ""
            return error
        return KafkaError(code, f"topic {topic.name}: {code.text}")

    # What is known

    def broker(self, node_id: int) -> Broker:
        """Return a broker by its id. Raises BrokerUnavailable."""
        found = self.brokers.get(node_id)
        if found is None:
            raise BrokerUnavailable(f"broker {node_id} is not among the brokers that are up")
        return found

    def addresses(self) -> list[BrokerAddress]:
        """Return the addresses to try in order for a request to any broker: known brokers, then bootstrap servers."""
        known: list[BrokerAddress] = [(broker.node_id, broker.host, broker.port) for broker in self.brokers.values()]
        random.shuffle(known)
        if known and not self.rebootstraps:
            return known
        return [*known, *(((host, port), host, port) for host, port in self.bootstrap)]

    def rebootstrap(self) -> None:
        """Drop all brokers and topics: the bootstrap servers are asked again."""
        self.rebootstrap_required = False
        self.controller_id = -1
        self.brokers.clear()
        self.topics.clear()
        self._epochs.clear()

    def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the known leader epochs of partitions. They show a leader that it, or this client, is outdated."""
        asked = set(partitions)
        topics = [self.topics[name] for name in {partition.topic for partition in asked} if name in self.topics]
        known = {
            TopicPartition(topic.name, one.index): one.leader_epoch for topic in topics for one in topic.partitions
        }
        return {partition: known[partition] for partition in asked & known.keys()}

    def partition(self, partition: TopicPartition) -> Partition | None:
        """Return a partition that has a leader; None if its topic is not known.

        Raises KafkaError: LEADER_NOT_AVAILABLE, or UNKNOWN_TOPIC_OR_PARTITION if the topic does not have the partition.
        """
        topic = self.topics.get(partition.topic)
        if topic is None:
            return None
        for found in topic.partitions[partition.partition : partition.partition + 1] or topic.partitions:
            if found.index == partition.partition:
                if found.leader < 0:
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition}: it has no leader at the moment")
                return found
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition}")

    def forget(self, topic: str) -> None:
        """Forget a topic, so that it is requested again."""
        self.topics.pop(topic, None)

    def note(self, error: BaseException) -> None:
        """Forget the metadata that an error shows to be outdated."""
        if isinstance(error, BrokerUnavailable) or (isinstance(error, KafkaError) and error.code in _STALE):
            self.topics.clear()


class Retry:
    """The retries of one call, for `patience` seconds."""

    def __init__(self, now: float, patience: float, backoff: Backoff | None = None) -> None:
        self._began = now
        self._patience = patience
        self._backoff = backoff or Backoff()

    def pause(self, error: BaseException, now: float, most: float = float("inf")) -> float | None:
        """Return the seconds to wait before the next try after an error, or None to give up. `most` may shorten the
        retries further.
        """
        pause = self._backoff.next()
        if not is_retriable(error) or now + pause > self._began + min(self._patience, most):
            return None
        return pause


def error_text(code: int) -> str:
    """Return the text of an error code."""
    return error_for(code).text


def check(code: int, message: str | None = None) -> None:
    """Raise KafkaError unless `code` is 0."""
    if code:
        raise KafkaError(error_for(code), message or None)


def _read_topic(topic: MetadataResponseTopic) -> Topic:
    partitions = [
        Partition(
            p.partition_index,
            p.leader_id,
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
            tuple(p.offline_replicas),
        )
        for p in topic.partitions
    ]
    partitions.sort(key=lambda partition: partition.index)
    return Topic(topic.name or "", topic.topic_id, topic.is_internal, tuple(partitions))
