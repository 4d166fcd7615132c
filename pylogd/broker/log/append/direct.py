"""Append one batch that `header_check` has accepted: with one write, and without the steps of the general path.

Rules: the caller holds `Log.lock`. It stores, answers and refuses the same as the general path
(`tests/property/test_log_append.py`). A transaction begins before the log end offset moves (`transactions`).
"""

from __future__ import annotations

from typing import Protocol

from pylogd.broker.log.append.full_check import NO_TIMESTAMP, PREFIX_SIZE, AcceptingLog, pack_prefix, repeated
from pylogd.broker.log.append.header_check import BatchFields
from pylogd.broker.log.append.result import AppendResult, new_append_result
from pylogd.broker.log.errors import InvalidRecord
from pylogd.broker.log.markers import read_marker
from pylogd.broker.log.segment import Segment
from pylogd.broker.log.transaction_checks import check_first, check_marker
from pylogd.broker.log.transactions import UNGUARDED, TransactionTerms
from pylogd.wire.records import LENGTH_OVERHEAD, BatchHeader


class QuickLog(AcceptingLog, Protocol):
    """The attributes of a `Log` that this module uses."""

    log_end_offset: int
    index_interval: int
    has_aborted: bool

    def set_limits(self) -> None: ...


def append_one(
    log: QuickLog,
    segment: Segment,
    view: memoryview,
    leader_epoch: int,
    fields: BatchFields,
    terms: TransactionTerms | None,
) -> AppendResult:
    """Append a client's batch to the active segment. Raises InvalidAppend.

    terms: describes the transaction of a transactional batch.
    """
    delta, newest, producer_id, epoch, sequence = fields
    if producer_id >= 0:
        producers = log.producers
        duplicate = producers.check(producer_id, epoch, sequence, delta, terms is not None)
        if duplicate is not None:
            return repeated(log, duplicate)
        if terms is not None and not producers.in_transaction(producer_id, epoch):
            check_first(producers, producer_id, sequence, terms)
    elif terms is not None:
        raise InvalidRecord("a transactional batch has no producer id")
    base = log.log_end_offset
    last = base + delta
    size = len(view)
    parts = pack_prefix(base, size - LENGTH_OVERHEAD, leader_epoch), view[PREFIX_SIZE:]
    segment.write(parts, size)
    if segment.cached is not None:
        segment.note_cached(parts, size)
    if segment.note_batch(size, last, newest, log.index_interval):
        log.set_limits()
    if producer_id >= 0:
        producers.wrote(producer_id, epoch, sequence, delta, base, newest)
        if terms is not None:
            producers.note_transactional(producer_id, base)
    log.log_end_offset = last + 1
    return new_append_result((base, last, NO_TIMESTAMP, log.log_start_offset, False))


def append_own(
    log: QuickLog,
    segment: Segment,
    view: memoryview,
    leader_epoch: int,
    header: BatchHeader,
    terms: TransactionTerms | None,
) -> AppendResult:
    """Append a marker or another batch of the broker's own to the active segment. Raises InvalidAppend for a marker."""
    marker = None
    if header.producer_id >= 0:
        marker = read_marker(header, view)
        check_marker(log.producers, header, marker, (terms or UNGUARDED).version)
    base = log.log_end_offset
    last = base + header.last_offset_delta
    size = len(view)
    parts = pack_prefix(base, size - LENGTH_OVERHEAD, leader_epoch), view[PREFIX_SIZE:]
    segment.write(parts, size)
    if segment.cached is not None:
        segment.note_cached(parts, size)
    if segment.note_batch(size, last, header.max_timestamp, log.index_interval):
        log.set_limits()
    if marker is not None:
        aborted = log.producers.ended(header, marker, base)
        if aborted is not None:
            segment.note_aborted(aborted)
            log.has_aborted = True
    log.log_end_offset = last + 1
    return new_append_result((base, last, NO_TIMESTAMP, log.log_start_offset, False))
