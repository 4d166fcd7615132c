"""Plant small faults, one at a time, and run the tests of their package: `python -m tests.mutants --count 20`.

A fault is one of the usual mutations: of a comparison, a number, `and` or `or`, a condition, or an addition. A seed
chooses the places, so a run can be repeated. The sources are mutated in a copy of the tree. What survives is either no
fault (a mutant that does the same), or a gap in the tests; the table says which test was the first to fail. Before
tests are deleted, run it with them and without them (--without PATH) with the same seed: no fault may survive that did
not survive before.

Exit status 1 if a fault survived.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.pages import circumstances, write_page

ROOT = Path(__file__).resolve().parents[2]
_PROPERTY = "tests/property/test_"
#: The packages that are mutated, and the tests of each, the quickest first.
TESTS = {
    "pylogd/wire": [
        "tests/unit/wire", *(f"{_PROPERTY}{name}.py" for name in (
            "codecs", "records", "framing", "validation", "fast_produce_codec", "fast_fetch_codec", "request_batches",
        )),
    ],
    "pylogd/broker/log": [
        "tests/unit/broker/log", f"{_PROPERTY}log_append.py", f"{_PROPERTY}log_model.py",
        f"{_PROPERTY}compaction_model.py",
    ],
    "pylogd/broker/groups": [
        "tests/unit/broker/groups", "tests/unit/broker/api", f"{_PROPERTY}groups_model.py",
        f"{_PROPERTY}membership.py",
    ],
    "pylogd/client/core": ["tests/unit/client", f"{_PROPERTY}producer_model.py", f"{_PROPERTY}consumer_membership.py"],
}  # fmt: skip
_COPIED = ("pylogd", "protocol", "tests", "bench", "conformance", "twisted", "docs", "etc", "tools", "pyproject.toml")
_OTHER = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: (" is ", " is not "), ast.IsNot: (" is not ", " is "), ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"), ast.And: (" and ", " or "), ast.Or: (" or ", " and "),
}  # fmt: skip
_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault: a module, a place in it, and the text there before and after."""

    path: Path
    line: int
    column: int
    before: str
    after: str

    def source(self) -> str:
        """Return the module with the fault."""
        lines = self.path.read_text("utf-8").splitlines(keepends=True)
        line = lines[self.line - 1].encode()
        changed = line[: self.column] + line[self.column :].replace(self.before.encode(), self.after.encode(), 1)
        lines[self.line - 1] = changed.decode()
        return "".join(lines)

    def __str__(self) -> str:
        text = self.path.read_text("utf-8").splitlines()[self.line - 1].strip()
        return f"{self.path.relative_to(ROOT)}:{self.line}: `{text}`, `{self.before.strip()}` is `{self.after.strip()}`"


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield the faults that can be planted in a module: those of one line in the bodies of functions."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text("utf-8"))
    nodes = {node for outer in ast.walk(tree) if isinstance(outer, functions) for node in ast.walk(outer)}
    for node in nodes:
        match node:
            case ast.Compare(left=left, ops=[operator]) if type(operator) in _OTHER:
                end = left
            case ast.BinOp(left=left, op=operator) if type(operator) in _OTHER:
                end = left
            case ast.BoolOp(op=operator, values=[left, *_]):
                end = left
            case ast.If(test=test) if test.lineno == test.end_lineno and isinstance(test, ast.Name | ast.Call):
                yield Mutant(path, test.lineno, test.col_offset, "", "not ")
                continue
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                yield Mutant(path, node.lineno, node.col_offset, str(number), str(number + 1))
                continue
            case _:
                continue
        before, after = _OTHER[type(operator)]
        if end.end_lineno == node.end_lineno and end.end_lineno is not None and end.end_col_offset is not None:
            yield Mutant(path, end.end_lineno, end.end_col_offset, before, after)


def chosen(package: str, count: int, seed: int) -> list[Mutant]:
    """Return so many faults of a package, in different modules if there are enough."""
    rng = random.Random(f"{package} {seed}")
    modules = [path for path in sorted((ROOT / package).rglob("*.py")) if "messages" not in path.parts]
    rng.shuffle(modules)
    found: list[Mutant] = []
    for path in modules * count:
        if len(found) < count:
            possible = sorted(mutants(path), key=lambda one: (one.line, one.column, one.after))
            possible = [one for one in possible if one.source() != path.read_text("utf-8") and one not in found]
            found += rng.sample(possible, 1) if possible else []
    return found


def first_failure(mutant: Mutant, tests: Sequence[str], copy: Path) -> str:
    """Return the test that finds a fault, the empty string if none does."""
    target = copy / mutant.path.relative_to(ROOT)
    target.write_text(mutant.source(), "utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
            cwd=copy, env={**os.environ, "PYTHONPATH": str(copy), "CI": "1"}, capture_output=True, text=True,
            timeout=_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "the time limit"
    finally:
        shutil.copyfile(mutant.path, target)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else "" if done.returncode == 0 else f"exit status {done.returncode}"


def main() -> int:
    """Run as the command line says. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=20, help="how many faults of each package")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(TESTS), choices=list(TESTS), help="packages")
    parser.add_argument("--without", nargs="*", default=[], metavar="PATH", help="tests that are left out")
    parser.add_argument("--results", type=Path, help="the page to write")
    given = parser.parse_args()
    rows: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in _COPIED:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile)(ROOT / name, Path(folder) / name)
        for path in given.without:
            left_out = Path(folder) / path
            shutil.rmtree(left_out) if left_out.is_dir() else left_out.unlink()
        for package in given.only:
            tests = [path for path in TESTS[package] if (Path(folder) / path).exists()]
            for mutant in chosen(package, given.count, given.seed):
                rows.append((str(mutant), first_failure(mutant, tests, Path(folder))))
                print(f"{rows[-1][0]}: {rows[-1][1] or 'SURVIVES'}", flush=True)
                if given.results is not None:
                    _write(given.results, rows, given.seed)
    return 1 if any(not test for _, test in rows) else 0


def _write(path: Path, rows: Sequence[tuple[str, str]], seed: int) -> None:
    found = sum(bool(test) for _, test in rows)
    lines = [
        "# Planted faults", "", f"Written by `make mutants`, seed {seed}: of {len(rows)} faults the unit and property "
        f"tests of their package find {found}. {circumstances()}", "",
        "| fault | first test that fails |", "| --- | --- |",
        *(f"| {mutant.replace('|', chr(92) + '|')} | {f'`{test}`' if test else '**none**'} |" for mutant, test in rows),
    ]  # fmt: skip
    write_page(path, lines)


if __name__ == "__main__":
    sys.exit(main())
