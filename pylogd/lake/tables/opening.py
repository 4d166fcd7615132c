"""Open tables without Spark, by their names: `delta:/data/flights`, `iceberg:/data/demo.flights`, `s3://bucket/lake`.

`probe_table` finds out whether a load into a table could succeed, without making a directory, a catalog or a commit. It
opens the table by the same function that loaders use, but read-only. Whether the table can be written to is found from
the permissions of a local directory, or by the file system of a Parquet lake (`can_write`). For other places this is
unknown until the first file is written.

The formats' libraries are imported when a table of the format is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pylogd.lake.tables.errors import TableError

if TYPE_CHECKING:
    from pylogd.lake.tables.interface import Layout, Table
    from pylogd.lake.tables.parquet.files import SparkFiles

FORMATS: Final = ("parquet", "iceberg", "delta")
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_FILE: Final = "file://"
_HDFS: Final = "hdfs"
#: The schemes of object stores on which a lake can be without Spark; the second one is Hadoop's.
_S3: Final = ("s3", "s3a")
#: Properties of a lake on S3, with Iceberg's names -> the arguments of s3fs.
_S3_PROPERTIES: Final = MappingProxyType(
    {
        "s3.endpoint": "endpoint_url", "s3.access-key-id": "key", "s3.secret-access-key": "secret",
        "s3.session-token": "token", "s3.region": "region_name",
    }
)  # fmt: skip


def parse_table(text: str) -> tuple[str, str]:
    """Return the format of a table's name such as `delta:/data/flights`, and the rest of the name.

    A name without a format is the directory of a Parquet lake. Raises TableError.
    """
    kind, colon, rest = text.partition(":")
    if kind in FORMATS and colon:
        if not rest:
            raise TableError(f"{text!r} names no table: give for example {kind}:/data/flights")
        return kind, rest
    return "parquet", text


def open_table(
    name: str, properties: Mapping[str, str] = _NONE, *, codec: str = "zstd", read_only: bool = False
) -> Table:
    """Open a table, which need not exist. A commit in which a process died is completed.

    name: `iceberg:` and the name of a table (`iceberg.catalogs.TableName`), `delta:` and a directory, or `parquet:` and
    a local directory or an URL such as `s3://bucket/lake` or `hdfs://namenode:8020/lake`.
    properties: the properties of Iceberg's catalog, Delta's storage, S3 (`_S3_PROPERTIES`), or Hadoop's client.
    codec: the compression of files that are written.
    read_only: whether nothing is made or completed; then the table must not be written to.

    Blocks on the file system or catalog. Raises TableError.
    """
    kind, rest = parse_table(name)
    if kind == "iceberg":
        return _iceberg(rest, properties, codec, read_only)
    if kind == "delta":
        return _delta(rest, properties, codec, read_only)
    return _lake(rest, properties, read_only)


def local_directory(name: str, properties: Mapping[str, str] = _NONE) -> Path | None:
    """Return the local directory of a table, whose name is as for `open_table`; None if it is elsewhere."""
    kind, rest = parse_table(name)
    if kind == "iceberg":
        rest = rest.rpartition("/")[0] or properties.get("warehouse", "")
    path = rest.removeprefix(_FILE)
    return None if not path or "://" in path else Path(path).resolve()


def _iceberg(name: str, properties: Mapping[str, str], codec: str, read_only: bool) -> Table:
    from pylogd.lake.tables.iceberg.catalogs import TableName, open_catalog  # noqa: PLC0415 - an extra

    named = TableName.parse(name)
    catalog = open_catalog(named, properties, read_only=read_only)
    from pylogd.lake.tables.iceberg.table import IcebergTable  # noqa: PLC0415 - after the message about the extra

    return IcebergTable(catalog, named, codec=codec, read_only=read_only)


def _delta(uri: str, properties: Mapping[str, str], codec: str, read_only: bool) -> Table:
    with _extras("Delta tables need deltalake", "delta"):
        from pylogd.lake.tables.delta.table import DeltaLakeTable  # noqa: PLC0415 - an extra
    return DeltaLakeTable(uri, properties, codec=codec, read_only=read_only)


def _lake(location: str, properties: Mapping[str, str], read_only: bool) -> Table:
    scheme, separator, path = location.partition("://")
    files: SparkFiles
    if separator and scheme in _S3:
        files = _files_on_s3(path, properties)
    elif separator and scheme == _HDFS:
        with _extras("Parquet lakes on HDFS need pyarrow", "hdfs,arrow"):
            from pylogd.lake.tables.parquet.hdfs import HdfsFiles  # noqa: PLC0415 - an extra
        files = HdfsFiles(location, properties)
    else:
        files = _local_files(location, properties)
    from pylogd.lake.tables.parquet.files import ReadOnlyFiles  # noqa: PLC0415 - after the message about the extra
    from pylogd.lake.tables.parquet.table import LakeTable  # noqa: PLC0415

    return LakeTable(ReadOnlyFiles(files) if read_only else files)


def _local_files(location: str, properties: Mapping[str, str]) -> SparkFiles:
    if properties:
        raise TableError("a Parquet lake in a local directory has no properties")
    path = location.removeprefix(_FILE)
    if "://" in path:
        raise TableError(
            f"the Parquet lake {location} is neither in a local directory nor on S3 (s3://) or HDFS (hdfs://): only "
            "Spark writes lakes elsewhere (pylogd load). Delta and Iceberg tables can be anywhere"
        )
    with _extras("Parquet lakes need pyarrow", "arrow"):
        from pylogd.lake.tables.parquet.local import LocalFiles  # noqa: PLC0415 - an extra
    return LocalFiles(Path(path).resolve())


def _files_on_s3(path: str, properties: Mapping[str, str]) -> SparkFiles:
    """Return the files of a lake in a bucket. Without properties, S3 is found in the same way as by AWS's clients."""
    unknown = sorted(set(properties) - set(_S3_PROPERTIES))
    if unknown:
        raise TableError(f"a Parquet lake on S3 has no property {unknown[0]!r}, but: {', '.join(_S3_PROPERTIES)}")
    with _extras("Parquet lakes on S3 need s3fs", "s3,arrow"):
        import s3fs  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra

        from pylogd.lake.tables.parquet.remote import FsspecFiles  # noqa: PLC0415 - an extra
    given = {_S3_PROPERTIES[name]: value for name, value in properties.items()}
    region = given.pop("region_name", None)
    client = {} if region is None else {"region_name": region}
    return FsspecFiles(s3fs.S3FileSystem(**given, client_kwargs=client, skip_instance_cache=True), path)


@contextmanager
def _extras(what: str, extras: str) -> Iterator[None]:
    """Raise TableError with the extras to install, if a library is missing."""
    try:
        yield
    except ImportError as error:
        raise TableError(f"{what}: pip install 'pylogd-broker[{extras}]'") from error


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
    can_write = getattr(table, "can_write", None)  # only tables whose file system may be able to tell
    if directory is None and can_write is not None:
        can_write()


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
