"""The child process of the console that reads tables: `python -m pylogd.services.console.table_child`. See `tables`.

Standard input has a JSON object with the location and the properties of each table, by name. Standard output gets the
state of each table, by name, from `tables.as_document`.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.opening import open_table
from pylogd.services.console.tables import Snapshot, TableState, as_document

if TYPE_CHECKING:
    from pylogd.lake.tables.interface import Committed

_MOST_COMMITS: Final = 50
_LONGEST_PROBLEM: Final = 500


def read(name: str, location: str, properties: Mapping[str, str]) -> TableState:
    """Return the current state of a table."""
    try:
        table = open_table(location, properties)
        if not table.exists:
            return TableState(name, location, "", table.format)
        count = 0
        last: deque[Snapshot] = deque(maxlen=_MOST_COMMITS)
        for one in table.history():
            count += 1
            last.append(_snapshot(one))
        return TableState(
            name, location, "", table.format, True, dict(table.position.offsets), tuple(reversed(last)), count
        )
    except (TableError, OSError, ValueError) as error:
        return TableState(name, location, str(error)[:_LONGEST_PROBLEM])


def _snapshot(one: Committed) -> Snapshot:
    return Snapshot(one.number, one.kind, one.at_ms, one.rows, one.quarantined, one.files, one.bytes, one.replaced)


def main() -> None:
    """Read the tables that standard input names, and write each as a line of JSON to standard output."""
    asked = json.load(sys.stdin)
    json.dump({name: as_document(read(name, *options)) for name, options in asked.items()}, sys.stdout)


if __name__ == "__main__":
    main()
