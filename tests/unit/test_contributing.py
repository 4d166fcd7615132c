"""CONTRIBUTING.md, ARCHITECTURE.md and docs/fast-path.md name files that exist.

CONTRIBUTING.md names every package of pylogd. ARCHITECTURE.md names the functions of its road of a record.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
    package = CHECKOUT / "pylogd"
    packages = {path.parent.name for path in package.glob("*/__init__.py")}
    for wing in ("broker", "client", "lake", "services"):
        packages |= {f"{wing}/{path.parent.name}" for path in (package / wing).glob("*/__init__.py")}
    assert packages <= named


def test_there_are_ten_typical_changes() -> None:
    table = TEXT.partition("### Ten typical changes")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| (?!you want|---).*`[\w/<>.]+`", table, re.MULTILINE)) == 10


def test_each_typical_change_names_a_file_that_is_in_its_folder() -> None:
    table = TEXT.partition("### Ten typical changes")[2].partition("\n## ")[0]
    named = re.findall(r"`(pylogd/[\w/]+/)`, `(\w+\.(?:py|toml))`", table)
    assert len(named) >= 6
    assert [folder + name for folder, name in named if not (CHECKOUT / folder / name).exists()] == []


@pytest.mark.parametrize(("page", "least"), [("ARCHITECTURE.md", 50), ("docs/fast-path.md", 15)])
def test_every_path_in_the_architecture_exists(page: str, least: int) -> None:
    text = (CHECKOUT / page).read_text("utf-8")
    paths = set(re.findall(r"`((?:[\w.]+/)+(?:[\w.]+\.(?:py|md|c|h|json|toml))?)`", text))
    assert len(paths) > least, "the paths are not recognized any more"
    roots = (CHECKOUT, CHECKOUT / "pylogd", CHECKOUT / "pylogd" / "client")
    assert sorted(path for path in paths if not any((root / path).exists() for root in roots)) == []


def test_every_function_on_the_road_of_a_record_exists() -> None:
    text = (CHECKOUT / "ARCHITECTURE.md").read_text("utf-8")
    road = text.partition("\n## The road of a record\n")[2].partition("\n## ")[0]
    named = re.findall(r"`([A-Z]\w+)\.(\w+)`", road)
    files = set(re.findall(r"`((?:\w+/)+\w+\.py)`", road))
    source = "\n".join((CHECKOUT / "pylogd" / path).read_text("utf-8") for path in files)
    assert len(named) > 5 and len(files) > 20
    missing = [
        f"{name}.{method}"
        for name, method in named
        if not re.search(rf"^class {name}\b.*\n(?:(?!class ).*\n)*?    (?:async )?def {method}\(", source, re.MULTILINE)
    ]
    assert missing == []


def test_there_are_ten_files_to_read() -> None:
    text = (CHECKOUT / "ARCHITECTURE.md").read_text("utf-8")
    order = text.partition("\n## Read these ten files")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\d+\. `[\w/]+\.py`: ", order, re.MULTILINE)) == 10
