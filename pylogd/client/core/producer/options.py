"""Options of a producer, written and checked once for all faces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pylogd.base.errors import PylogdError
from pylogd.client.core.interceptors import check_interceptors
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.options import ClientOptions
from pylogd.client.core.producer.interceptors import ProducerInterceptor
from pylogd.client.core.producer.partitioner import PARTITIONERS, Partitioner
from pylogd.client.core.serialization import Serializer, check_converter
from pylogd.wire.compression import CompressionType

Acks = Literal["all", 0, 1, -1]
_ACKS = {"all": -1, -1: -1, 0: 0, 1: 1, "0": 0, "1": 1, "-1": -1}


#: With more batches of a partition in flight, the broker would not recognize a retry of the first.
MAX_IN_FLIGHT = 5


class BatchResult(NamedTuple):
    """The result of a batch. `base_offset` is the offset of the first record. It is -1 if the offset is unknown: after
    an error, with acks=0, or if the broker had the batch already.
    """

    partition: TopicPartition
    records: int
    base_offset: int
    log_append_time_ms: int
    error: PylogdError | None


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """The options of a producer. Times are in seconds unless their name says `ms`.

    acks: which replicas must have a record before it counts as written: "all" in-sync replicas, 1 (the leader), or 0
        (none).
    transactional_id: makes the producer transactional. No two live producers may have the same id: a later producer
        fences the earlier one.
    transaction_timeout: seconds after which the coordinator aborts a transaction that is not ended.
    idempotence: retries write no record twice, and order is kept. None turns it on where it is possible: with
        acks="all", retries, and at most five requests in flight.
    compression, compression_level: "none", "gzip", "snappy", "lz4" or "zstd", and a level on the codec's own scale.
    batch_bytes, batch_records, linger_ms: a batch is sent when it has this many bytes or records, or is this old.
    buffer_memory: bytes that may wait to be sent. When they are reached, `send` waits up to `max_block` for space; the
        records of calls that wait are not counted.
    max_block: how long `send` waits, and each call that begins or ends a transaction.
    max_request_bytes: limit of one request, which carries a batch of each of several partitions.
    max_in_flight: limit of requests in flight to one broker.
    partitioner: "murmur2" (as the Java client), "crc32" (as librdkafka), "random", or a function of topic, key and
        number of partitions.
    partitioner_adaptive: records without a key go more often to partitions with fewer batches waiting (KIP-794).
    partitioner_availability_timeout: records without a key avoid a partition whose oldest batch has waited this long;
        0 turns this off.
    key_serializer, value_serializer: functions of one argument that return bytes, or objects with
        `serialize(topic, data)`.
    interceptors: objects whose methods are called for every record, see `ProducerInterceptor`.
    delivery_timeout: how long delivering a record may take, including retries.
    retry: whether a batch is sent again after a retriable error. Without retries a record is written at most once.
    on_batch: a function called with the result of every batch, which is cheaper than keeping all deliveries.
    """

    acks: Acks = "all"
    transactional_id: str | None = None
    transaction_timeout: float = 60.0
    idempotence: bool | None = None
    compression: str = "none"
    compression_level: int | None = None
    batch_bytes: int = 256 * 1024
    batch_records: int = 10_000
    linger_ms: float = 5
    buffer_memory: int = 32 * 1024 * 1024
    max_block: float = 60.0
    max_request_bytes: int = 1024 * 1024
    max_in_flight: int = 5
    partitioner: str | Partitioner = "murmur2"
    partitioner_adaptive: bool = True
    partitioner_availability_timeout: float = 0.0
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    interceptors: Sequence[ProducerInterceptor] = ()
    delivery_timeout: float = 120.0
    retry: bool = True
    on_batch: Callable[[BatchResult], None] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown value, and for options that contradict each other."""
        super().__post_init__()
        if self.acks not in _ACKS:
            raise ValueError(f'acks is "all", 0 or 1, not {self.acks!r}')
        if self.idempotence and not self._can_be_idempotent:
            raise ValueError(f'idempotence needs acks="all", retries, and at most {MAX_IN_FLIGHT} requests in flight')
        if self.transactional_id is not None:
            if not (self.transactional_id and self.is_idempotent):
                raise ValueError("transactional_id is a name, and needs an idempotent producer")
            if not self.transaction_timeout > 0:
                raise ValueError(f"transaction_timeout is a number of seconds, not {self.transaction_timeout!r}")
        if isinstance(self.partitioner, str) and self.partitioner not in PARTITIONERS:
            raise ValueError(f"partitioner is {', '.join(PARTITIONERS)} or a function, not {self.partitioner!r}")
        CompressionType.named(self.compression)
        check_converter(self.key_serializer, "serialize", "key_serializer")
        check_converter(self.value_serializer, "serialize", "value_serializer")
        check_interceptors(self.interceptors, ProducerInterceptor)

    @property
    def _can_be_idempotent(self) -> bool:
        return _ACKS[self.acks] == -1 and self.retry and self.max_in_flight <= MAX_IN_FLIGHT

    @property
    def is_idempotent(self) -> bool:
        """Whether this producer numbers its batches."""
        return self._can_be_idempotent if self.idempotence is None else self.idempotence

    @property
    def required_acks(self) -> int:
        """The number that the request has: -1, 0 or 1."""
        return _ACKS[self.acks]

    @property
    def compression_type(self) -> int:
        """The number in a batch's attributes."""
        return CompressionType.named(self.compression)
