"""The checks of transactional batches and markers that a leader makes before it appends them.

Rules for a batch of a transaction: its request must name the transactional id. If the producer has no open transaction
in the log, the batch opens one. This needs the guard of a successful verification that no marker has ended since. While
a verification is under way, no batch is appended that comes after the first one in the producer's sequence.

Rules for a marker: its coordinator epoch must not be older than that of the producer's last marker. Its producer epoch
must not be older than the producer's. With transactions of version 2, each end raises the epoch, so the marker's epoch
must be newer. There are two exceptions: the same marker may have been appended before, and the highest epoch has no
newer one.

Source: KIP-98, KIP-890; Kafka's ProducerAppendInfo.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pylogd.broker.log.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    TransactionalIdMissing,
    TransactionNotOpen,
)
from pylogd.broker.log.markers import Marker
from pylogd.broker.log.producers import Producers
from pylogd.broker.log.transactions import EPOCH_BUMP_VERSION, TransactionTerms
from pylogd.wire.records import BatchHeader

#: The highest producer epoch: 16 bits.
MAX_EPOCH: Final = (1 << 15) - 1


def check_client_batches(producers: Producers, headers: Iterable[BatchHeader], terms: TransactionTerms | None) -> None:
    """Check a client's transactional batches, once it is known that none is a duplicate.

    terms: None if the request has no transactional id.

    Raises InvalidAppend.
    """
    begun: set[int] = set()
    for header in headers:
        if not header.is_transactional:
            continue
        if terms is None:
            raise TransactionalIdMissing(
                f"a batch of producer {header.producer_id} is transactional, but the request has no transactional id"
            )
        is_open = producers.in_transaction(header.producer_id, header.producer_epoch)
        if header.producer_id not in begun and not is_open:
            check_first(producers, header.producer_id, header.base_sequence, terms)
        begun.add(header.producer_id)


def check_first(producers: Producers, producer_id: int, sequence: int, terms: TransactionTerms) -> None:
    """Check a batch that opens a transaction. Raises InvalidAppend.

    sequence: its first sequence number.
    """
    guard = producers.guards.get(producer_id)
    if not terms.verified and (guard is None or guard is not terms.guard):
        raise TransactionNotOpen(f"the batch is not part of an open transaction of producer {producer_id}")
    if guard is None:
        return
    if sequence > guard.lowest_sequence:
        raise OutOfOrderSequence(
            f"producer {producer_id} sent sequence {sequence}, expected {guard.lowest_sequence} first"
        )
    if guard.epoch_bump and sequence and producer_id not in producers.by_id:
        raise OutOfOrderSequence(
            f"producer {producer_id}, of whom nothing is known here, sent sequence {sequence}, expected 0"
        )


def check_marker(producers: Producers, header: BatchHeader, marker: Marker | None, version: int) -> None:
    """Check a marker. Raises InvalidProducerEpoch or CoordinatorFenced.

    version: the version of its producer's transactions.
    """
    producer = producers.by_id.get(header.producer_id)
    if producer is None or marker is None:
        return
    epoch, known = header.producer_epoch, producer.epoch
    again = epoch == known and producer.transaction_first_offset < 0
    bumps = version >= EPOCH_BUMP_VERSION and epoch < MAX_EPOCH
    if epoch < known or (bumps and epoch == known and not again):
        raise InvalidProducerEpoch(
            f"the marker of producer {header.producer_id} has epoch {epoch}, its current epoch is {known}"
        )
    if marker.coordinator_epoch < producer.coordinator_epoch:
        raise CoordinatorFenced(
            f"the marker of producer {header.producer_id} is of coordinator epoch {marker.coordinator_epoch}, "
            f"the present one is {producer.coordinator_epoch}"
        )
