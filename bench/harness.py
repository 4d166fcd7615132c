"""What benchmarks share: progress, the interval of a ratio, how to run an earlier pylogd.

The brokers are in `peers/`, the clients in `loads/`, the facts about machine and commit in `machine.py`.
"""

from __future__ import annotations

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


def earlier(command: str) -> list[str]:
    """Return a prefix of the present `pylogd broker ...` that runs the `pylogd` command of an earlier version instead.

    It runs with the same arguments, and not with the modules of this checkout, should PYTHONPATH name it.
    """
    return ["/bin/sh", "-c", 'unset PYTHONPATH; while [ "$1" != broker ]; do shift; done; exec "$0" "$@"', command]
