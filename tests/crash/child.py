"""Fork brokers for the crash harness: one process imports pylogd once and forks a broker for each line of input.

A line on standard input is JSON: `settings`, `log` (a file for the broker's standard error) and `point` (a `KillPoint`,
or null). The response is a line with the broker's process id. The broker then runs as with `pylogd broker`, and writes
its address to standard output. SIGCHLD is ignored, so that ended brokers leave no zombies.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import pylogd.broker.api
import pylogd.broker.net.server
import pylogd.store.sqlite
from pylogd.broker.process.broker import run_broker
from pylogd.config import Settings
from tests.crash.points import KillingFileSystem, KillPoint

LOADED = (pylogd.broker.api, pylogd.store.sqlite, pylogd.broker.net.server)


def say(line: object) -> None:
    """Write a line with a single call, so that a kill can't split it."""
    os.write(1, f"{line}\n".encode())


def serve(order: dict[str, Any]) -> int:
    """Run a broker in the forked process. Return its exit code if it is asked to stop."""
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
