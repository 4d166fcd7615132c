"""Runs brokers for the crash harness: one process imports pylogd once and forks a broker for each line that it is told.

A line on standard input is JSON: `settings`, `log` (a file for the broker's standard error) and `point` (a `KillPoint`,
or null). The answer is the broker's process id in a line; the broker then runs as `pylogd broker` runs it, and writes
where it listens to standard output. SIGCHLD is ignored, so the dead leave nothing to be reaped.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import pylogd.api
import pylogd.metadata.sqlite
import pylogd.net.server
from pylogd.config import Settings
from pylogd.process.broker import run_broker
from tests.crash.points import KillingFileSystem, KillPoint

LOADED = (pylogd.api, pylogd.metadata.sqlite, pylogd.net.server)


def say(line: object) -> None:
    """A line in one piece, whatever kills us next."""
    os.write(1, f"{line}\n".encode())


def serve(order: dict[str, Any]) -> int:
    """The broker's process: it ends by a signal or, asked to stop, with its exit code."""
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    point = order["point"]
    fs: Any = None if point is None else KillingFileSystem(KillPoint(**point))
    return run_broker(Settings.load(None, order["settings"]), say, fs=fs)


def main() -> None:
    """Fork a broker for each line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    unbuffered: Any = sys.stdin.buffer
    while line := unbuffered.raw.readline():
        pid = os.fork()
        if not pid:
            os._exit(serve(json.loads(line)))
        say(pid)


if __name__ == "__main__":
    main()
