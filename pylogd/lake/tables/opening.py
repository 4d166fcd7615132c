"""Open tables without Spark, by their names: `delta:/data/flights`, `iceberg:/data/demo.flights`, `s3://bucket/lake`.

The formats' libraries are imported when a table of the format is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pylogd.lake.tables.errors import TableError

if TYPE_CHECKING:
    from pylogd.lake.tables.interface import Table

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
    scheme, separator, path = rest.partition("://")
    if separator and scheme in _S3:
        return _lake_on_s3(path, properties, read_only)
    if separator and scheme == _HDFS:
        return _lake_on_hdfs(rest, properties, read_only)
    if properties:
        raise TableError("a Parquet lake in a local directory has no properties")
    path = rest.removeprefix(_FILE)
    if "://" in path:
        raise TableError(
            f"the Parquet lake {rest} is neither in a local directory nor on S3 (s3://) or HDFS (hdfs://): only Spark "
            "writes lakes elsewhere (pylogd load). Delta and Iceberg tables can be anywhere"
        )
    return _lake(Path(path), read_only)


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
    try:
        from pylogd.lake.tables.delta.table import DeltaLakeTable  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TableError("Delta tables need deltalake: pip install 'pylogd-broker[delta]'") from error
    return DeltaLakeTable(uri, properties, codec=codec, read_only=read_only)


def _lake(directory: Path, read_only: bool) -> Table:
    try:
        from pylogd.lake.tables.parquet.local import LocalFiles  # noqa: PLC0415 - an extra
        from pylogd.lake.tables.parquet.read_only import ReadOnlyFiles  # noqa: PLC0415
        from pylogd.lake.tables.parquet.table import LakeTable  # noqa: PLC0415
    except ImportError as error:
        raise TableError("Parquet lakes need pyarrow: pip install 'pylogd-broker[arrow]'") from error
    files = LocalFiles(directory.resolve())
    return LakeTable(ReadOnlyFiles(files) if read_only else files)


def _lake_on_s3(path: str, properties: Mapping[str, str], read_only: bool) -> Table:
    """Open a lake by its bucket and directory. Without properties, S3 is found in the same way as by AWS's clients."""
    unknown = sorted(set(properties) - set(_S3_PROPERTIES))
    if unknown:
        raise TableError(f"a Parquet lake on S3 has no property {unknown[0]!r}, but: {', '.join(_S3_PROPERTIES)}")
    try:
        import s3fs  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra

        from pylogd.lake.tables.parquet.read_only import ReadOnlyFiles  # noqa: PLC0415
        from pylogd.lake.tables.parquet.remote import FsspecFiles  # noqa: PLC0415 - an extra
        from pylogd.lake.tables.parquet.table import LakeTable  # noqa: PLC0415
    except ImportError as error:
        raise TableError("Parquet lakes on S3 need s3fs: pip install 'pylogd-broker[s3,arrow]'") from error
    given = {_S3_PROPERTIES[name]: value for name, value in properties.items()}
    region = given.pop("region_name", None)
    client = {} if region is None else {"region_name": region}
    files = FsspecFiles(s3fs.S3FileSystem(**given, client_kwargs=client, skip_instance_cache=True), path)
    return LakeTable(ReadOnlyFiles(files) if read_only else files)


def _lake_on_hdfs(location: str, properties: Mapping[str, str], read_only: bool) -> Table:
    try:
        from pylogd.lake.tables.parquet.hdfs import HdfsFiles  # noqa: PLC0415 - an extra
        from pylogd.lake.tables.parquet.read_only import ReadOnlyFiles  # noqa: PLC0415
        from pylogd.lake.tables.parquet.table import LakeTable  # noqa: PLC0415
    except ImportError as error:
        raise TableError("Parquet lakes on HDFS need pyarrow: pip install 'pylogd-broker[hdfs,arrow]'") from error
    files = HdfsFiles(location, properties)
    return LakeTable(ReadOnlyFiles(files) if read_only else files)
