"""The `pylogd` command as a process, as a shell runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

COMMAND = [sys.executable, "-c", "from pylogd.cli.main import main; main()"]


class Outcome(NamedTuple):
    """The exit code and output of a command."""

    code: int
    out: bytes
    err: str


def pylogd_process(arguments: Sequence[str], stdin: bytes = b"") -> Outcome:
    """Run a command to its end."""
    done = subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, timeout=180, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr.decode())
