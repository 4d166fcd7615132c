"""Run a benchmark by its name.

    python -m bench list                  # what there is, what each is for, and how long it takes
    python -m bench NAME [ARGUMENT ...]   # run one
    python -m bench NAME --help           # its options

`make bench WHAT=NAME` installs first what the benchmark needs. A name is that of a module of this package, with dashes.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark: how long it takes, the question that it answers, and where its results are (nowhere: printed)."""

    minutes: str
    question: str
    page: str = ""


#: By name, the quick ones that answer for a change first.
BENCHMARKS: Final = {
    "micro": Benchmark("seconds", "what codec, log, sender and whole requests cost, in instructions", "micro.json"),
    "smoke": Benchmark("3 minutes", "is pylogd as quick as the bare ceiling; do costs stay flat", "SMOKE.md"),
    "before-after": Benchmark("6 minutes", "did a change make a row of smoke slower than before", "BEFORE_AFTER.md"),
    "floor": Benchmark("8 minutes", "what a request costs beside a broker in C that looks at nothing", "FLOOR.md"),
    "peers": Benchmark("3 hours", "how pylogd compares with Kafka and other brokers, by turns", "RESULTS.md"),
    "clients": Benchmark("8 minutes", "how Python clients compare", "CLIENTS.md"),
    "cluster": Benchmark("15 minutes", "what three brokers, failovers and idle brokers cost", "CLUSTER.md"),
    "failover": Benchmark("1 minute", "how soon partitions lead again after a kill"),
    "failed-directory": Benchmark("1 minute", "how soon they do after a log directory failed (a row of cluster)"),
    "controller-change": Benchmark("2 minutes", "how long a change of the controller takes (a row of cluster)"),
    "partitions": Benchmark("15 minutes", "what 1,000 and 10,000 idle partitions cost", "PARTITIONS.md"),
    "transactions": Benchmark("38 minutes", "transactions beside Apache Kafka's", "TRANSACTIONS.md"),
    "isolation": Benchmark("16 minutes", "as root: is anything lost when a disk freezes or is slow", "ISOLATION.md"),
    "spark": Benchmark("12 minutes", "Spark's own source and sink, and pylogd's", "SPARK.md"),
    "end-to-end": Benchmark("25 minutes", "from a send to a row that a query sees", "END_TO_END.md"),
    "mirror": Benchmark("6 minutes", "one worker of the mirror beside MirrorMaker 2", "MIRROR.md"),
}


def listed() -> str:
    """Return what there is, a line each."""
    wide = max(map(len, BENCHMARKS))
    return "\n".join(
        f"  {name:{wide}}  {one.minutes:10}  {one.question}{f': {one.page}' if one.page else ''}"
        for name, one in BENCHMARKS.items()
    )


def main(arguments: Sequence[str]) -> None:
    """Run what the command line names. Exit status 2 if there is no such benchmark."""
    name, *rest = arguments or ["list"]
    if name in ("list", "-h", "--help"):
        print(f"{(__doc__ or '').strip()}\n\n{listed()}")
        return
    if name not in BENCHMARKS:
        print(f"python -m bench: there is no benchmark {name!r}; it has:\n{listed()}", file=sys.stderr)
        sys.exit(2)
    sys.argv[1:] = rest
    runpy.run_module(f"bench.{name.replace('-', '_')}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
