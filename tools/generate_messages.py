"""Write pylogd/wire/messages/ from protocol/apis/: one module of classes per API, and the table of APIs.

    python tools/generate_messages.py [--check]

With --check nothing is written, and the exit status is 1 if a file is out of date.

Strategy: one message class serves all versions of its API. It has the fields of every version, each with the schema's
default. The classes are checked in, so that type checkers and readers see them. What `@dataclass` would make at each
start of a process, slots and methods, is written out, or inherited from `Message`.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "protocol" / "apis"
MESSAGES = ROOT / "pylogd" / "wire" / "messages"
WIDTH = 120

Json = dict[str, Any]

_SCALARS = {
    "bool": ("bool", "False"),
    "int8": ("int", "0"),
    "int16": ("int", "0"),
    "int32": ("int", "0"),
    "int64": ("int", "0"),
    "float64": ("float", "0.0"),
    "string": ("str", '""'),
    "bytes": ("bytes", 'b""'),
    "uuid": ("bytes", "ZERO_UUID"),
}

#: a request's records are bytes, or a view of the frame; a response's may be a slice of a file too
_RECORDS = {"request": "bytes | memoryview", "response": "Sized"}


def render_all() -> dict[str, str]:
    """Return the text of every generated file, by file name."""
    apis = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(SCHEMAS.glob("*.json"))}
    files = {f"{stem}.py": render_module(stem, api) for stem, api in apis.items()}
    files["__init__.py"] = render_index(apis)
    return files


def render_module(stem: str, api: Json) -> str:
    """Return the module of one API: its structs, inner ones first, then request and response."""
    structs: dict[str, str] = {}
    for role in ("request", "response"):
        for name, about, fields in _structs_of(api[role]):
            text = render_class(name, about, fields, _RECORDS[role])
            if structs.setdefault(name, text) != text:
                raise SystemExit(f"{stem}: two structs called {name} differ")
    for role in ("request", "response"):
        name = api["api"] + role.capitalize()
        class_vars = f"    API_KEY: ClassVar[int] = {api['key']}\n"
        class_vars += f'    API_NAME: ClassVar[str] = "{api["api"]}"\n\n'
        structs[name] = render_class(name, f"The {role} of {api['api']}.", api[role], _RECORDS[role], class_vars)
    body = "\n\n".join(structs.values())
    title = f"{api['api']}, API key {api['key']}, versions {api['versions']}. {api['about']}"
    origin = f"Generated from protocol/apis/{stem}.json by tools/generate_messages.py: edit those instead."
    return _docstring(title, origin) + "\nfrom __future__ import annotations\n\n" + _imports(body) + "\n\n" + body


def render_class(name: str, about: str, fields: list[Json], records: str, class_vars: str = "") -> str:
    """Return one class, in which every field has a default. `records`: the Python type of fields of records."""
    lines = [f'class {name}(Message):\n    """{about}"""\n\n{_slots(fields)}{class_vars}']
    for field in fields:
        versions = f" Versions {field['versions']}." if "versions" in field else ""
        comment = textwrap.wrap(field["about"] + versions, WIDTH - 4, initial_indent="#: ", subsequent_indent="#: ")
        lines.append("".join(f"    {line}\n" for line in comment))
        lines.append(f"    {field['name']}: {annotation(field, records)}\n")
    if fields:
        lines.append("\n" + _init(fields, records))
    return "".join(lines)


def _slots(fields: list[Json]) -> str:
    names = [f'"{field["name"]}"' for field in fields]
    line = f"    __slots__ = ({', '.join(names)}{',' if len(names) == 1 else ''})\n"
    if len(line) > WIDTH + 1:
        line = "    __slots__ = (\n" + "".join(f"        {name},\n" for name in names) + "    )\n"
    return line + ("\n" if fields else "")


def _init(fields: list[Json], records: str) -> str:
    parameters, body = [], []
    for field in fields:
        name, value, fresh = field["name"], *default(field)
        parameters.append(f"{name}: {annotation(field, records)} = {value}")
        body.append(_assignment(name, fresh))
    arguments = ", ".join(["self", *parameters])
    line = f"    def __init__({arguments}) -> None:\n"
    if len(line) > WIDTH + 1:
        inner = arguments if len(arguments) <= WIDTH - 8 else ",\n        ".join(["self", *parameters]) + ","
        line = f"    def __init__(\n        {inner}\n    ) -> None:\n"
    return line + "".join(body)


def _assignment(name: str, fresh: str) -> str:
    value = f"{fresh} if {name} is UNSET else {name}" if fresh else name
    line = f"        self.{name} = {value}\n"
    return line if len(line) <= WIDTH + 1 else f"        self.{name} = (\n            {value}\n        )\n"


def annotation(field: Json, records: str) -> str:
    """Return the Python type of a field."""
    kind: str = field["type"]
    if kind == "records":
        return f"{records} | None"
    inner = kind.removeprefix("[]")
    text = _SCALARS[inner][0] if inner in _SCALARS else inner
    if kind.startswith("[]"):
        text = f"list[{text}]"
    return f"{text} | None" if "nullable" in field else text


def default(field: Json) -> tuple[str, str | None]:
    """Return expressions for a field's default: that of the argument and, for mutable ones, that of a new object."""
    kind: str = field["type"]
    if "default" in field:
        return json.dumps(field["default"]) if isinstance(field["default"], str) else repr(field["default"]), None
    if kind.startswith("[]"):
        return "UNSET", "[]"
    return (_SCALARS[kind][1], None) if kind in _SCALARS else ("UNSET", f"{kind}()")


