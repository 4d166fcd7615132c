"""CONTRIBUTING.md and ARCHITECTURE.md name files that exist; CONTRIBUTING.md names every package of pylogd."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
TEXT = (CHECKOUT / "CONTRIBUTING.md").read_text("utf-8")
#: Made by the commands in the same row.
_MADE = (".venv/",)


def test_every_path_exists() -> None:
    roots = {path.name for path in CHECKOUT.iterdir() if path.is_dir()}
    paths = {path for path in re.findall(r"[\w.]+/[\w./<>-]+", TEXT) if path.split("/")[0] in roots}
    named = {path for path in paths if not path.startswith(_MADE)}
    assert len(named) > 15, "the paths are not recognized any more"
    missing = [
        path
        for path in named
        if not any(CHECKOUT.glob(path.rstrip("./").replace("<api>", "*").replace("<target>", "*")))
    ]
    assert not missing


def test_every_package_is_in_the_map() -> None:
    named = set(re.findall(r"`([a-z/]+)/`", TEXT.partition("## Find your way")[2].partition("### Ten")[0]))
    packages = {path.parent.name for path in (CHECKOUT / "pylogd").glob("*/__init__.py")} - {"client"}
    packages |= {f"client/{path.parent.name}" for path in (CHECKOUT / "pylogd" / "client").glob("*/__init__.py")}
    assert packages <= named


def test_there_are_ten_typical_changes() -> None:
    table = TEXT.partition("### Ten typical changes")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| (?!you want|---).*`[\w/<>.]+`", table, re.MULTILINE)) == 10


def test_each_typical_change_names_a_file_that_is_in_its_folder() -> None:
    table = TEXT.partition("### Ten typical changes")[2].partition("\n## ")[0]
    named = re.findall(r"`(pylogd/[\w/]+/)`, `(\w+\.py)`", table)
    assert len(named) >= 6
    assert [folder + name for folder, name in named if not (CHECKOUT / folder / name).exists()] == []


def test_every_path_in_the_architecture_exists() -> None:
    text = (CHECKOUT / "ARCHITECTURE.md").read_text("utf-8")
    paths = set(re.findall(r"`((?:[\w.]+/)+(?:[\w.]+\.(?:py|md))?)`", text))
    assert len(paths) > 50, "the paths are not recognized any more"
    roots = (CHECKOUT, CHECKOUT / "pylogd", CHECKOUT / "pylogd" / "client")
    assert sorted(path for path in paths if not any((root / path).exists() for root in roots)) == []
