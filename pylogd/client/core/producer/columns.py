"""Encode the rows of a `pyarrow.RecordBatch` as record batches, without a Python object for a row.

    encoder = ColumnEncoder(options, partitions_of)
    for batch in encoder.encode("flights", rows, now_ms): ...

Strategy: the rows of each partition are found first, in their order; then as many of them as fit into a batch are
encoded at once. The compiled `wire._speedups` does both. If it is missing, Python code does both. `records_of` makes a
record of each row instead, for callers that need single records.

Rules: a row with a partition goes to that partition. A row with a key goes to the partition that the producer's
partitioner chooses. Other rows may go to any partition, which `Accumulator.add_encoded` chooses. No I/O and no clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pylogd.client.core.producer.interceptors import ProducerRecord
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.partitioner import PARTITIONERS, murmur2_partitioner, positive_murmur2
from pylogd.wire import records
from pylogd.wire.records import HEADER_SIZE, NO_TIMESTAMP, TRANSACTIONAL, Header, encode_headers, make_batch, varint

if TYPE_CHECKING:
    import pyarrow as pa

#: With fewer rows for each partition, separate batches cost more than records in shared batches.
_FEW_ROWS = 20


class EncodedBatch(NamedTuple):
    """A record batch that is ready to be sent, but has no producer id and no sequence number.

    partition: the partition; None for any.
    """

    topic: str
    partition: int | None
    encoded: bytes


class EncodedRows:
    """The batches of rows, encoded one by one when they are iterated over, which can be done once.

    order: the row numbers in the order of the batches: int32 in the machine's byte order.
    """

    def __init__(self, order: bytes, batches: Iterator[EncodedBatch]) -> None:
        self.order = order
        self._batches = batches

    def __iter__(self) -> Iterator[EncodedBatch]:
        return self._batches


class ColumnEncoder:
    """Makes batches from columns, as a producer with these options makes them from records."""

    def __init__(self, options: ProducerOptions, partitions: Callable[[str, int | None], int]) -> None:
        """partitions: returns the number of partitions of a topic; raises KafkaError if the topic does not have the
        given partition.
        """
        named = options.partitioner
        self._partitioner = PARTITIONERS[named] if isinstance(named, str) else named
        self._partitions = partitions
        self._compression, self._level = options.compression_type, options.compression_level
        self._batch_records, self._batch_bytes = options.batch_records, options.batch_bytes - HEADER_SIZE
        self._attributes = 0 if options.transactional_id is None else TRANSACTIONAL

    def encode(self, topic: str, rows: pa.RecordBatch, timestamp: int, partition: int | None = None) -> EncodedRows:
        """Return batches with all rows. The batches of a partition are in the order of its rows.

        rows: columns `value` (binary or string), and optionally `key` (the same), `partition` (int32), `timestamp` and
        `headers` (list<struct<key: string, value: binary>>).
        timestamp: the time stamp of rows without one, in milliseconds since 1970.
        partition: the partition of all rows; overrides the column.

        Raises KeyError if there is no column `value`; ValueError for a header without a key; KafkaError if the topic or
        the partition does not exist; the errors of `partitions`.
        """
        columns = RowColumns(rows, timestamp, partition)
        count = self._count(topic, columns.partitions)
        if count == 1:
            columns.give_all(0)  # so that rows with and without a key stay in order
        elif self._partitioner is not murmur2_partitioner:
            columns.choose(lambda key: self._partitioner(topic, key, count))
        loops = _Plain(columns) if records.speedups is None else _Compiled(columns, records.speedups)
        order, ends = loops.group(count)
        return EncodedRows(bytes(order), self._batches(topic, loops, order, ends, timestamp))

    def _batches(
        self, topic: str, loops: _Compiled | _Plain, order: Any, ends: list[int], timestamp: int
    ) -> Iterator[EncodedBatch]:
        at, count = 0, len(ends) - 1
        for partition, end in enumerate(ends):
            while at < end:
                first, last = at, min(end, at + self._batch_records)
                encoded, at, base, latest = loops.encode(order, first, last, self._batch_bytes)
                if not loops.columns.has_timestamps:
                    base = latest = timestamp
                batch = make_batch(
                    encoded, at - first, base, latest, compression=self._compression, level=self._level,
                    attributes=self._attributes,
                )  # fmt: skip
                yield EncodedBatch(topic, partition if partition < count else None, batch)

    def _count(self, topic: str, given: pa.Array | None) -> int:
        """Return the number of a topic's partitions. Raises KafkaError if a given partition does not exist."""
        if given is None or given.null_count == len(given):
            return self._partitions(topic, None)
        import pyarrow.compute  # noqa: PLC0415 - an extra

        found = pyarrow.compute.min_max(given).as_py()
        self._partitions(topic, found["min"])
        return self._partitions(topic, found["max"])


