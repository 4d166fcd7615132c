"""`make bench-micro`: codec, log, sender and whole requests alone, compared with the baseline in bench/micro.json.

Each case has counts (bytecode instructions and calls, which are the same on every machine with this Python and are
limited by tests/unit/test_hotpath.py) and processor time, which depends on the machine.

    python -m bench micro [--write]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.machine import machine
from bench.memory import warm_pages
from tests.hotpath import HotPath, cases, cost
from tests.pages import json_text

BASELINE = Path(__file__).with_name("micro.json")
_LOOPS, _REPEATS = 500, 9
_WRITTEN = 100 << 20  # bytes, about as many as the case that writes most


def microseconds(work: Callable[[], Any]) -> float:
    """Return the processor microseconds of one call: the median of several runs of many calls."""
    found = []
    for _ in range(_REPEATS):
        begun = time.thread_time()
        for _ in range(_LOOPS):
            work()
        found.append((time.thread_time() - begun) / _LOOPS * 1e6)
    return statistics.median(found)


def python() -> str:
    """Return the version of Python that counts belong to: they differ between minor versions."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def measure() -> dict[str, dict[str, float]]:
    """Return counts and times by case."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="pylogd-micro-") as folder:
        path = HotPath(Path(folder))
        try:
            for name, work in cases(path).items():
                counted = asdict(cost(work))
                warm_pages(Path(folder), _WRITTEN)
                found[name] = counted | {"microseconds": round(microseconds(work), 2)}
        finally:
            path.close()
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table. With --write, store it as the baseline of this Python."""
    parser = argparse.ArgumentParser(prog="python -m bench micro", description="the hot path in small pieces")
    parser.add_argument("--write", action="store_true", help="make this the baseline in bench/micro.json")
    said = parser.parse_args(arguments)
    baseline: dict[str, Any] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    before = baseline.get(python(), {}).get("cases", {})
    found = measure()
    heads = ("instructions", "calls", "c_calls", "microseconds")
    print(f"{'':40}" + "".join(f"{head:>22}" for head in heads))
    for name, costs in found.items():
        cells = (f"{costs[head]:,.6g}" + _change(costs[head], before.get(name, {}).get(head)) for head in heads)
        print(f"{name:40}" + "".join(f"{cell:>22}" for cell in cells))
    if said.write:
        baseline[python()] = {"machine": machine("not used"), "cases": found}
        BASELINE.write_text(json_text(baseline))


def _change(value: float, before: float | None) -> str:
    return f" ({value / before - 1:+.0%})" if before else ""


if __name__ == "__main__":
    main()
