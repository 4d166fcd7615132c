"""Read committed record batches of one source cluster, encoded as the broker sent them.

Strategy: use the client's fetcher, validation of positions and metadata (`client.core.consumer.partitions`), but not
its decoding. Batches of aborted transactions and control batches are left out; the position moves past them.

Rules: a reader has its own connections and metadata, so that no topic is fetched before its id was compared with the id
of the position's topic. A topic that was deleted and created again is reported as `TopicRecreated`, and is not read
until the next call of `read`. Every error that a retry can't solve is reported once with its partition, which is then
no longer read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from pylogd.base.errors import PylogdError
from pylogd.client.core.call import Call
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.consumer.partitions import PartitionsCore
from pylogd.client.core.consumer.reader import BatchChunk
from pylogd.client.core.errors import CorruptRecords
from pylogd.client.core.model import Topic, TopicPartition
from pylogd.client.core.options import ClientOptions
from pylogd.client.deferred.cluster import Cluster
from pylogd.services.mirror.errors import TopicRecreated
from pylogd.wire.framing import FrameMemory
from pylogd.wire.values import ZERO_UUID

_log = logging.getLogger(__name__)

#: Less than the largest reply for which a client allocates a buffer at once (`wire.session`); larger ones are copied.
_FETCH_BYTES: Final = 6 << 20
#: A Produce request has one batch of each partition, so an answer should have batches of many partitions.
_PARTITION_BYTES: Final = 1 << 19
_BUFFER_BYTES: Final = 48 << 20
#: The most replies, and bytes of them, whose memory is reused: those that wait, and some that are being received.
_REPLIES: Final = (12, 96 << 20)
#: How long a retriable error is retried before it is reported.
_PATIENCE_SECONDS: Final = 30.0

OnError = Callable[[TopicPartition, PylogdError], None]


class BatchReader(Protocol):
    """The copying loop's interface to a source. `SourceReader` implements it and documents the methods."""

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
    """Reads partitions of a source.

    on_ready: called when `take` may return batches.
    on_error: called with a partition that is no longer read, and its error.
    """

    def __init__(
        self, bootstrap: str, options: ClientOptions, *, on_ready: Callable[[], None], on_error: OnError, reactor: Any,
        rack: str | None = None,
    ) -> None:  # fmt: skip
        """`rack` is that of this process, so that replicas near it are read (KIP-392)."""
        self.cluster = Cluster(bootstrap, options, reactor=reactor)
        self._driver = self.cluster.driver
        self._driver.network.memory = FrameMemory(*_REPLIES)
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
        """Stop reading, and close the connections."""
        self._driver.remove(self)
        self.cluster.close()

    @property
    def assignment(self) -> Sequence[TopicPartition]:
        """The partitions that are read."""
        return self._core.assignment

    def read(self, partition: TopicPartition, offset: int, epoch: int, topic_id: bytes) -> None:
        """Read a partition of the topic with this id from `offset` on. `epoch` is the leader epoch of the record before
        it; -1 if unknown. The log must have both, which is checked before reading.
        """
        if topic_id != ZERO_UUID:
            self._topic_ids[partition.topic] = topic_id
        self._core.move(partition, offset, epoch)
        known = self.cluster.metadata.topics.get(partition.topic)
        if known is not None:
            self._learned(known)
        self._driver.soon()

    def forget(self, partition: TopicPartition) -> None:
        """Stop reading a partition, and drop its fetched batches."""
        self._core.forget(partition)

    def epoch(self, partition: TopicPartition) -> int:
        """Return the leader epoch of the last batch that `take` returned of a partition."""
        return self._core.reader.epoch(partition)

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last batch that was taken or left out; None if the partition is not read."""
        return self._core.reader.positions.get(partition)

    def end(self, partition: TopicPartition) -> int:
        """Return the end of the committed records as of the last fetch; -1 before the first one."""
        fetch = self._core.fetcher.partitions.get(partition)
        return -1 if fetch is None else fetch.high_watermark

    @property
    def is_ready(self) -> bool:
        """Whether `take` may return batches."""
        return self._core.fetcher.ready

    def take(self) -> BatchChunk | None:
        """Return batches of one partition in order, with the position from which they were read; None if none wait."""
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
        """Stop reading a topic whose id has changed since its positions were taken."""
        known = self._topic_ids.get(topic.name)
        if known is None or topic.topic_id in (known, ZERO_UUID):
            return
        del self._topic_ids[topic.name]
        for partition in [each for each in self._core.assignment if each.topic == topic.name]:
            self._failed(partition, TopicRecreated(f"topic {topic.name} was deleted and created again at the source"))

    # Calls of the driver

    def turn(self, now: float) -> list[Call]:
        """Do the work that is due at `now` (seconds of the loop's clock). Return the requests to send."""
        return self._core.turn(now)

    def next_time(self, now: float) -> float | None:
        """Return the time of the next call of `turn`; None if only events need one."""
        return self._core.next_time(now)

    def settle(self) -> None:
        """Call `on_ready` if there are batches to take."""
        if self._core.fetcher.ready:
            self._on_ready()

    def reset(self) -> None:
        """Drop requests in flight: their connections are closed."""
        self._core.reset()
