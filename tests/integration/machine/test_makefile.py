"""`make` itself: rows of tables by WHAT and by their names, with what they need; and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
#: Without what `make test-long`, which may run this, tells the makes that it starts.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}


def make(*arguments: str) -> tuple[int, list[str], str]:
    """Return the exit status, the commands that `make` would run, and its errors."""
    present = ["-o", "install", "-o", ".venv/.bench"]  # taken as they are
    done = subprocess.run(
        ["make", "--dry-run", *present, *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False,
        env=_ENVIRONMENT,
    )  # fmt: skip
    return done.returncode, [line.rstrip() for line in done.stdout.splitlines()], done.stderr


def test_a_proof_is_run_by_what_and_by_its_name() -> None:
    code, by_name, _ = make("chain", "CHAIN_ARGS=--rounds 1")
    assert code == 0
    assert by_name == [
        "sh tools/find-java.sh", "sh tools/find-haproxy.sh",
        ".venv/bin/python -m tests.chain --results tests/chain/RESULTS.md --rounds 1",
    ]  # fmt: skip
    assert make("prove", "WHAT=chain", "CHAIN_ARGS=--rounds 1")[1] == [*by_name, ":"]


def test_a_benchmark_is_run_by_what_and_by_its_earlier_names() -> None:
    code, by_name, _ = make("freeze")
    assert code == 0
    assert by_name == ["sh tools/find-librdkafka.sh", ".venv/bin/python -m bench isolation --write"]
    assert make("bench-isolation")[1] == by_name
    assert make("bench", "WHAT=isolation")[1] == [*by_name, ":"]
    quick = make("bench", "BENCH_ARGS=--quick")[1]
    assert [".venv/bin/python", "-m", "bench", "peers", "--quick"] in [line.split() for line in quick]


@pytest.mark.parametrize("table", ["prove", "bench", "package"])
def test_an_unknown_name_is_refused_before_anything_is_run(table: str) -> None:
    code, commands, errors = make(table, "WHAT=nothing")
    assert (code, commands) == (2, [])
    assert f"nothing is nothing that `make {table}` runs. There is: " in errors


@pytest.mark.parametrize(("table", "row"), [("prove", "crash"), ("package", "debian"), ("bench", "smoke")])
def test_a_table_lists_its_rows(table: str, row: str) -> None:
    done = subprocess.run(["make", table], cwd=CHECKOUT, capture_output=True, text=True, check=True, env=_ENVIRONMENT)
    assert any(line.split()[:1] == [row] for line in done.stdout.splitlines())
