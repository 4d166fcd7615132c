"""The `pylogd` command as a process: what a shell sees of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

COMMAND = [sys.executable, "-c", "from pylogd.cli.main import main; main()"]


class Outcome(NamedTuple):
    """How it ended and what it said."""

    code: int
    out: bytes
    err: str


def pylogd_process(arguments: Sequence[str], stdin: bytes = b"") -> Outcome:
    """Run it to its end."""
    done = subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, timeout=180, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr.decode())
