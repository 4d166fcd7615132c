"""Encode rows in one process, and send them from another one.

    encoder = BatchEncoder("localhost:9092", compression="zstd")        # where the rows are
    encoder.add("counts", rows, now_ms)                                 # a pyarrow.RecordBatch
    batches = encoder.finish()

    for batch in batches:                                               # where the producer is
        send_encoded(producer, batch)

Most of a producer's work is to encode and compress. A program that writes in one transaction has one producer, but the
rows may be in many processes. Each process encodes its own rows, and the producer only numbers the batches.
`Producer.send_columns` does both in one process.

Rules: a producer's options decide how rows become batches (`columns`). An encoder sends no record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.producer import Delivery, Producer
from pylogd.client.core.options import ClientOptions
from pylogd.client.core.producer.columns import ColumnEncoder, EncodedBatch
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.producer import check_partition

if TYPE_CHECKING:
    import pyarrow as pa


class BatchEncoder:
    """Makes the batches that a producer with the same options would send."""

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Any) -> None:
        """Pass the options of a producer. With a `transactional_id` the batches are transactional.

        Raises ValueError for options that contradict each other.
        """
        options = ProducerOptions.of(None, settings)
        lent = {field.name: getattr(options, field.name) for field in fields(ClientOptions)}
        self._cluster = Cluster(
            bootstrap_servers, ClientOptions(**lent), retry_timeout=options.max_block, auto_create_topics=True
        )
        self._encoder = ColumnEncoder(options, self._count)
        self._partitions: dict[str, int] = {}
        self._found: list[EncodedBatch] = []

    def __enter__(self) -> BatchEncoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cluster.close()

    def add(self, topic: str, rows: pa.RecordBatch, timestamp: int) -> None:
        """Add rows. Arguments and errors are those of `ColumnEncoder.encode`; may also raise errors of metadata."""
        self._found += self._encoder.encode(topic, rows, timestamp)

    def finish(self) -> list[EncodedBatch]:
        """Return the batches of all rows; those of a partition are in the order of its rows."""
        found, self._found = self._found, []
        return found

    def _count(self, topic: str, partition: int | None) -> int:
        count = self._partitions.get(topic)
        if count is None:
            count = self._partitions[topic] = len(self._cluster.partitions(topic))
        if partition is not None:
            check_partition(topic, partition, count)
        return count


def send_encoded(producer: Producer, batch: EncodedBatch) -> Delivery:
    """Send a batch of an encoder. Return its delivery, which gets the offset of the first record.

    Serializers and interceptors are not called. Waits and raises as `Producer.send` does. Raises ValueError if only one
    of the two, the batch and the producer, is transactional.
    """
    return producer._send_encoded(batch)
