"""Check and compare schemas in a process with limits: `python -m pylogd.services.registry.worker MEGABYTES SECONDS`.

Strategy: read tasks from standard input until it ends, and write the outcome of each to standard output. Tasks and
outcomes are JSON after their length as a big-endian uint32. A schema of a few kilobytes can take exponential time and
memory, so the kernel limits both: the process is killed when one task has used up its processor time, and an allocation
beyond the memory limit fails.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from pylogd.services.registry.errors import InvalidSchema
from pylogd.services.registry.formats import compare, format_of
from pylogd.services.registry.model import Comparison, Compatibility, Definition, Definitions

LENGTH: Final = struct.Struct(">I")
_MOST_REASONS: Final = 100


def read_task(kind: str, definitions: Definitions, *, normalize: bool = False) -> dict[str, Any]:
    """Return the task to check the last of these definitions, and to return it in the form that the registry keeps."""
    return {"read": kind, "definitions": definitions, "normalize": normalize}


def render_task(kind: str, definitions: Definitions, form: str) -> dict[str, Any]:
    """Return the task to write the last of these definitions in another form."""
    return {"render": kind, "definitions": definitions, "form": form}


def compare_task(comparison: Comparison) -> dict[str, Any]:
    """Return the task to compare schemas."""
    return {
        "compare": comparison.kind, "level": comparison.level.value, "new": comparison.new,
        "earlier": comparison.earlier,
    }  # fmt: skip


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Do a task. Return {"text": ...}, {"reasons": [...]} (empty if compatible), or {"invalid": why}."""
    try:
        if "read" in task:
            definitions = _definitions(task["definitions"])
            return {"text": format_of(task["read"]).canonical(definitions, normalize=task["normalize"])}
        if "render" in task:
            return {"text": format_of(task["render"]).rendered(_definitions(task["definitions"]), task["form"])}
        earlier = tuple((version, _definitions(pairs)) for version, pairs in task["earlier"])
        level = Compatibility(task["level"])
        reasons = compare(Comparison(task["compare"], level, _definitions(task["new"]), earlier))
        return {"reasons": reasons[:_MOST_REASONS]}
    except InvalidSchema as error:
        return {"invalid": error.message}
    except MemoryError:
        return {"invalid": "the schema takes too much memory to check: simplify it"}


def _definitions(pairs: Any) -> Definitions:
    return tuple(Definition(name, text) for name, text in pairs)


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
