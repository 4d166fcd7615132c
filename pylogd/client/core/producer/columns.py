"""Encode the rows of a `pyarrow.RecordBatch` as record batches, without a Python object for a row.

    encoder = ColumnEncoder(options, partitions_of)
    for batch in encoder.encode("flights", rows, now_ms): ...

Strategy: the rows of each partition are found first, in their order; then as many of them as fit into a batch are
encoded at once. The compiled `wire._speedups` does both. Where it is missing, the same is made from objects.

Rules: a row with a partition goes there; one with a key to the partition that the producer's partitioner chooses for
the key. Other rows may go to any partition: whoever sends their batches chooses it (`Accumulator.add_encoded`). No I/O
and no clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.partitioner import PARTITIONERS, murmur2_partitioner, positive_murmur2
from pylogd.wire import records
from pylogd.wire.records import HEADER_SIZE, TRANSACTIONAL, encode_headers, make_batch, varint

if TYPE_CHECKING:
    import pyarrow as pa


class EncodedBatch(NamedTuple):
    """A record batch that is ready to be sent, but has no producer id and no sequence number.

    partition: None if it may go to any.
    """

    topic: str
    partition: int | None
    encoded: bytes


class ColumnEncoder:
    """Makes batches of columns as a producer with these options makes them of records."""

    def __init__(self, options: ProducerOptions, partitions: Callable[[str, int | None], int]) -> None:
        """partitions: returns the number of partitions of a topic; raises KafkaError if it does not have the one that
        is named.
        """
        named = options.partitioner
        self._partitioner = PARTITIONERS[named] if isinstance(named, str) else named
        self._partitions = partitions
        self._compression, self._level = options.compression_type, options.compression_level
        self._batch_records, self._batch_bytes = options.batch_records, options.batch_bytes - HEADER_SIZE
        self._attributes = 0 if options.transactional_id is None else TRANSACTIONAL

    def encode(self, topic: str, rows: pa.RecordBatch, timestamp: int) -> Iterator[EncodedBatch]:
        """Yield batches with all rows, each partition's in the order of its rows.

        rows: columns `value` (binary or string), and optionally `key` (the same), `partition` (int32) and `headers`
        (list<struct<key: string, value: binary>>). timestamp: of all records, in milliseconds since 1970.

        Raises KeyError without a column `value`; ValueError for a header without a key; KafkaError if there is no such
        topic or partition; what `partitions` raises.
        """
        columns = RowColumns(rows)
        count = self._count(topic, columns.partitions)
        if self._partitioner is not murmur2_partitioner:
            columns.choose(lambda key: self._partitioner(topic, key, count))
        loops = _Plain(columns) if records.speedups is None else _Compiled(columns, records.speedups)
        order, ends = loops.group(count)
        at = 0
        for partition, end in enumerate(ends):
            while at < end:
                first, last = at, min(end, at + self._batch_records)
                encoded, at = loops.encode(order, first, last, self._batch_bytes)
                batch = make_batch(
                    encoded, at - first, timestamp, timestamp, compression=self._compression, level=self._level,
                    attributes=self._attributes,
                )  # fmt: skip
                yield EncodedBatch(topic, partition if partition < count else None, batch)

    def _count(self, topic: str, given: pa.Array | None) -> int:
        """Return the number of a topic's partitions, which has all that are given."""
        if given is None or given.null_count == len(given):
            return self._partitions(topic, None)
        import pyarrow.compute  # noqa: PLC0415 - an extra

        found = pyarrow.compute.min_max(given).as_py()
        self._partitions(topic, found["min"])
        return self._partitions(topic, found["max"])


