"""`pylogd cluster up`, and the commands for clusters on what it runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pylogd.local.broker import pylogd_command
from tests.clusters import PATIENCE_SECONDS

_WAIT = PATIENCE_SECONDS
#: Longer than by default: a broker that a busy machine keeps waiting must not be taken for dead, as others would lead
#: what it led.
_SESSION = "zookeeper.session.timeout.ms=15000"


class Up:
    """A `pylogd cluster up` of the test's own."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.errors = folder.with_suffix(".err")
        command = [*pylogd_command(), "cluster", "up", "-n", str(count), "--data", str(folder), "--port", "0"]
        command += ["--set", _SESSION]
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.pids: dict[int, int] = {}
        self.bootstrap = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.match(r"broker (\d+) at \S+, pid (\d+)", line):
                self.pids[int(found[1])] = int(found[2])
            elif found := re.match(r"bootstrap servers: (\S+)", line):
                self.bootstrap = found[1]
                break

    def run(self, *arguments: str, code: int = 0, bootstrap: str | None = None) -> str:
        """The output of a command that ends so."""
        done = subprocess.run(
            [*pylogd_command(), *arguments], capture_output=True, text=True, timeout=_WAIT, check=False,
            env={**os.environ, "PYLOGD_BOOTSTRAP_SERVER": bootstrap or self.bootstrap},
        )  # fmt: skip
        assert done.returncode == code, (arguments, done.stdout, done.stderr, self.errors.read_text())
        return done.stdout

    def until(self, condition: Callable[[dict[str, Any]], bool], bootstrap: str | None = None) -> dict[str, Any]:
        """What `cluster describe` says, once it is so: the broker that is asked hears of a change a little later. It is
        always the first one, as it is for all commands here that only ask.
        """
        deadline = time.monotonic() + _WAIT
        while True:
            found: dict[str, Any] = json.loads(self.run("cluster", "describe", "--json", bootstrap=bootstrap))
            if condition(found):
                return found
            assert time.monotonic() < deadline, found

    def stop(self) -> int:
        """Its exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_WAIT)
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path / "cluster", 3)
    try:
        assert made.bootstrap, made.errors.read_text()
        yield made
    finally:
        made.stop()


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_cluster_to_try_things_out_on(up: Up, tmp_path: Path) -> None:
    up.run("topics", "create", "t", "-p", "6", "-r", "2")
    described = up.until(
        lambda found: found["controller"] in (1, 2, 3) and [broker["leads"] for broker in found["brokers"]] == [2, 2, 2]
    )
    assert described["leaderless"] == 0

    # Away from broker 3, to be seen while it happens and afterwards, and back.
    plan = tmp_path / "plan.json"
    plan.write_text(up.run("reassign", "plan", "t", "--brokers", "1,2"))
    assert {tuple(sorted(one["replicas"])) for one in json.loads(plan.read_text())["partitions"]} == {(1, 2)}
    up.run("reassign", "execute", str(plan), "--throttle", "100000000")
    states = json.loads(up.run("reassign", "verify", str(plan), "--json"))
    assert {one["state"] for one in states} == {"done"}
    up.until(lambda found: [broker["replicas"] for broker in found["brokers"]] == [6, 6, 0])
    configs = up.run("topics", "describe", "t", "--json")
    assert "throttled" not in configs
    up.run("cluster", "elect")
    up.run("cluster", "elect", "t:0")  # nothing to do, which is well
    up.run("reassign", "cancel")
    (tmp_path / "none.json").write_text("{}")
    up.run("reassign", "verify", str(tmp_path / "none.json"), code=1)

    # One dies: that is said, and the others go on.
    os.kill(up.pids[3], signal.SIGKILL)
    left = up.bootstrap.rpartition(",")[0]
    # It may have been the controller: then there is none until its session has ended.
    up.until(lambda found: found["controller"] in (1, 2), bootstrap=left)
    up.run("topics", "create", "u", "-p", "1", "-r", "1", bootstrap=left)
    ended = f"broker 3 (pid {up.pids[3]}) has ended: killed by SIGKILL; 2 brokers continue"
    deadline = time.monotonic() + _WAIT
    while ended not in up.errors.read_text():
        assert time.monotonic() < deadline, up.errors.read_text()
        time.sleep(0.1)
    assert up.stop() == 0
    assert all(gone(pid) for pid in up.pids.values())


def test_a_cluster_goes_on_with_what_it_had(tmp_path: Path) -> None:
    for turn in range(2):
        up = Up(tmp_path / "cluster", 2)
        try:
            assert up.bootstrap, up.errors.read_text()
            assert up.run("topics", "list").split() == (["t"] if turn else [])
            if not turn:
                up.run("topics", "create", "t")
        finally:
            assert up.stop() == 0
