"""tox tests the versions that setup.cfg promises, of Python and of every dependency."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(>=|==)([0-9.]+)")


def read(name: str) -> ConfigParser:
    parser = ConfigParser(interpolation=None)
    parser.read(CHECKOUT / name, "utf-8")
    return parser


def requirements(text: str, operator: str) -> dict[str, tuple[int, ...]]:
    """Return the version of each package in `text`, which has one a line; lines that begin with `#` are comments."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if not line.startswith("#"):
            match = _REQUIREMENT.fullmatch(line)
            assert match, f"no version in {line!r}"
            assert match[2] == operator, line
            found[match[1].lower()] = _version(match[3])
    return found


def _version(text: str) -> tuple[int, ...]:
    """Return a version without trailing zeros, since 2.10 and 2.10.0 are the same."""
    numbers = [int(part) for part in text.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def test_the_lowest_environment_has_the_lowest_versions() -> None:
    metadata = read("setup.cfg")
    promised = requirements(metadata["options"]["install_requires"], ">=")
    for extra in (
        "sasl", "oauth", "tls", "arrow", "plot", "avro", "schemas", "typed", "spark", "audit", "console", "cli",
        "metrics",
    ):  # fmt: skip
        promised |= requirements(metadata["options.extras_require"][extra], ">=")
    del promised["pyspark"]  # the one that is tested with
    assert requirements(read("tox.ini")["testenv:lowest"]["deps"], "==") == promised


#: Earlier versions of these have known vulnerabilities.
SAFE = {
    "twisted": "24.7",
    "pyarrow": "17",
    "pyopenssl": "26",
    "cryptography": "46.0.5",
    "joserfc": "1.4.2",
    "kazoo": "2.11",
}


def test_no_version_with_a_known_vulnerability_is_allowed() -> None:
    options = read("setup.cfg")
    texts = [options["options"]["install_requires"], *options["options.extras_require"].values()]
    found = set()
    for line in "\n".join(texts).splitlines():
        match = _REQUIREMENT.fullmatch(line.strip())
        if match and match[1].lower() in SAFE:
            found.add(match[1].lower())
            assert _version(match[3]) >= _version(SAFE[match[1].lower()]), line
    assert found == set(SAFE)


def test_tox_has_every_python_that_the_classifiers_name() -> None:
    metadata = read("setup.cfg")
    named = re.findall(r"Python :: 3\.(\d+)$", metadata["metadata"]["classifiers"], re.MULTILINE)
    environments = re.findall(r"py3(\d+)", read("tox.ini")["tox"]["env_list"])
    assert environments == named
    assert metadata["options"]["python_requires"] == f">=3.{named[0]}"
    assert read("tox.ini")["testenv:lowest"]["base_python"] == f"python3.{named[0]}"


def test_the_linter_of_tox_is_that_of_the_extra() -> None:
    extra = requirements(read("setup.cfg")["options.extras_require"]["lint"], "==")
    assert requirements(read("tox.ini")["testenv:lint"]["deps"], "==") == {"ruff": extra["ruff"]}
