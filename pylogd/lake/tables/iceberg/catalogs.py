"""Find the catalog of an Iceberg table: a file in its warehouse, or the catalog of pyiceberg's properties.

Must not know: tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pylogd.lake.tables.errors import TableError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

#: The name of a catalog without a name.
_NAME = "pylogd"
_FILE = "catalog.db"
_MADE_MEANWHILE = "already exists"
#: The property of pyiceberg that names the class for access to files, and its default for files on HDFS.
_IO = "py-io-impl"
_HDFS = "hdfs://"
_HDFS_IO = "pylogd.lake.tables.iceberg.hdfs.HdfsFileIO"


class TableName(NamedTuple):
    """The name of an Iceberg table.

    warehouse: the directory of the embedded catalog; empty for any other catalog.
    """

    warehouse: str
    namespace: str
    table: str

    def __str__(self) -> str:
        """Return the name in the form that `parse` reads."""
        named = f"{self.namespace}.{self.table}"
        return f"{self.warehouse.rstrip('/')}/{named}" if self.warehouse else named

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse a name such as `demo.flights` or `/data/warehouse/demo.flights`. Raises TableError."""
        warehouse, _, name = text.rpartition("/")
        namespace, _, table = name.rpartition(".")
        if not namespace or not table:
            raise TableError(
                f"{text!r} does not name an Iceberg table: give a namespace and a table, such as demo.flights, behind "
                "the directory of a warehouse (/data/warehouse/demo.flights) unless properties name a catalog"
            )
        return cls(warehouse or ("/" if text.startswith("/") else ""), namespace, table)


def open_catalog(name: TableName, properties: Mapping[str, str], *, read_only: bool = False) -> Catalog:
    """Return the catalog of a table.

    read_only: whether nothing is made; then an embedded catalog that does not exist is empty.

    properties: the properties of pyiceberg (`type`, `uri`, `warehouse`, `s3.endpoint`, ...); `catalog` is the name of a
    catalog in `.pyiceberg.yaml`. If the table's name has a warehouse, the catalog is an SQLite file in it.

    Raises TableError.
    """
    try:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TableError("Iceberg tables need pyiceberg: pip install 'pylogd-broker[iceberg]'") from error
    given = dict(properties)
    called = given.pop("catalog", _NAME)
    if name.warehouse:
        given = {**_embedded(name.warehouse, given, read_only), **given}
    elif not given and called == _NAME:
        raise TableError(
            f"no catalog is known for the Iceberg table {name.namespace}.{name.table}: put the directory of a "
            "warehouse in front of its name, or give the catalog's properties, such as type=rest and uri=http://..."
        )
    if given.get("warehouse", "").startswith(_HDFS):
        given = {_IO: _HDFS_IO, **given}
    for again in (True, False):
        try:
            return load_catalog(called, **given)
        except Exception as error:  # errors of the catalog's own library
            if again and _MADE_MEANWHILE in str(error):  # another process has made the catalog's tables
                continue
            raise TableError(f"the Iceberg catalog can't be opened: {error}") from error
    raise AssertionError


def _embedded(warehouse: str, given: Mapping[str, str], read_only: bool) -> dict[str, str]:
    """Return the properties of a catalog in an SQLite file, which is in the warehouse's directory, or else at `uri`."""
    if "uri" in given or "type" in given:
        return {"warehouse": warehouse}
    directory = warehouse.removeprefix("file://")
    if "://" in directory:
        raise TableError(
            f"the warehouse {warehouse} is not a local directory, so its catalog can't be a file in it: give the "
            "catalog's properties, such as uri=sqlite:////data/catalog.db, or type=rest and uri=http://..."
        )
    path = Path(directory).resolve()
    if read_only and not (path / _FILE).exists():
        return {"type": "sql", "uri": "sqlite:///:memory:", "warehouse": path.as_uri()}
    path.mkdir(parents=True, exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{path / _FILE}", "warehouse": path.as_uri()}
