"""The records of `__transaction_state`: encode and read them.

A key has version 0 and the transactional id. A value has version 0 or version 1. Version 1 is flexible and has three
tagged fields: the previous producer id (0), the next one (1), and the version of transactions that the producer uses
(2). A null value deletes the key.
Source: Kafka's TransactionLogKey and TransactionLogValue.

Rules: both versions are read. A key version that only newer brokers write is read as None. Other malformed records
raise InvalidRecord.
Must not know: transactions in memory, logs.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import groupby
from typing import Final

from pylogd.broker.replica.internal_records import (
    INT,
    LONG,
    NO_TAGS,
    SHORT,
    InvalidRecord,
    RecordCursor,
    compact_text_field,
    tags_field,
    text_field,
    unsigned_field,
)
from pylogd.broker.transactions.states import BY_CODE, TransactionState
from pylogd.broker.transactions.values import NONE_YET, PartitionId, TransactionValue

_KEY_VERSION = 0
_PLAIN, _FLEXIBLE = 0, 1
_BYTE: Final = struct.Struct(">b")
_PREVIOUS_ID, _NEXT_ID, _VERSION = range(3)  # tags


def transaction_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id."""
    return SHORT.pack(_KEY_VERSION) + text_field(transactional_id)


def read_key(data: bytes) -> str | None:
    """Return the transactional id of a key; None for a version that only newer brokers write. Raises InvalidRecord."""
    cursor = RecordCursor(data)
    return cursor.text() if cursor.number(SHORT) == _KEY_VERSION else None


def transaction_value(value: TransactionValue, *, flexible: bool) -> bytes:
    """Encode a transactional id's state.

    flexible: whether to write version 1; a cluster does so if its `transaction.version` is 1 or more.
    """
    parts = [
        SHORT.pack(_FLEXIBLE if flexible else _PLAIN), LONG.pack(value.producer_id), SHORT.pack(value.epoch),
        INT.pack(value.timeout_ms), _BYTE.pack(value.state.code), _partitions(value, flexible),
        LONG.pack(value.updated_ms), LONG.pack(value.started_ms),
    ]  # fmt: skip
    if flexible:
        parts.append(_tagged(value))
    return b"".join(parts)


def _partitions(value: TransactionValue, flexible: bool) -> bytes:
    size = unsigned_field if flexible else INT.pack
    more = 1 if flexible else 0  # compact lengths count from 1; 0 is null
    if value.state is TransactionState.EMPTY:
        return size(more - 1)
    topics = [(name, list(group)) for name, group in groupby(sorted(value.partitions), lambda found: found[0])]
    parts = [size(len(topics) + more)]
    for name, found in topics:
        parts.append(compact_text_field(name) if flexible else text_field(name))
        parts.append(size(len(found) + more))
        parts += (INT.pack(index) for _, index in found)
        if flexible:
            parts.append(NO_TAGS)
    return b"".join(parts)


def _tagged(value: TransactionValue) -> bytes:
    fields = [
        (tag, raw)
        for tag, raw, present in (
            (_PREVIOUS_ID, LONG.pack(value.previous_id), value.previous_id != NONE_YET),
            (_NEXT_ID, LONG.pack(value.next_id), value.next_id != NONE_YET),
            (_VERSION, SHORT.pack(value.version), value.version != 0),
        )
        if present
    ]
    return tags_field(dict(fields))


def read_value(data: bytes) -> TransactionValue:
    """Decode a transactional id's state. Raises InvalidRecord."""
    cursor = RecordCursor(data)
    version = cursor.number(SHORT)
    if version not in (_PLAIN, _FLEXIBLE):
        raise InvalidRecord(f"a transaction has version {version}; versions 0 and 1 are supported")
    flexible = version == _FLEXIBLE
    producer_id, epoch, timeout_ms = cursor.number(LONG), cursor.number(SHORT), cursor.number(INT)
    code = cursor.number(_BYTE)
    if code not in BY_CODE:
        raise InvalidRecord(f"a transaction has state {code}, which does not exist")
    partitions = _read_partitions(cursor, flexible, len(data))
    updated_ms, started_ms = cursor.number(LONG), cursor.number(LONG)
    tagged = cursor.tags() if flexible else {}
    return TransactionValue(
        producer_id, epoch, timeout_ms, updated_ms, BY_CODE[code], partitions, started_ms,
        _tagged_number(tagged, _PREVIOUS_ID, LONG, NONE_YET), _tagged_number(tagged, _NEXT_ID, LONG, NONE_YET),
        version=_tagged_number(tagged, _VERSION, SHORT, 0),
    )  # fmt: skip


def _read_partitions(cursor: RecordCursor, flexible: bool, most: int) -> frozenset[PartitionId]:
    found: set[PartitionId] = set()
    for _ in range(_count(cursor, flexible, most)):
        name = (cursor.compact_nullable_text() or "") if flexible else cursor.text()
        found.update((name, cursor.number(INT)) for _ in range(_count(cursor, flexible, most)))
        if flexible:
            cursor.tags()
    return frozenset(found)


def _count(cursor: RecordCursor, flexible: bool, most: int) -> int:
    """Return the length of an array; 0 for a null array. `most` is the record's length, which bounds it."""
    count = cursor.unsigned() - 1 if flexible else cursor.number(INT)
    if not NONE_YET <= count <= most:
        raise InvalidRecord(f"an array of {count} elements does not fit in {most} bytes")
    return max(count, 0)


def _tagged_number(tagged: Mapping[int, bytes], tag: int, form: struct.Struct, default: int) -> int:
    return RecordCursor(tagged[tag]).number(form) if tag in tagged else default
