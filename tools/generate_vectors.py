"""Write protocol/vectors/ from protocol/apis/: golden frames of every API at every version, and malformed ones.

    python tools/generate_vectors.py [--check]

Strategy: a simple encoder walks a schema and a JSON value. It imports nothing of pylogd, so that the vectors can test
pylogd's codecs. It records the position of each length and tag section; malformed frames are valid ones changed at such
a position. Values are derived from the field's type and name, and are the same at every run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import struct
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "protocol" / "apis"
VECTORS = ROOT / "protocol" / "vectors"

CORRELATION_ID = 7
CLIENT_ID = "vector"
API_VERSIONS_KEY = 18
LONG_TEXT = "länge " * 30
LONG_COUNT = 130

Json = dict[str, Any]

#: one batch of format version 2 with two records, as `protocol/README.md` takes it apart
BATCH = bytes.fromhex(
    "0000000000000000"  # base offset
    "0000004d"  # bytes that follow
    "ffffffff"  # leader epoch, filled in by the broker
    "02"  # magic
    "ced0c6c1"  # CRC-32C of all that follows
    "0000"  # attributes
    "00000001"  # offset of the last record, from the base offset
    "0000018bcfe56800"  # time stamp of the first record
    "0000018bcfe56805"  # largest time stamp
    "ffffffffffffffff"  # producer id
    "ffff"  # producer epoch
    "ffffffff"  # first sequence number
    "00000002"  # records
    "1a000000044e310a68656c6c6f00"  # key N1, value hello
    "1a000a02044e320a776f726c6400"  # key N2, value world
)

_FORMS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
}


class Mark(NamedTuple):
    """The position of a part of a body that can be made invalid. `kind` is string, array, bytes or tags."""

    kind: str
    at: int
    size: int
    nullable: bool


class Encoder:
    """Encode values of one API at one version, and record marks."""

    def __init__(self, api: Json, version: int) -> None:
        self.version = version
        self.flexible = _covers(api["flexible"], version)
        self.body = bytearray()
        self.marks: list[Mark] = []

    def struct(self, fields: list[Json], value: Json, extra_tags: bool = False) -> None:
        """Encode a struct, with its tag section if the version is flexible."""
        present = present_fields(fields, self.version)
        for field in present:
            if "tag" not in field:
                self.value(field, value[field["name"]], extra_tags)
        if self.flexible:
            tagged = [(field["tag"], field) for field in present if "tag" in field and field["name"] in value]
            self._tags(sorted(tagged, key=lambda entry: int(entry[0])), value, extra_tags)

    def value(self, field: Json, value: Any, extra_tags: bool) -> None:
        """A field's value."""
        kind: str = field["type"]
        nullable = _covers(field.get("nullable", "none"), self.version)
        if kind.startswith("[]"):
            self._length("array", None if value is None else len(value), "i", nullable)
            for item in value or ():
                self.value({**field, "type": kind[2:], "nullable": "none"}, item, extra_tags)
        elif kind == "string":
            raw = None if value is None else value.encode()
            self._length("string", None if raw is None else len(raw), "h", nullable)
            self.body += raw or b""
        elif kind in ("bytes", "records"):
            raw = None if value is None else bytes.fromhex(value)
            self._length("bytes", None if raw is None else len(raw), "i", nullable)
            self.body += raw or b""
        elif kind == "uuid":
            self.body += uuid.UUID(value).bytes
        elif kind in _FORMS:
            self.body += struct.pack(">" + _FORMS[kind], value)
        else:
            if nullable:
                self.body += b"\xff" if value is None else b"\x01"
            if value is not None:
                self.struct(field["fields"], value, extra_tags)

    def _length(self, kind: str, length: int | None, legacy: str, nullable: bool) -> None:
        at = len(self.body)
        if self.flexible:
            self.body += varint(0 if length is None else length + 1)
        else:
            self.body += struct.pack(">" + legacy, -1 if length is None else length)
        self.marks.append(Mark(kind, at, len(self.body) - at, nullable))

    def _tags(self, tagged: list[tuple[int, Json]], value: Json, extra_tags: bool) -> None:
        at = len(self.body)
        self.body += varint(len(tagged) + (2 if extra_tags else 0))
        self.marks.append(Mark("tags", at, len(self.body) - at, False))
        for tag, field in tagged:
            inner = Encoder.__new__(Encoder)
            inner.version, inner.flexible, inner.body, inner.marks = self.version, True, bytearray(), []
            inner.value(field, value[field["name"]], False)
            self.body += varint(tag) + varint(len(inner.body)) + inner.body
        if extra_tags:
            self.body += varint(1000) + varint(3) + b"new" + varint(100_000) + varint(0)


