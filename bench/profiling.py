"""Profile one produce and one fetch request by function, before and after a change; writes bench/PROFILE.md.

The requests go through the whole broker except the network (tests/hotpath.py), under cProfile. Profiling slows calls
down, so that shares are meaningful and sums are not. The counts beside them are exact. The state before a change is in
bench/profile_before.json: write it with `--keep` before changing the hot path, or from a checkout of an earlier commit.

    python -m bench.profiling [--requests N] [--output FILE]
    python -m bench.profiling --keep
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.machine import machine
from tests.hotpath import HotPath, cases, cost
from tests.pages import write_page

HERE = Path(__file__).parent
CASES = (
    "produce, a batch of 1",
    "produce, 40 batches of 1 in one read",
    "produce, a batch of 50",
    "fetch, 64 KB",
    "fetch, 1 MB",
    "fetch that waits, and a produce that ends it",
    "fetch in a session that waits, and a produce that ends it",
)
BEFORE = HERE / "profile_before.json"
_ROWS = 16
_HARNESS = "hotpath.py"


def _where(function: tuple[str, int, str]) -> str:
    path, line, name = function
    if path == "~":
        return f"`{name.strip('<>')}`"
    parts = Path(path).parts
    start = next((at for at, part in enumerate(parts) if part in ("pylogd", "twisted", "construct", "tests")), -1)
    return f"`{'/'.join(parts[start:])}:{line} {name}`"


def _functions(work: Callable[[], Any], requests: int) -> list[str]:
    """Return the rows of a table: the functions that took longest, and the sum of all."""
    for _ in range(100):
        work()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(requests):
        work()
    profiler.disable()
    entries: dict[tuple[str, int, str], tuple[int, int, float, float, Any]]
    entries = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    rows = [
        (own, calls, function)
        for function, (_, calls, own, _, _) in entries.items()
        if not function[0].endswith(_HARNESS) and "recv_into" not in function[2]  # the client's side
    ]
    total = sum(own for own, _, _ in rows)
    rows.sort(reverse=True, key=lambda row: row[0])
    lines = []
    for own, calls, function in rows[:_ROWS]:
        cells = f"{own / total:.1%} | {own / requests * 1e6:.2f} | {calls / requests:.2g} | {_where(function)}"
        lines.append(f"| {cells} |")
    lines.append(f"| 100% | {total / requests * 1e6:.2f} | | all |")
    return lines


def _measure(requests: int) -> dict[str, Any]:
    """Return what `bench/profile_before.json` has: the machine, and for each case the counts and the table's rows."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="pylogd-profile-") as folder:
        path = HotPath(Path(folder))
        try:
            for name, work in cases(path).items():
                if name in CASES:
                    print(f"bench: {name}", file=sys.stderr, flush=True)
                    counted = cost(work)
                    found[name] = {
                        "instructions": counted.instructions,
                        "calls": counted.calls,
                        "c_calls": counted.c_calls,
                        "rows": _functions(work, requests),
                    }
        finally:
            path.close()
    return {"machine": machine("not used"), "cases": found}


def _report(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    lines = [
        "# One request by function",
        "",
        "Written by `python -m bench.profiling`: the broker except the network, one connection, one partition, "
        "real files, a warm page cache, requests as librdkafka 2.16 makes them. Times are within each function, in "
        "microseconds a request, by cProfile, which slows every call down: shares are meaningful, sums are not. "
        "`make bench-micro` has the times without it. Instructions are those of Python's bytecode.",
        "",
        "| request | instructions | before | Python calls | before | C calls | before |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for name, found in after["cases"].items():
        was = before["cases"].get(name, {})
        cells = [
            f"{found[what]:,} | {f'{was[what]:,}' if was else ''}" for what in ("instructions", "calls", "c_calls")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    head = ["", "| share | us | calls | function |", "| --: | --: | --: | --- |"]
    for name, found in after["cases"].items():
        lines += ["", f"## {name}", "", "Now:", *head, *found["rows"], ""]
        if name in before["cases"]:
            lines += [
                f"Before, at commit {before['machine']['commit']}, by the names of that time:",
                *head,
                *before["cases"][name]["rows"],
            ]
    return [*lines, "", "Measured on: " + ", ".join(f"{k} {v}" for k, v in after["machine"].items()) + "."]


def main(arguments: Sequence[str] | None = None) -> None:
    """Profile the requests and write the tables, or store the results for a later comparison."""
    parser = argparse.ArgumentParser(prog="python -m bench.profiling", description="requests by function")
    parser.add_argument("--requests", type=int, default=5000, help="number of requests of each kind (5000)")
    parser.add_argument("--output", type=Path, default=HERE / "PROFILE.md", help="file for the tables")
    parser.add_argument("--keep", action="store_true", help=f"write {BEFORE.name}, for comparison with later runs")
    said = parser.parse_args(arguments)
    found = _measure(said.requests)
    if said.keep:
        BEFORE.write_text(json.dumps(found, indent=1) + "\n")
    else:
        write_page(said.output, _report(json.loads(BEFORE.read_text()), found))


if __name__ == "__main__":
    main()
