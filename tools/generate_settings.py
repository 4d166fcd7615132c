"""Write pylogd/config/tables.py from the tables of settings, pylogd/config/*.toml, and then the pages about settings.

    python tools/generate_settings.py [--check]

With --check nothing is written, and the exit status is 1 if a file is out of date.

Strategy: a start of a broker imports the tables as Python, because reading TOML takes three times as long. What can be
derived is resolved here: a topic's or a group's setting has the type, default and limits of the broker setting that it
follows. `broker.toml` explains the keys.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "pylogd" / "config"
TABLES = FOLDER / "tables.py"
PAGES = ROOT / "tools" / "generate_settings_doc.py"
WIDTH = 120

#: The largest number of a type, which a table calls "max".
_LARGEST = {"short": 2**15 - 1, "int": 2**31 - 1, "long": 2**63 - 1}
_SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_TIMES = {"min": 60_000, "h": 3_600_000, "d": 86_400_000}
_TYPES = {"boolean", "string", "double", "list", "password", *_LARGEST}
#: The keys of a table and the arguments of `Setting` that are numbers.
_NUMBERS = ("default", "minimum", "maximum")
#: The keywords of `Setting` that a row may have, with their defaults.
_KEYWORDS: dict[str, Any] = {
    "minimum": None, "maximum": None, "choices": (), "mode": "read-only", "nullable": False, "synonyms": (),
    "per_listener": False, "special": (), "internal": False, "per_broker": False,
}  # fmt: skip
_MODES = {"read-only": ("read-only", False), "cluster-wide": ("dynamic", False), "per-broker": ("dynamic", True)}
_KEYS = {"type", "default", "doc", *_KEYWORDS} - {"nullable", "per_broker"}

#: A setting: the arguments of `Setting` by name.
Row = dict[str, Any]


class Table(NamedTuple):
    """A generated table: its name in Python, its file, and the comment above it."""

    name: str
    file: str
    comment: str


_BROKER = Table("SETTINGS", "broker", "Every broker setting by name, in the order of the manual.")
_OTHERS = (
    Table("TOPIC_SETTINGS", "topic", "Every topic setting by name, in alphabetical order."),
    Table("GROUP_SETTINGS", "group", "Every setting of a group by name."),
    Table("CLIENT_METRICS_SETTINGS", "client_metrics", "Every setting of a subscription to clients' metrics by name."),
)


def render() -> str:
    """Return the text of pylogd/config/tables.py."""
    broker = {name: own(name, group, keys) for name, group, keys in _entries(_BROKER.file)}
    profiles = _read("profiles")
    if broker["broker.profile"]["choices"] != tuple(profiles):
        raise SystemExit("broker.toml: the choices of broker.profile are not the profiles of profiles.toml")
    parts = [_HEAD, _render_table(_BROKER, broker)]
    bounds = {}
    for table in _OTHERS:
        rows = {}
        for name, group, keys in _entries(table.file):
            if limits := keys.pop("limits", None):
                bounds[name] = tuple(limits)
            rows[name] = follow(name, group, keys, broker) if "broker" in keys else own(name, group, keys)
            rows[name]["mode"] = "dynamic"
        parts.append(_render_table(table, rows))
    lines = "".join(f"        {_literal(name)}:\n        {_literal(limits)},\n" for name, limits in bounds.items())
    parts.append(
        "\n#: The broker settings that limit the values of a group.\n"
        f"BOUNDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(\n    {{\n{lines}    }}\n)\n"
    )
    parts.append("\n#: The profiles by name.\nPROFILES: Final[Mapping[str, Profile]] = MappingProxyType(\n    {\n")
    parts += [_render_profile(name, profile, broker) for name, profile in profiles.items()]
    return "".join([*parts, "    }\n)\n"])


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{file}.toml").read_text("utf-8"))


def _entries(file: str) -> list[tuple[str, str, Row]]:
    """Return the name, the group and the keys of each setting of a file; those of topics are sorted by name."""
    found = [(name, group, keys) for group, settings in _read(file).items() for name, keys in settings.items()]
    return sorted(found) if file == "topic" else found


def own(name: str, group: str, keys: Row) -> Row:
    """Return the row of a setting that follows no other one."""
    if unknown := keys.keys() - _KEYS:
        raise SystemExit(f"{name}: unknown key {min(unknown)}")
    if keys.get("type") not in _TYPES or not keys.get("doc"):
        raise SystemExit(f"{name}: it needs a doc, and a type that is one of {', '.join(sorted(_TYPES))}")
    if keys.get("mode", "read-only") not in _MODES:
        raise SystemExit(f"{name}: its mode is not one of {', '.join(_MODES)}")
    row: Row = {"name": name, "group": group, "default": None, **_KEYWORDS, **keys, "doc": _prose(keys["doc"])}
    row.update((key, _number(row[key], row)) for key in _NUMBERS)
    row["nullable"] = row["default"] is None
    if row["type"] == "double" and not row["nullable"]:
        row["default"] = float(row["default"])
    row["mode"], row["per_broker"] = _MODES[row["mode"]]
    row["synonyms"] = tuple((other, _number(factor, row)) for other, factor in dict(row["synonyms"]).items())
    for key in ("default", "choices", "special"):
        row[key] = tuple(row[key]) if isinstance(row[key], list) else row[key]
    return row


def follow(name: str, group: str, keys: Row, broker: dict[str, Row]) -> Row:
    """Return the row of a setting that has the type, default and limits of a broker setting unless it names others."""
    changes = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
    base = broker[changes.pop("broker")]
    if unknown := changes.keys() - {"minimum", "special", "doc"}:
        raise SystemExit(f"{name}: a setting that follows a broker's can't have the key {min(unknown)}")
    changes["doc"] = _prose(changes.get("doc", base["doc"]))
    synonyms = ((base["name"], 1), *base["synonyms"])
    shipped = ((broker[other]["default"], factor) for other, factor in synonyms)
    default = next((value * factor if factor > 1 else value for value, factor in shipped if value is not None), None)
    derived = {"default": default, "nullable": default is None, "synonyms": synonyms}
    return {**base, **changes, **derived, "name": name, "group": group}


def _number(value: Any, row: Row) -> Any:
    """Return a value with a number such as "100 MiB" or "7 d" converted to bytes or milliseconds."""
    if not isinstance(value, str) or row["type"] not in _LARGEST:
        return value
    if value == "max":
        return _LARGEST[row["type"]]
    count, _, unit = value.partition(" ")
    units = _TIMES if row["name"].endswith(".ms") else _SIZES
    if unit not in units:
        raise SystemExit(f"{row['name']}: {value} is not a number with one of the units {', '.join(units)}")
    return int(count) * units[unit]


def _prose(text: str) -> str:
    return " ".join(text.split())


def _render_table(table: Table, rows: dict[str, Row]) -> str:
    settings = "".join(_render_setting(row) for row in rows.values())
    return f"\n#: {table.comment}\n{table.name}: Final[Mapping[str, Setting]] = _by_name(\n{settings})\n"


def _render_setting(row: Row) -> str:
    arguments = [_literal(row["name"]), f"ConfigType.{row['type'].upper()}", _literal(row["default"])]
    more = [_literal(row["group"])]
    for key, usual in _KEYWORDS.items():
        if row[key] != usual:
            more.append(f"{key}={'Mode.DYNAMIC' if key == 'mode' else _literal(row[key])}")
    return _call("Setting", [*arguments, _render_prose(row["doc"], 8), *more], 4)


def _render_profile(name: str, profile: Row, broker: dict[str, Row]) -> str:
    choices = ""
    for setting, one in profile["settings"].items():
        value = _literal(_number(one["value"], broker[setting]))
        choices += _call("Choice", [_literal(setting), value, _render_prose(one["why"], 20)], 16)
    arguments = [_literal(name), _render_prose(profile["purpose"], 12), f"(\n{choices}            )"]
    return f"        {_literal(name)}: {_call('Profile', arguments, 8).lstrip()}"


def _call(function: str, arguments: list[str], indent: int) -> str:
    """Return a call, with as many arguments in a line as fit. One of several lines has lines of its own."""
    lines = [arguments[0]]
    for argument in arguments[1:]:
        joined = f"{lines[-1]}, {argument}"
        if "\n" in joined or indent + 4 + len(joined) >= WIDTH:
            lines.append(argument)
        else:
            lines[-1] = joined
    inner = "".join(f"{' ' * (indent + 4)}{line},\n" for line in lines)
    return f"{' ' * indent}{function}(\n{inner}{' ' * indent}),\n"


def _render_prose(text: str, indent: int) -> str:
    """Return a literal, or several that Python joins, each on a line of its own."""
    *lines, last = textwrap.wrap(_prose(text), WIDTH - indent - 3, break_on_hyphens=False)
    return f"\n{' ' * indent}".join([*(_literal(f"{line} ") for line in lines), _literal(last)])


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        inner = ", ".join(map(_literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, str) and ('"' not in value or "'" in value):
        return json.dumps(value)
    return repr(value).replace("e+", "e")


_HEAD = '''\
"""The tables of settings: of brokers, topics, groups and subscriptions to clients' metrics; and the profiles.

Generated from pylogd/config/*.toml by tools/generate_settings.py: edit those instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pylogd.config.values import Choice, ConfigType, Mode, Profile, Setting

# fmt: off


def _by_name(*settings: Setting) -> Mapping[str, Setting]:
    return MappingProxyType({setting.name: setting for setting in settings})

'''


def main() -> int:
    """Write the files, or with --check compare them. Return 1 if one is out of date."""
    parser = argparse.ArgumentParser(description="Write pylogd/config/tables.py and the pages about settings.")
    parser.add_argument("--check", action="store_true", help="compare the files without writing them")
    check = parser.parse_args().check
    text = render()
    stale = not TABLES.exists() or TABLES.read_text("utf-8") != text
    if stale and check:
        print("pylogd/config/tables.py is out of date: run python tools/generate_settings.py", file=sys.stderr)
        return 1
    if stale:
        TABLES.write_text(text, "utf-8")
    # In a process of its own: it imports the tables.
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.call([sys.executable, PAGES, *(["--check"] if check else [])], env=environment)


if __name__ == "__main__":
    sys.exit(main())
