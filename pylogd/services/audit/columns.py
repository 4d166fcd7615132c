"""Count the messages of a stage from columns, like `counting`, but without a Python object for each message.

Strategy: pyarrow's functions find the stamps, parse and group them. Python only handles each group, which has the
messages of a producer in a window. Few rows, rows with several stamps and stamps that can't be parsed are counted one
by one: the results are the same (`test_columns_are_counted_as_rows_are`).

Rows without stamps are those of clients that are not audited. They are counted by their own time stamps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pylogd.client.core.audit import HEADER
from pylogd.services.audit.counting import AHEAD_MS, Counted, Origin, Row, Skip, Tally, WindowRows

if TYPE_CHECKING:
    import pyarrow as pa

#: With fewer rows, Python alone is as fast.
_FEW: Final = 300
_LOG_APPEND: Final = 1  # the type of a time stamp that a broker has given


def count_columns(
    counted: Counted, partition: int, columns: pa.RecordBatch, width: int, now_ms: int, skip: Skip
) -> None:
    """Add rows of a partition. Rows of a window below its offset in `skip` are left out.

    columns: offset, headers (lists of key and value), and, if they are known, timestamp and timestampType.
    width: the length of a window in milliseconds.
    now_ms: the present time, to recognize impossible stamps.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - slow to load

    headers = columns.column("headers")
    pairs = pc.list_flatten(headers)
    mine = pc.equal(pc.struct_field(pairs, [0]), HEADER)
    parents = pc.list_parent_indices(headers).filter(mine)
    values = pc.struct_field(pairs, [1]).filter(mine)
    count = pc.count_distinct(parents).as_py()
    if count:
        stamps = _parse(values, now_ms + AHEAD_MS) if count == len(parents) >= _FEW else None
        if stamps is None:
            counted.count(partition, _rows(columns, parents, values), width, now_ms, skip)
        else:
            _count_stamps(counted, partition, columns.column("offset").take(parents), stamps, width, skip)
    if count < columns.num_rows:
        _count_unstamped(counted, partition, columns, parents, width, now_ms, skip)


def _rows(columns: pa.RecordBatch, parents: pa.Array, values: pa.Array) -> Iterator[Row]:
    """Yield the stamped rows."""
    offsets = columns.column("offset").take(parents).to_pylist()
    before = offset = -1
    stamps: list[tuple[str, bytes | None]] = []
    for parent, at, value in zip(parents.to_pylist(), offsets, values.to_pylist(), strict=True):
        if parent != before and stamps:
            yield offset, stamps
            stamps = []
        before, offset = parent, at
        stamps.append((HEADER, value))
    if stamps:
        yield offset, stamps


def _parse(values: pa.Array, latest: int) -> dict[str, pa.Array] | None:
    """Return times, producers, numbers and servers of stamps; None if some stamps have another form."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if values.null_count:
        return None
    try:
        parts = pc.split_pattern(values.cast(pa.string()), "/", max_splits=3)
        if pc.min(pc.list_value_length(parts)).as_py() < 4:  # see `Stamp.encode`
            return None
        time, producer, number, server = (pc.list_element(parts, at) for at in range(4))
        if not all(pc.all(pc.ascii_is_decimal(each)).as_py() for each in (time, number)):
            return None
        time, number = time.cast(pa.int64()), number.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    if pc.max(time).as_py() > latest:
        return None
    return {"time": time, "producer": producer, "number": number, "server": server}


def _count_stamps(
    counted: Counted, partition: int, offsets: pa.Array, stamps: dict[str, pa.Array], width: int, skip: Skip
) -> None:
    import pyarrow as pa  # noqa: PLC0415

    table = pa.table({**stamps, "start": _starts(stamps["time"], width), "offset": offsets})
    table = _left(table.drop_columns("time"), partition, skip)
    ranges = [("offset", "min"), ("offset", "max")]
    found = table.group_by(["start", "producer", "server"], use_threads=False).aggregate([*ranges, ("number", "list")])
    for at, window in _windows(counted, partition, found):
        numbers = found.column("number_list")[at].as_py()
        origin = Origin((found.column("producer")[at].as_py(),), 0, found.column("server")[at].as_py())
        window.tallies.setdefault(origin, Tally()).add(len(numbers), numbers)


def _count_unstamped(
    counted: Counted, partition: int, columns: pa.RecordBatch, parents: pa.Array, width: int, now_ms: int, skip: Skip
) -> None:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if not _is_timed(columns.schema):
        counted.restamped = True
        return
    if len(parents):
        every = pa.array(range(columns.num_rows), parents.type)
        columns = columns.filter(pc.invert(pc.is_in(every, parents)))
    if "timestampType" in columns.schema.names:
        counted.restamped |= bool(pc.any(pc.equal(columns.column("timestampType"), _LOG_APPEND)).as_py())
    times = _milliseconds(columns.column("timestamp"))
    possible = pc.fill_null(pc.and_(pc.greater_equal(times, 0), pc.less_equal(times, now_ms + AHEAD_MS)), False)
    table = pa.table({"start": _starts(times, width), "offset": columns.column("offset")}).filter(possible)
    counted.invalid += columns.num_rows - table.num_rows
    table = _left(table, partition, skip)
    found = table.group_by("start", use_threads=False).aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count")]
    )
    for at, window in _windows(counted, partition, found):
        window.unstamped += found.column("offset_count")[at].as_py()


def _is_timed(schema: pa.Schema) -> bool:
    """Return whether rows have time stamps. The column of a typed table need not be a time."""
    import pyarrow as pa  # noqa: PLC0415

    at = schema.get_field_index("timestamp")
    return at >= 0 and bool(pa.types.is_timestamp(schema.types[at]) or pa.types.is_int64(schema.types[at]))


def _windows(counted: Counted, partition: int, found: pa.Table) -> Iterator[tuple[int, WindowRows]]:
    """Yield the window of each group, with its index, and record its offsets."""
    bounds = zip(*(found.column(name).to_pylist() for name in ("start", "offset_min", "offset_max")), strict=True)
    for at, (start, least, most) in enumerate(bounds):
        window = counted.windows.setdefault(start, WindowRows())
        window.note(partition, least)
        window.note(partition, most)
        yield at, window


def _left(table: pa.Table, partition: int, skip: Skip) -> pa.Table:
    """Leave out rows that are counted already."""
    import pyarrow.compute as pc  # noqa: PLC0415

    for start, counted in skip.items():
        until = counted.get(partition, 0)
        if until:
            known = pc.and_(pc.equal(table.column("start"), start), pc.less(table.column("offset"), until))
            table = table.filter(pc.invert(known))
    return table


def _starts(times: pa.Array, width: int) -> pa.Array:
    """Return the starts of the windows of times. Times must not be negative."""
    import pyarrow.compute as pc  # noqa: PLC0415

    return pc.multiply(pc.divide(times, width), width)


def _milliseconds(times: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_timestamp(times.type):
        times = times.cast(pa.timestamp("ms", times.type.tz), safe=False)
    return times.cast(pa.int64())
