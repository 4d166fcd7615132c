"""Read record batches of one source cluster for one target: committed ones, as they are on the wire.

Strategy: the client's fetcher, validation of positions and metadata (`client.core.consumer.partitions`) without its
decoding. Batches of aborted transactions and control batches are left out; the position moves behind them.

Rules: connections and metadata of its own, so that no topic is fetched before its id was compared with the one under
which the position was taken: a topic that was deleted and created again is reported as `TopicRecreated`, and nothing of
it is read before `read` is called again. Every error that retrying does not help is reported once, with its partition,
which is then not read any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from pylogd.client.core.call import Call
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.consumer.partitions import PartitionsCore
from pylogd.client.core.consumer.reader import BatchChunk
from pylogd.client.core.errors import CorruptRecords
from pylogd.client.core.model import Topic, TopicPartition
from pylogd.client.core.options import ClientOptions
from pylogd.client.deferred.cluster import Cluster
from pylogd.errors import PylogdError
from pylogd.mirror.errors import TopicRecreated
from pylogd.wire.values import ZERO_UUID

_log = logging.getLogger(__name__)

_FETCH_BYTES: Final = 16 << 20
_PARTITION_BYTES: Final = 2 << 20
_BUFFER_BYTES: Final = 48 << 20
#: For how long an error that may pass is retried before it is reported.
_PATIENCE_SECONDS: Final = 30.0

OnError = Callable[[TopicPartition, PylogdError], None]


class BatchReader(Protocol):
    """What the loop that copies needs of a source: see `SourceReader`, which is one."""

    @property
    def is_ready(self) -> bool: ...
    def read(self, partition: TopicPartition, offset: int, epoch: int, topic_id: bytes) -> None: ...
    def forget(self, partition: TopicPartition) -> None: ...
    def epoch(self, partition: TopicPartition) -> int: ...
    def position(self, partition: TopicPartition) -> int | None: ...
    def end(self, partition: TopicPartition) -> int: ...
    def take(self) -> BatchChunk | None: ...
    def close(self) -> None: ...


class SourceReader:
    """The partitions of a source that are read. `on_ready` is called when `take` may return something."""

    def __init__(
        self, bootstrap: str, options: ClientOptions, *, on_ready: Callable[[], None], on_error: OnError, reactor: Any,
        rack: str | None = None,
    ) -> None:  # fmt: skip
        """Nothing is read yet. rack: where this reader is, to read from replicas near it."""
        self.cluster = Cluster(bootstrap, options, reactor=reactor)
        self._driver = self.cluster.driver
        self._on_ready = on_ready
        self._on_error = on_error
        self._topic_ids: dict[str, bytes] = {}
        consumer = ConsumerOptions(
            client_id=options.client_id, isolation="committed", auto_offset_reset="none", auto_commit="off",
            client_rack=rack, fetch_max_bytes=_FETCH_BYTES, partition_max_bytes=_PARTITION_BYTES,
            buffer_bytes=_BUFFER_BYTES, retry_timeout=_PATIENCE_SECONDS, request_timeout=options.request_timeout,
            metadata_max_age=options.metadata_max_age,
        )  # fmt: skip
        self._core = PartitionsCore(
            consumer, self.cluster.metadata, None, on_found=lambda *_: None, soon=self._driver.soon, warn=_log.warning,
            on_error=self._failed, on_topic=self._learned,
        )  # fmt: skip
        self._driver.add(self)

    def close(self) -> None:
        """Read nothing more, and close the connections."""
        self._driver.remove(self)
        self.cluster.close()

    @property
    def assignment(self) -> Sequence[TopicPartition]:
        """The partitions that are read."""
        return self._core.assignment

    def read(self, partition: TopicPartition, offset: int, epoch: int, topic_id: bytes) -> None:
        """Read a partition of the topic with this id from `offset` on. `epoch` is the leader epoch of what is in front
        of it, -1 if not known; the log is checked to have both before anything is read.
        """
        if topic_id != ZERO_UUID:
            self._topic_ids[partition.topic] = topic_id
        self._core.move(partition, offset, epoch)
        known = self.cluster.metadata.topics.get(partition.topic)
        if known is not None:
            self._learned(known)
        self._driver.soon()

    def forget(self, partition: TopicPartition) -> None:
        """Read a partition no more; what was fetched of it is dropped."""
        self._core.forget(partition)

    def epoch(self, partition: TopicPartition) -> int:
        """Return the leader epoch of the last batch that was taken of a partition."""
        return self._core.reader.epoch(partition)

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset behind everything that was taken or left out; None if the partition is not read."""
        return self._core.reader.positions.get(partition)

    def end(self, partition: TopicPartition) -> int:
        """Return the end of the committed records as the last answer has it, -1 before there is one."""
        fetch = self._core.fetcher.partitions.get(partition)
        return -1 if fetch is None else fetch.high_watermark

    @property
    def is_ready(self) -> bool:
        """Whether `take` may return something."""
        return self._core.fetcher.ready

    def take(self) -> BatchChunk | None:
        """Return batches of one partition in order, with the position that they were read from; None if none wait."""
        while True:
            try:
                found = self._core.reader.take_batches()
            except CorruptRecords as error:
                self._failed(TopicPartition(error.topic, error.partition), error)
                continue
            self._driver.soon()
            return found

    def _failed(self, partition: TopicPartition, error: PylogdError) -> None:
        self._core.forget(partition)
        self._on_error(partition, error)

    def _learned(self, topic: Topic) -> None:
        """Stop reading a topic whose id is not the one that it had when its positions were taken."""
        known = self._topic_ids.get(topic.name)
        if known is None or topic.topic_id in (known, ZERO_UUID):
            return
        del self._topic_ids[topic.name]
        for partition in [each for each in self._core.assignment if each.topic == topic.name]:
            self._failed(partition, TopicRecreated(f"topic {topic.name} was deleted and created again at the source"))

    # What the driver calls

    def turn(self, now: float) -> list[Call]:
        """Do what is due, and return what to send."""
        return self._core.turn(now)

    def next_time(self, now: float) -> float | None:
        """Return when to call `turn` if nothing happens before."""
        return self._core.next_time(now)

    def settle(self) -> None:
        """Say that there are batches to take."""
        if self._core.fetcher.ready:
            self._on_ready()

    def reset(self) -> None:
        """Forget what is in flight."""
        self._core.reset()
