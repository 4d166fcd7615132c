"""Write the markers of complete periods as files, which jobs can wait for without a client.

    DIRECTORY/STAGE/TOPIC/2026-11-23T07.json        for all stages, in a separate directory
    TABLE/_complete/TOPIC/2026-11-23T07.json        for a table, in the table's directory

Strategy: a file is written under another name and renamed, so that it is whole once it exists. The directory may be on
any file system that pyarrow knows (`hdfs://`, `s3://`, a local path); an object store writes an object as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pylogd.base.errors import PylogdError
from pylogd.services.audit.markers import Marker

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


#: The directory in a table. Readers of Parquet, Delta and Iceberg ignore names with an underscore in front, and so do
#: programs that delete files that no commit names.
_IN_TABLE: Final = "_complete"


class MarkerFiles:
    """The directory with the files. Methods block on the file system, and raise OSError."""

    def __init__(self, location: str, *, in_table: bool = False) -> None:
        """location: a path, or a URI that pyarrow knows.
        in_table: whether the location is that of a table.

        Raises PylogdError for a location that pyarrow does not know.
        """
        self._files, self._root = open_location(location)
        self._in_table = in_table

    def write(self, marker: Marker) -> None:
        """Write the file of a marker for a complete period; remove the file of any other marker."""
        directory = f"{self._root}/{_IN_TABLE if self._in_table else marker.stage}/{marker.topic}"
        path = f"{directory}/{marker.period}.json"
        if not marker.is_complete:
            self._remove(path)
            return
        self._files.create_dir(directory, recursive=True)
        draft = f"{directory}/.{marker.period}.json.new"
        with self._files.open_output_stream(draft) as stream:
            stream.write(marker.encode() + b"\n")
        self._files.move(draft, path)

    def _remove(self, path: str) -> None:
        from pyarrow.fs import FileType  # noqa: PLC0415 - slow to load

        if self._files.get_file_info(path).type is not FileType.NotFound:
            self._files.delete_file(path)


def open_location(location: str) -> tuple[FileSystem, str]:
    """Return the file system of a path or URI, and the path in it. Raises PylogdError."""
    from pathlib import Path  # noqa: PLC0415

    from pyarrow import ArrowInvalid  # noqa: PLC0415 - slow to load
    from pyarrow.fs import FileSystem, LocalFileSystem  # noqa: PLC0415

    if "://" not in location and not location.startswith("file:"):
        return LocalFileSystem(), str(Path(location).absolute())
    try:
        files, path = FileSystem.from_uri(location.replace("s3a://", "s3://", 1))
    except (ArrowInvalid, OSError) as error:
        raise PylogdError(f"can't open {location}: {error}") from error
    return files, path.rstrip("/")
