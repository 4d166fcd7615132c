"""Encode records in one process, and send them from another one.

    encoder = BatchEncoder("localhost:9092", compression="zstd")        # where the records are
    encoder.add("counts", None, b"key", b"value")
    batches = encoder.finish()

    for batch in batches:                                               # where the producer is
        send_encoded(producer, batch)

Encoding and compressing are most of a producer's work. A program that writes in one transaction has one producer, but
may have many processes with records: each of them encodes its own, and the producer only numbers the batches.

Rules: an encoder chooses partitions, and fills batches, by the options of a producer. It sends no record.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any, NamedTuple

from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.producer import Delivery, Producer
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.options import ClientOptions
from pylogd.client.core.producer.accumulator import Accumulator, Batch
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.producer import check_partition
from pylogd.wire.records import TRANSACTIONAL, Header


class EncodedBatch(NamedTuple):
    """A record batch that is ready to be sent, but has no producer id and no sequence number."""

    topic: str
    partition: int
    encoded: bytes


class BatchEncoder:
    """Makes the batches that a producer with the same options would send."""

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Any) -> None:
        """settings: the options of a producer. With a `transactional_id` the batches are transactional.

        Raises ValueError for options that contradict each other.
        """
        self._options = options = ProducerOptions.of(None, settings)
        lent = {field.name: getattr(options, field.name) for field in fields(ClientOptions)}
        self._cluster = Cluster(
            bootstrap_servers, ClientOptions(**lent), retry_timeout=options.max_block, auto_create_topics=True
        )
        self._accumulator = Accumulator(
            batch_bytes=options.batch_bytes, batch_records=options.batch_records, linger=math.inf,
            delivery_timeout=math.inf, partitioner=options.partitioner, adaptive=options.partitioner_adaptive,
            monotonic=time.monotonic,
        )  # fmt: skip
        self._attributes = 0 if options.transactional_id is None else TRANSACTIONAL
        self._partitions: dict[str, int] = {}
        self._found: list[EncodedBatch] = []

    def __enter__(self) -> BatchEncoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cluster.close()

    def add(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Sequence[Header] = (),
    ) -> None:
        """Add a record. `timestamp`: milliseconds since 1970.

        Raises KafkaError if there is no such topic or partition; what kept its metadata from being read; TypeError for
        a key or value that is no bytes.
        """
        count = self._partitions.get(topic)
        if count is None:
            count = self._partitions[topic] = len(self._cluster.partitions(topic))
        if partition is not None:
            check_partition(topic, partition, count)
        self._accumulator.add(topic, count, partition, key, value, timestamp, headers)
        if self._accumulator.sealed:
            self._encode()

    def finish(self) -> list[EncodedBatch]:
        """Return the batches of all records, each partition's in the order of its records."""
        self._accumulator.seal_all()
        self._encode()
        found, self._found = self._found, []
        return found

    def _encode(self) -> None:
        options, accumulator = self._options, self._accumulator
        for batch in accumulator.take_sealed():
            encoded = batch.encode(options.compression_type, options.compression_level, self._attributes)
            self._found.append(EncodedBatch(*batch.partition, bytes(encoded)))
            accumulator.finish(batch, -1, -1, None)


def send_encoded(producer: Producer, batch: EncodedBatch) -> Delivery:
    """Send a batch of an encoder, and return its delivery; the offset is that of its first record.

    It passes no serializer and no interceptor. Waits and raises as `Producer.send`; raises ValueError if the batch was
    encoded for a producer with transactions and this one has none, or the other way round.
    """
    topic, partition, encoded = batch
    transactional = producer.options.transactional_id is not None

    def add(_: int) -> tuple[Batch, int]:
        chosen = TopicPartition(topic, partition)
        return producer._accumulator.add_encoded(chosen, encoded, transactional=transactional), 0

    return producer._accept(topic, partition, add, None)
