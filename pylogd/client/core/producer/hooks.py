"""Call the application's interceptors, serializers and callbacks for a producer.

Strategy: `prepare` changes a record before it is batched; `completed` reports the result of a batch. Without
interceptors and serializers `prepares` is False, and the faces skip `prepare`.

Rules: an exception in an interceptor or a callback is logged and changes nothing for the record. An exception in a
serializer is raised as SerializationFailed, and the record is not sent.
"""

from __future__ import annotations

import logging

from pylogd.client.core.interceptors import changed_by, overridden, tell
from pylogd.client.core.producer.accumulator import Batch
from pylogd.client.core.producer.interceptors import ProducerInterceptor, ProducerRecord, RecordMetadata
from pylogd.client.core.producer.options import BatchResult, ProducerOptions
from pylogd.client.core.serialization import RecordSerializer
from pylogd.wire.records import NewRecord

_log = logging.getLogger("pylogd.client.producer")


class ProducerHooks:
    """The interceptors, serializers and callbacks of one producer.

    prepares: whether `prepare` does anything.
    intercepts: whether it does anything for records that need no serializer.
    """

    def __init__(self, options: ProducerOptions) -> None:
        """Take the hooks from a producer's options."""
        self._on_batch = options.on_batch
        self._serializer = RecordSerializer(options.key_serializer, options.value_serializer)
        interceptors = options.interceptors
        self._on_send = overridden(interceptors, ProducerInterceptor, "on_send")
        self._on_acknowledgement = overridden(interceptors, ProducerInterceptor, "on_acknowledgement")
        self._on_close = overridden(interceptors, ProducerInterceptor, "close")
        self.intercepts = bool(self._on_send or self._on_acknowledgement)
        self.prepares = bool(self._serializer) or self.intercepts

    def prepare(self, record: ProducerRecord, *, serialize: bool = True) -> ProducerRecord:
        """Return the record to send.

        serialize: False if the record's key and value are bytes already.

        Raises SerializationFailed.
        """
        if self._on_send:
            record = changed_by(_log, self._on_send, record)
        if serialize and self._serializer:
            topic = record.topic
            try:
                key, value = self._serializer.key(topic, record.key), self._serializer.value(topic, record.value)
            except Exception as error:
                self.refused(record, error)
                raise
            record = record._replace(key=key, value=value)
        return record

    def prepare_set(self, topic: str, records: list[NewRecord], partition: int | None) -> list[NewRecord]:
        """Return the records of a set as they are to be sent. Interceptors can't change their topic and partition."""
        found = []
        for key, value, timestamp, headers in records:
            record = self.prepare(ProducerRecord(topic, value, key, partition, timestamp, headers))
            stamp = timestamp if record.timestamp is None else record.timestamp
            found.append(NewRecord(record.key, record.value, stamp, record.headers))
        return found

    def refused(self, record: ProducerRecord, error: Exception) -> None:
        """Report that a record was not accepted by `send`."""
        partition = -1 if record.partition is None else record.partition
        tell(_log, self._on_acknowledgement, RecordMetadata(record.topic, partition, -1, -1), error)

    def completed(self, batch: Batch, result: BatchResult) -> None:
        """Report the result of a batch: to interceptors, to `on_batch`, and to each record's `on_delivery`."""
        if self._on_acknowledgement:
            (topic, partition), base, stamp = result.partition, result.base_offset, result.log_append_time_ms
            for index in range(result.records):
                offset = -1 if base < 0 else base + index
                tell(_log, self._on_acknowledgement, RecordMetadata(topic, partition, offset, stamp), result.error)
        if self._on_batch is not None:
            try:
                self._on_batch(result)
            except Exception:
                _log.exception("on_batch failed for a batch of %s", result.partition)
        for delivery, listener in batch.calls():
            try:
                listener(result if delivery is None else delivery)
            except Exception:
                _log.exception("on_delivery failed for a record of %s", result.partition)
        batch.listeners = []  # break the cycle with the deliveries, which refer to the batch

    def close(self) -> None:
        """Tell the interceptors that the producer was closed."""
        hooks, self._on_close = self._on_close, []
        tell(_log, hooks)
