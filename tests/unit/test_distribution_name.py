"""The distribution is `pylogd-broker`, the import package and the command are `pylogd`, and every mention agrees.

On PyPI `pylogd` is another project: `pip install` of that name would bring somebody else's code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
NAME = "pylogd-broker"
#: Text that would install, require or describe a distribution of the wrong name: after an installer, or with extras.
WRONG = re.compile(
    r"\bpylogd\\?\[[a-z]|\b(pip|pipx|uv)3?\s+(pip\s+)?(install|download|add)\b[^\n#|&;)]*?[\s'\"=]pylogd(?![-\w./])"
    r"|(distribution|requires|version)\([\"']pylogd[\"']\)"
)
_FOLDERS = (
    ".ci",
    "bench",
    "conformance",
    "docs",
    "etc",
    "examples",
    "packages",
    "protocol",
    "pylogd",
    "tests",
    "tools",
    "twisted",
)
_SUFFIXES = {
    "", ".c", ".cfg", ".in", ".ini", ".json", ".md", ".py", ".pyi", ".service", ".sh", ".toml", ".txt", ".yaml", ".yml"
}  # fmt: skip


def files() -> Iterator[Path]:
    """Yield each text file of the checkout, but this one and the changelog, whose older entries keep the old name."""
    for path in CHECKOUT.iterdir():
        if path.is_file() and path.name != "CHANGELOG.md" and path.suffix in _SUFFIXES:
            yield path
    for folder in _FOLDERS:
        for path in (CHECKOUT / folder).rglob("*"):
            if path.is_file() and path.suffix in _SUFFIXES and path != Path(__file__):
                yield path


def test_every_file_names_the_distribution() -> None:
    wrong = [
        f"{path.relative_to(CHECKOUT)}: {line.strip()}"
        for path in files()
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if "pylogd" in line and WRONG.search(line)
    ]
    assert not wrong


def test_the_distribution_and_what_it_installs() -> None:
    setup = ConfigParser()
    setup.read(CHECKOUT / "setup.cfg", encoding="utf-8")
    assert setup["metadata"]["name"] == NAME
    assert "pylogd = pylogd.cli.main:main" in setup["options.entry_points"]["console_scripts"]
    assert "pylogd" in setup["options"]["packages"].split()
    assert f"wheel/{NAME.replace('-', '_')}-*.whl" in (CHECKOUT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "line",
    [
        "pip install pylogd",
        "/opt/pylogd/bin/pip install pylogd",
        "pip install 'pylogd[spark]'",
        'pip install -U "pylogd==0.1"',
        "the extra `pylogd[avro]`",
        r"match=r'pip install pylogd\[arrow\]'",
        'distribution("pylogd")',
    ],
)
def test_the_wrong_name_is_found(line: str) -> None:
    assert WRONG.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install pylogd-broker",
        "/opt/pylogd/bin/pip install 'pylogd-broker[spark]'",
        "pip install . && pylogd broker --data ./data",
        "pip install --quiet wheel/pylogd_broker-*.whl",
        "topics[pylogd]",
    ],
)
def test_the_right_one_is_let_through(line: str) -> None:
    assert not WRONG.search(line)
