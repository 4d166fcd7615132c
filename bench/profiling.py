"""Where the time of one produce and one fetch goes, by function; writes bench/PROFILE.md.

The requests go through the whole broker but for the network (tests/hotpath.py), under cProfile: its own cost falls on
calls, so that the shares are what counts, not the sums. The counts beside them are exact.

    python -m bench.profiling [--requests N] [--output FILE]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.report import machine
from tests.hotpath import HotPath, cases, cost

HERE = Path(__file__).parent
CASES = ("produce, a batch of 1", "produce, a batch of 50", "fetch, 64 KB", "fetch, 1 MB")
_ROWS = 22
_HARNESS = "hotpath.py"


def _where(function: tuple[str, int, str]) -> str:
    path, line, name = function
    if path == "~":
        return f"`{name.strip('<>')}`"
    parts = Path(path).parts
    start = next((at for at, part in enumerate(parts) if part in ("pylogd", "twisted", "construct", "tests")), -1)
    return f"`{'/'.join(parts[start:])}:{line} {name}`"


def _functions(work: Callable[[], Any], requests: int) -> list[str]:
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
    lines = ["| share | us | calls | function |", "| --: | --: | --: | --- |"]
    for own, calls, function in rows[:_ROWS]:
        cells = f"{own / total:.1%} | {own / requests * 1e6:.2f} | {calls / requests:.2g} | {_where(function)}"
        lines.append(f"| {cells} |")
    lines.append(f"| 100% | {total / requests * 1e6:.2f} | | all |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Profile the requests and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.profiling", description="requests by function")
    parser.add_argument("--requests", type=int, default=5000, help="of each kind (5000)")
    parser.add_argument("--output", type=Path, default=HERE / "PROFILE.md", help="where the tables go")
    said = parser.parse_args(arguments)
    lines = [
        "# One request by function",
        "",
        "Written by `python -m bench.profiling`. The whole broker but for the network, one connection, one partition, "
        "real files, page cache warm; the time within each function itself, in microseconds for one request, as "
        "cProfile has it: it slows every call down, so that the shares count and not the "
        "sums. `make bench-micro` has the times without it.",
        "",
    ]
    with tempfile.TemporaryDirectory(prefix="pylogd-profile-") as folder:
        path = HotPath(Path(folder))
        try:
            for name, work in cases(path).items():
                if name in CASES:
                    print(f"bench: {name}", file=sys.stderr, flush=True)
                    counted = cost(work)
                    count = f"{counted.instructions:,} bytecode instructions, {counted.calls} calls of Python functions"
                    lines += [f"## {name}", "", f"{count}, {counted.c_calls} of C functions.", ""]
                    lines += [*_functions(work, said.requests), ""]
        finally:
            path.close()
    lines.append("Measured on: " + ", ".join(f"{k} {v}" for k, v in machine("not used").items()) + ".")
    said.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
