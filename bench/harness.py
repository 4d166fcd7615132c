"""What benchmarks share: progress, the interval of a ratio, files of results, how to run an earlier pylogd.

The brokers are in `peers/`, the clients in `loads/`, the facts about machine and commit in `machine.py`.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Sequence

_RESAMPLES = 4000


def say(text: str) -> None:
    """Print progress on standard error."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def interval(ratios: Sequence[float], digits: int = 2) -> str:
    """Return the median with its 95 % confidence interval (bootstrap), with so many digits behind the point.

    `pairs.interval` is that of order statistics, which needs six rounds or more, and assumes less.
    """
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES))
    low, high = medians[_RESAMPLES // 40], medians[-_RESAMPLES // 40]
    return f"{statistics.median(ratios):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def json_text(value: object, indent: str = "") -> str:
    """Return a value as JSON: lists and objects with others in them have a line for each, others one for the whole."""
    deeper = indent + " "
    match value:
        case dict() if any(isinstance(one, dict | list) and one for one in value.values()):
            lines = [f"{deeper}{json.dumps(key)}: {json_text(one, deeper)}" for key, one in value.items()]
            text = "{\n" + ",\n".join(lines) + f"\n{indent}}}"
        case list() if any(isinstance(one, dict | list) and one for one in value):
            text = "[\n" + ",\n".join(deeper + json_text(one, deeper) for one in value) + f"\n{indent}]"
        case _:
            text = json.dumps(value)
    return text if indent else text + "\n"


def earlier(command: str) -> list[str]:
    """Return a prefix of the present `pylogd broker ...` that runs the `pylogd` command of an earlier version instead.

    It runs with the same arguments, and not with the modules of this checkout, should PYTHONPATH name it.
    """
    return ["/bin/sh", "-c", 'unset PYTHONPATH; while [ "$1" != broker ]; do shift; done; exec "$0" "$@"', command]
