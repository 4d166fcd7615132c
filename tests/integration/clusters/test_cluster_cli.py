"""`pylogd cluster up`, and the cluster commands against the brokers that it runs."""

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

from pylogd.base.ports import free_ports
from pylogd.local.broker import pylogd_command
from tests.clusters import PATIENCE_SECONDS
from tests.commands import run_command

_WAIT = PATIENCE_SECONDS
#: Longer than the default, so that no broker counts as dead, and loses its leaderships, on a busy machine.
_SESSION = "zookeeper.session.timeout.ms=15000"


class Up:
    """A running `pylogd cluster up`."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.errors = folder.with_suffix(".err")
        command = [*pylogd_command(), "cluster", "up", "-n", str(count), "--data", str(folder), "--port", "0"]
        [self.zookeeper_port] = free_ports(1)
        command += ["--set", _SESSION, "--zookeeper-port", str(self.zookeeper_port)]
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.pids: dict[int, int] = {}
        self.zookeeper = self.bootstrap = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.match(r"broker (\d+) at \S+, pid (\d+)", line):
                self.pids[int(found[1])] = int(found[2])
            elif found := re.match(r"zookeeper at (\S+),", line):
                self.zookeeper = found[1]
            elif found := re.match(r"bootstrap servers: (\S+)", line):
                self.bootstrap = found[1]
                break

    def run(self, *arguments: str, code: int = 0, bootstrap: str | None = None) -> str:
        """Run a command that has to exit with `code`. Return its output."""
        done = run_command(*arguments, PYLOGD_BOOTSTRAP_SERVER=bootstrap or self.bootstrap)
        assert done.returncode == code, (arguments, done.stdout, done.stderr, self.errors.read_text())
        return done.stdout

    def until(self, condition: Callable[[dict[str, Any]], bool], bootstrap: str | None = None) -> dict[str, Any]:
        """Run `cluster describe` until `condition` holds, since the broker that is asked (always the first) learns of
        changes a little later. Return the description.
        """
        deadline = time.monotonic() + _WAIT
        while True:
            found: dict[str, Any] = json.loads(self.run("cluster", "describe", "--json", bootstrap=bootstrap))
            if condition(found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.1)

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
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


def check_while_registered(up: Up) -> str:
    """Check what commands tell about broker 3, which was killed and is still registered. Return the others."""
    left = up.bootstrap.rpartition(",")[0]
    health = json.loads(up.run("cluster", "health", "--json", code=3, bootstrap=left))
    assert [one["text"] for one in health["reasons"] if one["code"] == "silent-brokers"] == [
        "brokers that are there and do not answer: 1 (broker 3)"
    ]
    shown = json.loads(up.run("cluster", "--json", bootstrap=left))["log_dirs"]
    assert {one["broker"]: one["state"] for one in shown} == {1: "online", 2: "online", 3: "silent"}
    up.run("cluster", bootstrap=left)
    known = json.loads(up.run("logdirs", "--by", "broker", "--json", code=1, bootstrap=left))
    assert [one["broker"] for one in known] == [1, 2]
    assert json.loads(up.run("groups", "list", "--json", code=1, bootstrap=left)) == []
    assert json.loads(up.run("groups", "list", "--lag", "--json", code=1, bootstrap=left)) == []
    return left


def gone(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_partitions_move_and_brokers_fail_in_a_local_cluster(up: Up, tmp_path: Path) -> None:
    assert up.zookeeper == f"127.0.0.1:{up.zookeeper_port}"
    up.run("topics", "create", "t", "-p", "6", "-r", "2")
    described = up.until(
        lambda found: found["controller"] in (1, 2, 3) and [broker["leads"] for broker in found["brokers"]] == [2, 2, 2]
    )
    assert described["leaderless"] == 0

    check_maintenance_and_decommission(up)

    # Spread the replicas again, then move all away from broker 3 by a plan.
    spread = tmp_path / "spread.json"
    spread.write_text(up.run("reassign", "plan", "t", "--brokers", "1,2,3"))
    up.run("reassign", "execute", str(spread))
    plan = tmp_path / "plan.json"
    plan.write_text(up.run("reassign", "plan", "t", "--brokers", "1,2"))
    check_impossible_plan(up, plan, tmp_path / "some.json")
    up.run("reassign", "execute", str(plan), "--throttle", "100000000")
    states = json.loads(up.run("reassign", "verify", str(plan), "--json"))
    assert {one["state"] for one in states} == {"done"}
    up.until(lambda found: [broker["replicas"] for broker in found["brokers"]] == [6, 6, 0])
    configs = up.run("topics", "describe", "t", "--json")
    assert "throttled" not in configs
    up.run("cluster", "elect")
    up.run("cluster", "elect", "t:0")  # nothing to do is a success
    up.run("reassign", "cancel")
    (tmp_path / "none.json").write_text("{}")
    up.run("reassign", "verify", str(tmp_path / "none.json"), code=1)

    # Kill a broker: its end is reported and the others continue. Its replicas are still known.
    up.run("topics", "create", "v", "-p", "1", "-r", "3")
    os.kill(up.pids[3], signal.SIGKILL)
    left = check_while_registered(up)
    found = up.until(lambda found: [one["state"] for one in found["brokers"]] == ["up", "up", "down"], bootstrap=left)
    assert (found["brokers"][2]["broker"], found["brokers"][2]["replicas"]) == (3, 1)
    # If it was the controller, there is no controller until its session has ended.
    up.until(lambda found: found["controller"] in (1, 2), bootstrap=left)
    up.run("topics", "create", "u", "-p", "1", "-r", "1", bootstrap=left)
    ended = f"broker 3 (pid {up.pids[3]}) has ended: killed by SIGKILL; 2 brokers continue"
    deadline = time.monotonic() + _WAIT
    while ended not in up.errors.read_text():
        assert time.monotonic() < deadline, up.errors.read_text()
        time.sleep(0.1)
    assert up.stop() == 0
    assert all(gone(pid) for pid in up.pids.values())


def check_impossible_plan(up: Up, plan: Path, other: Path) -> None:
    """Check that no move of a plan starts if it names a partition that there is not. other: where to write it."""
    moves = json.loads(plan.read_text())["partitions"]
    assert {tuple(sorted(one["replicas"])) for one in moves} == {(1, 2)}
    other.write_text(json.dumps({"version": 1, "partitions": [*moves, {**moves[0], "partition": 77}]}))
    up.run("reassign", "execute", str(other), "--throttle", "100000000", code=1)
    states = json.loads(up.run("reassign", "verify", str(plan), "--json", code=1))
    assert {one["state"] for one in states} == {"different"}
    assert "throttled" not in up.run("topics", "describe", "t", "--json")


def check_maintenance_and_decommission(up: Up) -> None:
    """Take broker 3 out of service, and back; then empty it, and use it again."""

    def brokers(name: str) -> list[int]:
        return [one[name] for one in json.loads(up.run("brokers", "list", "--json"))]

    up.run("topics", "create", "single", "-p", "3", "-r", "1")
    refused = json.loads(up.run("brokers", "maintenance", "enable", "3", "--json", code=1))
    assert [(one["topic"], one["reason"]) for one in refused] == [("single", "it has no other replica")]
    up.run("topics", "delete", "single")
    up.run("brokers", "maintenance", "enable", "3")
    up.until(lambda found: [one["leads"] for one in found["brokers"]][2] == 0)
    assert brokers("replicas") == [4, 4, 4] and brokers("should_lead") == [3, 3, 0]
    [directory] = [one for one in json.loads(up.run("logdirs", "--json")) if one["broker"] == 3]
    assert directory["state"] == "cordoned"
    up.run("brokers", "maintenance", "disable", "3")
    up.until(lambda found: found["brokers"][2]["leads"] == 2)

    up.run("topics", "create", "wide", "-p", "1", "-r", "3")
    up.run("brokers", "decommission", "3", code=1)  # the other two can't have three replicas
    up.run("topics", "delete", "wide")
    planned = json.loads(up.run("brokers", "decommission", "3", "--plan"))["partitions"]
    assert len(planned) == 4 and brokers("replicas") == [4, 4, 4], "nothing was moved"
    up.run("brokers", "decommission", "3", "--throttle", "100000000")
    assert brokers("replicas") == [6, 6, 0]
    up.run("brokers", "decommission", "3")  # there is nothing left to do
    up.run("brokers", "decommission", "9", code=1)
    up.run("brokers", "maintenance", "enable", "9", code=1)
    up.run("cluster", "uncordon", "3")


def test_a_restarted_cluster_has_its_data(tmp_path: Path) -> None:
    for turn in range(2):
        up = Up(tmp_path / "cluster", 2)
        try:
            assert up.bootstrap, up.errors.read_text()
            assert up.run("topics", "list", "--names").split() == (["t"] if turn else [])
            if not turn:
                up.run("topics", "create", "t")
        finally:
            assert up.stop() == 0
