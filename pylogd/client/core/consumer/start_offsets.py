"""Find the offset at which reading a partition starts: the committed offset, or else what `auto_offset_reset` says.

Strategy: partitions wait here until they have a position. The group's committed offsets are looked up first; where
there are none, or for a consumer without a group, the leaders are asked for the first or the last offset. Retriable
errors are retried after a growing pause.

Rules: an answer counts only for the assignment that it was asked for: a partition that was revoked and assigned again
meanwhile is looked up again. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, offsets_request, read_offsets
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.call import Call
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.errors import RequestTimedOut, is_retriable
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

Committed = Mapping[TopicPartition, OffsetAndMetadata | None]
#: Called with the committed positions, and with the positions from the leaders.
OnFound = Callable[[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, int]], None]


class LookUp(Protocol):
    """Look up the committed offsets of a group. Call `done` once: with offsets and None, or with None and an error."""

    def __call__(
        self, partitions: list[TopicPartition], done: Callable[[Committed | None, PylogdError | None], None]
    ) -> None: ...


class StartOffsets:
    """The assigned partitions without a position. Times are in seconds.

    on_found: called as `on_found(committed, reset)` with the committed and with the other positions.
    error: an error that is not retriable, or was retried for `retry_timeout` seconds; its reader sets it to None.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        metadata: Metadata,
        look_up: LookUp | None,
        on_found: OnFound,
    ) -> None:
        """`look_up` asks the group; it is None for a consumer without one."""
        self.waiting: set[TopicPartition] = set()
        self.error: PylogdError | None = None
        self._metadata = metadata
        self._options = options
        self._look_up = look_up
        self._on_found = on_found
        self._assignments = 0
        self._assignment: dict[TopicPartition, int] = {}  # the number of the assignment for which each partition waits
        self._uncommitted: set[TopicPartition] = set()  # partitions without a usable committed offset
        self._in_flight: set[TopicPartition] = set()  # partitions whose leaders were asked
        self._looking_up = False
        self._backoff = Backoff()
        self._not_before = 0.0
        self._failing_since: float | None = None

    @property
    def has_group(self) -> bool:
        """Whether committed offsets are looked up."""
        return self._look_up is not None

    def add(self, partitions: Iterable[TopicPartition], *, reset: bool = False) -> None:
        """Find positions for these partitions.

        reset: whether to ignore committed offsets.
        """
        self._assignments += 1
        for partition in partitions:
            self.waiting.add(partition)
            self._assignment[partition] = self._assignments
            if reset or self._look_up is None:
                self._uncommitted.add(partition)

    def discard(self, partition: TopicPartition) -> None:
        """Forget a partition: it has a position, or is no longer read."""
        self.waiting.discard(partition)
        self._uncommitted.discard(partition)
        self._assignment.pop(partition, None)

    def reset(self) -> None:
        """Drop all requests in flight: no answer will arrive."""
        self._in_flight.clear()
        self._looking_up = False

    def missing_topics(self) -> set[str]:
        """Return the topics of partitions without a committed offset that the metadata does not have."""
        return {partition.topic for partition in self._uncommitted if partition.topic not in self._metadata.topics}

    def turn(self, now: float) -> list[Call]:
        """Start the look-ups that are due, and return what to send."""
        if self.error is not None or not self.waiting or now < self._not_before:
            return []
        unknown = self.waiting - self._uncommitted
        if unknown and self._look_up is not None and not self._looking_up:
            self._looking_up = True
            asked = {partition: self._assignment[partition] for partition in sorted(unknown)}
            self._look_up(list(asked), partial(self._looked_up, asked))
        return self._ask_leaders(now)

    def next_time(self, now: float) -> float | None:
        """Return when to call `turn`, unless an event comes first."""
        return self._not_before if self.waiting and self.error is None and self._not_before > now else None

    # What the group committed

    def _looked_up(
        self, asked: Mapping[TopicPartition, int], found: Committed | None, error: PylogdError | None
    ) -> None:
        self._looking_up = False
        if found is None:
            if error is not None:
                self.error = error
            return
        current = {partition for partition, number in asked.items() if self._assignment.get(partition) == number}
        committed = {p: offset for p, offset in found.items() if offset is not None and p in current}
        self._uncommitted |= current - committed.keys()
        if committed:
            self._failing_since = None
            self._on_found(committed, {})

    # What the leaders answer

    def _ask_leaders(self, now: float) -> list[Call]:
        ready = sorted(self._uncommitted - self._in_flight)
        if ready and self._options.auto_offset_reset == "none":
            self.error = KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{ready[0]}: no committed offset, and no reset policy"
            )
            return []
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        when = EARLIEST if self._options.auto_offset_reset == "earliest" else LATEST
        for partition in ready:
            try:
                found = self._metadata.partition(partition)
            except KafkaError as error:
                self._metadata.note(error)
                self._failed([], error, now)
                return []
            if found is not None:
                by_leader.setdefault(found.leader, {})[partition] = when
        return [self._call(leader, wanted) for leader, wanted in by_leader.items()]

    def _call(self, leader: int, wanted: dict[TopicPartition, int]) -> Call:
        self._in_flight |= wanted.keys()
        numbers = {partition: self._assignment[partition] for partition in wanted}
        epochs = self._metadata.leader_epochs(wanted)
        return Call(
            ListOffsetsRequest,
            lambda _: offsets_request(wanted, epochs, committed=self._options.read_committed),
            lambda response, now: self._answered(numbers, response, now),
            lambda error, now: self._failed(wanted, error, now),
            self._options.request_timeout,
            leader,
        )

    def _answered(self, numbers: Mapping[TopicPartition, int], response: ListOffsetsResponse, now: float) -> None:
        self._in_flight -= numbers.keys()
        positions: dict[TopicPartition, int] = {}
        answers = read_offsets(response)
        for partition, number in numbers.items():
            answer = answers.get(partition) or RequestTimedOut(f"{partition}: the leader's answer leaves it out")
            if self._assignment.get(partition) != number:
                continue
            if isinstance(answer, PylogdError):
                self._failed([partition], answer, now)
            else:
                positions[partition] = answer.offset
        if positions:
            self._failing_since = None
            self._backoff.reset()
            self._on_found({}, positions)

    def _failed(self, partitions: Iterable[TopicPartition], error: PylogdError, now: float) -> None:
        self._in_flight -= set(partitions)
        self._metadata.note(error)
        self.failing(error, now)

    def failing(self, error: PylogdError, now: float) -> None:
        """Record that a position could not be found: retry later, or report the error."""
        self._failing_since = now if self._failing_since is None else self._failing_since
        patience = self._options.retry_timeout
        if not is_retriable(error) or (patience is not None and now - self._failing_since >= patience):
            self._failing_since = None
            self.error = error
        else:
            self._not_before = now + self._backoff.next()
