"""Read partitions from positions, without I/O: the part of a consumer that does not concern groups.

Strategy: `turn` returns what to send: fetches, look-ups of offsets, validations of positions, metadata. `reader`
decodes what was fetched, and its buffer holds the records that were decoded and not handed out. Errors of fetches are
handled here: a position that the log does not have is reset as `auto_offset_reset` says, and retriable errors are
retried. `raise_error`, which the face calls before it returns records, raises all other errors.

Rules: a partition that is assigned has a position in `reader` or waits in `starts` for one. The application's calls
(`move`, `rewind`, `forget`) drop the buffered records of the partition. `turn` keeps these records: they are handed out
first, perhaps by another thread at this moment. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.call import Call
from pylogd.client.core.consumer.fetcher import UNKNOWN_EPOCH, FetchedBatches, Fetcher, FetchSettings, PartitionFetch
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.consumer.reader import Reader
from pylogd.client.core.consumer.start_offsets import LookUp, OnFound, StartOffsets
from pylogd.client.core.consumer.validation import Divergence, PositionValidator
from pylogd.client.core.errors import LogTruncation, is_retriable
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.metadata_updater import MetadataUpdater
from pylogd.client.core.model import OffsetAndMetadata, Topic, TopicPartition
from pylogd.client.core.serialization import RecordDeserializer


class PartitionsCore:
    """See the module. Times are in seconds.

    on_found: called as `on_found(committed, reset)` with the positions at which partitions start.
    soon: called when another request can be sent.
    warn: called with a line for the log.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        metadata: Metadata,
        look_up: LookUp | None,
        *,
        on_found: OnFound,
        soon: Callable[[], None],
        warn: Callable[[str], None],
        on_error: Callable[[TopicPartition, PylogdError], None] | None = None,
        on_topic: Callable[[Topic], None] | None = None,
    ) -> None:
        """Nothing is assigned yet.

        on_error: called with a partition and its error, to move or forget it; replaces `raise_error`.
        on_topic: called with each topic of new metadata, before anything is fetched by that metadata.
        """
        self._on_error = on_error or self._keep_error
        self._on_topic = on_topic
        self.options = options
        self.fetcher = Fetcher(FetchSettings.of(options), options.request_timeout)
        self.reader = Reader(
            self.fetcher, self._take, check_crcs=options.check_crcs,
            deserializer=RecordDeserializer(options.key_deserializer, options.value_deserializer),
        )  # fmt: skip
        self.starts = StartOffsets(options, metadata, look_up, self._found)
        self.validator = PositionValidator(
            metadata, options.request_timeout, on_valid=self._validated, on_truncated=self._truncated,
            on_error=self._validation_failed,
        )  # fmt: skip
        self._metadata = metadata
        self._updater = MetadataUpdater(
            metadata, max_age=options.metadata_max_age, timeout=options.request_timeout, backoff=Backoff,
            on_topic=self._topic_learned, needed=lambda: {partition.topic for partition in self.assignment},
        )  # fmt: skip
        self._on_found = on_found
        self._soon = soon
        self._warn = warn
        self._failing_since: dict[TopicPartition, tuple[float, int]] = {}
        self._error: PylogdError | None = None
        self._is_wanted: Callable[[str], bool] = lambda _: True
        self._unwanted: set[TopicPartition] = set()  # partitions that are held as if they were paused

    # Positions

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return [*self.reader.positions, *sorted(self.starts.waiting - self.reader.positions.keys())]

    def check_assigned(self, partition: TopicPartition) -> None:
        """Raise ValueError for a partition that is not read."""
        if partition not in self.reader.positions and partition not in self.starts.waiting:
            raise ValueError(f"{partition} is not assigned")

    def move(self, partition: TopicPartition, offset: int, epoch: int = UNKNOWN_EPOCH) -> None:
        """Read a partition from `offset` on. `epoch` is the leader epoch of the record in front of it, if known; then
        the position is validated before anything is fetched.
        """
        self.reader.buffer.drop(partition)
        self._move(partition, offset, epoch)

    def _move(self, partition: TopicPartition, offset: int, epoch: int = UNKNOWN_EPOCH) -> None:
        self._release(partition)
        self.reader.move(partition, offset, epoch)

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Continue at an earlier offset, or at the position: the records after it were handed out but not processed."""
        self.reader.buffer.drop(partition)
        self._release(partition)
        self.reader.rewind(partition, offset)

    def forget(self, partition: TopicPartition) -> None:
        """Stop reading a partition."""
        self.fetcher.pause(partition, False)
        self._unwanted.discard(partition)
        self.reader.buffer.drop(partition)
        self._release(partition)
        self.reader.forget(partition)

    def start_again(self, partitions: list[TopicPartition]) -> None:
        """Read partitions from their start offsets: the committed ones, or where `auto_offset_reset` says."""
        for partition in partitions:
            self.reader.buffer.drop(partition)
            self._release(partition)
            self.reader.forget(partition)
        self.starts.add(partitions)

    def unbuffer(self) -> None:
        """Have the buffered records read again, in another form. Records of paused partitions stay buffered."""
        for partition, offset in self.reader.buffer.positions().items():
            if partition not in self.fetcher.paused:
                self.rewind(partition, offset)

    def pause(self, partition: TopicPartition, paused: bool) -> None:
        """Stop, or continue, handing out records of a partition."""
        if partition not in self._unwanted:
            self.reader.pause(partition, paused)

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused."""
        held = self.fetcher.paused - self._unwanted
        return [partition for partition in self.assignment if partition in held]

    def want(self, is_wanted: Callable[[str], bool]) -> None:
        """Return only records of topics with these names. The group takes the other partitions away later."""
        self._is_wanted = is_wanted
        self.hold_unwanted()

    def hold_unwanted(self) -> None:
        """Hold the partitions of unwanted topics, and continue with the partitions that are wanted again."""
        for partition in self.assignment:
            if self._is_wanted(partition.topic):
                if partition in self._unwanted:
                    self._unwanted.remove(partition)
                    self.reader.pause(partition, False)
            elif partition not in self.fetcher.paused:
                self._unwanted.add(partition)
                self.reader.pause(partition, True)

    def _reset(self, partition: TopicPartition) -> None:
        """Find a new position for a partition that has lost its position, or whose log does not have it."""
        self._release(partition)
        self.reader.forget(partition)
        self.starts.add([partition], reset=True)

    def _release(self, partition: TopicPartition) -> None:
        """Forget the state that belongs to the present position of a partition."""
        self.starts.discard(partition)
        self.validator.discard(partition)
        self._failing_since.pop(partition, None)

    def _found(self, committed: dict[TopicPartition, OffsetAndMetadata], reset: dict[TopicPartition, int]) -> None:
        self._on_found(committed, reset)
        for partition, found in committed.items():
            if partition in self.starts.waiting:
                self._move(partition, found.offset, found.leader_epoch)
        for partition, offset in reset.items():
            if partition in self.starts.waiting:
                self._move(partition, offset)

    def _take(self) -> FetchedBatches | None:
        """Return the next fetched batches. The request for the batches after them is sent first."""
        while (fetched := self.fetcher.take()) is not None:
            if not self.fetcher.ready:
                self._soon()
            if self.fetcher.current(fetched.fetch, fetched.generation):
                return fetched
            self.fetcher.used(fetched)  # the leader has changed: fetch the batches again from the new one
        return None

    # Time

    def turn(self, now: float) -> list[Call]:
        """Do the due work, and return the requests to send."""
        self._look_at_errors(now)
        if self.fetcher.starved:
            self.reader.drop_paused()
        calls = self._updater.due(self._missing_topics(), now)
        calls += self.starts.turn(now)
        calls += self.fetcher.calls(now, self._metadata)
        if self.fetcher.leader_changed:
            self._validate_changed()
        if self.validator.waiting:
            calls += self.validator.turn(now)
        return calls

    def next_time(self, now: float) -> float | None:
        """Return when to call `turn`, unless an event comes first."""
        missing = bool(self._missing_topics())
        times = [
            self.fetcher.next_time(now), self.starts.next_time(now), self.validator.next_time(now),
            self._updater.next_time(missing),
        ]  # fmt: skip
        return min((time for time in times if time is not None), default=None)

    def reset(self) -> None:
        """Drop all requests in flight: the connections are closed, and no answer will arrive."""
        self.fetcher.reset()
        self.starts.reset()
        self.validator.reset()
        self._updater.reset()

    def _missing_topics(self) -> set[str]:
        known = self._metadata.topics
        wanted = {partition.topic for partition in self.fetcher.partitions if partition.topic not in known}
        return wanted | self.starts.missing_topics()

    def _topic_learned(self, name: str, topic: Topic | None, error: PylogdError | None, now: float) -> None:
        if topic is not None and self._on_topic is not None:
            self._on_topic(topic)
        if error is None:
            return
        if any(partition.topic == name for partition in self.starts.waiting):
            self.starts.failing(error, now)
        for partition, fetch in self.fetcher.partitions.items():
            if partition.topic == name:
                self.fetcher.fail(fetch, error, now)

    # Changes of leaders

    def _validate_changed(self) -> None:
        """Have positions validated under a new leader. Records fetched from the former leader are fetched again."""
        for partition in self.fetcher.take_leader_changed():
            epoch = self.reader.epoch(partition)
            position = self.reader.positions[partition]
            self.reader.rewind(partition, position)
            if epoch != UNKNOWN_EPOCH:
                self.fetcher.partitions[partition].validating = True
                self.validator.add(partition, position, epoch)

    def _validated(self, partition: TopicPartition, leader_epoch: int) -> None:
        fetch = self.fetcher.partitions[partition]
        fetch.validating, fetch.leader_epoch = False, leader_epoch
        self._failing_since.pop(partition, None)

    def _truncated(self, divergences: Mapping[TopicPartition, Divergence], leader_epoch: int) -> None:
        positions = {partition: self.reader.positions[partition] for partition in divergences}
        if self.options.auto_offset_reset == "none":
            error = LogTruncation.of(positions, divergences)
            for partition in divergences:
                self._on_error(partition, error)
            return
        policy = self.options.auto_offset_reset
        for partition, divergence in divergences.items():
            if divergence is None:
                self._warn(f"{partition}: the log was truncated before offset {positions[partition]} by an unclean "
                           f"election; reading starts again at the {policy} offset")  # fmt: skip
                self._reset(partition)
            else:
                self._warn(f"{partition}: the log was truncated to offset {divergence.offset} by an unclean election; "
                           f"reading continues there, not at offset {positions[partition]}")  # fmt: skip
                self._move(partition, divergence.offset, divergence.leader_epoch)
                self.fetcher.partitions[partition].leader_epoch = leader_epoch

    def _validation_failed(self, partition: TopicPartition, error: PylogdError, now: float) -> None:
        if self._is_final(self.fetcher.partitions[partition], error, now):
            self._on_error(partition, error)

    # Errors

    def _keep_error(self, _: TopicPartition, error: PylogdError) -> None:
        self._error = self._error or error

    @property
    def has_error(self) -> bool:
        """Whether `raise_error` would raise."""
        return self._error is not None or self.starts.error is not None

    def raise_error(self) -> None:
        """Raise an error that a retry can't solve; the next call continues at the same position."""
        error, self._error = self._error or self.starts.error, None
        self.starts.error = None
        if error is not None:
            raise error

    def _look_at_errors(self, now: float) -> None:
        while (fetch := self.fetcher.failed_partition()) is not None:
            error, fetch.error = fetch.error, None
            assert error is not None
            if is_out_of_range(error) and self.options.auto_offset_reset != "none":
                self._reset(fetch.partition)
            elif self._is_final(fetch, error, now):
                self._on_error(fetch.partition, error)

    def _is_final(self, fetch: PartitionFetch, error: PylogdError, now: float) -> bool:
        """Return whether to raise an error: it is not retriable, or was retried for `retry_timeout` seconds."""
        since, at = self._failing_since.get(fetch.partition, (now, -1))
        if at != fetch.offset:  # the partition has made progress since
            since = now
        self._failing_since[fetch.partition] = since, fetch.offset
        patience = self.options.retry_timeout
        final = not is_retriable(error) or (patience is not None and now - since >= patience)
        if final:
            del self._failing_since[fetch.partition]
        return final


def is_out_of_range(error: PylogdError | None) -> bool:
    """Return whether a fetch failed because the log does not have the offset."""
    return isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE
