"""Checks of tables that other programs have changed, and commits of such programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.interface import Layout
from tests.unit.lake.tables.cases import Case

T0 = ("t", 0)


def loads(case: Case) -> None:
    """Check that a load adds its rows and those of the quarantine."""
    table = case.open()
    table.create(Layout())
    case.load(table, 6, invalid=[4])
    assert case.offsets() == [0, 2, 3, 5]
    assert case.offsets(quarantine=True) == [1, 4]
    assert case.open().position.offsets == {T0: 6}


def refuses(case: Case, error: type[TableError], *said: str) -> None:
    """Check that a load is refused before it writes files, and that the table stays as it is."""
    table = case.open()
    files = set(case.directory.rglob("*.parquet"))
    for use in (lambda: table.create(Layout()), table.staging, lambda: case.load(case.open(), 6)):
        with pytest.raises(error) as raised:
            use()
        for each in (*said, "load into another table"):
            assert each in str(raised.value), raised.value
    assert set(case.directory.rglob("*.parquet")) == files
    assert case.open().position.offsets == {T0: 3}


def write_commit(case: Case, *actions: dict[str, Any]) -> None:
    """Write the next commit of a Delta table as another program does."""
    log = case.directory / "flights" / "_delta_log"
    number = max(int(path.stem) for path in log.glob("*.json")) + 1
    (log / f"{number:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))


def metadata(case: Case) -> dict[str, Any]:
    """Return the newest metadata of a Delta table."""
    found = [
        json.loads(line)
        for path in sorted((case.directory / "flights" / "_delta_log").glob("*.json"))
        for line in path.read_text().splitlines()
        if "metaData" in line
    ]
    return found[-1]  # type: ignore[no-any-return]


def change_schema(case: Case, change: Any) -> dict[str, Any]:
    """Commit a Delta table's schema after a change of its fields."""
    action = metadata(case)
    schema = json.loads(action["metaData"]["schemaString"])
    change(schema["fields"])
    action["metaData"]["schemaString"] = json.dumps(schema)
    write_commit(case, action)
    return action


def field(fields: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(each for each in fields if each["name"] == name)
