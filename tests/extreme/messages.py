"""Extreme requests of every API at every version, made from the schemas in `protocol/apis`.

Strategy: a base message names what exists on the broker (`state.Known`), with one element in each array. An extreme
request is the base with one thing changed: an array has the same element many times, or many that differ; a string or
a field of bytes is as long as it may be; a number is the largest, the smallest, or one that has a meaning of its own.
All of them are encoded by the broker's own codecs, so that none is malformed.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from pylogd.wire.messages import APIS, ApiKey
from pylogd.wire.schema import load_schema, request_codec
from tests.extreme.state import Known

#: A field of a message: the names of the fields that lead to it.
Path = tuple[str, ...]
Change = Callable[[Any], Any]

LONGEST_STRING: Final = 32_767
_BITS: Final = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
_KINDS: Final = ("type", "type_filter", "operation", "mechanism")  # endings of fields with one of a few numbers
_MEANINGS: Final = (0, -1, -2, -3, -4, -5)  # "none", "latest", "earliest" and the like, which fields give to numbers


class Extreme(NamedTuple):
    """A request of an API: its body, and what is extreme about it."""

    api_key: int
    version: int
    about: str
    body: bytes

    @property
    def is_silent(self) -> bool:
        """Whether no answer is due."""
        return (self.api_key, self.about) == (ApiKey.PRODUCE, "acks 0")

    @property
    def may_wait(self) -> bool:
        """Whether the answer may be late on purpose: the request waits for members, for records, or for a time."""
        return self.api_key == ApiKey.JOIN_GROUP or any(word in self.about for word in ("_ms", "min_bytes"))

    def __str__(self) -> str:
        return f"{APIS[self.api_key].name} {self.version}: {self.about}, {len(self.body):,} bytes"


class Sizes(NamedTuple):
    """How large requests get. elements: of an array. data: bytes of a field of bytes."""

    elements: int
    data: int


class Variant(NamedTuple):
    """A request that is not built yet: large ones take much longer to build than a broker needs to answer them."""

    about: str
    build: Callable[[], Extreme]


def variants(api_key: int, version: int, known: Known, sizes: Sizes) -> list[Variant]:
    """Return every extreme request of an API at a version, to be built one by one."""
    codec = request_codec(api_key, version)

    def build(about: str, path: Path, change: Change) -> Extreme:
        message = _Builder(api_key, version, known, {path: change}).message()
        return Extreme(api_key, version, about, b"".join(map(bytes, codec.encode(message))))  # type: ignore[arg-type]

    asked: list[tuple[str, Path, Change]] = [("as it should be", (), lambda value: value)]
    for path, field in _fields(load_schema(api_key)["request"], version, ()):
        name = ".".join(path)
        asked += [(f"{name} {about}", path, change) for about, change in _changes(field, version, sizes)]
    return [Variant(about, partial(build, about, path, change)) for about, path, change in asked]


def extremes(api_key: int, version: int, known: Known, sizes: Sizes) -> Iterator[Extreme]:
    """Yield every extreme request of an API at a version."""
    for variant in variants(api_key, version, known, sizes):
        yield variant.build()


def _changes(field: dict[str, Any], version: int, sizes: Sizes) -> Iterator[tuple[str, Change]]:
    kind: str = field["type"]
    if covers(field.get("nullable", "none"), version):
        yield "null", lambda _: None
    if kind.startswith("[]"):
        yield "none", lambda _: []
        yield f"the same {sizes.elements:,} times", lambda value: value[:1] * sizes.elements
        values = 1 << (_BITS.get(kind[2:], 32) - 1)  # there are 128 others of a byte, again and again
        yield f"{sizes.elements:,} others", lambda value: [another(value[0], n % values) for n in range(sizes.elements)]
    elif kind == "string":
        yield "long", lambda _: "x" * LONGEST_STRING
        yield "empty", lambda _: ""
        yield "with escape sequences", lambda _: "[/x]\x1b[2J\r\n\u202e"
    elif kind == "bytes":
        yield f"of {sizes.data:,} bytes", lambda _: bytes(sizes.data)
    elif kind in _BITS:
        unsigned = kind.startswith("u")
        most = (1 << _BITS[kind]) - 1 if unsigned else (1 << (_BITS[kind] - 1)) - 1
        for number in (most, *(() if unsigned else (-most - 1, *_MEANINGS))):
            yield str(number), _constantly(number)


def _is_set(value: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether a field has one of these types and may be changed: names and ids that a version has are set."""
    return isinstance(value, kinds) and value not in ("", b"", bytes(16))


