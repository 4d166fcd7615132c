"""Protobuf's well-known types: what their columns have, and that parts out of range make a message a misfit."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.lake.typed import well_known
from pylogd.lake.typed.errors import Misfit
from pylogd.lake.typed.protobuf import ProtobufFile
from tests.fakes.registered import protobuf

SCHEMA = protobuf(
    """
syntax = "proto3";
package p;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";
import "google/type/datetime.proto";
import "google/type/money.proto";
import "google/type/latlng.proto";
import "google/type/fraction.proto";
import "google/type/interval.proto";
import "google/type/decimal.proto";
import "google/type/color.proto";
message M {
  google.protobuf.Timestamp at = 1;
  google.protobuf.Duration took = 2;
  google.type.Date day = 3;
  google.type.TimeOfDay time = 4;
  google.type.DateTime local = 5;
  google.type.Money price = 6;
  google.type.LatLng place = 7;
  google.type.Fraction part = 8;
  google.type.Interval span = 9;
  google.type.Decimal exact = 10;
  google.type.Color color = 11;
  repeated google.type.Date days = 12;
  map<string, google.type.Date> by_name = 13;
  message Inner { google.type.Date day = 1; }
  Inner inner = 14;
}
"""
)
FILE = ProtobufFile(SCHEMA)
READER = FILE.reader((0,))
Message: Any = message_factory.GetMessageClass(FILE._pool.FindMessageTypeByName("p.M"))


def column(messages: list[Any], name: str) -> list[Any]:
    built = READER.node.applied(READER.array([each.SerializeToString() for each in messages]))
    assert built.type == READER.node.logical
    found: list[Any] = built.field(name).to_pylist()
    return found


def given_parts(name: str, **parts: Any) -> Any:
    message = Message()
    found = getattr(message, name)
    found.SetInParent()
    for part, value in parts.items():
        if isinstance(value, dict):
            getattr(found, part).SetInParent()
            for inner, number in value.items():
                setattr(getattr(found, part), inner, number)
        else:
            setattr(found, part, value)
    return message


NOON = {"year": 2024, "month": 2, "day": 29, "hours": 12, "minutes": 30}
FITS: list[tuple[str, dict[str, Any], Any]] = [
    ("day", {"year": 2024, "month": 2, "day": 29}, datetime.date(2024, 2, 29)),
    ("day", {"year": 1, "month": 1, "day": 1}, datetime.date(1, 1, 1)),
    ("day", {"year": 9999, "month": 12, "day": 31}, datetime.date(9999, 12, 31)),
    ("time", {}, 0),
    ("time", {"hours": 23, "minutes": 59, "seconds": 59, "nanos": 999_999_999}, 86_399_999_999),
    ("time", {"hours": 24}, 86_400_000_000),
    ("at", {}, datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)),
    ("at", {"seconds": -1, "nanos": 999_999_999},
     datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC)),
    ("took", {"seconds": -1, "nanos": -500_000_000}, -1_500_000),
    ("took", {"nanos": -1_999}, -1),
    ("local", NOON, None), ("local", {**NOON, "year": 0}, None), ("local", {**NOON, "seconds": 60}, None),
    ("local", {**NOON, "utc_offset": {"seconds": -64_800}}, None),
    ("price", {"currency_code": "EUR", "units": -1, "nanos": -750_000_000}, None), ("price", {"units": 3}, None),
    ("place", {"latitude": -90.0, "longitude": 180.0}, None),
    ("part", {"numerator": -1, "denominator": 3}, None),
    ("span", {"start_time": {"seconds": 1}, "end_time": {"seconds": 1}}, None),
    ("span", {"start_time": {"seconds": 1}}, None), ("span", {}, None),
    *(("exact", {"value": value}, None) for value in ("", "0", "-1.50", "+.5", "5.", "2.5E-8")),
    ("color", {"red": 1.0, "alpha": {"value": 0.5}}, None),
]  # fmt: skip
MISFITS: list[tuple[str, dict[str, Any]]] = [
    ("day", {"year": 2026, "month": 2, "day": 30}), ("day", {"year": 2026, "month": 2, "day": 29}),
    ("day", {"year": 1900, "month": 2, "day": 29}), ("day", {"year": 2026, "month": 13, "day": 1}),
    ("day", {"year": 0, "month": 1, "day": 1}), ("day", {}), ("day", {"year": 2026}),
    ("day", {"year": 2026, "month": 4, "day": 31}), ("day", {"year": 2026, "month": 1}),
    ("day", {"year": 10_000, "month": 1, "day": 1}), ("day", {"year": -1, "month": 1, "day": 1}),
    ("day", {"year": 2026, "month": -1, "day": 1}), ("day", {"year": 2026, "month": 1, "day": -1}),
    ("time", {"hours": 25}), ("time", {"nanos": 2_000_000_000}), ("time", {"minutes": 60}), ("time", {"seconds": 60}),
    ("time", {"hours": 24, "nanos": 1}), ("time", {"hours": -1}), ("time", {"nanos": -1}),
    ("at", {"nanos": 1_000_000_000}), ("at", {"nanos": -1}), ("at", {"seconds": 253_402_300_800}),
    ("at", {"seconds": -62_135_596_801}), ("at", {"seconds": 1 << 62}),
    ("took", {"seconds": 1, "nanos": -1}), ("took", {"seconds": -1, "nanos": 1}), ("took", {"nanos": 1_000_000_000}),
    ("took", {"seconds": 315_576_000_001}), ("took", {"seconds": -(1 << 63)}),
    ("local", {**NOON, "month": 0}), ("local", {**NOON, "day": 30}), ("local", {**NOON, "hours": 25}),
    ("local", {**NOON, "seconds": 61}), ("local", {**NOON, "nanos": -1}), ("local", {**NOON, "year": 10_000}),
    ("local", {**NOON, "utc_offset": {"seconds": 64_801}}), ("local", {**NOON, "utc_offset": {"nanos": 1}}),
    ("price", {"units": 1, "nanos": -1}), ("price", {"nanos": 1_000_000_000}),
    ("place", {"latitude": 90.5}), ("place", {"longitude": -180.5}), ("place", {"latitude": float("nan")}),
    ("part", {"numerator": 1}), ("part", {"denominator": -1}),
    ("span", {"start_time": {"seconds": 2}, "end_time": {"seconds": 1}}), ("span", {"end_time": {"nanos": -1}}),
    *(("exact", {"value": value}) for value in ("x", "1,5", "1e", ".", "--1", "NaN", "1\n")),
    ("color", {"red": 1.5}), ("color", {"blue": -0.1}),
]  # fmt: skip


def test_all_types_are_tried() -> None:
    tried = {name for name, _ in MISFITS}
    types = {each.message_type.full_name for each in Message.DESCRIPTOR.fields if each.name in tried}
    assert types == {*well_known.JOINED, *well_known.CHECKED}
    assert tried == {name for name, _, _ in FITS}


@pytest.mark.parametrize(("name", "parts", "expected"), FITS)
def test_parts_within_their_range(name: str, parts: dict[str, Any], expected: Any) -> None:
    found = column([Message(), given_parts(name, **parts)], name)
    assert found[0] is None
    assert found[1] == expected if expected is not None else found[1] is not None


@pytest.mark.parametrize(("name", "parts"), MISFITS)
def test_parts_out_of_range_do_not_fit(name: str, parts: dict[str, Any]) -> None:
    with pytest.raises(Misfit, match=r"google\.(type|protobuf)\."):
        column([Message(), given_parts(name, **parts)], name)


@pytest.mark.parametrize("where", ["days", "by_name", "inner"])
@pytest.mark.parametrize("day", [28, 30])
def test_dates_inside_of_others(where: str, day: int) -> None:
    message = Message()
    date = {"days": message.days.add, "inner": lambda: message.inner.day, "by_name": lambda: message.by_name["a"]}[
        where
    ]()
    date.year, date.month, date.day = 2026, 2, day
    if day == 30:
        with pytest.raises(Misfit, match="not one of its month"):
            column([Message(), message], where)
        return
    expected = datetime.date(2026, 2, 28)
    assert column([Message(), message], where)[1] == {
        "days": [expected], "by_name": [("a", expected)], "inner": {"day": expected}
    }[where]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.integers(-1, 10_001), st.integers(-1, 14), st.integers(-1, 33))
def test_dates_are_those_of_the_calendar(year: int, month: int, day: int) -> None:
    kind = pa.struct({"year": pa.int32(), "month": pa.int32(), "day": pa.int32()})
    array = pa.array([{"year": year, "month": month, "day": day}, None], kind)
    try:
        expected = datetime.date(year, month, day)
    except ValueError:
        with pytest.raises(Misfit):
            well_known.JOINED["google.type.Date"].join(array)
    else:
        assert well_known.JOINED["google.type.Date"].join(array).to_pylist() == [expected, None]


def test_every_day_of_four_centuries() -> None:
    days = [datetime.date(1600, 1, 1) + datetime.timedelta(each) for each in range(146_097)]
    parts = [pa.array([getattr(day, name) for day in days], pa.int32()) for name in ("year", "month", "day")]
    array = pa.StructArray.from_arrays(parts, ["year", "month", "day"])
    assert well_known.JOINED["google.type.Date"].join(array).equals(pa.array(days, pa.date32()))
