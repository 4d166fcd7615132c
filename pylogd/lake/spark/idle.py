"""Let a Python worker of Spark end without a traceback when Spark no longer needs it.

Strategy: Spark closes the connections of workers that were idle for a minute, and all of them when its JVM ends.
PySpark takes the end of a connection for a task that failed, and sends an error. On a Unix socket, which nobody reads
any more, this fails too (on TCP the failure goes unnoticed), and PySpark's daemon prints the traceback of each worker's
`BrokenPipeError`. A worker that waits for the first byte of its next task can tell the two cases apart: without a byte
there is no task.

Rules: only processes that Spark's daemon has forked are changed. The change applies from the second task of a worker
on, since this package is loaded by the first task; a worker is not idle before it. Must not know: tasks.
"""

from __future__ import annotations

import functools
import importlib
import sys
from io import BufferedReader
from typing import IO, Final

_DAEMON: Final = "pyspark.daemon"
_TASKS: Final = "pyspark.worker"


def end_quietly() -> None:
    """In a worker of Spark: replace the function that runs a task by one that ends the process if there is no task."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name != _DAEMON:
        return
    # Find the module as the daemon does: workers of Spark's planner have other modules.
    named = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1].startswith("pyspark") else _TASKS
    module = importlib.import_module(named)
    run = module.main

    @functools.wraps(run)
    def main(infile: BufferedReader, outfile: IO[bytes]) -> None:
        if not infile.peek(1):
            sys.exit(1)  # with 0 the daemon would ask for another task
        run(infile, outfile)

    vars(module)["main"] = main