def greatest_partition(rows: pa.RecordBatch) -> int | None:
    """Return the greatest number in the column `partition`; None if there is none."""
    if "partition" not in rows.schema.names:
        return None
    import pyarrow.compute  # noqa: PLC0415 - an extra

    greatest: int | None = pyarrow.compute.max(rows.column("partition")).as_py()
    return greatest


def are_few(rows: pa.RecordBatch, partitions: int) -> bool:
    """Return whether the rows are so few, for the number of partitions, that single records cost less."""
    return bool(rows.num_rows < _FEW_ROWS * partitions)


def records_of(topic: str, rows: pa.RecordBatch, partition: int | None = None) -> Iterator[ProducerRecord]:
    """Yield each row as a record, with or without a time stamp. Arguments and errors are those of
    `ColumnEncoder.encode`.
    """
    columns = RowColumns(rows, NO_TIMESTAMP, partition)
    for at, key, value, stamp, headers in columns.fields():
        yield ProducerRecord(topic, value, key, at, None if stamp == NO_TIMESTAMP else stamp, headers)


class RowColumns:
    """The columns of rows as binary arrays; None for missing columns.

    timestamps: milliseconds since 1970 as int64, without nulls.
    """

    def __init__(self, rows: pa.RecordBatch, timestamp: int, partition: int | None = None) -> None:
        """`timestamp` is that of rows without one. `partition` is that of all rows, and overrides the column.

        Raises KeyError without a column `value`, ValueError for a header without a key.
        """
        import pyarrow as pa  # noqa: PLC0415 - an extra

        if not isinstance(rows, pa.RecordBatch):
            raise TypeError(f"rows are a pyarrow.RecordBatch, not {type(rows).__name__}: send a table's `to_batches()`")
        pair = pa.struct([("key", pa.binary()), ("value", pa.binary())])
        names = rows.schema.names

        def column(name: str, kind: pa.DataType) -> Any:
            return rows.column(names.index(name)).cast(kind) if name in names else None

        self.rows = rows.num_rows
        self.keys = column("key", pa.binary())
        self.values = column("value", pa.binary())
        self.headers = column("headers", pa.list_(pair))
        self.timestamps = _filled(column("timestamp", pa.timestamp("ms", tz="UTC")), timestamp)
        self.partitions = column("partition", pa.int32())
        if partition is not None:
            self.give_all(partition)
        if self.values is None:
            raise KeyError("value")
        if self.headers is not None:
            found = self.headers.flatten()
            if found.null_count or found.field("key").null_count:
                raise ValueError("a header has no key")

    @property
    def has_timestamps(self) -> bool:
        """Whether the rows have a column of time stamps."""
        return self.timestamps is not None

    def give_all(self, partition: int) -> None:
        """Give all rows the same partition, which overrides the column."""
        import pyarrow as pa  # noqa: PLC0415 - an extra

        self.partitions = pa.repeat(pa.scalar(partition, pa.int32()), self.rows)

    def choose(self, partition_of: Callable[[bytes | None], int | None]) -> None:
        """Choose partitions by key for rows without a partition."""
        import pyarrow as pa  # noqa: PLC0415 - an extra

        keys = _pylist(self.keys, self.rows)
        given = _pylist(self.partitions, self.rows)
        chosen = [partition_of(key) if each is None else each for each, key in zip(given, keys, strict=True)]
        self.keys_choose = False
        self.partitions = pa.array(chosen, pa.int32())

    #: whether keys choose the partition of rows without one
    keys_choose = True

    def fields(self) -> Iterator[tuple[int | None, bytes | None, bytes | None, int, list[Header]]]:
        """Yield partition, key, value, time stamp and headers of each row. The time stamp is -1 if there is no such
        column.
        """
        stamps = [NO_TIMESTAMP] * self.rows if self.timestamps is None else self.timestamps.to_pylist()
        headers = (
            [(each["key"].decode(errors="surrogateescape"), each["value"]) for each in row or ()]
            for row in _pylist(self.headers, self.rows)
        )
        columns = (_pylist(each, self.rows) for each in (self.partitions, self.keys, self.values))
        return zip(*columns, stamps, headers, strict=True)

    @cached_property
    def objects(self) -> list[tuple[int | None, bytes | None, bytes | None, int, bytes]]:
        """The partition, key, value, time stamp and encoded headers of each row."""
        return [
            (partition, key, value, stamp, encode_headers(headers))
            for partition, key, value, stamp, headers in self.fields()
        ]


