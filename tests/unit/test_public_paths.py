"""The import paths that docs/python-modules.md promises exist, with the names that it lists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

_ROW = re.compile(r"^\| `(pylogd[\w.]*)` \| (.*?) \|", re.MULTILINE)
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python-modules.md").read_text("utf-8")
PATHS = {path: re.findall(r"`(\w+)`", names) for path, names in _ROW.findall(PAGE)}


@pytest.mark.parametrize("path", PATHS)
def test_a_public_path_has_its_names(path: str) -> None:
    module = importlib.import_module(path)
    assert PATHS[path]
    assert [name for name in PATHS[path] if not hasattr(module, name)] == []


@pytest.mark.parametrize(
    "page", sorted(Path(__file__).resolve().parents[2].glob("docs/*.md")), ids=lambda path: path.stem
)
def test_the_pages_import_only_public_paths(page: Path) -> None:
    imported = re.findall(r"^from (pylogd[\w.]*) import", page.read_text("utf-8"), re.MULTILINE)
    assert [path for path in imported if path not in PATHS] == []


def test_the_rows_are_found() -> None:
    assert len(PATHS) == len(re.findall(r"^\| `pylogd", PAGE, re.MULTILINE)) > 15


def test_twistd_and_spark_find_pylogd() -> None:
    (maker,) = (importlib.import_module("twisted.plugins.pylogd_plugin").__dict__["pylogd"],)
    assert importlib.import_module(maker.module).makeService
    source = importlib.import_module("pyspark_pylogd").DefaultSource
    assert source is importlib.import_module("pylogd.lake.spark.source").PylogdDataSource