def _constantly(value: Any) -> Change:
    return lambda _: value


def another(value: Any, number: int) -> Any:
    """Return a value like `value`, and another for each `number`: a name, an id, a number, or a struct with one."""
    if isinstance(value, str):
        return f"other-{number}"
    if isinstance(value, int):
        return number
    if isinstance(value, bytes):
        return number.to_bytes(16, "big")
    changed = copy.copy(value)
    slots = [slot for slot in type(value).__slots__ if not slot.endswith(_KINDS)]
    for kinds in ((str,), (bytes,), (int,)):
        found = next((slot for slot in slots if _is_set(getattr(value, slot), kinds)), None)
        if found is not None:
            setattr(changed, found, another(getattr(value, found), number))
        if found is not None and "id" not in found:
            break  # a struct has a name or an id, by its version: both are changed
    return changed


def _fields(fields: list[dict[str, Any]], version: int, parent: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for field in fields:
        if covers(field.get("versions", "0+"), version):
            path = (*parent, field["name"])
            yield path, field
            yield from _fields(field.get("fields", ()), version, path)


class _Builder:
    """Builds the base message of an API, with changes at some paths."""

    def __init__(self, api_key: int, version: int, known: Known, changes: dict[Path, Change]) -> None:
        info = APIS[api_key]
        self._api = info
        self._version = version
        self._known = known
        self._changes = changes
        self._module: Any = importlib.import_module(f"pylogd.wire.messages.{info.module}")

    def message(self) -> Any:
        """Return the message."""
        return self._struct(self._api.name + "Request", load_schema(self._api.key)["request"], ())

    def _struct(self, name: str, fields: list[dict[str, Any]], parent: Path) -> Any:
        made = getattr(self._module, name)()
        for field in fields:
            if covers(field.get("versions", "0+"), self._version):
                path = (*parent, field["name"])
                value = self._value(name, field, path)
                change = self._changes.get(path)
                setattr(made, field["name"], value if change is None else change(value))
        return made

    def _value(self, struct: str, field: dict[str, Any], path: Path) -> Any:
        kind: str = field["type"]
        if kind.startswith("[]"):
            return [self._scalar(struct, kind[2:], {**field, "nullable": "none"}, path)]
        if "nullable" in field and "fields" in field:
            return None  # such as a cursor
        return self._scalar(struct, kind, field, path)

    def _scalar(self, struct: str, kind: str, field: dict[str, Any], path: Path) -> Any:
        if "fields" in field:
            return self._struct(kind, field["fields"], path)
        value = self._known.value(self._api.name, struct, field["name"])
        if value is not None:
            return value
        if kind != "records" and covers(field.get("nullable", "none"), self._version):
            return None
        if kind == "bool":
            return True
        if kind in _BITS:
            return 0
        return {"string": "", "bytes": b"", "records": self._known.batch, "uuid": bytes(16), "float64": 0.0}[kind]


def covers(versions: str, version: int) -> bool:
    """Return whether `version` is within `versions`, which is written as in the schemas: "0+", "3-7", "none"."""
    if versions == "none":
        return False
    low, _, high = versions.rstrip("+").partition("-")
    return int(low) <= version <= (version if versions.endswith("+") else int(high or low))
