"""Malformed requests: valid headers with bodies that are random, or valid and then damaged.

Strategy: bodies are made from the schemas in `protocol/apis`, so that each field that exists at a version gets a value
of its type, sometimes an extreme one. Most are then damaged in a few places: bits are flipped, pieces removed, doubled
or inserted. All randomness comes from one `random.Random`, so that a seed determines the whole run.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from random import Random
from typing import Any

from pylogd.wire.messages import APIS
from pylogd.wire.schema import load_schema, request_codec

_WIDTHS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
_NAMES = ("fuzz", "fuzz-2", "", ".", "a" * 249, "a" * 250, "na\0me", "\N{SNOWMAN}", "__consumer_offsets", "x/../y")
_DAMAGED = 0.7  # the share of damaged bodies


def request_bodies(rng: Random, api_key: int, version: int, count: int) -> Iterator[bytes]:
    """Yield `count` bodies for one API at one version."""
    codec = request_codec(api_key, version)
    fields = load_schema(api_key)["request"]
    info = APIS[api_key]
    module = importlib.import_module(f"pylogd.wire.messages.{info.module}")
    for _ in range(count):
        message = _struct(rng, module, info.name + "Request", fields, version)
        body = b"".join(map(bytes, codec.encode(message)))  # type: ignore[arg-type]
        yield damage(rng, body) if rng.random() < _DAMAGED else body


def damage(rng: Random, body: bytes) -> bytes:
    """Return `body` with one to four damages."""
    data = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        wound = rng.randrange(6)
        if wound == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif wound == 1 and at < len(data):
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif wound == 2:
            del data[at:]
        elif wound == 3:
            data[at:at] = rng.randbytes(rng.randint(1, 9))
        elif wound == 4:
            data[at:at] = data[at : at + rng.randint(1, 20)]
        else:
            data[at : at + 4] = rng.choice(
                (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\x0f")
            )
    return bytes(data)


def _struct(rng: Random, module: Any, name: str, fields: list[dict[str, Any]], version: int) -> Any:
    message = getattr(module, name)()
    for field in fields:
        if _covers(field.get("versions", "0+"), version):
            setattr(message, field["name"], _value(rng, module, field, field["type"], version))
    return message


def _value(rng: Random, module: Any, field: dict[str, Any], kind: str, version: int) -> Any:
    if not kind.startswith("[]") and kind in _WIDTHS:
        return _number(rng, _WIDTHS[kind], unsigned=kind.startswith("u"))
    if "nullable" in field and _covers(field["nullable"], version) and rng.random() < 0.2:
        return None
    if kind.startswith("[]"):
        return [_value(rng, module, {**field, "nullable": "none"}, kind[2:], version) for _ in range(rng.randrange(3))]
    if "fields" in field:
        return _struct(rng, module, kind, field["fields"], version)
    return _scalar(rng, kind)


def _scalar(rng: Random, kind: str) -> Any:
    match kind:
        case "bool":
            return rng.random() < 0.5
        case "string":
            return rng.choice(_NAMES)
        case "uuid":
            return rng.choice((bytes(16), rng.randbytes(16)))
        case "float64":
            return rng.random()
        case _:  # bytes, records
            return rng.randbytes(rng.randrange(90))


def _number(rng: Random, bits: int, *, unsigned: bool) -> int:
    largest = (1 << bits) - 1 if unsigned else (1 << (bits - 1)) - 1
    smallest = 0 if unsigned else -largest - 1
    return rng.choice((0, 0, 1, 1, 2, 3, 1 if unsigned else -1, largest, smallest, rng.randint(smallest, largest)))


def _covers(versions: str, version: int) -> bool:
    if versions == "none":
        return False
    low, _, high = versions.rstrip("+").partition("-")
    return int(low) <= version <= (version if versions.endswith("+") else int(high or low))
