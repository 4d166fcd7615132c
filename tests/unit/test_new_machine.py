"""What `make test` runs does not depend on benchmarks; what `make newcomer` reads of lists and outputs."""

from __future__ import annotations

import ast
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import BENCH_TESTS, CHECKOUT, pytest_ignore_collect
from tests.packages import newcomer

#: What tests of the broker take from bench/: it needs nothing but Python.
_HELPERS = {
    "bench.__main__", "bench.frames", "bench.isolation", "bench.lab.cgroups", "bench.lab.disks",
    "bench.peers.base", "bench.plots",
}  # fmt: skip


def imports_of(path: Path) -> set[str]:
    """Return the modules of bench/ that a file imports."""
    found, text = set(), path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)) if "from bench" in text else ():
        if isinstance(node, ast.ImportFrom) and node.module == "bench":
            found |= {f"bench.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bench."):
            found.add(node.module or "")
    return found


def test_benchmarks_are_tested_by_their_own_target_only() -> None:
    modules = [path for path in (CHECKOUT / "tests").rglob("*.py") if not path.is_relative_to(BENCH_TESTS)]
    assert set().union(*map(imports_of, modules)) == _HELPERS


@pytest.mark.parametrize(
    ("arguments", "left_out"),
    [
        (["tests"], True),
        ([], True),
        (["tests/unit"], True),
        (["tests/bench"], None),
        (["tests/bench/test_x.py::t"], None),
    ],
)
def test_tests_of_benchmarks_run_when_they_are_named(arguments: list[str], left_out: bool | None) -> None:
    config: Any = SimpleNamespace(args=arguments, invocation_params=SimpleNamespace(dir=CHECKOUT))
    assert pytest_ignore_collect(BENCH_TESTS, config) is left_out


def test_a_list_of_packages_is_read(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_text("# kinds: x\napt\tlibacl1:amd64\t2.3\nnpm -g\tnpm\t11\npip 3.11\tsix\t1\nmake\n\n")
    assert newcomer.packages_of(listed) == ["libacl1", "make"]


def test_skipped_tests_and_outcomes_are_read() -> None:
    said = [
        "SKIPPED [2] tests/unit/test_preload.py:25: there is no C compiler (cc, gcc or clang)\n",
        "SKIPPED [1] tests/unit/test_preload.py:49: there is no C compiler (cc, gcc or clang)\n",
        "===== 2 failed, 977 passed, 29 skipped, 2 warnings in 130.99s (0:02:10) =====\n",
        "make: *** [Makefile:87: test] Error 1\n",
    ]
    assert newcomer._skipped(said) == {"tests/unit/test_preload.py: there is no C compiler (cc, gcc or clang)": 3}
    assert newcomer._summary(said) == "2 failed, 977 passed, 29 skipped, 2 warnings in 130.99s (0:02:10)"
    assert newcomer._summary(["made\n", "\n"]) == "made"


def test_outcomes_are_kept_as_json() -> None:
    said = ["SKIPPED [2] tests/unit/test_preload.py:25: there is no C compiler (cc, gcc or clang)\n"]
    outcome = newcomer.Outcome("README", "make test", 1.5, "", False, newcomer._skipped(said))
    run = json.loads(json.dumps({"packages": ["make"], "circumstances": "now", "outcomes": [asdict(outcome)]}))
    assert newcomer.Outcome(**run["outcomes"][0]) == outcome
    assert "| README | `make test` | 2 |  |" in newcomer.page({"README": run})


def test_what_is_typed_is_what_the_readme_says() -> None:
    assert newcomer._blocks("Two commands") == ["make demo", "pip install . && pylogd broker --data ./data"]
