"""Find out whether a load into a table could succeed, without making a directory, a catalog or a commit.

Strategy: the table is opened by the same function that loaders use, but read-only. Whether it can be written to is
found from the permissions of a local directory, or by the file system of a Parquet lake (`can_write`). For other places
this is unknown until the first file is written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.opening import local_directory, open_table


@runtime_checkable
class Writable(Protocol):
    """A table whose file system can tell whether files can be written."""

    def can_write(self) -> None:
        """Raise TableError if files can't be written."""


def probe_table(name: str, layout: Layout, properties: Mapping[str, str]) -> None:
    """Check that a table can be loaded into, or be made. Blocks on its storage. Raises TableError with the reason.

    name, properties: see `open_table`.
    layout: the layout that the loader asks for.
    """
    directory = local_directory(name, properties)
    if directory is not None:
        check_directory(directory)
    table = open_table(name, properties, read_only=True)
    if table.exists:
        table.create(layout)  # for an existing table this only checks layout and columns
    if directory is None and isinstance(table, Writable):
        table.can_write()


def check_directory(directory: Path) -> None:
    """Check that files can be made in a local directory, or that the directory can be made. Raises TableError."""
    found = directory
    while not found.exists() and found != found.parent:
        found = found.parent
    if not found.is_dir():
        raise TableError(f"{found} is a file, where a directory is needed: name another directory")
    if not os.access(found, os.W_OK | os.X_OK):
        what = "files can't be written there" if found == directory else f"{directory} can't be made in it"
        raise TableError(
            f"{found} is not writable for this user (uid {os.geteuid()}), so {what}: change its permissions or owner, "
            "or name another directory"
        )
