"""Hooks of a producer (KIP-42): they see and change records before they are sent, and are told the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pylogd.wire.records import Header


class ProducerRecord(NamedTuple):
    """A record as it was passed to `send`, before its key and value are serialized.

    partition: the partition; None leaves the choice to the partitioner.
    timestamp: milliseconds since 1970; None means now.
    """

    topic: str
    value: Any
    key: Any = None
    partition: int | None = None
    timestamp: int | None = None
    headers: Sequence[Header] = ()


class RecordMetadata(NamedTuple):
    """The position of a written record. `offset` is -1 if it is unknown; `partition` is -1 if none was chosen.

    timestamp: when the broker appended the record, in milliseconds since 1970; -1 if the record has its producer's time
    stamp.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class ProducerInterceptor:
    """Base class of a producer's interceptors. Override the methods that are needed.

    An exception in any of them is logged, and has no other effect.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to send in place of `record`, before it is serialized. Called by `send`, in its thread."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """Called when a record was written, or with `error` when it failed, before its `on_delivery` is called.

        Runs in the producer's thread, or in `send` for a record that was not accepted. It should return quickly.
        """

    def close(self) -> None:
        """Called when the producer was closed."""
