"""Find out whether a log still has the records that were read, after its leader changed (KIP-320).

Strategy: a position is the offset of the next record and the leader epoch of the record in front of it. The new leader
is asked where that epoch ends in its log (OffsetsForLeaderEpoch). If it ends before the position, the log was truncated
by an unclean election: the records from that end on are no longer those that were read. A committed offset with a
leader epoch is validated in the same way before it is read from.

Rules: an answer counts only for the position that was asked about. A partition that waits here is not fetched. A leader
epoch that is newer than the metadata means that the metadata is old: it is requested again first. Brokers that do not
serve OffsetsForLeaderEpoch version 3 are trusted. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pylogd.base.errors import KafkaError, PylogdError, error_for
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.call import Call
from pylogd.client.core.errors import RequestTimedOut, UnsupportedByBroker
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import OffsetAndMetadata, Partition, TopicPartition
from pylogd.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

_CONSUMER = -1
_FIRST_VERSION = 3  # earlier versions are for followers
_UNDEFINED = -1


@dataclass(frozen=True, slots=True, eq=False)
class FetchPosition:
    """The offset of the next record, and the leader epoch of the record in front of it."""

    offset: int
    epoch: int


#: The end of the unchanged part of the log: an offset with its leader epoch; None if the leader can't tell.
Divergence = OffsetAndMetadata | None


class PositionValidator:
    """The positions that wait to be validated. Times are in seconds.

    on_valid: called with a partition, and the leader epoch under which the log has its position.
    on_truncated: called if the log does not have the position, with the point of divergence and the leader epoch.
    on_error: called with a partition, an error and the time after each failed attempt; a retry follows after a pause.
    """

    def __init__(
        self,
        metadata: Metadata,
        request_timeout: float,
        *,
        on_valid: Callable[[TopicPartition, int], None],
        on_truncated: Callable[[Mapping[TopicPartition, Divergence], int], None],
        on_error: Callable[[TopicPartition, PylogdError, float], None],
    ) -> None:
        """Nothing waits yet."""
        self._metadata = metadata
        self._timeout = request_timeout
        self._on_valid = on_valid
        self._on_truncated = on_truncated
        self._on_error = on_error
        self.waiting: dict[TopicPartition, FetchPosition] = {}
        self._in_flight: set[FetchPosition] = set()
        self._backoff = Backoff()
        self._not_before = 0.0
        self._outdated_since: float | None = None

    def add(self, partition: TopicPartition, offset: int, epoch: int) -> None:
        """Validate a position; `discard` cancels it."""
        self.waiting[partition] = FetchPosition(offset, epoch)

    def discard(self, partition: TopicPartition) -> None:
        """Forget a partition: its position was changed, or it is no longer read."""
        self.waiting.pop(partition, None)

    def reset(self) -> None:
        """Drop all requests in flight: no answer will arrive."""
        self._in_flight.clear()

    def turn(self, now: float) -> list[Call]:
        """Return a request to each leader with positions to validate."""
        if not self.waiting or now < self._not_before:
            return []
        by_leader: dict[int, dict[TopicPartition, tuple[FetchPosition, int]]] = {}
        for partition, position in self.waiting.items():
            if position in self._in_flight:
                continue
            try:
                leader = self._metadata.partition(partition)
            except KafkaError as error:
                self._failed([partition], error, now)
                return []
            if leader is None:  # the reader of the topic requests its metadata
                continue
            if self._is_outdated(leader, position, now):
                self._metadata.forget(partition.topic)
                self._not_before = now + self._backoff.next()
                return []
            by_leader.setdefault(leader.leader, {})[partition] = position, leader.leader_epoch
        return [self._call(leader, positions) for leader, positions in by_leader.items()]

    def next_time(self, now: float) -> float | None:
        """Return when to call `turn`, unless an event comes first."""
        return self._not_before if self.waiting and self._not_before > now else None

    def _is_outdated(self, leader: Partition, position: FetchPosition, now: float) -> bool:
        """Whether the metadata is older than the position, which is always so for a topic that was created again."""
        if leader.leader_epoch >= position.epoch:
            self._outdated_since = None
            return False
        self._outdated_since = now if self._outdated_since is None else self._outdated_since
        return now - self._outdated_since < self._timeout

    def _call(self, leader: int, positions: Mapping[TopicPartition, tuple[FetchPosition, int]]) -> Call:
        self._in_flight.update(position for position, _ in positions.values())

        def failed(error: PylogdError, now: float) -> None:
            current = self._ended(positions)
            if isinstance(error, UnsupportedByBroker):
                for partition in current:
                    self._valid(partition, positions[partition][1])
            else:
                self._failed(current, error, now)

        return Call(
            OffsetForLeaderEpochRequest,
            lambda version: _request(positions, version),
            lambda response, now: self._answered(positions, response, now),
            failed,
            self._timeout,
            leader,
        )

    def _ended(self, positions: Mapping[TopicPartition, tuple[FetchPosition, int]]) -> list[TopicPartition]:
        """Return the partitions of a request whose positions have not changed since it was sent."""
        self._in_flight.difference_update(position for position, _ in positions.values())
        return [partition for partition, (position, _) in positions.items() if self.waiting.get(partition) is position]

    def _answered(
        self,
        positions: Mapping[TopicPartition, tuple[FetchPosition, int]],
        response: OffsetForLeaderEpochResponse,
        now: float,
    ) -> None:
        answers = {
            TopicPartition(topic.topic, answer.partition): answer
            for topic in response.topics
            for answer in topic.partitions
        }
        truncated: dict[int, dict[TopicPartition, Divergence]] = {}
        for partition in self._ended(positions):
            position, leader_epoch = positions[partition]
            answer = answers.get(partition)
            if answer is None:
                self._failed([partition], RequestTimedOut(f"{partition}: the leader's answer leaves it out"), now)
            elif answer.error_code:
                code = error_for(answer.error_code)
                self._failed([partition], KafkaError(code, f"{partition}: {code.text}"), now)
            elif _has(answer, position):
                self._valid(partition, leader_epoch)
            else:
                truncated.setdefault(leader_epoch, {})[partition] = _divergence(answer)
        for leader_epoch, found in truncated.items():
            self._not_before = now + self._backoff.next()  # for partitions that nobody moves
            self._on_truncated(found, leader_epoch)

    def _valid(self, partition: TopicPartition, leader_epoch: int) -> None:
        del self.waiting[partition]
        self._backoff.reset()
        self._on_valid(partition, leader_epoch)

    def _failed(self, partitions: list[TopicPartition], error: PylogdError, now: float) -> None:
        self._metadata.note(error)
        self._not_before = now + self._backoff.next()
        for partition in partitions:
            self._on_error(partition, error, now)


def _request(
    positions: Mapping[TopicPartition, tuple[FetchPosition, int]], version: int
) -> OffsetForLeaderEpochRequest:
    if version < _FIRST_VERSION:
        raise UnsupportedByBroker("the broker does not tell consumers where leader epochs end")
    topics: dict[str, OffsetForLeaderTopic] = {}
    for (name, index), (position, leader_epoch) in positions.items():
        topic = topics.setdefault(name, OffsetForLeaderTopic(name))
        topic.partitions.append(OffsetForLeaderPartition(index, leader_epoch, position.epoch))
    return OffsetForLeaderEpochRequest(_CONSUMER, list(topics.values()))


def _has(answer: EpochEndOffset, position: FetchPosition) -> bool:
    return _UNDEFINED not in (answer.end_offset, answer.leader_epoch) and answer.end_offset >= position.offset


def _divergence(answer: EpochEndOffset) -> Divergence:
    if _UNDEFINED in (answer.end_offset, answer.leader_epoch):
        return None
    return OffsetAndMetadata(answer.end_offset, leader_epoch=answer.leader_epoch)
