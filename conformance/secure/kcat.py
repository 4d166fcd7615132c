"""kcat, with the distribution's librdkafka, which has GSSAPI: the tasks of `conformance.secure.tasks`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from conformance.secure.program import SECONDS, Unexpected, compare, run, value
from conformance.secure.tasks import FORBIDDEN, REFUSED, ROUND_TRIP


def kcat(task: Any, *options: str, stdin: bytes = b"", seconds: float = SECONDS) -> subprocess.CompletedProcess[bytes]:
    """Run kcat with the task's properties."""
    command = ["kcat", *(word for name, text in task.properties.items() for word in ("-X", f"{name}={text}"))]
    try:
        return subprocess.run([*command, *options], input=stdin, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, -1, late.stdout or b"", late.stderr or b"")


def round_trip(task: Any) -> None:
    """Produce, which creates the topic, and read in a group."""
    lines = b"".join(value(number) + b"\n" for number in range(task.records))
    done = kcat(task, "-P", "-t", task.topic, stdin=lines)
    if done.returncode:
        raise Unexpected(done.stderr.decode(errors="replace"))
    options = ["-X", "auto.offset.reset=earliest", "-c", str(task.records), "-q", "-G", task.group, task.topic]
    done = kcat(task, *options)
    if done.returncode:
        raise Unexpected(done.stderr.decode(errors="replace"))
    compare(done.stdout.splitlines(), task.records)


def _fails(what: str, words: tuple[str, ...], done: subprocess.CompletedProcess[bytes]) -> None:
    said = done.stderr.decode(errors="replace")
    if done.returncode == 0 or not any(word in said for word in words):
        raise Unexpected(f"{what}: exit code {done.returncode}: {said[-250:]}")


def refused(task: Any) -> None:
    """Expect the error of authentication."""
    done = kcat(task, "-L", "-m", "10")
    _fails("connecting", ("Authentication", "authentication"), done)


def forbidden(task: Any) -> None:
    """Expect errors of authorization."""
    done = kcat(task, "-P", "-t", task.topic, "-X", "message.timeout.ms=10000", stdin=b"x\n")
    _fails("producing", ("Topic authorization failed",), done)
    done = kcat(task, "-G", task.group, task.topic, "-c", "1", seconds=20)
    _fails("joining a group", ("FindCoordinator response error", "Group authorization failed"), done)


if __name__ == "__main__":
    sys.exit(run({ROUND_TRIP: round_trip, REFUSED: refused, FORBIDDEN: forbidden}))