class Maker:
    """Makes values up."""

    def __init__(self, version: int, *, long: bool = False) -> None:
        self._version = version
        self._long = long
        self._count = itertools.count(1)

    def empty(self, fields: list[Json]) -> Json:
        """Return a message with null or zero in every field, and no tagged field."""
        value: Json = {}
        for field in present_fields(fields, self._version):
            kind: str = field["type"]
            if "tag" in field:
                continue
            if _covers(field.get("nullable", "none"), self._version):
                value[field["name"]] = None
            elif "fields" in field and not kind.startswith("[]"):
                value[field["name"]] = self.empty(field["fields"])
            else:
                value[field["name"]] = [] if kind.startswith("[]") else _zero(kind)
        return value

    def full(self, fields: list[Json]) -> Json:
        """Return a message whose fields all differ from their defaults. pylogd's own fields are left out."""
        present = present_fields(fields, self._version)
        return {field["name"]: self._value(field) for field in present if not field.get("extension")}

    def _value(self, field: Json) -> Any:
        kind: str = field["type"]
        if kind.startswith("[]"):
            simple = "fields" not in field
            repeat = LONG_COUNT if self._long and simple else 1 if self._long else 2
            return [self._value({**field, "type": kind[2:]}) for _ in range(repeat)]
        if "fields" in field:
            return self.full(field["fields"])
        return self._scalar(kind, field["name"], next(self._count))

    def _scalar(self, kind: str, name: str, number: int) -> Any:
        if kind == "string":
            return LONG_TEXT + str(number) if self._long else f"{name}-{number}"
        if kind in ("bytes", "records"):
            return BATCH.hex()
        if kind == "uuid":
            return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{number}"))
        if kind == "bool":
            return True
        if name.endswith("error_code"):
            return number % 40 + 1
        if name.endswith("_ms"):
            return 1000 + number if kind == "int32" else 1_700_000_000_000 + number
        base = {"int8": 1, "int16": 300, "int32": 70_000, "int64": 5_000_000_000, "float64": 1024.5}[kind]
        value = base + number % 100
        return -value if number % 3 == 0 else value


def vectors_of(api: Json) -> Json:
    """Return the content of an API's vector file."""
    low, high = version_range(api)
    out: Json = {"api": api["api"], "key": api["key"], "request": [], "response": [], "malformed": []}
    flexible_from = int(api["flexible"].removesuffix("+"))
    for role in ("request", "response"):
        for version in range(low, high + 1):
            at_border = version in (max(low, flexible_from), high)
            for name, value, extra_tags in samples(api, role, version, at_border):
                encoder = Encoder(api, version)
                encoder.struct(api[role], value, extra_tags)
                row: Json = {"version": version, "name": name, "header": header(api, role, version).hex()}
                if extra_tags:
                    row["decode_only"] = True
                out[role].append({**row, "body": encoder.body.hex(), "message": value})
                if name == "full" and version in (low, high):
                    out["malformed"] += malformed(role, version, encoder)
    return out


def samples(api: Json, role: str, version: int, at_border: bool) -> Iterator[tuple[str, Json, bool]]:
    """Yield the messages for one version: name, value, and whether to add unknown tagged fields."""
    yield "empty", Maker(version).empty(api[role]), False
    yield "full", Maker(version).full(api[role]), False
    if at_border and _covers(api["flexible"], version):
        yield "long", Maker(version, long=True).full(api[role]), False
        yield "unknown tags", Maker(version).full(api[role]), True


def header(api: Json, role: str, version: int) -> bytes:
    """Return the header of a request or response."""
    flexible = _covers(api["flexible"], version)
    if role == "request":
        text = CLIENT_ID.encode()
        head = struct.pack(">hhih", api["key"], version, CORRELATION_ID, len(text)) + text
        return head + (b"\0" if flexible else b"")
    tags = b"\0" if flexible and api["key"] != API_VERSIONS_KEY else b""
    return struct.pack(">i", CORRELATION_ID) + tags


