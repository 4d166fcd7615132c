"""DuckDB's readers of Iceberg and Delta tables, from packages, so that tests do not download them as DuckDB does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import duckdb


def load_extensions(connection: duckdb.DuckDBPyConnection, *names: str) -> None:
    """Load extensions. Users write `INSTALL name; LOAD name`, which downloads the same ones."""
    for name in names:
        spec = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert spec is not None and spec.origin is not None, f"pip install duckdb-extension-{name}"
        (path,) = Path(spec.origin).parent.rglob(f"v{duckdb.__version__}/*.duckdb_extension")
        connection.execute(f"LOAD '{path}'")
