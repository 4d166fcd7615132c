"""Find out whether a table could be loaded into, and change nothing: no directory, no catalog, no commit.

Strategy: the table is opened by the function with which loaders open it, only to be read. Whether it can be written to
is asked of the place where it is: local directories by their permissions, Parquet lakes by what their file system
offers (`can_write`). Of other places this can't be known before the first file is written there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from pylogd.tables.errors import TableError
from pylogd.tables.interface import Layout
from pylogd.tables.opening import local_directory, open_table


@runtime_checkable
class Writable(Protocol):
    """A table whose place tells whether files can be written there."""

    def can_write(self) -> None:
        """Raise TableError if files can't be written."""


def probe_table(name: str, layout: Layout, properties: Mapping[str, str]) -> None:
    """Check that a table can be loaded into, or be made. Waits for its place. Raises TableError, which says why not.

    name, properties: as `open_table` takes them. layout: the one that the loader asks for.
    """
    directory = local_directory(name, properties)
    if directory is not None:
        check_directory(directory)
    table = open_table(name, properties, read_only=True)
    if table.exists:
        table.create(layout)  # of a table that exists it only checks layout and columns
    if directory is None and isinstance(table, Writable):
        table.can_write()


def check_directory(directory: Path) -> None:
    """Check that files can be made in a local directory, or that it can be made itself. Raises TableError."""
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
