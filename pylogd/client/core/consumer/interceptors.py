"""Hooks of a consumer (KIP-42): they see and change records before `poll` returns them, and are told of commits."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from pylogd.client.core.interceptors import changed_by, overridden, tell
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.wire.records import Record

_log = logging.getLogger("pylogd.client.consumer")


class ConsumerInterceptor:
    """Base class of a consumer's interceptors. Override the methods that are needed.

    An exception in any of them is logged, and has no other effect.
    """

    def on_consume(self, records: list[Record]) -> list[Record]:
        """Return the records that the application gets in place of `records`, deserialized records of one partition.

        Records that are left out count as processed. Called by `poll` and by iterations, not by `poll_columns`.
        """
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Called when the group's coordinator, a broker or ZooKeeper, has stored offsets. It should return quickly."""

    def close(self) -> None:
        """Called when the consumer was closed."""


class ConsumerHooks:
    """The interceptors of one consumer."""

    def __init__(self, interceptors: Sequence[ConsumerInterceptor]) -> None:
        """Interceptors are called in this order, each with the result of the previous one."""
        self._on_consume = overridden(interceptors, ConsumerInterceptor, "on_consume")
        self._on_commit = overridden(interceptors, ConsumerInterceptor, "on_commit")
        self._on_close = overridden(interceptors, ConsumerInterceptor, "close")

    def consumed(self, records: list[Record]) -> list[Record]:
        """Return the records that replace these records of one partition."""
        return changed_by(_log, self._on_consume, records) if self._on_consume else records

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Report offsets that were committed."""
        tell(_log, self._on_commit, offsets)

    def close(self) -> None:
        """Tell the interceptors that the consumer was closed."""
        hooks, self._on_close = self._on_close, []
        tell(_log, hooks)
