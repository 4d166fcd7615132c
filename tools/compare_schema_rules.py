"""Compare our compatibility rules with the tables of tests of Confluent's registry, and other checkers with them.

    git clone https://github.com/confluentinc/schema-registry /tmp/schema-registry
    pip install jsoncompat buf-bin          # optional
    python tools/compare_schema_rules.py /tmp/schema-registry

It prints how many changes each checker answers otherwise than the tables say, and ours one by one.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pylogd.services.registry.errors import InvalidSchema
from pylogd.services.registry.formats import json_schema, protobuf
from pylogd.services.registry.model import Definition, Definitions

JSON_TABLES = "json-schema-provider/src/test/resources/diff-*schema-examples*.json"
PROTOBUF_TABLES = "protobuf-provider/src/test/resources/diff-schema-examples.json"
Checker = Callable[[dict[str, Any]], bool]


def cases(checkout: Path, pattern: str) -> list[dict[str, Any]]:
    """Return the changes in the tables, which have commas behind their last elements."""
    found: list[dict[str, Any]] = []
    for path in sorted(checkout.glob(pattern)):
        found += json.loads(re.sub(r",(\s*[}\]])", r"\1", path.read_text()))
    return found


def definitions(case: dict[str, Any], which: str) -> Definitions:
    """Return the `original` or the `update` schema of a change, with those that it refers to."""
    used = [Definition(each["name"], each["dependency"]) for each in case.get(f"{which}_dependencies", ())]
    schema = case[f"{which}_schema"]
    return (*used, Definition("", schema if isinstance(schema, str) else json.dumps(schema)))


def ours(rules: Any) -> Checker:
    """Return a checker by our rules."""

    def check(case: dict[str, Any]) -> bool:
        return not rules.conflicts(definitions(case, "update"), definitions(case, "original"))

    return check


def jsoncompat(case: dict[str, Any]) -> bool:
    """Check with jsoncompat. Raises ValueError for what it does not support."""
    old, new = (json.dumps(case[f"{which}_schema"]) for which in ("original", "update"))
    return bool(importlib.import_module("jsoncompat").check_compat(old, new, "deserializer"))


def buf(case: dict[str, Any]) -> bool:
    """Check with buf, by its rules for messages on the wire."""
    with tempfile.TemporaryDirectory() as folder:
        for which in ("original", "update"):
            for name, text in definitions(case, which):
                path = Path(folder, which, name or "schema.proto")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            Path(folder, which, "buf.yaml").write_text("version: v2\nbreaking:\n  use: [WIRE]\n")
        command = ["buf", "breaking", f"{folder}/update", "--against", f"{folder}/original"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def compare(name: str, check: Checker, changes: list[dict[str, Any]], *, list_all: bool = False) -> None:
    """Print how often a checker differs from the table."""
    differing, begin = [], time.perf_counter()
    for case in changes:
        try:
            found = check(case)
        except (InvalidSchema, ValueError):
            found = not case["compatible"]
        if found != case["compatible"]:
            differing.append(case["description"])
    milliseconds = 1000 * (time.perf_counter() - begin) / len(changes)
    print(f"{name}: {len(differing)} of {len(changes)} differ, {milliseconds:.1f} ms each")
    for description in differing if list_all else ():
        print(f"    {description}")


def main(checkout: str) -> None:
    """Compare with the tables in a checkout of Confluent's registry."""
    of_json, of_protobuf = cases(Path(checkout), JSON_TABLES), cases(Path(checkout), PROTOBUF_TABLES)
    compare("JSON Schema, ours", ours(json_schema), of_json, list_all=True)
    if importlib.util.find_spec("jsoncompat"):
        compare("JSON Schema, jsoncompat", jsoncompat, of_json)
    compare("Protobuf, ours", ours(protobuf), of_protobuf, list_all=True)
    if shutil.which("buf"):
        compare("Protobuf, buf WIRE", buf, of_protobuf)


if __name__ == "__main__":
    main(*sys.argv[1:])
