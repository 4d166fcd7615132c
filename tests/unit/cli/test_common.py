"""Times, sizes and fields, as users type and read them."""

from __future__ import annotations

from datetime import datetime

import click
import pytest

from pylogd.cli.common import assignments, format_bytes, format_time, parse_time, text_or_base64

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@1700000000", NOW),
        ("@1700000000.25", NOW + 250),
        ("2023-11-14T22:13:20+00:00", NOW),
        ("2023-11-14T22:13:20Z", NOW),
        ("90s", NOW - 90_000),
        ("15m", NOW - 900_000),
        ("2h", NOW - 7_200_000),
        ("3d", NOW - 259_200_000),
        ("2023-11-14", round(datetime(2023, 11, 14).timestamp() * 1000)),
        ("yesterday", None),
        ("@soon", None),
        ("@1e999", None),
        ("m", None),
    ],
)
def test_times(text: str, expected: int | None) -> None:
    assert parse_time(text, NOW) == expected


def test_a_time_comes_back() -> None:
    assert parse_time(format_time(NOW + 7)) == NOW + 7
    assert format_time(-1) == ""
    assert format_time(2**62) == str(2**62)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**30, "5.0 GiB"), (2**41, "2.0 TiB")]
)
def test_sizes(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_bytes_in_json() -> None:
    assert text_or_base64("key", None) == {"key": None}
    assert text_or_base64("key", "grün".encode()) == {"key": "grün"}
    assert text_or_base64("key", b"\xff\x00") == {"key_base64": "/wA="}


def test_assignments() -> None:
    command = click.Command("c")
    context, parameter = click.Context(command), click.Option(["--x"])
    assert assignments(context, parameter, ["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for bad in ("a", "=1"):
        with pytest.raises(click.BadParameter):
            assignments(context, parameter, [bad])
