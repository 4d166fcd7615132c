"""Protobuf's well-known types: make the columns of dates and times, and check the ranges of their parts.

Strategy: ptars makes columns of dates and times, but does not check them: February 30 becomes 1970-01-01, and 25:00 is
accepted. So these types get other names in ptars' descriptors (`renamed`). Then ptars returns their parts, which are
checked and joined here, as columns. Types that stay structs (`CHECKED`) are checked too.

Rules: a part outside the range in the type's .proto file makes the message a misfit. A date without a year, month or
day does too, since no date column can hold it.
Source: google/protobuf/timestamp.proto, duration.proto; google/type/*.proto (comments of the fields).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from pylogd.lake.typed import nodes
from pylogd.lake.typed.errors import Misfit

_SUFFIX: Final = "_pylogd"
_NANOS: Final = 999_999_999
_SECOND: Final = 1_000_000
#: The first and last second of the years 1 to 9999, and the limit of Duration.
_SECONDS: Final = (-62_135_596_800, 253_402_300_799)
_LONGEST: Final = 315_576_000_000
_FARTHEST: Final = 18 * 3_600
_LARGEST: Final = (1 << 63) - 1
_DAYS: Final = pa.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], pa.int64())
_DECIMAL: Final = r"^(([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)?)$"
#: The parts of a message; null if the message is null.
Parts = Mapping[str, pa.Array]


class Joined(NamedTuple):
    """A type whose parts become one column.

    names: the names of the parts.
    logical: the column's type.
    join: makes the column from the parts.
    """

    names: tuple[str, ...]
    logical: pa.DataType
    join: Callable[[pa.Array], pa.Array]


def parts_of(array: pa.StructArray) -> dict[str, pa.Array]:
    """Return the parts of messages; null if the message is null. Numbers have 64 bits."""
    fields = zip(array.type, array.flatten(), strict=True)
    return {field.name: part.cast(pa.int64()) if field.type == pa.int32() else part for field, part in fields}


def _dates(array: pa.StructArray) -> pa.Array:
    parts = parts_of(array)
    _check_date(parts, "a google.type.Date", first_year=1)
    # the days since 1970 in the proleptic Gregorian calendar, computed with years that begin in March
    late = pc.greater(parts["month"], 2)
    year = pc.if_else(late, parts["year"], pc.subtract(parts["year"], 1))
    month = pc.add(parts["month"], pc.if_else(late, -3, 9))
    day = pc.add(pc.divide(pc.add(pc.multiply(month, 153), 2), 5), parts["day"])
    leaps = pc.add(pc.subtract(pc.divide(year, 4), pc.divide(year, 100)), pc.divide(year, 400))
    days = pc.subtract(pc.add(pc.add(pc.multiply(year, 365), leaps), day), 719_469)
    return days.cast(pa.int32()).cast(pa.date32())


def _timestamps(array: pa.StructArray) -> pa.Array:
    parts = parts_of(array)
    _within(parts, "a google.protobuf.Timestamp", seconds=_SECONDS, nanos=(0, _NANOS))
    return _microseconds(parts).cast(nodes.TIMESTAMP)


def _durations(array: pa.StructArray) -> pa.Array:
    parts, what = parts_of(array), "a google.protobuf.Duration"
    _within(parts, what, seconds=(-_LONGEST, _LONGEST), nanos=(-_NANOS, _NANOS))
    _check_signs(parts, what, "seconds")
    return _microseconds(parts)


def _times(array: pa.StructArray) -> pa.Array:
    parts, what = parts_of(array), "a google.type.TimeOfDay"
    _check_time(parts, what, last_second=59)
    minutes = pc.add(pc.multiply(parts["hours"], 60), parts["minutes"])
    return _microseconds({**parts, "seconds": pc.add(pc.multiply(minutes, 60), parts["seconds"])})


def _microseconds(parts: Parts) -> pa.Array:
    return pc.add(pc.multiply(parts["seconds"], _SECOND), pc.divide(parts["nanos"], 1000))


#: Types that become a column, but not of a struct.
JOINED: Final[Mapping[str, Joined]] = {
    "google.type.Date": Joined(("year", "month", "day"), pa.date32(), _dates),
    "google.type.TimeOfDay": Joined(("hours", "minutes", "seconds", "nanos"), pa.int64(), _times),
    "google.protobuf.Timestamp": Joined(("seconds", "nanos"), nodes.TIMESTAMP, _timestamps),
    "google.protobuf.Duration": Joined(("seconds", "nanos"), pa.int64(), _durations),
}


def _check_datetime(parts: Parts) -> None:
    what = "a google.type.DateTime"
    _check_date(parts, what, first_year=0)
    _check_time(parts, what, last_second=60)
    offset = parts_of(parts["utc_offset"])
    _within(offset, f"the utc_offset of {what}", seconds=(-_FARTHEST, _FARTHEST), nanos=(0, 0))


def _check_money(parts: Parts) -> None:
    _within(parts, "a google.type.Money", nanos=(-_NANOS, _NANOS))
    _check_signs(parts, "a google.type.Money", "units")


def _check_interval(parts: Parts) -> None:
    start, end = (_microseconds(parts_of(parts[name])) for name in ("start_time", "end_time"))
    _refuse(pc.greater(start, end), "a google.type.Interval ends before it starts")


def _check_decimal(parts: Parts) -> None:
    matches = pc.match_substring_regex(parts["value"], _DECIMAL)
    _refuse(pc.invert(matches), "the value of a google.type.Decimal is not a decimal number")


#: Types that are structs in a table: the parts that they must have, and the check of these parts.
CHECKED: Final[Mapping[str, tuple[frozenset[str], Callable[[Parts], None]]]] = {
    "google.type.DateTime": (
        frozenset({"year", "month", "day", "hours", "minutes", "seconds", "nanos", "utc_offset"}), _check_datetime,
    ),
    "google.type.Money": (frozenset({"units", "nanos"}), _check_money),
    "google.type.LatLng": (
        frozenset({"latitude", "longitude"}),
        lambda parts: _within(parts, "a google.type.LatLng", latitude=(-90, 90), longitude=(-180, 180)),
    ),
    "google.type.Fraction": (
        frozenset({"denominator"}), lambda parts: _within(parts, "a google.type.Fraction", denominator=(1, _LARGEST)),
    ),
    "google.type.Interval": (frozenset({"start_time", "end_time"}), _check_interval),
    "google.type.Decimal": (frozenset({"value"}), _check_decimal),
    "google.type.Color": (
        frozenset({"red", "green", "blue"}),
        lambda parts: _within(parts, "a google.type.Color", red=(0, 1), green=(0, 1), blue=(0, 1)),
    ),
}  # fmt: skip


def _within(parts: Parts, what: str, **bounds: tuple[float, float]) -> None:
    """Raise Misfit if a part is out of its bounds, or not a number."""
    for name, (least, most) in bounds.items():
        part = parts[name]
        fits = pc.and_(pc.greater_equal(part, least), pc.less_equal(part, most))
        _refuse(pc.invert(fits), f"the {name} of {what} are not from {least:,} to {most:,}")


def _refuse(bad: pa.Array, why: str) -> None:
    if pc.any(bad).as_py():
        raise Misfit(why)


def _check_date(parts: Parts, what: str, *, first_year: int) -> None:
    _within(parts, what, year=(first_year, 9999), month=(1, 12))
    year = parts["year"]
    is_leap = pc.and_(
        pc.equal(_rest(year, 4), 0), pc.or_(pc.not_equal(_rest(year, 100), 0), pc.equal(_rest(year, 400), 0))
    )
    february = pc.and_(pc.equal(parts["month"], 2), is_leap)
    most = pc.add(_DAYS.take(pc.subtract(parts["month"], 1)), february.cast(pa.int64()))
    fits = pc.and_(pc.greater_equal(parts["day"], 1), pc.less_equal(parts["day"], most))
    _refuse(pc.invert(fits), f"the day of {what} is not one of its month")


def _check_time(parts: Parts, what: str, *, last_second: int) -> None:
    bounds = {"hours": (0, 24), "minutes": (0, 59), "seconds": (0, last_second), "nanos": (0, _NANOS)}
    _within(parts, what, **bounds)
    after = [pc.greater(parts[name], 0) for name in ("minutes", "seconds", "nanos")]
    late = pc.and_(pc.equal(parts["hours"], 24), pc.or_(pc.or_(after[0], after[1]), after[2]))
    _refuse(late, f"{what} is after 24:00")


def _check_signs(parts: Parts, what: str, whole: str) -> None:
    differ = pc.equal(pc.multiply(pc.sign(parts[whole]), pc.sign(parts["nanos"])), -1)
    _refuse(differ, f"the {whole} and nanos of {what} have different signs")


def _rest(array: pa.Array, by: int) -> pa.Array:
    return pc.subtract(array, pc.multiply(pc.divide(array, by), by))


def is_joined(name: str, parts: Iterable[str]) -> bool:
    """Return whether a message type with these fields is one of `JOINED`."""
    return name in JOINED and set(parts) == set(JOINED[name].names)


def renamed(files: list[FileDescriptorProto], pool: DescriptorPool) -> list[FileDescriptorProto]:
    """Return files in which the types of `JOINED` have other names, so that ptars returns their parts.

    files: the last file is the schema's own, whose types keep their names.
    pool: has the files.
    """
    changed = []
    for file in files:
        copy = FileDescriptorProto()
        pool.FindFileByName(file.name).CopyToProto(copy)  # so that names of types are complete
        if file is not files[-1]:
            for message in copy.message_type:
                if is_joined(f"{copy.package}.{message.name}", [field.name for field in message.field]):
                    message.name += _SUFFIX
        changed.append(copy)
    names = {
        f".{file.package}.{message.name}"
        for file in changed
        for message in file.message_type
        if message.name.endswith(_SUFFIX)
    }
    for file in changed:
        for message in file.message_type:
            _rename(message, names)
        for extension in file.extension:
            _rename_type(extension, names)
    return changed


def _rename(message: DescriptorProto, names: set[str]) -> None:
    for field in (*message.field, *message.extension):
        _rename_type(field, names)
    for nested in message.nested_type:
        _rename(nested, names)


def _rename_type(field: Any, names: set[str]) -> None:
    if field.type_name + _SUFFIX in names:
        field.type_name += _SUFFIX