def render_index(apis: dict[str, Json]) -> str:
    """Return the package's `__init__`: the table of all APIs, which needs neither schemas nor message classes."""
    rows = sorted((api["key"], stem, api) for stem, api in apis.items())
    keys = "".join(f"    {stem.upper()} = {key}\n" for key, stem, _ in rows)
    table = ""
    for key, stem, api in rows:
        low, _, high = api["versions"].partition("-")
        flexible = api["flexible"].removesuffix("+")
        table += f'    {key}: ApiInfo({key}, "{api["api"]}", "{stem}", {low}, {high or low}, {flexible}),\n'
    head = _docstring(
        "The messages of the protocol, in one module for each API, and the table of all APIs.",
        "Generated from protocol/apis/ by tools/generate_messages.py: edit those instead.",
    )
    return f'''{head}
from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple


class ApiKey(IntEnum):
    """The number of each API, with which requests begin."""

{keys}

class ApiInfo(NamedTuple):
    """An API: the name of its module and schema file, its versions, and the first flexible version."""

    key: int
    name: str
    module: str
    min_version: int
    max_version: int
    flexible_from: int


#: all APIs that have a schema, by key
APIS: Mapping[int, ApiInfo] = {{
{table}}}
'''


def _structs_of(fields: list[Json]) -> Iterator[tuple[str, str, list[Json]]]:
    for field in fields:
        if "fields" in field:
            yield from _structs_of(field["fields"])
            yield field["type"].removeprefix("[]"), field["struct"], field["fields"]


def _imports(body: str) -> str:
    text = "from collections.abc import Sized\n" if "Sized" in body else ""
    text += "from typing import ClassVar\n\n"
    values = [name for name in ("UNSET", "ZERO_UUID", "Message") if name in body]
    return text + f"from pylogd.wire.values import {', '.join(values)}\n"


def _docstring(title: str, rest: str) -> str:
    return f'"""{textwrap.fill(title, WIDTH - 3)}\n\n{textwrap.fill(rest, WIDTH)}\n"""\n'


def main() -> int:
    """Write the files, or with --check compare them. Return 1 if one is out of date."""
    parser = argparse.ArgumentParser(description="Write pylogd/wire/messages/ from protocol/apis/.")
    parser.add_argument("--check", action="store_true", help="compare the files without writing them")
    check = parser.parse_args().check
    stale = []
    for name, text in render_all().items():
        path = MESSAGES / name
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, "utf-8")
    if stale:
        print(("stale: " if check else "wrote: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