def _filled(stamps: Any, timestamp: int) -> Any:
    """Return time stamps as int64. `timestamp` replaces missing ones: null, or -1."""
    if stamps is None:
        return None
    import pyarrow as pa  # noqa: PLC0415 - an extra
    import pyarrow.compute  # noqa: PLC0415

    found = pyarrow.compute.fill_null(stamps.cast(pa.int64()), NO_TIMESTAMP)
    return pyarrow.compute.if_else(pyarrow.compute.equal(found, NO_TIMESTAMP), timestamp, found)


def _pylist(column: Any, rows: int) -> list[Any]:
    return [None] * rows if column is None else column.to_pylist()


class _Compiled:
    """The loops in C."""

    def __init__(self, columns: RowColumns, loops: Any) -> None:
        self.columns = columns
        self._loops = loops
        headers = columns.headers
        lists = None
        pairs: Any = None
        if headers is not None:
            valid, ends = headers.buffers()[:2]
            lists = (valid, ends, None, headers.offset, len(headers))
            pairs = headers.values
        self._keys = _buffers(columns.keys)
        self._records = (
            self._keys, _buffers(columns.values), lists,
            None if pairs is None else _buffers(pairs.field("key")),
            None if pairs is None else _buffers(pairs.field("value")),
        )  # fmt: skip
        stamps = columns.timestamps
        self._stamps = None
        if stamps is not None and len(stamps):
            self._stamps = memoryview(stamps.buffers()[1])[8 * stamps.offset : 8 * (stamps.offset + len(stamps))]

    def group(self, partitions: int) -> tuple[Any, list[int]]:
        given = self.columns.partitions
        numbers = None if given is None or not len(given) else (*given.buffers(), given.offset)
        keys = self._keys if self.columns.keys_choose else None
        found: tuple[Any, list[int]] = self._loops.group_rows(self.columns.rows, partitions, numbers, keys)
        return found

    def encode(self, order: Any, first: int, stop: int, most_bytes: int) -> tuple[bytes, int, int, int]:
        found: tuple[bytes, int, int, int] = self._loops.encode_rows(
            order, first, stop, most_bytes, self._records, self._stamps
        )
        return found


def _buffers(column: pa.Array | None) -> tuple[Any, ...] | None:
    return None if column is None else (*column.buffers(), column.offset, len(column))


class _Plain:
    """The same loops in Python."""

    def __init__(self, columns: RowColumns) -> None:
        self.columns = columns

    def group(self, partitions: int) -> tuple[Any, list[int]]:
        """Return the rows in the order of their groups, and the end of each group: one for each partition, and the
        rest.
        """
        groups: list[list[int]] = [[] for _ in range(partitions + 1)]
        for row, (given, key, *_) in enumerate(self.columns.objects):
            if given is not None:
                group = given
            elif key is not None and self.columns.keys_choose:
                group = positive_murmur2(key) % partitions
            else:
                group = partitions
            groups[group].append(row)
        order = array("i", [row for group in groups for row in group])
        ends: list[int] = []
        for group_rows in groups:
            ends.append(len(group_rows) + (ends[-1] if ends else 0))
        return order, ends

    def encode(self, order: Any, first: int, stop: int, most_bytes: int) -> tuple[bytes, int, int, int]:
        """Encode rows as records, at least one, until they take `most_bytes`.

        Returns the records, the row to continue at, and the first and the latest time stamp.
        """
        taken: list[tuple[bytes | None, bytes | None, int, bytes]] = []
        size, base = 0, self.columns.objects[order[first]][3]
        for row in order[first:stop]:
            _, key, value, stamp, headers = self.columns.objects[row]
            numbers = len(varint(len(taken))) + len(varint(stamp - base))
            body = 1 + numbers + _sized(key) + _sized(value) + len(headers)
            size += len(varint(body)) + body
            if taken and size > most_bytes:
                break
            taken.append((key, value, stamp, headers))
        latest = max([each[2] for each in taken])
        return records.encode_records(taken, base), first + len(taken), base, latest


def _sized(data: bytes | None) -> int:
    """Return the size of bytes with their length."""
    return 1 if data is None else len(varint(len(data))) + len(data)
