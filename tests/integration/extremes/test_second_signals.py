"""Two signals to stop that come at once: services stop cleanly, with their exit status, and log no error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pylogd.local.broker import STOP_SECONDS, pylogd_command
from tests.conftest import CHECKOUT, FROM_CHECKOUT
from tests.rawclient import wait_until

TWISTD = [str(Path(sys.executable).with_name("twistd")), "--nodaemon", "--pidfile=", "pylogd"]
BROKER = ["--data", "data", "--listen", "127.0.0.1:0"]
CLOSES = "Second signal to stop"

#: The name of a service -> its command, a text that it prints once it serves, its exit status, and what it logs.
SERVICES = {
    "broker": ([*pylogd_command(), "broker", *BROKER], "listens on", 0, CLOSES),
    "twistd": ([*TWISTD, *BROKER], "listens on", -signal.SIGTERM, CLOSES),
    "workers": ([*pylogd_command(), "broker", "--workers", "2", *BROKER], "2 workers", 0, CLOSES),
    "console": ([*pylogd_command(), "console", "--listen", "127.0.0.1:0"], "answers on", 0, "Already stopping"),
}


@pytest.mark.parametrize("name", SERVICES)
def test_two_signals_at_once_stop_a_service(name: str, tmp_path: Path) -> None:
    command, serves, status, logged = SERVICES[name]
    log = tmp_path / "log"
    process = start(command, tmp_path, log)
    try:
        wait_until(lambda: serves in log.read_text(), f"it serves: {log.read_text()}")
        # A paused process gets them together, before its reactor can act on the first.
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            process.send_signal(number)
        process.wait(STOP_SECONDS)
    finally:
        process.kill()
        process.wait()
    text = log.read_text()
    assert "Traceback" not in text, text
    assert "ReactorNotRunning" not in text, text
    if name == "workers":  # which may get the signals of their parent one by one, or as one
        assert text.count(logged) <= 2, text
    else:
        assert text.count(logged) == 1, text
    # twistd ends by the signal that it got; which of two handlers Python calls first is not defined.
    assert process.returncode in ({status, -signal.SIGINT} if status < 0 else {status})


def start(command: Sequence[str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)} if FROM_CHECKOUT else dict(os.environ)
    with log.open("wb") as output:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
