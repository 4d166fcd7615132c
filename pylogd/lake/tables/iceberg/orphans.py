"""Find files of an Iceberg table that no snapshot names: files of loaders that died.

Rules: only files below the directory of the table's data are deleted, and only if their names show that pylogd wrote
them. A file that a loader is writing is not named yet either, so the age must be longer than any load takes.
"""

from __future__ import annotations

from typing import Final

from pyarrow.fs import FileSelector
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

#: The first part of the names of data files that pylogd writes.
PREFIX: Final = "pylogd-"


def delete_orphans(table: Table, changed_before_ms: int) -> int:
    """Delete the files that no snapshot names and that were last changed before a time. Return their number."""
    io = PyArrowFileIO(table.io.properties)
    scheme, netloc, root = PyArrowFileIO.parse_location(table.location_provider().data_path)
    files = io.fs_by_scheme(scheme, netloc)
    found = [
        each.path
        for each in files.get_file_info(FileSelector(root, allow_not_found=True, recursive=True))
        if each.is_file and each.base_name.startswith(PREFIX) and each.mtime.timestamp() * 1000 < changed_before_ms
    ]
    table.refresh()  # after the listing, so that files that were committed meanwhile are named
    named = _named(table)
    orphans = [path for path in found if path not in named]
    for path in orphans:
        files.delete_file(path)
    return len(orphans)


def _named(table: Table) -> set[str]:
    """Return the paths, without scheme and host, of the data files of all snapshots."""
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.metadata.snapshots
        for manifest in snapshot.manifests(table.io)
    }
    return {
        PyArrowFileIO.parse_location(entry.data_file.file_path)[2]
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }
