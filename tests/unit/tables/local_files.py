"""A local directory as the file system of a Parquet lake, without a JVM."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq


class LocalFiles:
    """Implements `tables.parquet.table.SparkFiles`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def root(self) -> str:
        return str(self._root)

    def path(self, relative: str) -> str:
        return f"{self._root}/{relative}"

    def names(self, directory: str) -> list[str]:
        found = self._root / directory
        return sorted(each.name for each in found.iterdir()) if found.is_dir() else []

    def data_files(self, directory: str) -> list[tuple[str, int]]:
        found = sorted((self._root / directory).rglob("*.parquet"))
        return [(str(path.relative_to(self._root)), path.stat().st_size) for path in found]

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def move(self, source: str, target: str) -> bool:
        at = self._root / target
        at.parent.mkdir(parents=True, exist_ok=True)
        if at.exists():
            return False
        (self._root / source).rename(at)
        return True

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def delete(self, path: str) -> None:
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def parquet_rows(self, path: str) -> int:
        return int(pq.read_metadata(self._root / path).num_rows)
