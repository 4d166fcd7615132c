"""Accept record batches for a log: check them, give them offsets, and prepare the write.

This is the general path, for any number of batches of any origin. This module does not change the log. `Log.append`
writes accepted batches at once; `staged` writes them in a thread.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Protocol

from pylogd.broker.log.append.result import AppendResult
from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.epochs import LeaderEpochs
from pylogd.broker.log.errors import LogClosed, RecordListTooLarge
from pylogd.broker.log.files import Buffer
from pylogd.broker.log.markers import read_marker
from pylogd.broker.log.producers import Producers, WrittenBatch
from pylogd.broker.log.transaction_checks import check_client_batches, check_marker
from pylogd.broker.log.transactions import UNGUARDED, TransactionTerms
from pylogd.broker.log.validator import (
    AppendOrigin,
    Checked,
    Inspections,
    check_batches,
    check_epochs,
    with_log_append_time,
)
from pylogd.wire.records import LENGTH_OVERHEAD

NO_TIMESTAMP = -1
#: The most buffers that one write may have.
IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)

#: The fields that the broker writes into a batch: base offset, batch length, leader epoch.
_PREFIX = struct.Struct(">qii")
PREFIX_SIZE = _PREFIX.size

pack_prefix = _PREFIX.pack


class AcceptingLog(Protocol):
    """The attributes of a `Log` that this module needs."""

    topic: str
    partition: int
    closed: bool
    stamps: bool
    log_start_offset: int
    epochs: LeaderEpochs
    producers: Producers

    @property
    def config(self) -> LogConfig: ...


class Accepted:
    """Batches that may be appended, all of them or none.

    checked: each batch with its header, which has its offset and leader epoch.
    base_offset: the first batch's base offset.
    last_offset: the last batch's last offset.
    newest: the largest time stamp.
    size: the size of all batches in bytes.
    as_is: the bytes to write, if they already have offsets and leader epochs; else None.
    result: what the append returns once the batches are written.
    """

    __slots__ = ("as_is", "base_offset", "checked", "last_offset", "newest", "result", "size")

    def __init__(self, checked: list[Checked], size: int, as_is: memoryview | None, stamp: int, start: int) -> None:
        self.checked = checked
        self.size = size
        self.as_is = as_is
        self.base_offset, self.last_offset = checked[0][0].base_offset, checked[-1][0].last_offset
        self.newest = max(header.max_timestamp for header, _ in checked)
        self.result = AppendResult(self.base_offset, self.last_offset, stamp, start)

    def buffers(self) -> list[Buffer]:
        """Return the bytes to write."""
        if self.as_is is not None:
            return [self.as_is]
        buffers: list[Buffer] = []
        for header, batch in self.checked:
            buffers += (
                pack_prefix(header.base_offset, header.batch_length, header.leader_epoch),
                batch[PREFIX_SIZE:],
            )
        return buffers


def accept(
    log: AcceptingLog,
    records: memoryview,
    leader_epoch: int,
    origin: AppendOrigin,
    now_ms: int,
    inspections: Inspections | None,
    may_inspect: bool,
    *,
    end: int,
    sequences: dict[int, tuple[int, int]] | None = None,
    terms: TransactionTerms | None = None,
) -> Accepted | AppendResult:
    """Return the batches of an append to write, or the result of an earlier append if this one is a duplicate.

    end: the offset that the first batch gets.
    sequences: the next epoch and sequence of producers whose batches are still being written, by producer id.
    terms: describes the transaction of transactional batches and markers.

    Raises InvalidAppend and InspectionNeeded.
    """
    config = log.config
    if log.closed:
        raise LogClosed(f"the log of {log.topic}-{log.partition} is closed")
    checked = check_batches(records, origin, config, now_ms, end, inspections, may_inspect)
    if origin is AppendOrigin.REPLICATION:
        check_epochs([header for header, _ in checked], log.epochs.latest, leader_epoch)
        return Accepted(checked, len(records), records, NO_TIMESTAMP, log.log_start_offset)
    size = _checked_size(checked, config)
    headers = [header for header, _ in checked]
    earlier = log.producers.check_all(headers, sequences)
    if earlier is not None:
        return repeated(log, earlier)
    if origin is AppendOrigin.CLIENT:
        check_client_batches(log.producers, headers, terms)
    else:
        for header, batch in checked:
            if header.is_control:
                check_marker(log.producers, header, read_marker(header, batch), (terms or UNGUARDED).version)
    stamp = NO_TIMESTAMP
    if log.stamps:
        stamp = now_ms
        checked = [with_log_append_time(batch, now_ms) for _, batch in checked]
    return Accepted(_with_offsets(checked, end, leader_epoch), size, None, stamp, log.log_start_offset)


def _checked_size(checked: Sequence[Checked], config: LogConfig) -> int:
    """Return how many bytes will be written; batches may have been recompressed. Raises RecordListTooLarge."""
    size = sum([len(batch) for _, batch in checked])
    if size > config.segment_bytes:
        raise RecordListTooLarge(
            f"the batches have {size} bytes together, more than segment.bytes, {config.segment_bytes}"
        )
    return size


def repeated(log: AcceptingLog, batch: WrittenBatch) -> AppendResult:
    """Return the result of an append that repeats the earlier `batch`."""
    stamp = batch.timestamp if log.stamps else NO_TIMESTAMP
    return AppendResult(batch.base_offset, batch.last_offset, stamp, log.log_start_offset, True)


def _with_offsets(checked: Sequence[Checked], offset: int, leader_epoch: int) -> list[Checked]:
    """Return the batches with offsets from `offset` on."""
    numbered = []
    for header, batch in checked:
        numbered.append((header._replace(base_offset=offset, leader_epoch=leader_epoch), batch))
        offset += header.last_offset_delta + 1
    return numbered


def fast_buffers(records: memoryview, base_offset: int, leader_epoch: int) -> tuple[bytes, memoryview]:
    """Return the bytes to write for one batch that was accepted by its header."""
    return pack_prefix(base_offset, len(records) - LENGTH_OVERHEAD, leader_epoch), records[PREFIX_SIZE:]
