"""Check and compare schemas in a process with limits: `python -m pylogd.schemas.worker MEGABYTES SECONDS`.

Strategy: read a task from standard input, write its outcome to standard output, and so on until the input ends. Tasks
and outcomes are JSON after their length as a big-endian uint32. A schema of a few kilobytes can take exponential time
and memory, so the kernel bounds both: the process is killed when one task has used its seconds of processor time, and
an allocation beyond the memory fails.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from pylogd.schemas.errors import InvalidSchema
from pylogd.schemas.parsing import Comparison, Compatibility, check, compare

LENGTH: Final = struct.Struct(">I")


def check_task(definitions: tuple[str, ...]) -> dict[str, Any]:
    """Return the task to check the last of these definitions."""
    return {"check": definitions}


def compare_task(comparison: Comparison) -> dict[str, Any]:
    """Return the task to compare schemas."""
    return {"compare": {"level": comparison.level.value, "new": comparison.new, "earlier": comparison.earlier}}


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Do a task. Return {"reasons": [...]}, empty if all is well, or {"invalid": why}."""
    try:
        if "check" in task:
            check(task["check"])
            return {"reasons": []}
        wanted = task["compare"]
        earlier = tuple((version, tuple(texts)) for version, texts in wanted["earlier"])
        return {"reasons": compare(Comparison(Compatibility(wanted["level"]), tuple(wanted["new"]), earlier))}
    except InvalidSchema as error:
        return {"invalid": error.message}
    except MemoryError:
        return {"invalid": "the schema takes too much memory to check: simplify it"}


def serve(source: BinaryIO, target: BinaryIO, seconds: int) -> None:
    """Do the tasks from `source`, each within `seconds` of processor time."""
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        task = json.loads(source.read(LENGTH.unpack(head)[0]))
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + 1 + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        outcome = json.dumps(work(task)).encode()
        target.write(LENGTH.pack(len(outcome)) + outcome)
        target.flush()


def main(megabytes: str, seconds: str) -> None:
    """Set the limits and serve."""
    resource.setrlimit(resource.RLIMIT_AS, (int(megabytes) << 20, int(megabytes) << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(sys.stdin.buffer, sys.stdout.buffer, int(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