def malformed(role: str, version: int, good: Encoder) -> Iterator[Json]:
    """Yield malformed variants of a valid body, each with the kind of error that a decoder has to report."""
    body = bytes(good.body)

    def broken(error: str, about: str, data: bytes) -> Json:
        return {"role": role, "version": version, "error": error, "about": about, "body": data.hex()}

    if body:
        yield broken("truncated", "the last byte is missing", body[:-1])
        yield broken("truncated", "only the first half is there", body[: len(body) // 2])
    yield broken("trailing", "a byte too many", body + b"\0")
    for kind, make in _BREAKERS:
        for mark in [mark for mark in good.marks if mark.kind == kind][:1]:
            for error, about, replacement in make(mark, good.flexible):
                yield broken(error, about, body[: mark.at] + replacement + body[mark.at + mark.size :])
    for mark in good.marks:
        if mark.kind == "string" and body[mark.at + mark.size :]:
            at = mark.at + mark.size
            yield broken("not UTF-8", "a string begins with the byte ff", body[:at] + b"\xff" + body[at + 1 :])
            break


def _break_length(what: str, form: str) -> Callable[[Mark, bool], Iterator[tuple[str, str, bytes]]]:
    def make(mark: Mark, flexible: bool) -> Iterator[tuple[str, str, bytes]]:
        many = 0x7FFF if form == "h" else 0x7FFFFFFF
        large = varint(0x7FFFFFFF) if flexible else struct.pack(">" + form, many)
        yield "bad length", f"{what} announces more than the frame holds", large
        if not flexible:
            yield "bad length", f"{what} has the length -2", struct.pack(">" + form, -2)
        if not mark.nullable:
            null = b"\0" if flexible else struct.pack(">" + form, -1)
            yield "bad length", f"{what} is null that must not be", null
        if flexible:
            yield "bad varint", f"the length of {what} has six bytes", b"\x80\x80\x80\x80\x80\x00"
            yield "bad varint", f"the length of {what} has more than 32 bits", b"\xff\xff\xff\xff\x7f"

    return make


def _break_tags(mark: Mark, flexible: bool) -> Iterator[tuple[str, str, bytes]]:
    yield "bad tags", "10,001 tagged fields are announced", varint(10_001)
    yield "bad tags", "a tag comes twice", varint(2) + varint(999) + b"\0" + varint(999) + b"\0"
    yield "bad tags", "a tagged field is larger than the frame", varint(1) + varint(999) + varint(0x7FFFFFFF)


_BREAKERS: tuple[tuple[str, Callable[[Mark, bool], Iterator[tuple[str, str, bytes]]]], ...] = (
    ("string", _break_length("a string", "h")),
    ("array", _break_length("an array", "i")),
    ("bytes", _break_length("a records field", "i")),
    ("tags", _break_tags),
)


def varint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes((value,))


def present_fields(fields: list[Json], version: int) -> list[Json]:
    """Return the fields that exist at a version."""
    return [field for field in fields if _covers(field.get("versions", "0+"), version)]


def version_range(api: Json) -> tuple[int, int]:
    """Return the first and the last version of an API."""
    low, _, high = api["versions"].partition("-")
    return int(low), int(high or low)


def _covers(versions: str, version: int) -> bool:
    if versions == "none":
        return False
    low, dash, high = versions.rstrip("+").partition("-")
    return int(low) <= version and (versions.endswith("+") or version <= int(high if dash else low))


def _zero(kind: str) -> Any:
    return {"string": "", "uuid": str(uuid.UUID(int=0)), "bool": False, "bytes": "", "records": ""}.get(kind, 0)


def render(vectors: Json) -> str:
    """Return the text of a vector file, with one vector per line."""
    parts = [f'{{\n  "api": {json.dumps(vectors["api"])},\n  "key": {vectors["key"]}']
    for section in ("request", "response", "malformed"):
        rows = ",\n".join("    " + json.dumps(row, ensure_ascii=False) for row in vectors[section])
        parts.append(f'  "{section}": [\n{rows}\n  ]')
    return ",\n".join(parts) + "\n}\n"


def main() -> int:
    """Write the files, or with --check compare them."""
    parser = argparse.ArgumentParser(description="Write protocol/vectors/ from protocol/apis/.")
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    stale = []
    VECTORS.mkdir(exist_ok=True)
    for schema in sorted(SCHEMAS.glob("*.json")):
        path = VECTORS / schema.name
        text = render(vectors_of(json.loads(schema.read_text("utf-8"))))
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(schema.name)
            if not check:
                path.write_text(text, "utf-8")
    if stale:
        print(("stale: " if check else "wrote: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
