"""Let a Python worker of Spark end without a traceback when Spark no longer needs it.

Strategy: Spark closes the connections of workers that were idle for a minute, and all of them when its JVM ends.
PySpark takes the end of a connection for a task that failed, and sends an error. On a Unix socket, which nobody reads
any more, that fails as well (on TCP it is not noticed), and PySpark's daemon prints the traceback of each worker's
`BrokenPipeError`. A worker that waits for the first byte of its next task knows the difference: no byte, no task.

Rules: it changes processes that Spark's daemon has forked, and no others. It applies from the second task of a worker
on, since code of this package runs in the first one; a worker is not idle before.
Must not know: tasks.
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
    # As the daemon finds it: Spark's planner has workers with modules of their own.
    named = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1].startswith("pyspark") else _TASKS
    module = importlib.import_module(named)
    run = module.main

    @functools.wraps(run)
    def main(infile: BufferedReader, outfile: IO[bytes]) -> None:
        if not infile.peek(1):
            sys.exit(1)  # with 0 the daemon would ask for another task
        run(infile, outfile)

    vars(module)["main"] = main
