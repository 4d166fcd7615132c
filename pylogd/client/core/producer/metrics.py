"""Statistics of a producer, with Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from pylogd.client.core.metrics import ClientMetrics, NetworkMeters, Statistics, Window
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.accumulator import Batch
from pylogd.client.core.producer.options import BatchResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPartitionMetrics(Statistics):
    """Counts of records of one partition. Bytes are counted in encoded batches."""

    record_send_total: int
    record_send_rate: float
    record_error_total: int
    record_error_rate: float
    record_retry_total: int
    record_retry_rate: float
    byte_total: int
    byte_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerMetrics(ClientMetrics):
    """Statistics of a producer. record_send_*: written records. record_error_*: records that failed finally.

    record_queue_time_*: milliseconds from the first record of a batch to the request that carries the batch.
    batch_size_*: bytes of encoded batches.
    compression_rate_avg: encoded bytes divided by an upper bound of the bytes before compression.
    """

    record_send_total: int
    record_send_rate: float
    record_error_total: int
    record_error_rate: float
    record_retry_total: int
    record_retry_rate: float
    byte_total: int
    byte_rate: float
    batch_size_avg: float
    batch_size_max: float
    records_per_request_avg: float
    record_queue_time_avg: float
    record_queue_time_max: float
    compression_rate_avg: float
    buffer_total_bytes: int
    buffer_available_bytes: int
    partitions: Mapping[TopicPartition, ProducerPartitionMetrics] = field(default_factory=dict)


#: The names of a partition's numbers; the producer's numbers are their sums.
_PARTITION_NUMBERS: Final = tuple(each.name for each in fields(ProducerPartitionMetrics))


class _PartitionMeters:
    """The counters of one partition."""

    __slots__ = ("bytes", "errors", "records", "retries")

    def __init__(self, window: Window) -> None:
        self.records, self.errors, self.retries, self.bytes = (window.meter() for _ in range(4))

    def snapshot(self, seconds: float) -> dict[str, Any]:
        """Return the numbers; the window has lasted `seconds`."""
        return {
            "record_send_total": int(self.records.total),
            "record_send_rate": self.records.rate(seconds),
            "record_error_total": int(self.errors.total),
            "record_error_rate": self.errors.rate(seconds),
            "record_retry_total": int(self.retries.total),
            "record_retry_rate": self.retries.rate(seconds),
            "byte_total": int(self.bytes.total),
            "byte_rate": self.bytes.rate(seconds),
        }


class ProducerMeters:
    """The counters of a producer, updated batch by batch."""

    def __init__(self, network: NetworkMeters, buffer_memory: int) -> None:
        """`network` records its connections."""
        self._network = network
        self._window = window = network.window
        self._buffer_memory = buffer_memory
        self._partitions: dict[TopicPartition, _PartitionMeters] = {}
        self._queue_time, self._compression, self._requests = window.meter(), window.meter(), window.meter()

    def _of(self, partition: TopicPartition) -> _PartitionMeters:
        meters = self._partitions.get(partition)
        if meters is None:
            meters = self._partitions[partition] = _PartitionMeters(self._window)
        return meters

    def completed(self, batch: Batch, result: BatchResult, size: int) -> None:
        """Record the result of a batch of `size` encoded bytes."""
        meters = self._of(batch.partition)
        if result.error is not None:
            meters.errors.record(batch.count)
            return
        meters.records.record(batch.count)
        meters.bytes.record(size)
        if batch.size:
            self._compression.record(size / batch.size)

    def retried(self, batch: Batch) -> None:
        """Record that a batch will be sent again."""
        self._of(batch.partition).retries.record(batch.count)

    def sent(self, records: int, queued_seconds: list[float]) -> None:
        """Record a request with `records` records, and the waiting times of batches that were not sent before."""
        self._requests.record(records)
        for seconds in queued_seconds:
            self._queue_time.record(seconds * 1000)

    def snapshot(self, now: float, buffered: int) -> ProducerMetrics:
        """Return all numbers; `buffered` is the number of buffered bytes."""
        seconds = self._window.seconds(now)
        meters = dict(self._partitions)
        found = {partition: each.snapshot(seconds) for partition, each in meters.items()}
        totals = {name: sum(each[name] for each in found.values()) for name in _PARTITION_NUMBERS}
        recent = [each.bytes.recent for each in meters.values()]
        batches, size = sum(count for count, _ in recent), sum(total for _, total in recent)
        return ProducerMetrics(
            **self._network.snapshot(now),
            **totals,
            batch_size_avg=size / batches if batches else 0.0,
            batch_size_max=max((each.bytes.highest for each in meters.values()), default=0.0),
            records_per_request_avg=self._requests.average,
            record_queue_time_avg=self._queue_time.average,
            record_queue_time_max=self._queue_time.highest,
            compression_rate_avg=self._compression.average,
            buffer_total_bytes=self._buffer_memory,
            buffer_available_bytes=max(0, self._buffer_memory - buffered),
            partitions={partition: ProducerPartitionMetrics(**each) for partition, each in found.items()},
        )