class RowColumns:
    """The columns of rows as binary arrays; None for those that are missing."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        """Raises KeyError without a column `value`, ValueError for a header without a key."""
        import pyarrow as pa  # noqa: PLC0415 - an extra

        pair = pa.struct([("key", pa.binary()), ("value", pa.binary())])
        names = rows.schema.names

        def column(name: str, kind: pa.DataType) -> Any:
            return rows.column(names.index(name)).cast(kind) if name in names else None

        self.rows = rows.num_rows
        self.keys = column("key", pa.binary())
        self.values = column("value", pa.binary())
        self.headers = column("headers", pa.list_(pair))
        self.partitions = column("partition", pa.int32())
        if self.values is None:
            raise KeyError("value")
        if self.headers is not None:
            found = self.headers.flatten()
            if found.null_count or found.field("key").null_count:
                raise ValueError("a header has no key")

    def choose(self, partition_of: Callable[[bytes | None], int | None]) -> None:
        """Choose partitions for rows that have none by their keys."""
        import pyarrow as pa  # noqa: PLC0415 - an extra

        keys = self._pylist(self.keys)
        given = self._pylist(self.partitions)
        chosen = [partition_of(key) if each is None else each for each, key in zip(given, keys, strict=True)]
        self.keys_choose = False
        self.partitions = pa.array(chosen, pa.int32())

    #: whether rows without a partition go to that of their key
    keys_choose = True

    def _pylist(self, column: Any) -> list[Any]:
        return [None] * self.rows if column is None else column.to_pylist()

    @cached_property
    def objects(self) -> list[tuple[int | None, bytes | None, bytes | None, bytes]]:
        """The partition, key, value and encoded headers of each row."""
        headers = [
            encode_headers([(each["key"].decode(errors="surrogateescape"), each["value"]) for each in row or ()])
            for row in self._pylist(self.headers)
        ]
        columns = (self._pylist(self.partitions), self._pylist(self.keys), self._pylist(self.values), headers)
        return list(zip(*columns, strict=True))


class _Compiled:
    """The loops in C."""

    def __init__(self, columns: RowColumns, loops: Any) -> None:
        self._columns = columns
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

    def group(self, partitions: int) -> tuple[Any, list[int]]:
        given = self._columns.partitions
        numbers = None if given is None or not len(given) else (*given.buffers(), given.offset)
        keys = self._keys if self._columns.keys_choose else None
        found: tuple[Any, list[int]] = self._loops.group_rows(self._columns.rows, partitions, numbers, keys)
        return found

    def encode(self, order: Any, first: int, stop: int, most_bytes: int) -> tuple[bytes, int]:
        found: tuple[bytes, int] = self._loops.encode_rows(order, first, stop, most_bytes, self._records)
        return found


def _buffers(column: pa.Array | None) -> tuple[Any, ...] | None:
    return None if column is None else (*column.buffers(), column.offset, len(column))


class _Plain:
    """The same in Python."""

    def __init__(self, columns: RowColumns) -> None:
        self._columns = columns

    def group(self, partitions: int) -> tuple[Any, list[int]]:
        """Return the rows in the order of their groups, and the end of each: one for each partition, and the rest."""
        groups: list[list[int]] = [[] for _ in range(partitions + 1)]
        for row, (given, key, _, _) in enumerate(self._columns.objects):
            if given is not None:
                group = given
            elif key is not None and self._columns.keys_choose:
                group = positive_murmur2(key) % partitions
            else:
                group = partitions
            groups[group].append(row)
        order = array("i", [row for group in groups for row in group])
        ends: list[int] = []
        for group_rows in groups:
            ends.append(len(group_rows) + (ends[-1] if ends else 0))
        return order, ends

    def encode(self, order: Any, first: int, stop: int, most_bytes: int) -> tuple[bytes, int]:
        """Encode records of rows, at least one, until they take `most_bytes`. Returns them, and where to go on."""
        taken: list[tuple[bytes | None, bytes | None, int, bytes]] = []
        size = 0
        for row in order[first:stop]:
            _, key, value, headers = self._columns.objects[row]
            body = 2 + len(varint(len(taken))) + _sized(key) + _sized(value) + len(headers)
            size += len(varint(body)) + body
            if taken and size > most_bytes:
                break
            taken.append((key, value, 0, headers))
        return records.encode_records(taken, 0), first + len(taken)


def _sized(data: bytes | None) -> int:
    """Return the size of bytes with their length."""
    return 1 if data is None else len(varint(len(data))) + len(data)
